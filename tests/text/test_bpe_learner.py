"""The learner beside subword-nmt's: with many surveys and small chunks; what it tracks beside a plain
count; its memory; words in a buffer.
"""

import contextlib
import io
import itertools
import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from subword_nmt.learn_bpe import learn_bpe as learn_as_subword_nmt

from nmtkit.errors import DataError
from nmtkit.text import bpe_learner, words
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.bpe_learner import HOLE, Learner
from nmtkit.text.words import Words
from tests.refused import refused

# letters of one to four bytes; </w> and @@ are rarely made
LETTERS = st.text(st.sampled_from("aaabbcdé€𝄞文@</w>"), min_size=1, max_size=10)
RUNS = st.builds(
    lambda letters, times: letters * times,
    st.text("ab", min_size=1, max_size=3),
    st.integers(1, 12),
)
DICTIONARY = st.dictionaries(LETTERS | RUNS, st.integers(1, 9), min_size=1, max_size=30)
LIMITS = st.fixed_dictionaries(
    {
        "SPARE": st.sampled_from([-1000, 0]),
        "CHUNK": st.sampled_from([1, 3, 1 << 16]),
        "PRUNED": st.booleans(),  # at every merge
    }
)


@contextlib.contextmanager
def limits(values):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARE", "CHUNK"):
            patch.setattr(bpe_learner, name, values[name])
        patch.setattr(words, "PLACES_AT_ONCE", values["CHUNK"])
        patch.setattr(words, "CHUNK", max(values["CHUNK"] - 1, 1))
        if values["PRUNED"]:
            always = property(lambda learner: -1, lambda learner, value: None)
            patch.setattr(Learner, "_limit", always, raising=False)
        yield


def expected_codes(counts, merges):
    """What subword-nmt writes; it takes "</w>" in a word for its end marker."""
    out = io.StringIO()
    lines = [f"{word} {count}" for word, count in counts.items() if "</w>" not in word]
    with contextlib.redirect_stderr(io.StringIO()):
        learn_as_subword_nmt(lines, out, merges, is_dict=True)
    return out.getvalue()


def pieces_of(segmented):
    ends = np.cumsum(segmented.lengths)
    return [
        [segmented.pieces[piece] for piece in segmented.flat[start:end]]
        for start, end in itertools.pairwise([0, *ends.tolist()])
    ]


def learnable(counts):
    return any(len(word) > 1 and "</w>" not in word for word in counts)


@settings(max_examples=120)
@given(DICTIONARY, st.integers(1, 200), LIMITS)
@example(
    {"aaa": 1, "aaaaaaa": 2, "baaaab": 1},
    9,
    {"SPARE": -1000, "CHUNK": 1, "PRUNED": False},
)
@example({"abababab": 3, "babab": 2}, 9, {"SPARE": -1000, "CHUNK": 3, "PRUNED": True})
@example(
    {"ab</w>": 3, "ab@@": 2, "@@": 9, "a@@@": 2, "xab": 1},
    9,
    {"SPARE": -1000, "CHUNK": 3, "PRUNED": True},
)
def test_merges_and_segmentation_equal_subword_nmt(tmp_path_factory, counts, merges, values):
    path = tmp_path_factory.mktemp("codes") / "codes"
    if not learnable(counts):
        return
    with limits(values):
        learnt = learn_bpe([*counts], [*counts.values()], merges, path)
    assert path.read_text("utf-8") == expected_codes(counts, merges)
    bpe = Bpe(path)
    assert pieces_of(learnt) == [bpe.segment([word]) for word in counts]


def plain_state(learner):
    """The words of a learner as lists of symbols, with the count of each, from its raw memory."""
    text, weight = learner._memory
    result, place = [], 0
    while place < len(text):
        if text[place] == 0:
            result.append(([], 0))
        else:
            result[-1] = [*result[-1][0], text[place]], weight[place]
        place += learner._sizes[text[place]]
    assert not result.pop()[0]
    return result


def plain_counts(state):
    counts = Counter()
    for symbols, weight in state:
        for pair in itertools.pairwise(symbols):
            counts[pair] += weight
    return counts


@settings(max_examples=60)
@given(DICTIONARY.filter(learnable), LIMITS, st.integers(1, 40))
def test_every_frequent_pair_is_tracked_with_its_count_at_every_merge(counts, values, merges):
    distinct = [word for word in counts if "</w>" not in word]
    numbers = np.array([counts[word] for word in distinct])
    with limits(values):
        learner = Learner(Words.of(distinct), numbers, np.ones(len(distinct), bool))
        best = learner._best

        def checked(wanted):
            result = best(wanted)
            known = {(p >> 22, p & (1 << 22) - 1): n for p, n in learner._counts.items()}
            counted = plain_counts(plain_state(learner))
            for pair, number in counted.items():
                assert known.get(pair, 0) == number or (
                    number < learner._floor and pair not in known
                )
                assert pair in known or number < learner._floor
            assert set(known) == {(p >> 22, p & (1 << 22) - 1) for p in learner._where}
            if result is not None:
                assert counted[result >> 22, result & (1 << 22) - 1] == max(counted.values())
            return result

        learner._best = checked
        learner.learn(merges)


def test_surveys_and_prunes_happen_and_change_nothing(tmp_path, monkeypatch):
    generator = random.Random(3)
    counts = Counter(
        "".join(generator.choices("abcdefgh", k=generator.randint(1, 9))) for _ in range(9000)
    )
    calls = Counter()
    for name in ("_survey", "_prune"):
        method = getattr(Learner, name)

        def counted(self, *args, name=name, method=method):
            calls[name] += 1
            return method(self, *args)

        monkeypatch.setattr(Learner, name, counted)
    learn_bpe([*counts], [*counts.values()], 700, tmp_path / "codes")
    assert calls["_prune"]
    few = calls["_survey"]
    monkeypatch.setattr(bpe_learner, "SPARE", -1000)
    learn_bpe([*counts], [*counts.values()], 700, tmp_path / "surveyed")
    assert calls["_survey"] > 10 * few
    codes = (tmp_path / "codes").read_bytes()
    assert (tmp_path / "surveyed").read_bytes() == codes
    assert codes.decode() == expected_codes(counts, 700)


def test_counts_beyond_32_bits(tmp_path):
    counts = {"abab": 1 << 32, "ba": (1 << 33) + 1, "abc": 1 << 40, "aab": 3, "bb": (1 << 32) - 1}
    for largest in (1 << 40, 1 << 32, (1 << 32) - 1):
        values = {word: min(n, largest) for word, n in counts.items()}
        with limits({"SPARE": -1000, "CHUNK": 3, "PRUNED": True}):
            learn_bpe([*values], [*values.values()], 20, tmp_path / "codes")
        assert (tmp_path / "codes").read_text("utf-8") == expected_codes(values, 20)


def test_words_that_never_occur_are_left_out(tmp_path):
    counts = {"banana": 0, "": 9, "band": 5, "nab": 4, "b": 0}
    counts |= {"bad</w>": 4, "low</w>": 3, "and@@": 4, "x@@": 3}
    learnt = learn_bpe([*counts], [*counts.values()], 20, tmp_path / "codes")
    kept = {word: n for word, n in counts.items() if n and word}
    assert (tmp_path / "codes").read_text("utf-8") == expected_codes(kept, 20)
    bpe = Bpe(tmp_path / "codes")
    assert pieces_of(learnt) == [bpe.segment([word]) if word in kept else [] for word in counts]
    refused(DataError, "no words", learn_bpe, [*counts], [0] * len(counts), 20, tmp_path / "none")


@pytest.mark.parametrize("listed", [["ab</w>"], ["ab</w>", "x", ""], ["@@"]])
def test_words_that_hold_markers_alone_are_segmented(tmp_path, listed):
    learnt = learn_bpe(listed, [3] * len(listed), 5, tmp_path / "codes")
    bpe = Bpe(tmp_path / "codes")
    assert pieces_of(learnt) == [bpe.segment([word]) if word else [] for word in listed]


def test_words_in_a_buffer_are_learnt_as_strings_are(tmp_path):
    distinct, counts = ["文字", "éa", "", "ab", "abab", "aé文"], [5, 4, 3, 2, 6, 7]
    data = "".join(distinct).encode()
    offsets = np.cumsum([0, *(len(word.encode()) for word in distinct)])
    np.frombuffer(data, np.uint8).tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", np.uint8, "r")
    results = [
        learn_bpe(given_words, np.array(counts), 9, tmp_path / "codes")
        for given_words in (distinct, Words(data, offsets), Words(mapped, offsets))
    ]
    assert (tmp_path / "codes").read_text("utf-8") == expected_codes(
        {word: n for word, n in zip(distinct, counts, strict=True) if word}, 9
    )
    assert pieces_of(results[0]) == pieces_of(results[1]) == pieces_of(results[2])


@given(st.lists(st.text("a@é€𝄞</w>", max_size=6)), st.sampled_from(["@@", "</w>", "é"]))
def test_words_are_a_list_of_strings(texts, part):
    listed = Words.of(texts)
    assert [*listed] == texts and len(listed) == len(texts) and Words.of(listed) is listed
    assert texts == [] or listed[-1] == texts[-1]
    with pytest.raises(IndexError):
        listed[len(texts)]
    assert listed.holding(part) == [n for n, word in enumerate(texts) if part in word]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "CHUNK", 2)
        letters = [*listed.letters()]
    assert "".join(chr(letter) for _, some, _ in letters for letter in some) == "".join(texts)
    assert [n for *_, lengths in letters for n in lengths] == [len(word) for word in texts]
    assert [n for which, *_ in letters for n in range(which.start, which.stop)] == [
        *range(len(texts))
    ]


def test_more_letters_than_the_learner_can_number_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "MOST_PLACES", 8)
    learn_bpe(["abc", "de"], [3, 3], 9, tmp_path / "codes")
    raised = refused(
        DataError, "too many words", learn_bpe, ["abc", "def"], [3, 3], 9, tmp_path / "many"
    )
    assert "rarest" in str(raised.hint)
    assert not (tmp_path / "many").exists()


def test_places_that_merging_leaves_are_holes():
    learner = Learner(Words.of(["abcd"]), np.array([5]), np.ones(1, bool))
    learner.learn(3)
    text = learner._memory[0]
    assert [text[0], text[5]] == [0, 0] and text[1] == ~text[4]
    learner._compact()
    assert len(learner._memory[0]) == 3 and HOLE not in learner._memory[0]


def test_memory_a_word_is_bounded(tmp_path):
    """Of everything but the words themselves, which take 27 bytes each. Python objects for places and
    rare pairs took 1,400 bytes a word.
    """
    random_numbers = np.random.default_rng(5)
    types = 150_000
    syllables = np.array(
        [a + b for a in "bdfgklmnprst" for b in ("a", "e", "in", "or", "u")], object
    )
    parts = random_numbers.choice(syllables, (5, 3 * types)) * random_numbers.integers(
        0, 2, (5, 3 * types)
    )
    listed = [word for word in dict.fromkeys(parts.sum(0)) if word][:types]
    assert len(listed) == types
    counts = types // np.arange(1, types + 1)
    listed = Words.of(listed)
    tracemalloc.start()
    try:
        learn_bpe(listed, counts, 4000, tmp_path / "codes")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert Bpe(tmp_path / "codes").merges == 4000
    assert peak / types < 250
