"""Use of context: conditions, losses and translations by hand, readings against recorded attention
and gates, examples and errors.
"""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from markupsafe import escape

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
    """Prepare a demo corpus of a few documents with few merges, so that words have subwords."""
    folder = tmp_path_factory.mktemp("demo")
    generate(folder, size=60, dev=16, test=4)
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


def documents_run(demo, path):
    """Return a new run with the prepared demo corpus."""
    path.mkdir()
    (path / "prep").symlink_to(demo / "prep")
    return Findings(Run(path))


@pytest.fixture
def findings(demo, tmp_path):
    return documents_run(demo, tmp_path / "documents")


@pytest.fixture
def run(findings):
    return findings.run


def system(run, name, variant, **model):
    """Add a system with random weights that translates in a few steps; return its model."""
    search = {"beam": 1, "max_length_a": 0.0, "max_length_b": 3}
    # Weights are enlarged: otherwise context hardly changes the output of so small a model.
    return save_system(run, name, variant, {**SMALL, **model}, 1.5, **search)


def small(variant, **model):
    """Return a model with random weights in float64 and a vocabulary of 60."""
    torch.manual_seed(2)
    return build_model(variant, SMALL | model, Vocabularies(60, 60, True)).double().eval()


def readings(model, pairs, *rows):
    """Return the readings of some pairs, as one batch."""
    batch = collate(pairs, np.array(rows), "cpu", model.context_rule)
    return context_reading.readings(model, batch, context_reading.sites_of(model))


def recorded(model, pairs, *rows):
    """Return what the encoder records for some pairs, as one batch."""
    with torch.inference_mode(), capture() as seen:
        model.encode(collate(pairs, np.array(rows), "cpu", model.context_rule))
    return seen


def test_replaced_contexts_have_as_many_sentences_of_the_right_documents():
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
        assert len(same) == len(others) == len(own)
        start, end = documents.bounds(i)
        assert all(start <= other < end and other != i for other in same)
        assert all(not start <= other < end for other in others)
    drawn = conditions(ContextRule("random", seed=3))["same document"]
    assert drawn == ContextRule("random", seed=4)


def test_replaced_memory_of_a_whole_document_joins_the_contexts_of_its_sentences():
    documents, rule = Documents([0, 4, 5], 8), ContextRule("previous", 1, "parallel", whole=True)
    for name, other in conditions(rule).items():
        replaced, single = Replaced(documents, other), dataclasses.replace(other, whole=False)
        for i in range(8):
            start, end = documents.bounds(i)
            whole = {read for row in range(start, end) for read in documents.context(row, single)}
            assert replaced.context(i, rule) == (sorted(whole) if i > start else []), name


@pytest.fixture(scope="module")
def analysed_demo(demo, tmp_path_factory):
    """Analyse a system that reads context (`model`) beside one that does not."""
    findings = documents_run(demo, tmp_path_factory.mktemp("context") / "run")
    findings.model, findings.store = system(findings.run, "doc", "amn"), Store(demo / "prep/dev")
    system(findings.run, "plain", "transformer")
    findings.by_context = {row["context"]: row for row in findings.rows("context")}
    return findings


def forced_nats(analysed_demo, replaced):
    """Return the nats of each reference, a sentence at a time, with the ids of its context."""
    store, nats = analysed_demo.store, []
    for i in range(len(store)):
        ids = [store.src(j).tolist() for j in replaced.context(i, ContextRule())]
        batch = pair_batch([store.src(i).tolist()], [store.tgt(i).tolist()])
        if ids:
            context = Context(*map(torch.tensor, (ids, [len(ids[0])], [[0]])), False)
            batch = dataclasses.replace(batch, context=context)
        nats.append(-sum(forced_scores([analysed_demo.model], batch)[0]))
    return np.array(nats)


def test_losses_equal_forced_scores_with_each_context(analysed_demo):
    store, rule = analysed_demo.store, ContextRule()
    for name, other in conditions(rule).items():
        replaced, row = Replaced(store.documents, other), analysed_demo.by_context[name]
        loss = forced_nats(analysed_demo, replaced).sum() / store.tgt_lengths.sum()
        assert row["loss"]["value"] == pytest.approx(loss, abs=1e-5)
        contexts = (
            (replaced.context(i, rule), store.documents.context(i, rule)) for i in range(len(store))
        )
        changed = sum(other != own for other, own in contexts)
        assert row["changed"] == changed
        assert (changed > 0) == (name != "own")
        assert row["loss_paired_bootstrap"] is None  # fewer than 30 sentences


def test_rows_compare_each_context_with_the_true_one(analysed_demo):
    rows = analysed_demo.by_context
    assert list(rows) == ["own", "none", "same document", "other documents"]
    own, none, *_ = losses = [row["loss"]["value"] for row in rows.values()]
    assert len(set(losses)) == 4
    assert rows["none"]["loss_difference"]["value"] == pytest.approx(none - own)
    assert rows["none"]["kept"]["value"] is None
    figure = analysed_demo.figure("context")
    others = {context: row["loss_difference"] for context, row in rows.items() if context != "own"}
    assert figure["groups"] == ["doc"]
    assert figure["series"] == {context: [change] for context, change in others.items()}


def test_shares_of_kept_state_and_context_words_are_means_over_source_subwords(analysed_demo):
    store = analysed_demo.store
    every = readings(analysed_demo.model, store, *range(len(store)))
    for column in ("kept", "on_words"):
        subwords = np.concatenate([getattr(reading, column) for reading in every if reading])
        share = analysed_demo.by_context["own"][column]["value"]
        assert 0 < share < 1 and share == pytest.approx(subwords.mean(), rel=1e-5)


def test_first_example_is_the_sentence_that_gains_most(analysed_demo):
    rules, documents = conditions(ContextRule()), analysed_demo.store.documents
    own, none = (
        forced_nats(analysed_demo, Replaced(documents, rules[name])) for name in ("own", "none")
    )
    best = np.argmax(none - own)
    title = f"doc, line {best + 1}: {(none - own)[best]:+.2f} nats from its context"
    page = analysed_demo.text("context", "examples.html")
    assert page[page.index("doc, line") :].startswith(title)
    assert "source words: what each takes from the context</p>" in page


def test_systems_without_context_are_left_out(analysed_demo):
    finding = analysed_demo.finding
    assert {row["system"] for row in finding["table"]["rows"]} == {"doc"}
    assert finding["facts"]["left_out"] == {"plain": "it reads no context"}
    assert "doc, line" in finding["bars"] and analysed_demo.text("context")


def test_set_of_one_document_has_no_row_of_other_documents(analysed, monkeypatch):
    monkeypatch.setattr(context_conditions.Reader, "_translations", lambda *_: ["x"] * 40)
    system(analysed.run, "doc", "concat")
    (analysed.run.prep / "docs").mkdir()
    (analysed.run.prep / "docs" / "test.txt").write_text("0\n", "utf-8")
    table = analysed.analyze("context", set_names=["test"])["table"]
    assert [row["context"] for row in table["rows"]] == ["own", "none", "same document"]
    assert "no row of other documents: the set is a single document" in table["notes"]


def test_sentence_too_long_in_one_context_is_left_out_of_all(findings, run, monkeypatch):
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


def test_true_context_gives_the_output_of_translate_and_others_change_it(
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


def test_systems_that_read_their_translations_have_no_bleu_in_replaced_contexts(findings, run):
    system(run, "doc", "han", side="joint")
    system(run, "blind", "han", side="decoder")
    rows = findings.rows_by("system context", "context", set_names=["dev"])
    for name in ("doc", "blind"):
        of_system = [rows[name, condition] for condition in conditions(ContextRule())]
        assert [row["bleu"] is not None for row in of_system] == [True, True, False, False]
        assert len({row["loss"]["value"] for row in of_system}) == 4
    assert rows["doc", "own"]["kept"]["value"] and rows["blind", "own"]["kept"]["value"] is None
    gates = findings.rows_by("gate side", "gates", set_names=["dev"])
    assert {("decoder_context.gate", "target"), ("encoder_context.gate", "source")} <= gates.keys()


def probe_store(sizes):
    """Return documents with these numbers of short sentences."""
    count = sum(sizes)
    ids = [np.array([*range(5, 6 + i % 4), 20 + i, EOS]) for i in range(count)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return GivenPairs(ids, ids, documents=Documents(starts, count))


def assert_same(reading, expected):
    assert reading.symbols == expected.symbols
    assert np.allclose(reading.weights, expected.weights, atol=1e-9)
    assert np.allclose(reading.share, expected.share, atol=1e-9)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_readings_name_the_context_words_with_weights_that_sum_to_one(name):
    model, store = small(name.split()[0], **DOCUMENTS[name]), probe_store([1, 4, 2])
    for i, reading in enumerate(readings(model, store, *range(7))):
        context = store.documents.context(i, model.context_rule)
        assert (reading is None) == (not context)
        if reading is None:
            continue
        assert_same(reading, *readings(model, store, i))
        words = [symbol for j in context for symbol in store.src(j).tolist() if symbol != EOS]
        of_words = [symbol not in (BOS, EOS) for symbol in reading.symbols]
        assert np.array(reading.symbols)[of_words].tolist() == words
        assert reading.weights.shape == (len(store.src(i)) - 1, len(reading.symbols))
        total = reading.weights.sum(1)
        if name == "concat":
            assert ((total > 0) & (total < 1)).all() and reading.kept is None
        else:
            assert np.allclose(total, 1) and reading.kept is not None
        assert np.allclose(reading.on_words, reading.weights @ np.array(of_words, dtype=float))


@pytest.mark.parametrize("name", ["amn", "context-aware", "han"])
def test_readings_do_not_depend_on_other_contexts_of_the_batch(name):
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
    for i, reading in enumerate(readings(model, pairs, *range(8))[1:], 1):
        assert_same(reading, *readings(model, pairs, i))


def test_source_and_target_positions_of_a_batch_are_bounded():
    """One long target pads all others."""
    ids = [np.array([5] * length + [EOS]) for length in (2, 900)]
    pairs = GivenPairs([ids[0]] * 340, [ids[1], *[ids[0]] * 339])
    read = list(recording.batches(pairs, CPU, None, np.arange(len(pairs.src_lengths))))
    assert sorted(row for batch in read for row in batch.rows.tolist()) == list(range(340))
    assert max(batch.tgt_out.numel() for batch in read) <= recording.POSITIONS


def test_sentence_that_reads_its_whole_document_is_a_batch_alone():
    rule = small("amn", memory_scope="batch").context_rule
    read = list(recording.batches(probe_store([4]), CPU, rule, np.arange(4)))
    assert [len(batch.src) for batch in read] == [1] * 4


def test_amn_reads_the_product_of_sentence_and_word_weights():
    store = probe_store([4])
    model = small("amn", context_join="parallel", context_size=2)
    seen, (reading,) = recorded(model, store, 3), readings(model, store, 3)
    names = ("inter", "inter_sentences", "gate")
    words, sentences, gate = (seen[f"memory.{name}"][0] for name in names)
    parts = [sentences[0, j] * words[j, :, :5, : len(store.src(1 + j))].mean(0) for j in range(2)]
    assert np.allclose(reading.weights, torch.cat(parts, dim=1), atol=1e-12)
    assert np.allclose(reading.kept, gate[0, :5])


def test_concat_reads_the_attention_to_positions_before_the_source():
    store, model = probe_store([4]), small("concat", encoder_layers=2)
    before = len(store.src(2))
    seen = recorded(model, store, 2, 3)
    layers = torch.cat([seen[f"encoder.{layer}.attention"][0] for layer in (0, 1)], dim=1)
    _, reading = readings(model, store, 2, 3)
    expected = layers[1, :, before : before + 5, :before].mean(0)
    assert np.allclose(reading.weights, expected)


def test_examples_are_distinct_texts_that_gain_from_their_context(run):
    system(run, "doc", "amn")
    reader = context_conditions.Reader(Study(run, "context", ["doc"], ["dev"]), "doc")
    ids = [np.array([word, EOS]) for word in (5, 6, 5, 6, 7, 8, 9, 10)]
    reader.store = GivenPairs(ids, ids, documents=Documents([0, 2, 4, 6], 8))
    gains = np.array([0, 1.0, 0, 3.0, 0, 2.0, 0, -1.0])  # lines 2 and 4 have the same text
    assert [example.title for example in reader.examples(gains)] == [
        "doc, line 4: +3.00 nats from its context",
        "doc, line 6: +2.00 nats from its context",
    ]


def test_words_of_an_example_sum_weights_and_average_gates_of_subwords(tmp_path):
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


def test_end_of_a_context_is_a_separate_word_with_sentencepiece(tmp_path):
    learn_sentencepiece({"▁Ein": 9, "▁Hund.": 9, "▁und": 9}, 30, "bpe", tmp_path / "model")
    splitter = SentencePiece(tmp_path / "model")
    vocabulary = dict(enumerate(["▁Ein", "<s>", "</s>", "▁Hund", "."]))
    reading = Reading(np.full((1, 4), 0.25), None, [0, 3, 4, EOS])
    example = context_reading.example("x", reading, [0], "r", vocabulary, splitter)
    assert example.context == [("Ein", 0.25), ("Hund.", 0.5), ("</s>", 0.25)]


def test_html_of_examples_is_escaped_and_loads_nothing():
    evil = '<script src="x">&amp;'
    example = Example(evil, [(evil, 0.2), ("b", 0.8), ("c", -1e-9)], [(evil, 0.1)], evil)
    page = context_reading.as_html(evil, evil, [example])
    assert page.count(str(escape(evil))) == 7 and "<script" not in page and "http" not in page
    for depth in ("0.250", "1.000", "0.000"):  # relative to the largest; rounding is not negative
        assert f"rgba(255, 140, 0, {depth})" in page


def test_runs_without_context_readers_or_documents_are_refused(findings, run, analysed):
    system(run, "plain", "transformer")
    error = findings.refused("context", DataError, "plain: it reads no context")
    assert error.hint == "train a variant that does (nmtkit/analyze/README.md names them)"
    analysed.system("doc", "amn")
    error = analysed.refused("context", DataError, "the set 'test' has no documents")
    assert "--docs test=FILE" in error.hint


def test_two_scores_of_zero_have_p_one():
    """Their outputs differ, so approximate randomization alone would give a small p."""
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
