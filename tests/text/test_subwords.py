"""BPE: merges and segmentations equal subword-nmt's, and every word comes back."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.splitter import LONG_WORD
from tests.prep.real import lines
from tests.text.reference_bpe import pieces_of, reference_bpe, reference_codes, word_counts

WORD = st.text(
    st.one_of(st.sampled_from("abcabcö@"), st.characters(exclude_categories=["Cs", "Z", "Cc"])),
    min_size=1,
    max_size=12,
)


def learn(counts, merges, path):
    return learn_bpe([*counts], [*counts.values()], merges, path)


def test_merges_and_segmentation_equal_subword_nmts_own_test_data(shared, tmp_path):
    folder = shared / "data/subword_nmt_test"
    text = lines(folder / "corpus.en")
    learn(word_counts(text), 1000, tmp_path / "codes")
    assert (tmp_path / "codes").read_bytes() == (folder / "bpe.ref").read_bytes()
    bpe = Bpe(tmp_path / "codes")
    assert bpe.merges == 1000
    segmented = [bpe.segment(line.split()) for line in text]
    recorded = lines(folder / "corpus.bpe.ref.en")
    assert [" ".join(line) for line in segmented] == [line.strip() for line in recorded]
    assert [bpe.join(line) for line in segmented] == [line.split() for line in text]


def test_learning_on_real_text_equals_subword_nmt_and_returns_its_segmentation(shared, tmp_path):
    folder = shared / "data/multi30k/tok"
    files = [lines(folder / f"train.lc.norm.tok.{lang}")[:6000] for lang in ("en", "de")]
    counts = word_counts(line for text in files for line in text)
    codes = tmp_path / "codes"
    learn(counts, 1500, codes)
    assert codes.read_text("utf-8") == reference_codes(counts, 1500)
    # words that segmentation treats in a special way
    counts.update({"a</w>b": 7, "</w>": 60, "x@@": 50, "@@": 60, "ein@@": 2, "€": 3})
    learnt = learn(counts, 3000, codes)
    bpe = Bpe(codes)
    segmented = [bpe.segment([word]) for word in counts]
    assert pieces_of(learnt) == segmented
    pieces = Counter()
    for number, word in zip(counts.values(), segmented, strict=True):
        for piece in word:
            pieces[piece] += number
    assert learnt.counts(np.array([*counts.values()])) == pieces
    allowed = {piece for piece, number in pieces.items() if number >= 10}
    narrow = Bpe(codes, allowed)
    changed = {n: narrow.segment([word]) for n, word in enumerate(counts) if n % 2}
    for n, pieces in enumerate(pieces_of(learnt.changed(changed))):
        assert pieces == (changed[n] if n % 2 else segmented[n])


def test_learning_stops_when_no_pair_occurs_twice_and_refuses_text_without_pairs(tmp_path):
    learn({"aba": 5, "x": 9}, 100, tmp_path / "codes")
    assert Bpe(tmp_path / "codes").merges == 2
    learn({"ab": 1}, 100, tmp_path / "none")
    assert Bpe(tmp_path / "none").merges == 0
    assert Bpe(tmp_path / "none").segment(["ab"]) == ["a@@", "b"]
    for empty in ({}, {"": 3}, {"a": 5}, {"ab": 0}):
        with pytest.raises(DataError, match="no words"):
            learn(empty, 10, tmp_path / "not")
    assert not (tmp_path / "not").exists()


def test_learning_prints_nothing(tmp_path, capfd):
    learn({"banana": 7, "band": 2}, 50, tmp_path / "codes")
    assert capfd.readouterr() == ("", "")


def random_words(seed, count, longest):
    draw = random.Random(seed)
    return ["".join(draw.choices("abcö@", k=draw.randint(1, longest))) for _ in range(count)]


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    counts = {word: place % 50 + 1 for place, word in enumerate(random_words(5, 400, 9))}
    path = tmp_path_factory.mktemp("codes") / "codes"
    learn(counts | {"x@@": 40, "@@": 60}, 200, path)
    return path


@settings(deadline=None, max_examples=300)
@given(st.lists(WORD, max_size=6))
def test_every_word_is_split_as_by_subword_nmt_and_comes_back(codes, words):
    bpe, reference = Bpe(codes), reference_bpe(codes)
    pieces = bpe.segment(words)
    assert bpe.join(pieces) == words
    for word in words:
        expected = reference.segment_tokens([word])
        if not expected[-1].endswith("@@"):
            assert bpe.segment([word]) == expected


def test_pair_given_twice_and_symbol_of_two_pairs_count_as_in_subword_nmt(tmp_path):
    """A pair has its first rank. A symbol that two pairs make is undone into the first of them."""
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\na b\nb c\nab c\na bc\na b\n", "utf-8")
    allowed = {"a@@", "b@@", "c@@", "ab@@", "bc@@", "x"}
    for vocabulary, pieces in ((None, ["abc@@", "x"]), (allowed, ["ab@@", "c@@", "x"])):
        assert Bpe(codes, vocabulary).segment(["abcx"]) == pieces
        assert reference_bpe(codes, vocabulary).segment_tokens(["abcx"]) == pieces
    codes.write_text("#version: 0.2\na b\nb c\na b\n", "utf-8")
    assert Bpe(codes).segment(["abcx"]) == ["ab@@", "c@@", "x"]
    assert reference_bpe(codes).segment_tokens(["abcx"]) == ["ab@@", "c@@", "x"]


def test_word_that_ends_in_the_joiner_is_not_joined_to_the_next(codes):
    words, bpe = ["@@", "next"], Bpe(codes)
    assert bpe.join(reference_bpe(codes).segment_tokens(words)) != words  # subword-nmt's fault
    assert bpe.join(bpe.segment(words)) == words


def test_vocabulary_filter_equals_subword_nmt(codes):
    words, plain = random_words(7, 1500, 30), reference_bpe(codes)
    seen = Counter(plain.segment_tokens(words))
    vocabulary = {piece for piece, number in seen.items() if number >= 8}
    reference, bpe = reference_bpe(codes, vocabulary), Bpe(codes, vocabulary)
    changed = 0
    for word in words:
        expected = reference.segment_tokens([word])
        changed += expected != plain.segment_tokens([word])
        if not expected[-1].endswith("@@"):
            assert bpe.segment([word]) == expected
        assert bpe.join(bpe.segment([word])) == [word]
    assert changed > 50


def test_word_of_a_hundred_thousand_letters_comes_back(codes):
    word = "".join(random.Random(9).choices("abc", k=100_000))
    bpe = Bpe(codes)
    assert bpe.join(bpe.segment([word])) == [word]
    assert_same_as_subword_nmt(codes, word[: LONG_WORD + 1])


@pytest.mark.parametrize(
    ("pieces", "words"), [(["a@@", "b", "c@@"], ["ab", "c"]), (["@@"], []), ([], [])]
)
def test_join_drops_a_joiner_at_the_end(codes, pieces, words):
    assert Bpe(codes).join(pieces) == words


def test_missing_or_broken_codes_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Bpe(tmp_path / "none")
    for line in ("a b c", "a", "", "a ", " b"):
        (tmp_path / "bad").write_text(f"#version: 0.2\n{line}\n", encoding="utf-8")
        with pytest.raises(DataError, match="line 2"):
            Bpe(tmp_path / "bad")


def write_codes(path, *merges, version="#version: 0.2\n"):
    text = version + "".join(f"{merge}\n" for merge in merges)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def assert_same_as_subword_nmt(codes, *words):
    for word in words:
        assert Bpe(codes).segment([word]) == reference_bpe(codes).segment_tokens([word])


@pytest.mark.parametrize("number", ["", "0.1", "0.1.0", "0.2", "0.2.0"])
def test_codes_files_of_every_version_are_read(tmp_path, number):
    """In version 0.1 the end of a word is a separate symbol."""
    merges = ("a b", "c </w>", "ab c</w>", "b c</w>")
    version = f"#version: {number}\n" if number else ""
    codes = write_codes(tmp_path / "codes", *merges, version=version)
    assert_same_as_subword_nmt(codes, "abc", "bc", "c", "ab", "cab")


def test_codes_lines_end_at_line_feeds_only(tmp_path):
    odd = write_codes(tmp_path / "odd", "a \u2028</w>", "b \x85</w>")
    assert Bpe(odd).segment(["b\x85"]) == ["b\x85"]


def test_repeated_merge_has_the_rank_of_its_first_line(tmp_path):
    codes = write_codes(tmp_path / "codes", *["a b"] * 5, "b c</w>", "ab c</w>")
    assert_same_as_subword_nmt(codes, "abc", "bc", "ab", "ababc")


def test_all_occurrences_of_a_pair_are_merged_before_the_next_pair(tmp_path):
    codes = write_codes(tmp_path / "codes", "b c", "abc a", "a bc")
    assert_same_as_subword_nmt(codes, "abcabcx")
    assert Bpe(codes).segment(["abcabcx"]) == ["abc@@", "abc@@", "x"]
