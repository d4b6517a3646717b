"""Over-long sentences are cut where a person would cut them, and nothing is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.text.bpe import Bpe
from nmtkit.translate import over_long

BPE = Bpe.__new__(Bpe)  # where words end does not depend on its codes


def cut(subwords, limit, splitter=BPE):
    return over_long.cut(subwords, limit, splitter)


def words(text):
    return text.split()


def test_short_enough_is_one_piece():
    assert cut(["a", "b", "."], 3) == [["a", "b", "."]]
    assert cut([], 3) == [[]]


def test_strongest_punctuation_wins_over_a_later_comma():
    assert cut(words("a b c d . e f , g h"), 8) == [words("a b c d ."), words("e f , g h")]


def test_closing_quote_stays_with_its_sentence():
    assert cut(words('a b c d . " e f g h i'), 8)[0] == words('a b c d . "')


def test_without_punctuation_between_words():
    assert cut(words("a b c@@ d@@ e f"), 4) == [["a", "b"], ["c@@", "d@@", "e", "f"]]


def test_a_word_longer_than_the_room_is_cut_anywhere():
    assert cut(["x@@"] * 9 + ["x"], 4) == [["x@@"] * 4, ["x@@"] * 4, ["x@@", "x"]]


def test_a_word_end_in_the_first_half_is_better_than_none():
    assert cut(["a", "x@@", "x@@", "x@@", "x@@", "x"], 5)[0] == ["a"]


@given(st.lists(st.sampled_from(["a", "b@@", ".", ",", '"', ";"]), max_size=60), st.integers(1, 12))
@settings(deadline=None)
def test_nothing_is_lost_and_no_piece_is_too_long(subwords, limit):
    pieces = cut(subwords, limit)
    assert [s for piece in pieces for s in piece] == subwords
    assert all(len(piece) <= limit for piece in pieces)
    assert all(pieces) or not subwords
