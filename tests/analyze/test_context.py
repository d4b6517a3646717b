"""Whether the context is used: what stands in its place, losses and translations by hand, what
is read against what is recorded, examples, errors.
"""

import dataclasses
import html
from functools import partial

import numpy as np
import pytest
import torch

from nmtkit.analyze import context, context_conditions, context_reading
from nmtkit.analyze.context_conditions import Replaced, conditions
from nmtkit.analyze.context_reading import Example, Reading
from nmtkit.analyze.study import Study
from nmtkit.data.batches import collate, short_rows
from nmtkit.data.context import Context
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.pairs import GivenPairs
from nmtkit.data.store import Store
from nmtkit.demo import generate
from nmtkit.errors import DataError
from nmtkit.measures import recording
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.nn.capture import capture
from nmtkit.prep.stage import prep
from nmtkit.run import Run
from nmtkit.score.metrics import Scorer
from nmtkit.score.resampling import Draws
from nmtkit.tables.table import Estimate
from nmtkit.text.bpe import Bpe
from nmtkit.text.sentencepiece import SentencePiece, learn_sentencepiece
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.translate.forced import forced_scores, pair_batch
from nmtkit.translate.stage import translate

from .conftest import SMALL, Findings, save_system

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
    return prep(
        "own",
        **files,
        test=[f"{folder / 'test.en'},{folder / 'test.de'}"],
        docs=[f"{name}={folder / name}.docs" for name in files],
        jobs=1,
        assignments=["prep.merges=100"],
        run_dir=folder / "run",
    ).path


@pytest.fixture
def findings(demo, tmp_path):
    """The prepared demo under a run of its own."""
    run = Run(tmp_path / "documents")
    run.path.mkdir()
    run.prep.symlink_to(demo / "prep")
    return Findings(run)


@pytest.fixture
def run(findings):
    return findings.run


def system(run, name, variant, **model):
    """A system of random weights that translates in a few steps."""
    search = {"beam": 1, "max_length_a": 0.0, "max_length_b": 3}
    # Larger weights, so that what is read makes a difference in so small a model.
    return save_system(run, name, variant, {**SMALL, **model}, 1.5, **search)


def small(variant, **model):
    """A model of random weights in double precision, with a vocabulary of 60."""
    torch.manual_seed(2)
    return build_model(variant, SMALL | model, Vocabularies(60, 60, True)).double().eval()


def readings(model, pairs, *rows):
    """What sources of some pairs read."""
    batch = collate(pairs, np.array(rows), "cpu", model.context_rule)
    return context_reading.readings(model, batch, context_reading.sites_of(model))


def recorded(model, pairs, *rows):
    """What the encoder records of some pairs."""
    with torch.inference_mode(), capture() as seen:
        model.encode(collate(pairs, np.array(rows), "cpu", model.context_rule))
    return seen


def test_what_takes_the_place_of_a_context():
    documents, rule = Documents([0, 4, 5], 8), ContextRule("previous", 2)
    rules = conditions(rule)
    assert list(rules) == ["own", "none", "same document", "other documents"]
    read = {
        name: [Replaced(documents, other).context(i, rule) for i in range(8)]
        for name, other in rules.items()
    }
    assert read["own"] == [[], [0], [0, 1], [1, 2], [], [], [5], [5, 6]]
    assert read["none"] == [[]] * 8
    for i, own in enumerate(read["own"]):
        same, others = read["same document"][i], read["other documents"][i]
        assert len(same) == len(others) == len(own)  # a sentence that has none still has none
        start, end = documents.bounds(i)
        assert all(start <= other < end and other != i for other in same)
        assert all(not start <= other < end for other in others)
    drawn = conditions(ContextRule("random", seed=3))["same document"]
    assert drawn == ContextRule("random", seed=4)


def test_what_takes_the_place_of_the_memory_of_a_whole_document():
    """Each sentence of the document that has a context gets one of that kind, and all of these
    are read.
    """
    documents, rule = Documents([0, 4, 5], 8), ContextRule("previous", 1, "parallel", whole=True)
    for name, other in conditions(rule).items():
        replaced, one = Replaced(documents, other), dataclasses.replace(other, whole=False)
        for i in range(8):
            start, end = documents.bounds(i)
            whole = {read for own in range(start, end) for read in documents.context(own, one)}
            assert replaced.context(i, rule) == (sorted(whole) if i > start else []), name


def test_the_table_by_hand(findings, run, capsys):
    model = system(run, "doc", "amn")
    system(run, "plain", "transformer")
    rows = {row["context"]: row for row in findings.rows("context")}
    store, rule = Store(run.prep / "dev"), ContextRule()
    out, err = capsys.readouterr()
    assert "left out: plain: it reads no context" in err
    assert findings.text("context")
    assert "doc, line " in out and "nats from its context" in out
    assert list(rows) == ["own", "none", "same document", "other documents"]
    assert {row["system"] for row in rows.values()} == {"doc"}
    sentences = range(len(store))
    for name, other in conditions(rule).items():
        replaced = Replaced(store.documents, other)
        nats = 0.0
        for i in sentences:  # one by one, the context's ids put in by hand
            ids = [store.src(j).tolist() for j in replaced.context(i, rule)]
            batch = pair_batch([store.src(i).tolist()], [store.tgt(i).tolist()])
            if ids:
                context = Context(*map(torch.tensor, (ids, [len(ids[0])], [[0]])), False)
                batch = dataclasses.replace(batch, context=context)
            nats -= sum(forced_scores([model], batch)[0])
        loss = nats / store.tgt_lengths.sum()
        assert rows[name]["loss"]["value"] == pytest.approx(loss, abs=1e-5)
        changed = sum(
            replaced.context(i, rule) != store.documents.context(i, rule) for i in sentences
        )
        assert rows[name]["changed"] == changed
        assert (changed > 0) == (name != "own")
        assert len(store) < 30 and rows[name]["loss_paired_bootstrap"] is None
    values = [row["loss"]["value"] for row in rows.values()]
    assert len(set(values)) == 4
    assert rows["none"]["loss_difference"]["value"] == pytest.approx(values[1] - values[0])
    assert rows["none"]["kept"]["value"] is None and 0 < rows["own"]["kept"]["value"] < 1
    page = findings.text("context", "examples.html")
    assert "source words: what each takes from the context</p>" in page
    findings.analyze("context")
    assert "up to date" in capsys.readouterr().err


def test_a_set_of_one_document_has_no_row_of_other_documents(analysed, monkeypatch):
    monkeypatch.setattr(context_conditions.Reader, "_translations", lambda *_: ["x"] * 40)
    system(analysed.run, "doc", "concat")
    (analysed.run.prep / "docs").mkdir()
    (analysed.run.prep / "docs" / "test.txt").write_text("0\n", "utf-8")
    table = analysed.analyze("context", set_names=["test"])["table"]
    assert [row["context"] for row in table["rows"]] == ["own", "none", "same document"]
    assert "no row of other documents: the set is a single document" in table["notes"]


def test_the_losses_of_all_contexts_are_of_the_same_sentences(findings, run, monkeypatch):
    """A sentence that is too long with one of the contexts is left out of each."""
    system(run, "doc", "amn")
    store = Store(run.prep / "dev")
    most = int(np.sort(np.maximum(store.src_lengths, store.tgt_lengths))[-4])
    monkeypatch.setattr(recording, "short_rows", partial(short_rows, most=most))
    monkeypatch.setattr(context_conditions.Reader, "_translations", lambda *_: ["x"] * len(store))
    study = Study(run, "context", ["doc"], ["dev"])
    read = context_conditions.Reader(study, "doc").compare(Draws(len(store), 10))
    nats = [condition.loss.statistics[:, 0] for condition in read.values()]
    (rows,) = {tuple(np.flatnonzero(of_condition)) for of_condition in nats}
    own = recording.short_rows(store, ContextRule(), np.arange(len(store)))
    assert set(rows) < set(own.tolist())
    count = len(store) - len(rows)
    assert study.warnings == [f"doc: {count} sentences left out, too long to be read"]


def test_the_own_context_is_that_of_translate_and_other_ones_change_translations(
    findings, run, monkeypatch
):
    system(run, "doc", "concat")
    search = ["search.precision=float32"]
    translate(run, systems=["doc"], set_names=["dev"], jobs=1, assignments=search)
    outputs, score = [], Scorer.score
    monkeypatch.setattr(
        Scorer, "score", lambda self, key, hyps: outputs.append(hyps) or score(self, key, hyps)
    )
    findings.analyze("context", set_names=["dev"])
    translation = run.system("doc").translation("dev") / "hyp.txt"
    assert outputs[0] == translation.read_text("utf-8").split("\n")[:-1]
    assert outputs[0] != outputs[1] != outputs[3]


def test_a_system_that_reads_its_own_translations_has_no_bleu_with_what_it_has_not_translated(
    findings, run
):
    system(run, "doc", "han", side="joint")
    system(run, "blind", "han", side="decoder")
    rows = findings.rows("context", set_names=["dev"])
    rows = {(row["system"], row["context"]): row for row in rows}
    for name in ("doc", "blind"):
        of_system = [rows[name, condition] for condition in conditions(ContextRule())]
        assert [row["bleu"] is not None for row in of_system] == [True, True, False, False]
        assert len({row["loss"]["value"] for row in of_system}) == 4
    assert rows["doc", "own"]["kept"]["value"] and rows["blind", "own"]["kept"]["value"] is None
    gates = findings.rows("gates", set_names=["dev"])
    sides = {(row["gate"], row["side"]) for row in gates}
    assert {("decoder_context.gate", "target"), ("encoder_context.gate", "source")} <= sides


def probe_store(sizes):
    """Documents of a few short sentences in memory."""

    count = sum(sizes)
    ids = [np.array([*range(5, 6 + i % 4), 20 + i, EOS]) for i in range(count)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return GivenPairs(ids, ids, documents=Documents(starts, count))


def assert_same(one, other):
    assert one.symbols == other.symbols
    assert np.allclose(one.weights, other.weights, atol=1e-9)
    assert np.allclose(one.share, other.share, atol=1e-9)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_read_is_what_attention_and_gate_say(name):
    model, store = small(name.split()[0], **DOCUMENTS[name]), probe_store([1, 4, 2])
    for i, one in enumerate(readings(model, store, *range(7))):
        context = store.documents.context(i, model.context_rule)
        assert (one is None) == (not context)
        if one is None:
            continue
        assert_same(one, *readings(model, store, i))
        words = [symbol for j in context for symbol in store.src(j).tolist() if symbol != EOS]
        of_words = [symbol not in (BOS, EOS) for symbol in one.symbols]
        assert np.array(one.symbols)[of_words].tolist() == words
        assert one.weights.shape == (len(store.src(i)) - 1, len(one.symbols))
        total = one.weights.sum(1)
        if name == "concat":
            assert ((total > 0) & (total < 1)).all() and one.kept is None
        else:
            assert np.allclose(total, 1) and one.kept is not None
        assert np.allclose(one.on_words, one.weights @ np.array(of_words, dtype=float))


@pytest.mark.parametrize("name", ["amn", "context-aware", "han"])
def test_contexts_of_different_lengths_are_read_in_parts_and_looked_at_all_the_same(name):
    model, lengths = small(name), [200, 3, 4, 200, 2, 5, 6, 3]
    ids = [np.array([*[5 + i] * length, EOS]) for i, length in enumerate(lengths)]
    pairs = GivenPairs(ids, [np.array([7, EOS])] * 8, documents=Documents([0], 8))
    batch = collate(pairs, np.arange(8), "cpu", model.context_rule)
    assert len(batch.context.parts) > 1
    sizes = [
        read.src.numel()
        for read in recording.batches(pairs, CPU, None, np.arange(len(pairs.src_lengths)))
    ]
    assert max(sizes) <= recording.POSITIONS  # the longest come first
    for i, one in enumerate(readings(model, pairs, *range(8))[1:], 1):
        assert_same(one, *readings(model, pairs, i))


def test_both_sides_of_a_batch_are_bounded():
    """All attention of a batch is in memory at once, and one long target pads all others."""
    ids = [np.array([5] * length + [EOS]) for length in (2, 900)]
    pairs = GivenPairs([ids[0]] * 340, [ids[1], *[ids[0]] * 339])
    read = list(recording.batches(pairs, CPU, None, np.arange(len(pairs.src_lengths))))
    assert sorted(row for batch in read for row in batch.rows.tolist()) == list(range(340))
    assert max(batch.tgt_out.numel() for batch in read) <= recording.POSITIONS


def test_a_sentence_that_reads_its_whole_document_is_a_batch():
    rule = small("amn", memory_scope="batch").context_rule
    read = list(recording.batches(probe_store([4]), CPU, rule, np.arange(4)))
    assert [len(batch.src) for batch in read] == [1] * 4


def test_what_amn_and_concat_read_by_hand():
    """Sentence 3 of a document, its contexts in parallel, against the recorded weights of that
    sentence alone; concat by positions.
    """
    store = probe_store([4])
    model = small("amn", context_join="parallel", context_size=2)
    seen, (one,) = recorded(model, store, 3), readings(model, store, 3)
    names = ("inter", "inter_sentences", "gate")
    attention, weighed, gate = (seen[f"memory.{name}"][0] for name in names)
    parts = [weighed[0, j] * attention[j, :, :5, : len(store.src(1 + j))].mean(0) for j in range(2)]
    assert np.allclose(one.weights, torch.cat(parts, dim=1), atol=1e-12)
    assert np.allclose(one.kept, gate[0, :5])

    model, before = small("concat"), len(store.src(2))
    (attention,) = recorded(model, store, 2, 3)["encoder.0.attention"]
    _, one = readings(model, store, 2, 3)
    assert np.allclose(one.weights, attention[1, :, before : before + 5, :before].mean(0))


def test_the_same_text_is_shown_once_and_only_what_gains(run):
    model, store = system(run, "doc", "amn"), Store(run.prep / "dev")
    with_context = [i for i in range(len(store)) if store.documents.context(i, model.context_rule)]
    reader = context_conditions.Reader(Study(run, "context", ["doc"], ["dev"]), "doc")
    gains = np.zeros(len(store))
    gains[with_context[:3]] = [1.0, 3.0, -2.0]
    first, twice, *_ = with_context
    titles = [one.title for one in reader.examples(gains)]
    assert titles == [
        f"doc, line {line + 1}: +{gain} nats from its context"
        for line, gain in ((twice, "3.00"), (first, "1.00"))
    ]
    original = reader.store.src
    reader.store.src = lambda i: original(twice if i == first else i)
    sides = reader.store.sides
    reader.store.sides = lambda rows: sides(np.where(rows == first, twice, rows))
    before = {i: store.documents.context(i, ContextRule()) for i in range(len(store))}
    before[first] = [twice - 1]
    reader.store.documents.context = lambda i, rule: before[i]
    assert [one.title for one in reader.examples(gains)] == titles[:1]


def test_words_of_an_example_are_sums_and_means_of_their_subwords(tmp_path):
    (tmp_path / "codes").write_text("#version: 0.2\n", "utf-8")
    splitter = Bpe(tmp_path / "codes")
    vocabulary = dict(enumerate(["<pad>", "<s>", "</s>", "<unk>", "a@@", "b", "c"]))
    weights = np.array([[0.1, 0.2, 0.1, 0.5, 0.1], [0.0, 0.0, 0.0, 1.0, 0.0]])
    reading = Reading(weights, np.array([0.5, 0.75]), [4, 5, BOS, 6, EOS])
    example = context_reading.example("x", reading, [4, 5], "r", vocabulary, splitter)
    words, values = zip(*example.context, strict=True)
    assert words == ("ab", "####", "c", "</s>")
    assert [0.75 * value for value in values] == pytest.approx([0.15, 0.05, 0.5, 0.05])
    assert example.source == [("ab", pytest.approx(0.375))]
    text = context_reading.as_text([example])
    assert "*c*(0.67)" in text and "*####*" not in text


def test_the_end_of_a_context_is_a_word_of_its_own_with_sentencepiece(tmp_path):
    learn_sentencepiece({"▁Ein": 9, "▁Hund.": 9, "▁und": 9}, 30, "bpe", tmp_path / "model")
    splitter = SentencePiece(tmp_path / "model")
    vocabulary = dict(enumerate(["▁Ein", "<s>", "</s>", "▁Hund", "."]))
    reading = Reading(np.full((1, 4), 0.25), None, [0, 3, 4, EOS])
    example = context_reading.example("x", reading, [0], "r", vocabulary, splitter)
    assert example.context == [("Ein", 0.25), ("Hund.", 0.5), ("</s>", 0.25)]


def test_html_is_escaped_and_stands_alone():
    evil = '<script src="x">&amp;'
    example = Example(evil, [(evil, 0.2), ("b", 0.8), ("c", -1e-9)], [(evil, 0.1)], evil)
    page = context_reading.as_html(evil, evil, [example])
    assert page.count(html.escape(evil)) == 7 and "<script" not in page and "http" not in page
    for depth in ("0.250", "1.000", "0.000"):  # relative to the largest; rounding is not negative
        assert f"rgba(255, 140, 0, {depth})" in page


def test_without_readers_or_documents_it_is_said(findings, run, analysed):
    system(run, "plain", "transformer")
    error = findings.refused("context", DataError, "plain: it reads no context")
    assert error.hint == "train a variant that does (nmtkit/analyze/README.md names them)"
    analysed.system("doc", "amn")
    error = analysed.refused("context", DataError, "the set 'test' has no documents")
    assert "--docs test=FILE" in error.hint


def test_two_scores_of_zero_have_no_small_p():
    """Though their outputs differ: approximate randomization would give them a small one."""
    scorer = Scorer([["a b c d e", "f g h i j"] * 15], "en", False)
    own, other = (scorer.score("bleu", lines * 15) for lines in (["x y", "z"], ["u", "v w"]))
    assert own.value == other.value == 0
    nothing = Estimate(None), Estimate(None)
    measured = [
        context_conditions.Condition(bleu, 1, scorer.score("chrf", ["a b", text] * 15), *nothing)
        for bleu, text in ((own, "f"), (other, "g h"))
    ]
    of_system = dict(zip(("own", "none"), measured, strict=True))
    _, row = context._rows("doc", of_system, Draws(30, resamples=20, trials=20))
    tests = len(context.P_VALUES)
    of_loss, of_bleu = row[5 : 5 + tests], row[7 + tests : 7 + 2 * tests]
    assert None not in of_loss and of_bleu == [1.0, None]
