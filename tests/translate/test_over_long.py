"""Cuts of over-long sentences: where a person would cut them, and nothing is lost."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.text.bpe import Bpe
from nmtkit.translate.over_long import cut

BPE = Bpe.__new__(Bpe)  # where words end does not depend on its codes


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        pytest.param("a b .", 3, ["a b ."], id="within-the-limit"),
        pytest.param("", 3, [""], id="empty"),
        pytest.param(
            "a b c d . e f , g h", 8, ["a b c d .", "e f , g h"], id="full-stop-before-comma"
        ),
        pytest.param(
            'a b c d . " e f g h i', 8, ['a b c d . "', "e f g h i"], id="after-closing-quote"
        ),
        pytest.param("a b c . d e f g h", 8, ["a b c .", "d e f g h"], id="full-stop-at-the-half"),
        pytest.param('. " a', 2, ['. "', "a"], id="full-stop-at-the-beginning"),
        pytest.param("a b c@@ d@@ e f", 4, ["a b", "c@@ d@@ e f"], id="between-words"),
        pytest.param(
            "x@@ x@@ x@@ x@@ x@@ x@@ x@@ x@@ x@@ x",
            4,
            ["x@@ x@@ x@@ x@@", "x@@ x@@ x@@ x@@", "x@@ x"],
            id="word-longer-than-a-piece",
        ),
        pytest.param(
            "a x@@ x@@ x@@ x@@ x", 5, ["a", "x@@ x@@ x@@ x@@ x"], id="word-end-in-the-first-half"
        ),
    ],
)
def test_cut_at_the_best_place(text, limit, pieces):
    assert cut(text.split(), limit, BPE) == [piece.split() for piece in pieces]


@given(st.lists(st.sampled_from(["a", "b@@", ".", ",", '"', ";"]), max_size=60), st.integers(1, 12))
@settings(deadline=None)
def test_pieces_have_all_subwords_and_at_most_the_limit(subwords, limit):
    pieces = cut(subwords, limit, BPE)
    assert [s for piece in pieces for s in piece] == subwords
    assert all(len(piece) <= limit for piece in pieces)
    assert all(pieces) or not subwords


def test_piece_of_a_text_without_spaces_ends_after_its_punctuation():
    one_word = SimpleNamespace(ends=lambda subwords: [False] * (len(subwords) - 1) + [True])
    text = ["▁a", "b", "，", "c", "d"]
    assert cut(text, 4, one_word) == [text[:3], text[3:]]
