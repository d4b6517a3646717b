"""Word numbers and word tables: they equal counts word by word, for every way to cut the text."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.prep import words
from nmtkit.prep.learn import number_words
from nmtkit.prep.word_table import FREQUENT, WORD, WordTable, concatenated, frequent_words, merged
from nmtkit.prep.words import SideText
from nmtkit.text.segmented import LINE_END
from nmtkit.text.truecase import Truecaser, sentence_starts
from tests.text.evidence import evidence

WORDS = 'Der der DER hund Hund . ? ( " : x U-Bahn &quot; <b> Ä'
SENTENCES = st.lists(
    st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=9), min_size=1, max_size=12
)


def side_text(sentences, truecase=True, shard=0):
    """Return the word numbers of a shard, and its table."""
    return add_sentences(SideText(truecase), sentences, shard)


def add_sentences(text, sentences, shard):
    """Add a shard in two chunks, each with a dropped line; lines have parts of one or two words."""
    for chunk in (sentences[:2], sentences[2:]):
        lines = [[" ".join(s[i : i + 2]) for i in range(0, len(s), 2)] for s in chunk]
        lines.insert(0, ["dropped", "line"])
        numbered = text.read([[text.parts[part] for part in line] for line in lines])
        assert numbered.words.tolist() == [2, *map(len, chunk)]
        text.keep(numbered, np.array([False] + [True] * len(chunk)))
    return text.finish(shard)


def counted(table, field):
    """Return the words whose count in this column is not 0."""
    counts = dict(zip(table.words(), table.rows[field].tolist(), strict=True))
    return Counter({word: count for word, count in counts.items() if count})


def by_appearance(table):
    """Return the words that are evidence, in the order of first appearance."""
    order = np.argsort(table.rows["first"])
    words = table.words()
    return [words[place] for place in order if table.rows["evidence"][place]]


@given(SENTENCES)
@hypothesis_settings(max_examples=120, deadline=None)
def test_table_has_the_counts_of_the_text(sentences):
    _, table = side_text(sentences)
    tokens = [word for sentence in sentences for word in sentence]
    starts = [first for sentence in sentences for first in sentence_starts(sentence)]
    evident = Counter(word for sentence in sentences for word in evidence(sentence))
    assert by_appearance(table) == list(evident)
    assert counted(table, "evidence") == evident
    assert counted(table, "at_start") == Counter(itertools.compress(tokens, starts))
    inside = Counter(word for word, first in zip(tokens, starts, strict=True) if not first)
    assert counted(table, "elsewhere") == inside
    assert (np.diff(table.rows["hash"].astype(object)) > 0).all()
    _, plain = side_text(sentences, truecase=False)
    assert counted(plain, "elsewhere") == Counter(tokens)
    assert not plain.rows["at_start"].any() and not plain.rows["evidence"].any()


@given(SENTENCES)
@hypothesis_settings(max_examples=120, deadline=None)
def test_numbers_of_a_shard_spell_its_lines_and_sentence_starts(sentences):
    numbers, table = side_text(sentences)
    words, lines = table.words(), [[]]
    for number in numbers.tolist():
        if number == LINE_END:
            lines.append([])
        else:
            lines[-1].append((words[number // 2], bool(number % 2)))
    assert lines.pop() == []
    assert lines == [list(zip(s, sentence_starts(s), strict=True)) for s in sentences]


@pytest.mark.parametrize("known", [1 << 18, 5])
def test_shard_does_not_depend_on_the_shards_before_it(known, monkeypatch):
    monkeypatch.setattr(words, "KNOWN_PARTS", known)
    shards = [[["Ein", "Hund", "."], ["Der", "Hund"]], [["Der", "."]], [["neu", "x"], ["Ein", "."]]]
    text = SideText(truecase=True)
    for number, shard in enumerate(shards):
        text.begin()
        forms, table = add_sentences(text, shard, number)
        alone, expected = side_text(shard, shard=number)
        assert forms.tolist() == alone.tolist()
        assert_same_tables(table, expected)


def assert_same_tables(one, other):
    assert one.rows.tobytes() == other.rows.tobytes()
    assert one.text.tobytes() == other.text.tobytes()


@given(SENTENCES, st.integers(1, 5), st.integers(1, 7))
@hypothesis_settings(max_examples=80, deadline=None)
def test_merged_tables_equal_the_table_of_the_whole_text(sentences, size, parts):
    """The truecaser depends on the order of first appearance in the whole text."""
    _, whole = side_text(sentences)
    tables = [
        side_text(sentences[start : start + size], shard=number)[1]
        for number, start in enumerate(range(0, len(sentences), size))
    ]
    total = merged(tables)
    for field in ("at_start", "elsewhere", "evidence"):
        assert counted(total, field) == counted(whole, field)
    assert by_appearance(total) == by_appearance(whole)
    ranges = [merged([t.part(n, parts) for t in tables]) for n in range(parts)]
    assert_same_tables(concatenated(ranges), total)
    assert_same_tables(
        merged([merged(tables[:1]), merged(tables[1:])] if tables[1:] else tables), total
    )


def test_table_is_saved_and_loaded(tmp_path):
    for sentences in ([["Ein", "Hund"], ["Ä", "Hund"]], []):
        _, table = side_text(sentences)
        paths = table.save(tmp_path / "00000.src")
        assert [path.name for path in paths] == ["00000.src.npy", "00000.src.words.npy"]
        assert_same_tables(WordTable.load(tmp_path / "00000.src"), table)


def test_part_of_a_table_keeps_no_file_open(tmp_path):
    side_text([["Ein", "Hund"]])[1].save(tmp_path / "00000.src")
    part = WordTable.load(tmp_path / "00000.src").part(0, 1)
    assert sorted(part.words()) == ["Ein", "Hund"]
    assert part.rows.flags.owndata and part.text.flags.owndata


@pytest.mark.parametrize("shards", [["ab cd"], ["ab", "c"]], ids=["one shard", "merged"])
def test_words_with_equal_hashes_are_an_error(monkeypatch, shards):
    monkeypatch.setattr(words, "word_hashes", lambda texts: np.full(len(texts), 7, np.uint64))
    with pytest.raises(DataError, match="the same 64-bit hash"):
        merged([side_text([shard.split()])[1] for shard in shards])


@given(SENTENCES)
@hypothesis_settings(max_examples=80, deadline=None)
def test_words_are_numbered_by_their_truecased_forms(sentences):
    """BPE is learnt from the counts of the forms, without another pass over the text."""
    _, table = side_text(sentences)
    tokens = [word for sentence in sentences for word in sentence]
    caser = Truecaser(
        {"der": "der", "hund": "Hund", "x": "X"}, frozenset({"der", "Der", "Hund", "X"})
    )
    expected = [word for sentence in sentences for word in caser.truecase(sentence)]
    first = [starts for sentence in sentences for starts in sentence_starts(sentence)]
    _, nothing = side_text([])
    rows = {word: row for row, word in enumerate(table.words())}
    for shared in (True, False):
        _, side = number_words([nothing, table], [None, caser], shared)
        assert dict(zip(side.words, side.counts.tolist(), strict=True)) == Counter(expected)
        numbers = [
            side.forms[rows[token], int(starts)]
            for token, starts in zip(tokens, first, strict=True)
        ]
        assert [side.words[number] for number in numbers] == expected


@pytest.mark.parametrize("limit", [1, 100, 3_000, 17_000, 19_999, 20_000, 30_000])
def test_most_frequent_words_are_the_same_for_any_parts(limit):
    """Among equally frequent words the hash decides."""
    random = np.random.default_rng(1)
    rows = np.zeros(20_000, WORD)
    rows["hash"] = np.sort(random.integers(0, 2**64, len(rows), dtype=np.uint64))
    rows["elsewhere"] = np.minimum(random.zipf(1.6, len(rows)), 1000)
    rows["end"] = np.arange(1, len(rows) + 1)
    table = WordTable(rows, np.zeros(len(rows), np.uint8))
    counts = table.counts()
    frequent = frequent_words(np.bincount(counts, minlength=FREQUENT + 1), limit)
    chosen = frequent(table)
    assert abs(len(chosen) - min(limit, len(table))) <= 3 * limit**0.5  # three standard deviations
    left_out = counts[~np.isin(rows["hash"], chosen.rows["hash"])]
    assert chosen.counts().min(initial=FREQUENT) >= left_out.max(initial=0)
    parts = concatenated([frequent(table.part(number, 3)) for number in range(3)])
    assert (parts.rows["hash"] == chosen.rows["hash"]).all()
