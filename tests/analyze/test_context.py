"""Whether the context is used: what stands in its place, losses and translations by hand, what
is read against what is recorded, examples, errors.
"""

import dataclasses
import html.parser
import json

import numpy as np
import pytest
import torch

from nmtkit.analyze import ANALYSES, context, stage
from nmtkit.analyze.context import Replaced, conditions
from nmtkit.analyze.shared import context_reading, recording
from nmtkit.analyze.shared.context_reading import Example, Reading
from nmtkit.analyze.shared.words import read_words
from nmtkit.analyze.study import Study
from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.store import Store
from nmtkit.demo import generate
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.nn.capture import capture
from nmtkit.prep.stage import prep
from nmtkit.run import Run, write_toml
from nmtkit.score.metrics import Scorer
from nmtkit.score.resampling import Draws
from nmtkit.tables.table import Estimate
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.translate.forced import GivenPairs, forced_scores, pair_batch
from nmtkit.translate.stage import translate

from .conftest import SMALL, finding

CPU = torch.device("cpu")
DOCUMENTS = {
    "amn": {},
    "amn parallel": {"context_join": "parallel", "context_size": 2},
    "context-aware": {},
    "han": {},
    "concat": {"context_size": 2},
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A demo corpus of a few documents, with few merges, so that words fall into subwords; no
    system yet.
    """
    folder = tmp_path_factory.mktemp("demo")
    generate(folder, size=60, dev=24, test=4)
    files = {name: (folder / f"{name}.en", folder / f"{name}.de") for name in ("train", "dev")}
    test, docs = (
        f"{folder / 'test.en'},{folder / 'test.de'}",
        [f"{name}={folder / name}.docs" for name in ("train", "dev")],
    )
    return prep(
        "own",
        **files,
        test=[test],
        docs=docs,
        jobs=1,
        assignments=["prep.merges=100"],
        run_dir=folder / "run",
    ).path


@pytest.fixture
def run(demo, tmp_path):
    """The prepared demo under a run of its own."""
    made = Run(tmp_path / "documents")
    made.path.mkdir()
    made.prep.symlink_to(demo / "prep")
    return made


def system(run, name, variant, **model):
    """A system of random weights that translates in a few steps."""
    folder = run.path / "systems" / name
    values = {**SMALL, **model}
    search = {"beam": 1, "max_length_a": 0.0, "max_length_b": 3}
    write_toml(
        folder / "config.toml",
        {"variant": variant, "model": values, "train": {"batch_size": 60}, "search": search},
    )
    torch.manual_seed(1)
    sizes = run.manifest().model_dump()["vocabulary"]
    built = build_model(
        variant, values, Vocabularies(sizes["src"], sizes["tgt"], sizes["shared"])
    ).eval()
    with torch.no_grad():
        for weights in built.parameters():
            weights.mul_(1.5)  # so that what is read makes a difference in so small a model
    checkpoints.save(
        folder / "checkpoints",
        1,
        loading.weights_of(built),
        {},
        {},
        {"vocabulary": loading.vocabulary_hashes(run)},
    )
    return built


def test_what_takes_the_place_of_a_context():
    documents, rule = Documents([0, 4, 5], 8), ContextRule("previous", 2)
    rules = conditions(rule)
    assert list(rules) == ["own", "none", "same document", "other documents"]
    read = {
        name: [Replaced(documents, other).context(i, rule) for i in range(8)]
        for name, other in rules.items()
    }
    assert (
        read["own"]
        == [documents.context(i, rule) for i in range(8)]
        == [[], [0], [0, 1], [1, 2], [], [], [5], [5, 6]]
    )
    assert read["none"] == [[]] * 8
    for i, own in enumerate(read["own"]):
        assert (
            bool(read["same document"][i]) == bool(read["other documents"][i]) == bool(own)
        )  # a sentence that has none still has none
        start, end = documents.around(i)
        assert all(start <= other < end and other != i for other in read["same document"][i])
        assert all(not start <= other < end for other in read["other documents"][i])
    assert conditions(ContextRule("random", seed=3))["same document"] == ContextRule(
        "random", seed=4
    )


def test_what_takes_the_place_of_the_memory_of_a_whole_document():
    """Each sentence of the document that has a context gets one of that kind, and all of these
    are read.
    """
    documents, rule = Documents([0, 4, 5], 8), ContextRule("previous", 1, "parallel", whole=True)
    for name, other in conditions(rule).items():
        replaced, one = Replaced(documents, other), dataclasses.replace(other, whole=False)
        for i in range(8):
            start, end = documents.around(i)
            expected = (
                sorted({read for own in range(start, end) for read in documents.context(own, one)})
                if i > start
                else []
            )
            assert replaced.context(i, rule) == expected, name


def test_the_table_by_hand(run, capsys):
    model = system(run, "doc", "amn")
    system(run, "plain", "transformer")
    stage.analyze(run, "context")
    out, err = capsys.readouterr()
    assert "left out: plain: it reads no context" in err
    assert (run.path / "analyze/context/figure.svg").is_file()
    assert (
        "doc, line " in out
        and "nats from its context" in out
        and "memory.gate, the most frequent source words" in out
    )
    found, store = finding(run, "context"), Store(run.prep / "dev")
    rows = {row["context"]: row for row in found["table"]["rows"]}
    assert list(rows) == ["own", "none", "same document", "other documents"] and {
        row["system"] for row in rows.values()
    } == {"doc"}
    rule = ContextRule()
    for name, other in conditions(rule).items():
        replaced = Replaced(store.documents, other)
        nats = 0.0
        for i in range(len(store)):  # one by one, the context's ids put in by hand
            ids = [store.src(j).tolist() for j in replaced.context(i, rule)]
            batch = pair_batch([store.src(i).tolist()], [store.tgt(i).tolist()])
            if ids:
                rows_of = torch.tensor([[0]])
                context = collate(store, np.array([0]), "cpu", ContextRule("foreign")).context
                context = dataclasses.replace(
                    context,
                    ids=torch.tensor(ids),
                    lengths=torch.tensor([len(ids[0])]),
                    rows=rows_of,
                    padded=False,
                )
                batch = dataclasses.replace(batch, context=context)
            nats -= sum(forced_scores([model], batch)[0])
        assert rows[name]["loss"]["value"] == pytest.approx(
            nats / store.tgt_lengths.sum(), abs=1e-5
        )
        changed = sum(
            replaced.context(i, rule) != store.documents.context(i, rule) for i in range(len(store))
        )
        assert rows[name]["changed"] == changed
        assert (changed > 0) == (name != "own") == (rows[name]["loss_paired_bootstrap"] is not None)
    values = [row["loss"]["value"] for row in rows.values()]
    assert len(set(values)) == 4
    assert rows["none"]["loss_difference"]["value"] == pytest.approx(values[1] - values[0])
    assert rows["none"]["kept"]["value"] is None and 0 < rows["own"]["kept"]["value"] < 1
    folder = run.path / "analyze" / "context"
    assert "memory.gate" in (folder / "gates.md").read_text("utf-8")
    stage.analyze(run, "context")
    assert "up to date" in capsys.readouterr().err


def test_the_own_context_is_that_of_translate_and_other_ones_change_translations(
    run, capsys, monkeypatch
):
    system(run, "doc", "concat")
    translate(
        run, systems=["doc"], set_names=["dev"], jobs=1, assignments=["search.precision=float32"]
    )
    outputs = []
    original = Scorer.score
    monkeypatch.setattr(
        Scorer, "score", lambda self, key, hyps: outputs.append(hyps) or original(self, key, hyps)
    )
    stage.analyze(run, "context", set_names=["dev"])
    assert (
        outputs[0]
        == (run.system("doc").translation("dev") / "hyp.txt").read_text("utf-8").split("\n")[:-1]
    )
    assert outputs[0] != outputs[1] != outputs[3]


def test_a_system_that_reads_its_own_translations_has_no_bleu_with_what_it_has_not_translated(run):
    system(run, "doc", "han", side="joint")
    system(run, "blind", "han", side="decoder")
    stage.analyze(run, "context", set_names=["dev"])
    rows = {
        (row["system"], row["context"]): row for row in finding(run, "context")["table"]["rows"]
    }
    for name in ("doc", "blind"):
        assert [
            rows[name, condition]["bleu"] is not None for condition in conditions(ContextRule())
        ] == [True, True, False, False]
        assert (
            len({rows[name, condition]["loss"]["value"] for condition in conditions(ContextRule())})
            == 4
        )
    assert rows["doc", "own"]["kept"]["value"] and not (rows["blind", "own"]["kept"] or {}).get(
        "value"
    )
    gates_of = (run.path / "analyze" / "context" / "gates.csv").read_text("utf-8")
    assert "decoder_context.gate,target" in gates_of and "encoder_context.gate,source" in gates_of


def probe_store(sizes):
    """Documents of a few short sentences in memory."""

    class Given:
        spans = None
        documents = Documents([sum(sizes[:i]) for i in range(len(sizes))], sum(sizes))
        src_lengths = np.array([3 + i % 4 for i in range(sum(sizes))])

        def src(self, i):
            return np.array([*range(5, 6 + i % 4), 20 + i, EOS])

        tgt = src

    return Given()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_read_is_what_attention_and_gate_say(name):
    torch.manual_seed(2)
    model = (
        build_model(name.split()[0], {**SMALL, **DOCUMENTS[name]}, Vocabularies(60, 60, True))
        .double()
        .eval()
    )
    sites, store = context_reading.sites_of(model, CPU), probe_store([1, 4, 2])
    batch = collate(store, np.arange(7), "cpu", model.context_rule)
    found = context_reading.readings(model, batch, sites)
    assert [one is None for one in found] == [
        not store.documents.context(i, model.context_rule) for i in range(7)
    ]
    for i, one in enumerate(found):
        if one is None:
            continue
        alone = context_reading.readings(
            model, collate(store, np.array([i]), "cpu", model.context_rule), sites
        )[0]
        assert (
            alone.symbols == one.symbols
            and np.allclose(alone.weights, one.weights, atol=1e-9)
            and np.allclose(alone.share, one.share, atol=1e-9)
        )
        others = [store.src(j).tolist() for j in store.documents.context(i, model.context_rule)]
        assert [s for s in one.symbols if s not in (BOS, EOS)] == [
            s for ids in others for s in ids if s != EOS
        ]
        assert one.weights.shape == (len(store.src(i)) - 1, len(one.symbols))
        total = one.weights.sum(1)
        assert (
            (np.allclose(total, 1) and one.kept is not None)
            if name != "concat"
            else (((total > 0) & (total < 1)).all() and one.kept is None)
        )
        assert np.allclose(
            one.on_words,
            [
                sum(w for w, s in zip(row, one.symbols, strict=True) if s not in (BOS, EOS))
                for row in one.weights
            ],
        )


@pytest.mark.parametrize("name", ["amn", "context-aware", "han"])
def test_contexts_of_different_lengths_are_read_in_parts_and_looked_at_all_the_same(name):
    model = build_model(name, SMALL, Vocabularies(60, 60, True)).double().eval()
    lengths = [200, 3, 4, 200, 2, 5, 6, 3]
    ids = [np.array([*[5 + i] * length, EOS]) for i, length in enumerate(lengths)]
    pairs = GivenPairs(ids, [np.array([7, EOS])] * 8)
    pairs.documents = Documents([0], 8)
    batch = collate(pairs, np.arange(8), "cpu", model.context_rule)
    assert len(batch.context.parts) > 1
    sites = context_reading.sites_of(model, CPU)
    for i, one in enumerate(context_reading.readings(model, batch, sites)[1:], 1):
        alone = context_reading.readings(
            model, collate(pairs, np.array([i]), "cpu", model.context_rule), sites
        )[0]
        assert one.symbols == alone.symbols
        assert np.allclose(one.weights, alone.weights, atol=1e-9) and np.allclose(
            one.kept, alone.kept, atol=1e-9
        )


def test_what_amn_and_concat_read_by_hand():
    """Sentence 3 of a document, its contexts in parallel, against the recorded weights of that
    sentence alone; concat by positions.
    """
    store = probe_store([4])
    model = (
        build_model(
            "amn",
            {**SMALL, "context_join": "parallel", "context_size": 2},
            Vocabularies(60, 60, True),
        )
        .double()
        .eval()
    )
    batch = collate(store, np.array([3]), "cpu", model.context_rule)
    with torch.inference_mode(), capture() as seen:
        model.encode(batch)
    (one,) = context_reading.readings(model, batch, context_reading.sites_of(model, CPU))
    (attention,), (weighed,), (gate,) = (
        seen["memory.inter"],
        seen["memory.inter_sentences"],
        seen["memory.gate"],
    )
    first, second = (len(store.src(i)) for i in (1, 2))
    by_hand = [
        [
            *(weighed[0, 0] * attention[0, :, s, :first].mean(0)),
            *(weighed[0, 1] * attention[1, :, s, :second].mean(0)),
        ]
        for s in range(5)
    ]
    assert np.allclose(one.weights, np.array(by_hand, dtype=float), atol=1e-12)
    assert np.allclose(one.kept, gate[0, :5].tolist())

    model = build_model("concat", SMALL, Vocabularies(60, 60, True)).double().eval()
    batch = collate(store, np.array([2, 3]), "cpu", model.context_rule)
    with torch.inference_mode(), capture() as seen:
        model.encode(batch)
    found = context_reading.readings(model, batch, context_reading.sites_of(model, CPU))
    before = len(store.src(2))
    assert np.allclose(
        found[1].weights,
        seen["encoder.0.attention"][0][1, :, before : before + 5, :before].mean(0).numpy(),
    )


def test_the_same_text_is_shown_once_and_only_what_gains(run):
    model, store = system(run, "doc", "amn"), Store(run.prep / "dev")
    with_context = [i for i in range(len(store)) if store.documents.context(i, model.context_rule)]
    reader = context.Reader(Study(run, "context", ["doc"], ["dev"]), "doc")
    gains = np.zeros(len(store))
    gains[with_context[:3]] = [1.0, 3.0, -2.0]
    titles = [one.title for one in reader.examples(gains)]
    assert titles == [
        f"doc, line {with_context[1] + 1}: +3.00 nats from its context",
        f"doc, line {with_context[0] + 1}: +1.00 nats from its context",
    ]
    twice = with_context[1]
    reader.store.src, original = (
        lambda i: original(twice if i in with_context[:2] else i),
        reader.store.src,
    )
    before = {i: store.documents.context(i, ContextRule()) for i in range(len(store))} | {
        with_context[0]: [twice - 1]
    }
    reader.store.documents.context = lambda i, rule: before[i]
    assert [one.title for one in reader.examples(gains)] == titles[:1]


def test_words_of_an_example_are_sums_and_means_of_their_subwords():
    vocabulary = dict(enumerate(["<pad>", "<s>", "</s>", "<unk>", "a@@", "b", "c"]))
    weights = np.array([[0.1, 0.2, 0.1, 0.5, 0.1], [0.0, 0.0, 0.0, 1.0, 0.0]])
    one = Reading(weights, np.array([0.5, 0.75]), [4, 5, BOS, 6, EOS])
    made = context_reading.example("x", one, [4, 5], "r", vocabulary)
    assert [word for word, _ in made.context] == ["ab", "####", "c", "</s>"]
    assert [w for _, w in made.context] == pytest.approx(
        [0.15 / 0.75, 0.05 / 0.75, 0.5 / 0.75, 0.05 / 0.75]
    )
    assert made.source == [("ab", pytest.approx(0.375))]
    assert "*c*(0.67)" in context_reading.as_text(
        [made]
    ) and "*####*" not in context_reading.as_text([made])


class Text(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.said = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.said += data


def test_html_is_escaped_and_stands_alone():
    evil = '<script src="x">&amp;'
    page = context_reading.as_html(
        evil, evil, [Example(evil, [(evil, 0.2), ("b", 0.8)], [(evil, 0.1)], evil)]
    )
    parsed = Text()
    parsed.feed(page)
    assert (
        parsed.said.count(evil) == 7
        and "script" not in parsed.tags
        and "http" not in page
        and "link" not in parsed.tags
    )
    assert "rgba(255, 140, 0, 0.250)" in page and "rgba(255, 140, 0, 1.000)" in page


def test_without_readers_or_documents_it_is_said(run, analysed):
    system(run, "plain", "transformer")
    with pytest.raises(DataError, match="plain: it reads no context") as error:
        stage.analyze(run, "context")
    assert (
        error.value.hint == "variants that read one: amn, context-aware, han, concat"
        and "context" in ANALYSES
    )
    analysed.system("doc", "amn", SMALL)
    with pytest.raises(DataError, match="the set 'test' has no documents") as error:
        stage.analyze(analysed.run, "context")
    assert "--docs test=FILE" in error.value.hint
    with pytest.raises(ConfigError, match="reads one set, not test, other"):
        stage.analyze(analysed.run, "context", set_names=["test", "other"])


def test_gates_show_what_is_kept_by_word(run, capsys):
    model = system(run, "doc", "amn")
    stage.analyze(run, "gates", set_names=["dev"])
    assert "the other way round" in capsys.readouterr().out
    store = Store(run.prep / "dev")
    words = read_words(run, store, "src")
    values = []
    for i in range(len(store)):
        batch = collate(store, np.array([i]), "cpu", model.context_rule)
        kept = recording.look(model, batch)["encoder"].get("memory.gate")
        if kept is not None:
            values += [
                np.mean([kept[0, k] for k, owner in enumerate(words.owners[i]) if owner == n])
                for n in range(len(words.lines[i]))
            ]
    row = json.loads((run.path / "analyze" / "gates" / "finding.json").read_text("utf-8"))["table"][
        "rows"
    ][0]
    assert (
        row["gate"] == "memory.gate"
        and row["side"] == "source"
        and row["doc"]["value"] == pytest.approx(np.mean(values), abs=1e-5)
    )


def test_two_scores_of_zero_have_no_p():
    """Though their outputs differ: approximate randomization would give them a small one."""
    scorer = Scorer([["a b c d e", "f g h i j"]], "en", False)
    own, other = (scorer.score("bleu", lines) for lines in (["x y", "z"], ["u", "v w"]))
    assert own.value == other.value == 0
    measured = [
        context.Condition(
            bleu, scorer.score("chrf", ["a b", text]), 1, Estimate(None), Estimate(None)
        )
        for bleu, text in ((own, "f"), (other, "g h"))
    ]
    row = context._rows(
        "doc",
        dict(zip((context.OWN, context.NONE), measured, strict=True)),
        Draws(2, resamples=20, trials=20),
    )[1]
    tests = len(context.P_VALUES)
    of_loss, of_bleu = row[5 : 5 + tests], row[7 + tests : 7 + 2 * tests]
    assert None not in of_loss and set(of_bleu) == {None}
