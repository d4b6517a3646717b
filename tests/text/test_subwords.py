"""BPE: the same merges and segmentations as subword-nmt, and a way back for every word."""

import contextlib
import io
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

WORD = st.text(
    st.one_of(st.sampled_from("abcabcö@"), st.characters(exclude_categories=["Cs", "Z", "Cc"])),
    min_size=1,
    max_size=12,
)


def count(text):
    return Counter(word for line in text for word in line.split(" ") if word)


def learn(counts, merges, path):
    return learn_bpe([*counts], [*counts.values()], merges, path)


def reference_codes(counts, merges):
    """What subword-nmt writes."""
    from subword_nmt.learn_bpe import learn_bpe as reference

    out = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        reference(
            [f"{word} {number}" for word, number in counts.items()], out, merges, is_dict=True
        )
    return out.getvalue()


def reference_bpe(codes, vocabulary=None):
    from subword_nmt.apply_bpe import BPE

    with open(codes, encoding="utf-8", newline="\n") as stream:
        return BPE(stream, vocab=vocabulary)


def test_subword_nmt_reference_data(shared, tmp_path):
    folder = shared / "data/subword_nmt_test"
    text = lines(folder / "corpus.en")
    learn(count(text), 1000, tmp_path / "codes")
    assert Bpe(tmp_path / "codes").merges == 1000
    assert (tmp_path / "codes").read_bytes() == (folder / "bpe.ref").read_bytes()
    bpe = Bpe(tmp_path / "codes")
    segmented = [bpe.segment(line.split()) for line in text]
    assert [" ".join(line) for line in segmented] == [
        line.strip() for line in lines(folder / "corpus.bpe.ref.en")
    ]
    assert [bpe.join(line) for line in segmented] == [line.split() for line in text]


def multi30k_words(shared):
    folder = shared / "data/multi30k/tok"
    files = [lines(folder / f"train.lc.norm.tok.{lang}")[:6000] for lang in ("en", "de")]
    return count([line for text in files for line in text])


def test_joint_learning_equals_subword_nmt_through_all_its_pruning(shared, tmp_path):
    counts = multi30k_words(shared)
    learn(counts, 1500, tmp_path / "codes")
    assert Bpe(tmp_path / "codes").merges == 1500
    assert (tmp_path / "codes").read_text("utf-8") == reference_codes(counts, 1500)


MADE_UP = st.dictionaries(
    st.text("aabbcd", min_size=1, max_size=9), st.integers(1, 9), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=150)
@given(MADE_UP, st.integers(1, 300))
def test_learning_equals_subword_nmt_on_made_up_words(tmp_path_factory, counts, merges):
    """Few letters: repeated letters, pairs that follow each other, and many ties. The order of the
    words does not matter.
    """
    path = tmp_path_factory.mktemp("codes") / "codes"
    ordered = dict(sorted(counts.items(), reverse=True))
    if all(len(word) == 1 for word in counts):
        with pytest.raises(DataError):
            learn(ordered, merges, path)
        return
    learnt = learn(ordered, merges, path)
    text, bpe = path.read_text("utf-8"), Bpe(path)
    assert text == reference_codes(counts, merges)
    assert bpe.merges == text.count("\n") - 1
    assert words_of(learnt) == [bpe.segment([word]) for word in ordered]


def words_of(segmented):
    pieces = iter(segmented.flat.tolist())
    return [
        [segmented.pieces[next(pieces)] for _ in range(length)]
        for length in segmented.lengths.tolist()
    ]


def test_learning_leaves_real_words_as_segmented_with_its_merges(shared, tmp_path):
    counts = multi30k_words(shared)
    # What segmentation treats in a special way.
    counts.update({"a</w>b": 7, "</w>": 60, "x@@": 50, "@@": 60, "ein@@": 2, "€": 3})
    learnt = learn(counts, 3000, tmp_path / "codes")
    bpe = Bpe(tmp_path / "codes")
    assert words_of(learnt) == [bpe.segment([word]) for word in counts]
    pieces = Counter()
    for word, number in counts.items():
        for piece in bpe.segment([word]):
            pieces[piece] += number
    assert learnt.counts(np.array(list(counts.values()))) == pieces
    allowed = {piece for piece, number in pieces.items() if number >= 10}
    narrow = Bpe(tmp_path / "codes", allowed)
    words, without = list(counts), learnt.without(allowed)
    changed = {number: narrow.segment([words[number]]) for number in without}
    assert 300 < len(changed) < len(counts)
    for word, segmented in zip(counts, words_of(learnt.changed(changed)), strict=True):
        assert segmented == narrow.segment([word]) or word.endswith("@@")


def test_fewer_merges_than_asked_and_none_at_all(tmp_path):
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


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    generator = random.Random(5)
    words = {
        "".join(
            generator.choice("abcö@") for _ in range(generator.randint(2, 9))
        ): generator.randint(1, 50)
        for _ in range(400)
    }
    path = tmp_path_factory.mktemp("codes") / "codes"
    learn({**words, "x@@": 40, "@@": 60}, 200, path)
    return path


@settings(deadline=None, max_examples=300)
@given(st.lists(WORD, max_size=6))
def test_every_word_comes_back_and_equals_subword_nmt(codes, words):
    bpe, reference = Bpe(codes), reference_bpe(codes)
    pieces = bpe.segment(words)
    assert bpe.join(pieces) == words
    for word in words:
        expected = reference.segment_tokens([word])
        if not expected[-1].endswith("@@"):
            assert bpe.segment([word]) == expected


def test_words_ending_in_the_joiner_are_not_read_as_joined(codes):
    words = ["@@", "next"]
    # What goes wrong in subword-nmt.
    bpe = Bpe(codes)
    assert bpe.join(reference_bpe(codes).segment_tokens(words)) != words
    assert bpe.join(bpe.segment(words)) == words


def test_vocabulary_filter_equals_subword_nmt(codes):
    generator = random.Random(7)
    words = [
        "".join(generator.choice("abcö@") for _ in range(generator.randint(1, 30)))
        for _ in range(1500)
    ]
    seen = Counter(reference_bpe(codes).segment_tokens(words))
    vocabulary = {piece for piece, number in seen.items() if number >= 8}
    plain = reference_bpe(codes)
    reference, bpe = reference_bpe(codes, vocabulary), Bpe(codes, vocabulary)
    changed = 0
    for word in words:
        expected = reference.segment_tokens([word])
        changed += expected != plain.segment_tokens([word])
        if not expected[-1].endswith("@@"):
            assert bpe.segment([word]) == expected
        assert bpe.join(bpe.segment([word])) == [word]
    assert changed > 50


def test_a_word_of_a_hundred_thousand_letters(codes):
    generator = random.Random(9)
    word = "".join(generator.choice("abc") for _ in range(100_000))
    bpe = Bpe(codes)
    assert bpe.join(bpe.segment([word])) == [word]
    same_as_subword_nmt(codes, word[: LONG_WORD + 1])


def test_join_drops_a_dangling_joiner_and_keeps_the_rest(codes):
    join = Bpe(codes).join
    assert join(["a@@", "b", "c@@"]) == ["ab", "c"]
    assert join(["@@"]) == []
    assert join([]) == []


def test_a_missing_or_broken_codes_file_is_refused(tmp_path):
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


def same_as_subword_nmt(codes, *words):
    for word in words:
        assert Bpe(codes).segment([word]) == reference_bpe(codes).segment_tokens([word])


@pytest.mark.parametrize("number", ["", "0.1", "0.1.0", "0.2", "0.2.0"])
def test_codes_of_every_version(tmp_path, number):
    """In version 0.1 the end of a word is a symbol of its own."""
    merges = ("a b", "c </w>", "ab c</w>", "b c</w>")
    version = f"#version: {number}\n" if number else ""
    codes = write_codes(tmp_path / "codes", *merges, version=version)
    same_as_subword_nmt(codes, "abc", "bc", "c", "ab", "cab")


def test_codes_with_line_separators_are_read_line_by_line(tmp_path):
    learn({"a\u200bb": 4, "c\u00adc": 4}, 10, tmp_path / "codes")
    odd = write_codes(tmp_path / "odd", "a \u2028</w>", "b \x85</w>")
    assert Bpe(odd).segment(["b\x85"]) == ["b\x85"]


def test_codes_given_twice_count_where_they_come_first(tmp_path):
    codes = write_codes(tmp_path / "codes", *["a b"] * 5, "b c</w>", "ab c</w>")
    same_as_subword_nmt(codes, "abc", "bc", "ab", "ababc")


def test_all_occurrences_of_a_pair_are_merged_before_the_next(tmp_path):
    codes = write_codes(tmp_path / "codes", "b c", "abc a", "a bc")
    same_as_subword_nmt(codes, "abcabcx")
    assert Bpe(codes).segment(["abcabcx"]) == ["abc@@", "abc@@", "x"]
