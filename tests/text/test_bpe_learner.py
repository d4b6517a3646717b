"""The BPE learner: its merges equal subword-nmt's, its pair counts equal plain counts, and its
memory is bounded.
"""

import contextlib
import itertools
import random
import tracemalloc
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.text import bpe_learner, words
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.bpe_learner import HOLE, Learner
from nmtkit.text.words import Words
from tests.refused import refused
from tests.text.reference_bpe import pieces_of, reference_codes

# letters of one to four bytes; </w> and @@ are rarely made
LETTERS = st.text(st.sampled_from("aaabbcdé€𝄞文\u200b@</w>"), min_size=1, max_size=10)
RUNS = st.builds(
    lambda letters, times: letters * times,
    st.text("ab", min_size=1, max_size=3),
    st.integers(1, 12),
)
DICTIONARY = st.dictionaries(LETTERS | RUNS, st.integers(1, 9), min_size=1, max_size=30)
LIMITS = st.fixed_dictionaries(
    {
        "SPARE": st.sampled_from([-1000, 0, 1000]),
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


def learnable(counts):
    return any(len(word) > 1 and "</w>" not in word for word in counts)


SURVEYED = {"SPARE": -1000, "CHUNK": 3, "PRUNED": True}


@settings(max_examples=120)
@given(DICTIONARY.filter(learnable), st.integers(1, 300), LIMITS)
@example({"aaa": 1, "aaaaaaa": 2, "baaaab": 1}, 9, SURVEYED | {"CHUNK": 1, "PRUNED": False})
@example({"abababab": 3, "babab": 2}, 9, SURVEYED)
@example({"ab</w>": 3, "ab@@": 2, "@@": 9, "a@@@": 2, "xab": 1}, 9, SURVEYED)
def test_merges_and_segmentation_equal_subword_nmt(tmp_path_factory, counts, merges, values):
    """The order of the words does not matter."""
    path = tmp_path_factory.mktemp("codes") / "codes"
    with limits(values):
        learnt = learn_bpe([*counts][::-1], [*counts.values()][::-1], merges, path)
    codes, bpe = path.read_text("utf-8"), Bpe(path)
    assert codes == reference_codes(counts, merges)
    assert bpe.merges == codes.count("\n") - 1
    assert pieces_of(learnt)[::-1] == [bpe.segment([word]) for word in counts]


def plain_state(learner):
    """Return (symbols, count) of each word, read from the learner's raw memory."""
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
def test_learner_tracks_the_count_of_every_frequent_pair_at_every_merge(counts, values, merges):
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


def spy(name):
    """Count the calls of a method of the learner."""
    return mock.patch.object(Learner, name, autospec=True, side_effect=getattr(Learner, name))


def test_surveys_and_prunes_do_not_change_the_merges(tmp_path, monkeypatch):
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(9000)]
    counts, codes, surveys = Counter(words), tmp_path / "codes", {}
    expected = reference_codes(counts, 700)
    for spare in (1000, -1000):
        monkeypatch.setattr(bpe_learner, "SPARE", spare)
        with spy("_survey") as survey, spy("_prune") as prune:
            learn_bpe([*counts], [*counts.values()], 700, codes)
        assert codes.read_text("utf-8") == expected
        assert prune.called or spare < 0
        surveys[spare] = survey.call_count
    assert surveys[-1000] > 10 * surveys[1000]


def test_word_counts_beyond_32_bits_give_the_same_merges(tmp_path):
    counts = {"abab": 1 << 32, "ba": (1 << 33) + 1, "abc": 1 << 40, "aab": 3, "bb": (1 << 32) - 1}
    for largest in (1 << 40, 1 << 32, (1 << 32) - 1):
        values = {word: min(n, largest) for word, n in counts.items()}
        with limits(SURVEYED):
            learn_bpe([*values], [*values.values()], 20, tmp_path / "codes")
        assert (tmp_path / "codes").read_text("utf-8") == reference_codes(values, 20)


def test_empty_words_and_words_that_never_occur_are_not_learnt_from(tmp_path):
    counts = {"banana": 0, "": 9, "band": 5, "nab": 4, "b": 0}
    counts |= {"bad</w>": 4, "low</w>": 3, "and@@": 4, "x@@": 3}
    learnt = learn_bpe([*counts], [*counts.values()], 20, tmp_path / "codes")
    kept = {word: n for word, n in counts.items() if n and word}
    assert (tmp_path / "codes").read_text("utf-8") == reference_codes(kept, 20)
    bpe = Bpe(tmp_path / "codes")
    assert pieces_of(learnt) == [bpe.segment([word]) if word in kept else [] for word in counts]


@pytest.mark.parametrize("listed", [["ab</w>"], ["ab</w>", "x", ""], ["@@"]])
def test_text_with_only_marker_words_is_segmented_without_merges(tmp_path, listed):
    learnt = learn_bpe(listed, [3] * len(listed), 5, tmp_path / "codes")
    bpe = Bpe(tmp_path / "codes")
    assert pieces_of(learnt) == [bpe.segment([word]) if word else [] for word in listed]


def test_words_from_a_buffer_or_a_mapped_file_are_learnt_like_strings(tmp_path):
    counts = {"文字": 5, "éa": 4, "": 3, "ab": 2, "abab": 6, "aé文": 7}
    data = "".join(counts).encode()
    offsets = np.cumsum([0, *(len(word.encode()) for word in counts)])
    (tmp_path / "data").write_bytes(data)
    mapped = np.memmap(tmp_path / "data", np.uint8, "r")
    path, frequencies = tmp_path / "codes", np.array([*counts.values()])
    results = []
    for listed in ([*counts], Words(data, offsets), Words(mapped, offsets)):
        results.append(pieces_of(learn_bpe(listed, frequencies, 9, path)))
        assert path.read_text("utf-8") == reference_codes({w: counts[w] for w in counts if w}, 9)
    assert results[0] == results[1] == results[2]


@given(st.lists(st.text("a@é€𝄞</w>", max_size=6)), st.sampled_from(["@@", "</w>", "é"]))
def test_words_behave_like_a_list_of_strings(texts, part):
    listed = Words.of(texts)
    assert [*listed] == texts and len(listed) == len(texts) and Words.of(listed) is listed
    assert texts == [] or listed[-1] == texts[-1]
    with pytest.raises(IndexError):
        listed[len(texts)]
    assert listed.holding(part) == [n for n, word in enumerate(texts) if part in word]
    with limits(SURVEYED):
        letters = [*listed.letters()]
    assert "".join(chr(letter) for _, some, _ in letters for letter in some) == "".join(texts)
    assert [n for *_, lengths in letters for n in lengths] == [len(word) for word in texts]
    assert [n for which, *_ in letters for n in range(which.start, which.stop)] == [
        *range(len(texts))
    ]


def test_too_many_letters_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "MOST_PLACES", 8)
    learn_bpe(["abc", "de"], [3, 3], 9, tmp_path / "codes")
    raised = refused(
        DataError, "too many words", learn_bpe, ["abc", "def"], [3, 3], 9, tmp_path / "many"
    )
    assert "rarest" in str(raised.hint)
    assert not (tmp_path / "many").exists()


def test_compacting_removes_the_holes_that_merging_leaves():
    learner = Learner(Words.of(["abcd"]), np.array([5]), np.ones(1, bool))
    learner.learn(3)
    text = learner._memory[0]
    assert [text[0], text[5]] == [0, 0] and text[1] == ~text[4]
    learner._compact()
    assert len(learner._memory[0]) == 3 and HOLE not in learner._memory[0]


def test_learner_needs_less_than_250_bytes_a_word(tmp_path):
    """The words themselves, 27 bytes each, are not counted. Python objects for places and rare
    pairs would take 1,400 bytes a word.
    """
    draw = np.random.default_rng(5)
    types = 150_000
    syllables = np.array(
        [a + b for a in "bdfgklmnprst" for b in ("a", "e", "in", "or", "u")], object
    )
    parts = draw.choice(syllables, (5, 3 * types)) * draw.integers(0, 2, (5, 3 * types))
    listed = [word for word in dict.fromkeys(parts.sum(0)) if word][:types]
    assert len(listed) == types
    counts = types // np.arange(1, types + 1)
    listed = Words.of(listed)
    tracemalloc.start()
    try:
        learn_bpe(listed, counts, 1000, tmp_path / "codes")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert Bpe(tmp_path / "codes").merges == 1000
    assert peak / types < 250
