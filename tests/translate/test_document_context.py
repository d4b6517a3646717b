"""Translations and forced scores with the context of a document, and with spans."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_models import ContextCopier, recurrent
from toy_translators import LETTERS, VOCABULARY, context_copier, target_copier, texts, translator

from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import ConfigError
from nmtkit.settings import SearchSettings
from nmtkit.translate.demands import LineDemand
from nmtkit.translate.translator import Translator, Window
from nmtkit.translate.windows import Boundaries
from tests.toy_recurrent import ToyRecurrent
from tests.word_side import WordSide

TEXT, DOCUMENTS = ["a b", "", "c", "d e", "f", "g"], Documents([0, 3], 6)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("rule", "contexts"),
    [
        # A blank line is no context; the sentence before it is.
        (ContextRule("previous"), ["", "", "a b", "", "d e", "f"]),
        (ContextRule("previous", 2), ["", "", "a b", "", "d e", "d e f"]),
        (ContextRule("previous", 2, "parallel"), ["", "", "a b", "", "d e", "d e f"]),
        (ContextRule("next"), ["c", "", "", "f", "g", ""]),
        (ContextRule("none"), [""] * 6),
    ],
)
def test_lines_are_translated_with_the_context_of_their_document(rule, contexts, jobs):
    copier = context_copier(rule, jobs=jobs)
    assert texts(copier.translate_window(TEXT, documents=DOCUMENTS)) == contexts


def test_lines_without_context_are_counted():
    searching, scoring = context_copier(ContextRule()), context_copier(ContextRule())
    lines, documents = ["a", "b", "", "c"], Documents([0, 3], 4)
    searching.translate_window(lines, documents=documents)
    scoring.force(lines, ["a"] * 4, documents)
    assert searching.counts["no_context"] == scoring.counts["no_context"] == 2
    assert texts(searching.translate_window(["a", "b"])) == ["", ""]  # without documents
    assert len(scoring.force(["a", "b"], ["a", "b"])) == 2
    assert searching.counts["no_context"] == scoring.counts["no_context"] == 4


def certain(scored_lines):
    """True for lines of which every token is the one that a copier writes."""
    return [min(line.log_probs) > -0.1 for line in scored_lines]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ContextRule("previous"), [False, False, True, False, True, False]),
        (ContextRule("previous", 2), [False, False, True, False, True, False]),
        (ContextRule("next"), [False] * 6),
        (ContextRule("none"), [False] * 6),
    ],
)
def test_given_targets_are_scored_with_the_context_of_their_document(rule, expected, jobs):
    targets = ["a b", "a", "a b", "d e", "d e", "c"]
    copier = context_copier(rule, jobs=jobs)
    assert certain(copier.force(TEXT, targets, DOCUMENTS)) == expected


LINES, THREE_DOCUMENTS = [*TEXT, "h i"], Documents([0, 3, 6], 7)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a", "", "c a", "d", "f d", "g f d", "h"]),
        ({"size": 2}, ["a", "", "c a", "d", "f d", "g d f d", "h"]),
        ({"size": 2, "join": "concatenate"}, ["a", "", "c a", "d", "f d", "g d f d", "h"]),
    ],
)
def test_earlier_translations_of_the_document_are_context(options, expected, jobs):
    copier, done = target_copier(jobs=jobs, batch_size=1, **options), []
    copier.done = done.append
    assert texts(copier.translate_window(LINES, documents=THREE_DOCUMENTS)) == expected
    assert sum(done) == pytest.approx(len(LINES))


def test_translations_of_lines_without_documents_or_of_pieces_as_context():
    assert texts(target_copier().translate_window(LINES)) == ["a", "", *"cdfgh"]
    lines, documents = ["a b c d e", "f"], Documents([0], 2)
    translations = target_copier(max_source=2).translate_window(lines, documents=documents)
    assert texts(translations) == ["a c e", "f a"]


def test_given_targets_are_the_context_of_later_targets():
    targets = ["b", "", "c b", "d e", "f d e", "g e", "h"]
    scores = target_copier().force(LINES, targets, THREE_DOCUMENTS)
    # A blank line is scored as an empty sentence.
    assert certain(scores) == [False, True, True, False, True, False, True]


def test_first_alternative_or_the_translation_is_the_context_of_later_alternatives():
    targets = [[], ["c", "c a"], ["b", "d"], ["e b", "e d"]]
    documents = Documents([0, 2], 4)
    scores = target_copier().alternatives(["a b", "c", "d", "e"], targets, documents)
    assert [max(of_line) > -0.1 for of_line in scores[1:]] == [True] * 3
    assert [np.argmax(of_line) for of_line in scores[1:]] == [1, 1, 0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_alternatives_are_scored_as_each_target_alone(jobs):
    lines, documents = ["a b", "c", "d e", "f", "g h i"], Documents([0, 2], 5)
    targets = [[], ["a b", "c"], [], ["f", "d e", "g"], ["f", "a b"]]
    scores = context_copier(ContextRule(), jobs=jobs).alternatives(lines, targets, documents)
    for number, of_line in enumerate(targets):
        copier = context_copier(ContextRule())
        alone = [copier.force(lines, [t] * 5, documents)[number].log_prob for t in of_line]
        assert scores[number] == pytest.approx(alone, abs=1e-9)
    assert [np.argmax(of_line) for of_line in scores if of_line] == [0, 1, 0]


def test_first_piece_of_an_over_long_line_is_the_context_of_a_scored_line():
    copier, lines = context_copier(ContextRule(), max_source=3), ["a b c d e", "f"]
    for target, copied in (("a b c", True), ("a b c d e", False)):
        scores = copier.force(lines, ["a", target], Documents([0], 2))
        assert certain(scores)[1] == copied


class ContextRecorder(ContextCopier):
    """Keeps the context of each source, by its ids, in `contexts`."""

    def __init__(self, rule):
        super().__init__(len(VOCABULARY), rule)
        self.contexts = {}

    def encode(self, batch):
        (source,) = batch.src.tolist()
        self.contexts[tuple(source)] = batch.context
        return super().encode(batch)


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.builds(
        ContextRule,
        st.sampled_from(["previous", "next", "random", "foreign"]),
        st.integers(1, 3),
        st.sampled_from(["concatenate", "parallel"]),
    ),
)
def test_scored_lines_have_the_context_tensors_of_training(sizes, rule):
    count = sum(sizes)
    words = [LETTERS[n % 10] + " ." * (n // 10) for n in range(count)]
    lines = [" ".join(words[n : n + 1 + n % 3]) for n in range(count)]
    documents = Documents([sum(sizes[:i]) for i in range(len(sizes))], count)
    ids = [VOCABULARY.encode(line.split()) for line in lines]
    pairs = GivenPairs(ids, ids, documents=documents)
    recorder = ContextRecorder(rule)
    translator(recorder, batch_size=1).alternatives(lines, [["a", "b"]] * count, documents)
    for number, source in enumerate(ids):
        expected = collate(pairs, np.array([number]), rule=rule).context
        context = recorder.contexts[tuple(source)]
        assert (context is None) == (expected is None)
        if expected is not None:
            assert context.padded == expected.padded
            for name in ("ids", "lengths", "rows"):
                assert torch.equal(getattr(context, name), getattr(expected, name))


def test_context_of_an_over_long_line_is_its_first_piece():
    _, second = context_copier(ContextRule(), max_source=3).translate_window(
        ["a b c d e f g", "h"], documents=Documents([0], 2)
    )
    assert second.text == "a b c"


class SpansRecorder(ToyRecurrent):
    """Keeps the spans of the last batch in `spans`."""

    reads_spans = True

    def encode(self, batch):
        self.spans = None if batch.spans is None else batch.spans.tolist()
        return super().encode(batch)


def test_spans_that_do_not_fit_their_line_are_not_read():
    model = recurrent(1, len(VOCABULARY))
    model.__class__ = SpansRecorder
    letter_translator = translator(model)
    lines, spans = ["a b c", "d e", "f"], [[2, 2], [1, 1], [3]]
    list(letter_translator.translate_windows([Window(lines, spans)]))
    assert (model.spans, letter_translator.counts["no_spans"]) == ([[2, 2], [0, 0], [0, 0]], 2)
    model.spans = None
    letter_translator.force(lines, lines, spans=spans)
    assert (model.spans, letter_translator.counts["no_spans"]) == ([[2, 2], [0, 0], [0, 0]], 4)
    cutting = translator(model, max_source=2)
    list(cutting.translate_windows([Window(["a b c"], [[3, 1]])]))
    assert (model.spans, cutting.counts["no_spans"]) == (None, 2)  # for each piece
    cutting.force(["a b c"], ["a"], spans=[[3, 1]])
    assert (model.spans, cutting.counts["no_spans"]) == ([[3, 1]], 2)


def test_lines_of_each_window_have_their_own_spans_and_demands():
    texts = [["a", "<d>"], ["b", "c", ""]]
    demands, spans = map(LineDemand, range(9)), [np.array([number]) for number in range(5)]
    windows = list(translator().windows(texts, Boundaries("marker"), demands, spans))
    assert [window.lines for window in windows] == [["a", ""], ["b", "c", ""]]
    assert [window.spans for window in windows] == [[[0], [1]], [[2], [3], [4]]]
    numbers = [[demand.number for demand in window.demands] for window in windows]
    assert numbers == [[0, 1], [2, 3, 4]]


def ensemble(*models):
    sides = WordSide(), WordSide(), VOCABULARY, VOCABULARY
    return Translator(models, *sides, SearchSettings())


def test_ensemble_of_models_with_and_without_context_reads_it():
    without = recurrent(1, len(VOCABULARY), eos_bias=-9)
    joint = ensemble(ContextCopier(len(VOCABULARY), ContextRule()), without)
    assert joint.translate_window(["a b", "c"], documents=Documents([0], 2))[1].text == "a b"


@pytest.mark.parametrize(
    "rules",
    [(ContextRule(join="parallel"), ContextRule()), (ContextRule(seed=2), ContextRule(seed=3))],
)
def test_ensemble_reads_context_if_its_rules_differ_only_in_what_has_no_effect(rules):
    """One sentence is not joined, and nothing is drawn of the sentences before."""
    joint = ensemble(*(ContextCopier(len(VOCABULARY), rule) for rule in rules))
    assert joint.translate_window(["a b", "c"], documents=Documents([0], 2))[1].text == "a b"


@pytest.mark.parametrize(
    "rules",
    [
        (ContextRule(), ContextRule("next")),
        (ContextRule("random", seed=2), ContextRule("random", seed=3)),
        # One sentence before it, but the contexts of the whole document.
        (ContextRule(whole=True), ContextRule(join="parallel", whole=True)),
    ],
)
def test_ensemble_of_models_with_different_contexts_is_refused(rules):
    with pytest.raises(ConfigError, match=r"different contexts\n.*\n.*model.context_size"):
        ensemble(*(ContextCopier(len(VOCABULARY), rule) for rule in rules))
