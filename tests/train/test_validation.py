"""Validation: dev loss and BLEU, translations as `translate` makes them, and the choice of the
best checkpoint.
"""

from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from nmtkit import files
from nmtkit.data.batches import collate
from nmtkit.data.documents import Documents
from nmtkit.data.store import Store
from nmtkit.models import loading
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.score.metrics import bleu
from nmtkit.settings import TrainSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import Vocabulary
from nmtkit.train import validation
from nmtkit.train.best import after_validation, is_better
from nmtkit.train.ranks import Ranks
from nmtkit.train.schedule import Plateau
from nmtkit.train.state import Best, TrainState, Window
from nmtkit.train.stop import Abandoned, Stop
from nmtkit.train.validation import DEV_SEARCH, Validation, Validator, dev_search
from nmtkit.translate.beam import search
from nmtkit.translate.translator import Translator
from tests.faults.trainings import fail, interfere
from tests.manifests import edit, read_json
from tests.train.tiny import (
    FOUR_STEPS,
    NO_AUTOCAST,
    mark_documents,
    metrics,
    trainer,
    write_pairs,
)

go = trainer(FOUR_STEPS)
JOINT = {"side": "joint", "context_size": 2}


def tiny_model(variant, **more):
    """A tiny model whose weights are large enough for translations that differ."""
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = build_model(variant, sizes | more, Vocabularies(28, 28, shared=True)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    return model


@pytest.fixture
def vocabulary(run):
    return Vocabulary.load(run.prep / "vocab.txt")


@pytest.fixture
def dev(run):
    """Source and target lines of the development set."""
    (references,) = run.references("dev")
    return [list(files.text_lines(path)) for path in (run.source("dev"), references)]


@pytest.fixture
def validator_of(run):
    """A function: the validator of a model, with these training settings."""

    def make(model, **settings):
        chosen = TrainSettings.model_validate(settings)
        return Validator(run, run.sets("dev")[0], chosen, model, NO_AUTOCAST, Ranks())

    return make


@pytest.fixture
def translate(run, vocabulary, monkeypatch):
    """A function: the translations of lines in documents, as the stage `translate` makes them."""
    side = TextSide.load(run.prep, "tgt")
    monkeypatch.setattr(TextSide, "encode", lambda self, line: line.split())

    def translations(model, lines, documents):
        found = dev_search(Store(run.prep / "dev"))
        translator = Translator([model], side, side, vocabulary, vocabulary, found)
        window = translator.translate_window(lines, documents=documents)
        return [translation.text for translation in window]

    return translations


def test_context_in_validation_is_earlier_translations_not_references(
    run, dev, vocabulary, validator_of, translate
):
    """And only the sentences that are needed are translated."""
    mark_documents(run, "dev", [0, 4])
    model, lines = tiny_model("han", **JOINT), dev[0]
    validator = validator_of(model)
    texts = validator._texts(validator._translate([1, 5], Stop()))
    assert sorted(texts) == [0, 1, 4, 5]
    whole, alone = (translate(model, lines, d) for d in (Documents([0, 4], 6), None))
    assert {row: whole[row] for row in texts} == texts
    assert [whole[row] == alone[row] for row in (0, 1, 4, 5)] == [True, False, True, False]
    batch = collate(Store(run.prep / "dev"), np.array([1]), rule=model.context_rule)
    (with_references,) = search([model], batch, DEV_SEARCH)
    subwords = vocabulary.decode(with_references[0].ids)
    assert TextSide.load(run.prep, "tgt").decode(subwords) != whole[1]


@pytest.mark.parametrize(("name", "values"), [("transformer", {}), ("concat", {}), ("han", JOINT)])
def test_blank_source_lines_are_not_translated_and_are_no_context(
    run, dev, vocabulary, validator_of, translate, name, values
):
    source, target = dev
    blank = (0, 3, 5)
    for row in blank:
        source[row] = ""
    pairs = [[line.split() for line in pair] for pair in zip(source, target, strict=True)]
    write_pairs(run.prep / "dev", vocabulary, pairs)
    files.write_lines(run.source("dev"), source)
    mark_documents(run, "dev", [0, 3])
    model = tiny_model(name, **values)
    validator = validator_of(model, samples=6)
    expected = translate(model, source, Documents([0, 3], 6))
    assert [text == "" for text in expected] == [row in blank for row in range(6)]
    found = validator._translate(list(range(6)), Stop())
    assert validator._texts(found) == dict(enumerate(expected))
    measured = validator.validate(Stop())
    assert measured.bleu == bleu(expected, [target], "de").value
    assert {source: translation for source, _, translation in measured.samples}[""] == ""


def test_contexts_that_are_too_long_for_validation_are_not_translated(
    run, dev, vocabulary, validator_of
):
    """Sentences 1 and 2 read the over-long sentence 0, and sentence 3 reads 1 and 2."""
    words = dev[0][1].split()
    write_pairs(run.prep / "dev", vocabulary, [(words * 9, words), *[(words, words)] * 5])
    mark_documents(run, "dev", [0, 4])
    model = tiny_model("han", **JOINT)
    validator = validator_of(model)
    validator._most = len(words) * 5
    ids = validator._translate([3], Stop())
    assert [len(ids[row]) > 1 for row in range(4)] == [False, False, False, True]
    # The loss is the mean over the tokens of the sentences that are read.
    store, rows = Store(run.prep / "dev"), np.array([3, 4, 5])
    total = validation.batch_loss(model, store, NO_AUTOCAST, rows)
    assert validator._loss(Stop()) == pytest.approx(total / store.tgt_lengths[rows].sum())


def test_dev_loss_is_the_mean_over_all_target_tokens(run):
    go(run, "train.dev_bleu=true", "train.samples=2")
    model = loading.load_system(run, run.system("transformer")).double()
    store = Store(run.prep / "dev")
    total = 0.0
    for row in range(len(store)):
        batch = collate(store, np.array([row]))
        log_p = model.logits(model.decode(batch.tgt_in, model.encode(batch))[0]).log_softmax(-1)
        total -= log_p[0].gather(-1, batch.tgt_out[0, :, None]).sum().item()
    (line,) = metrics(run, "dev")
    assert line["dev_loss"] == pytest.approx(total / store.tgt_lengths.sum(), rel=1e-5)


def test_validation_has_the_precision_of_the_training(run, monkeypatch):
    enabled = []
    for name in ("target_states", "search"):
        record = partial(
            lambda name: enabled.append((name, torch.is_autocast_enabled("cpu"))), name
        )
        interfere(monkeypatch, validation, name, range(99), record)
    go(run, "train.dev_bleu=true", "train.precision=bfloat16")
    assert {*enabled} == {("target_states", True), ("search", True)}


def test_batch_that_does_not_fit_into_memory_at_first_is_measured_again(run, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory")
    calls = fail(monkeypatch, validation, "batch_loss", error, {1})
    go(run, "train.batch_size=1000")
    assert calls == [2] and len(metrics(run, "dev")) == 1


@pytest.fixture
def bleu_calls(monkeypatch):
    """Numbers of hypotheses and of lines of each reference, language, whether text is tokenised."""
    calls, compute = [], validation.metrics.bleu

    def recorded(hyps, refs, lang, tokenized):
        calls.append((len(hyps), [len(ref) for ref in refs], lang, tokenized))
        return compute(hyps, refs, lang, tokenized=tokenized)

    monkeypatch.setattr(validation.metrics, "bleu", recorded)
    return calls


def test_dev_sentences_and_samples_are_spread_over_the_development_set(
    run, dev, bleu_calls, stderr
):
    go(run, "train.dev_bleu=true", "train.samples=2", "train.dev_sentences=4")
    assert bleu_calls == [(4, [4], "de", False)]
    log = stderr()
    assert [log.count(f"  {kind} ") for kind in ("source", "reference", "translation")] == [2] * 3
    assert dev[0][2] in log and dev[0][3] in log  # spread evenly over six


def test_bleu_of_a_tokenised_target_side_is_of_tokenised_text(run, bleu_calls, validator_of):
    edit(run.prep / "manifest.json", '"tgt_tokenizer": "auto"', '"tgt_tokenizer": "none"')
    validator_of(tiny_model("transformer"), samples=2).validate(Stop())
    assert bleu_calls == [(6, [6], "de", True)]


def test_bleu_counts_all_references(run, dev, validator_of):
    model = tiny_model("transformer")
    validator = validator_of(model)
    texts = validator._texts(validator._translate(list(range(6)), Stop()))
    files.write_lines(run.prep / "text" / "dev.ref1", [texts[row] for row in range(6)])
    first = validator.validate(Stop()).bleu
    manifest = read_json(run.prep / "manifest.json")
    manifest["sets"][1]["references"] = 2
    files.write_json(run.prep / "manifest.json", manifest)
    assert validator_of(model).validate(Stop()).bleu == pytest.approx(100) != first


def test_samples_are_translated_without_bleu(validator_of):
    settings = {"dev_bleu": False, "samples": 2, "dev_sentences": 4}
    measured = validator_of(tiny_model("transformer"), **settings).validate(Stop())
    assert measured.bleu is None and len(measured.samples) == 2


@pytest.mark.parametrize(("max_subwords", "most"), [(1000, 1024), (2000, 2001)])
def test_longest_sentence_of_a_validation_follows_prep(run, validator_of, max_subwords, most):
    """</s> included."""
    manifest = read_json(run.prep / "manifest.json")
    manifest["settings"]["max_subwords"] = max_subwords
    files.write_json(run.prep / "manifest.json", manifest)
    assert validator_of(tiny_model("transformer"))._most == most


def test_more_samples_than_sentences_are_allowed(run, stderr):
    go(run, "train.samples=1000000000000000")
    assert "  source " in stderr()


def test_longer_maximum_length_of_translations_makes_another_development_set(run):
    store = Store(run.prep / "dev")
    assert dev_search(store) == DEV_SEARCH
    store.tgt_lengths = 3 * store.src_lengths
    limit = dev_search(store).max_length_a
    assert limit == pytest.approx(3.6)
    hashes = [validation._dev_set_hash({}, "dev", 0, a) for a in (1.2, 1.5, limit)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_development_set_is_identified_by_its_ids_its_texts_and_the_sentences_of_bleu():
    hashes = {"dev/00000.bin": "a", "text/dev.src": "b", "text/dev.ref": "c", "text/dev2.ref": "d"}
    whole = validation._dev_set_hash(hashes, "dev", 0, 1.5)
    for name in hashes:
        changed = validation._dev_set_hash(hashes | {name: "other"}, "dev", 0, 1.5)
        assert (changed == whole) == (name == "text/dev2.ref")
    assert validation._dev_set_hash(hashes, "dev", 5, 1.5) != whole


def test_stopped_rank_counts_more_than_one_that_cannot_decode(validator_of):
    validator = validator_of(tiny_model("transformer"))
    results = [(validation.Undecodable("of one"), []), (Abandoned("of another"), [])]
    validator.ranks = SimpleNamespace(share=list, gather_values=lambda _: results, world=2)
    with pytest.raises(Abandoned):
        validator._shared([], len, Stop())


# The best checkpoint


@pytest.mark.parametrize(
    ("new", "best", "by", "better"),
    [
        ((9.0, 1.0), None, "dev_bleu", True),
        ((2.5, 31.0), (2.0, 30.0), "dev_bleu", True),
        ((1.5, 29.0), (2.0, 30.0), "dev_bleu", False),
        ((1.5, 30.0), (2.0, 30.0), "dev_bleu", True),
        ((2.0, 30.0), (2.0, 30.0), "dev_bleu", False),
        ((1.5, 29.0), (2.0, 30.0), "dev_loss", True),
        # Decoding may have failed once.
        ((1.5, None), (2.0, 30.0), "dev_bleu", False),
        ((1.5, None), (2.0, 0.0), "dev_bleu", False),
        ((2.5, 40.0), (2.0, None), "dev_bleu", True),
        ((1.5, None), (2.0, None), "dev_bleu", True),
        ((1.5, None), (2.0, 30.0), "dev_loss", True),
    ],
)
def test_better_checkpoint_by_loss_or_bleu(new, best, by, better):
    validated = Validation(*new, None, 0, 0, [])
    assert is_better(validated, best and Best(1, *best), by) == better


@pytest.mark.parametrize(("kind", "loss"), [("dev_loss", 1.5), ("train_loss", 3.0)])
def test_validation_updates_best_plateau_and_loss_window(kind, loss):
    values = {"schedule": "plateau", "plateau_on": kind, "validate_every": 2, "dev_bleu": False}
    update = partial(after_validation, settings=TrainSettings(**values), reporter=MagicMock())
    state = TrainState(step=4, best=Best(2, 2.0, 30.0, "a"), loss=Window(smoothed=9.0, tokens=3))
    measured = Validation(1.5, None, None, 0, 0, [], "a")
    assert measured.comparable(Best(2, 2.0, 30.0))  # of an earlier version
    assert update(measured, state)  # BLEU decides no more
    assert (state.plateau, state.loss, state.validated) == (Plateau(best=loss), Window(), 4)
    # An extra validation, on another development set.
    state.step, state.since_best, state.plateau.factor = 5, 2, 0.5
    assert update(Validation(9.0, None, None, 0, 0, [], "b"), state)
    assert state.since_best == 0
    assert state.plateau == Plateau(0.5, None if kind == "dev_loss" else loss)
