"""Cleaning: unsafe characters are replaced and counted, and pairs are dropped for the documented
reasons.
"""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.prep.clean import Cleaner
from nmtkit.prep.words import SideText
from nmtkit.settings import PrepSettings
from nmtkit.text.tidy import tidy
from tests.prep.corpora import drop_reason

SPECIAL = "\x00\t\r\n\x0b\x0c\x1c\x1f\x7f\x85\u2028\u2029\ufeff @-a\u0301\u200b\u00ad\u00a0\u3000"
UNSAFE = st.text(st.one_of(st.sampled_from(SPECIAL), st.characters(exclude_categories=["Cs"])))


@pytest.mark.parametrize(
    ("raw", "clean", "kinds"),
    [
        ("plain text", "plain text", {}),
        ("\ufeffstart", "start", {"BOM": 1}),
        ("mid\ufeffdle", "middle", {"BOM": 1}),
        ("dos\r", "dos", {"CR at the end": 1}),
        ("a\rb\r", "a b", {"CR at the end": 1, "carriage return": 1}),
        ("a\x00b", "a b", {"NUL": 1}),
        ("a\tb\t\tc", "a b c", {"tab": 3}),
        ("a\u2028b", "a b", {"line separator U+2028": 1}),
        ("a\u2029b", "a b", {"paragraph separator U+2029": 1}),
        ("a\x85b", "a b", {"next line U+0085": 1}),
        ("a\x0cb\x0bc", "a b c", {"form feed": 1, "vertical tab": 1}),
        ("a\x1cb\x1fc", "a b c", {"separator U+001C-1F": 2}),
        ("a\x07b\x9ac\x7f", "a b c", {"other control character": 3}),
        ("a\ud800b", "a b", {"other control character": 1}),
        ("  a  b ", "a b", {"spaces": 1}),
        (" a", "a", {"spaces": 1}),
        (" a\u00a0b", "a\u00a0b", {"spaces": 1}),
        ("a ", "a", {"spaces": 1}),
        ("in@@ to the @@ end@@", "in@@ to the @@ end@@", {"joiner @@ in the text": 3}),
        ("a@@b", "a@@b", {}),
        ("no\u00a0break \u3000wide e\u0301", "no\u00a0break \u3000wide e\u0301", {}),
        ("\ufeff\r", "", {"BOM": 1, "CR at the end": 1}),
        ("soft\u00adhyphen\u200e\r", "softhyphen", {"invisible character": 2, "CR at the end": 1}),
        ("a\u2066\u061c\u200bb\tc", "ab c", {"invisible character": 3, "tab": 1}),
        ("می\u200cخواهم", "می\u200cخواهم", {}),
    ],
)
def test_tidy_replaces_and_counts_each_kind_of_character(raw, clean, kinds):
    counts: Counter[str] = Counter()
    assert tidy(raw, counts) == clean
    assert dict(counts) == kinds
    assert tidy(raw) == clean


def slow_tidy(line):
    hidden = set(
        "\xad\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
    )
    line = "".join(c for c in line if c not in hidden).removesuffix("\r")
    spaced = re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", line)
    return re.sub(" +", " ", spaced).strip(" ")


@settings(deadline=None, max_examples=150)
@given(UNSAFE)
def test_tidy_equals_a_slow_version_and_leaves_one_line(line):
    counts: Counter[str] = Counter()
    clean = tidy(line, counts)
    assert clean == slow_tidy(line)
    assert tidy(clean) == clean
    assert len(clean.splitlines()) <= 1
    assert clean == line or counts


@pytest.mark.parametrize(
    ("src", "tgt", "reason", "blame"),
    [
        (0, 3, "empty", "src"),
        (3, 0, "empty", "tgt"),
        (0, 0, "empty", "both"),
        (2, 18, "", ""),
        (2, 19, "ratio", "tgt"),
        (19, 2, "ratio", "src"),
        (100, 100, "", ""),
        (101, 100, "too long", "src"),
        (20, 101, "too long", "tgt"),
        (1, 3, "too short", "src"),
    ],
)
def test_pairs_are_dropped_for_the_reasons_of_clean_corpus_n(src, tgt, reason, blame):
    limits = PrepSettings(min_words=2, max_words=100, max_ratio=9)
    guilty = [blame in (side, "both") for side in ("src", "tgt")]
    assert drop_reason([src, tgt], [False, False], limits) == (reason, guilty)


@pytest.mark.parametrize(("size", "reason"), [(1000, ""), (1001, "word too long")])
def test_pair_with_a_word_over_1000_characters_is_dropped(size, reason):
    text = SideText(truecase=False)
    parts = [["a", "b"], ["a", "b" * size], ["c " + "b" * size]]
    lines = text.read([[text.parts[part] for part in line] for line in parts])
    assert lines.giant.tolist() == [False, bool(reason), bool(reason)]
    sizes, giant = lines.words[:2].tolist(), lines.giant[:2].tolist()
    assert drop_reason(sizes, giant, PrepSettings()) == (reason, [False, bool(reason)])


def test_words_of_a_line_that_is_far_too_long_are_not_stored():
    """Their many words would fill the memory."""
    clean = Cleaner(("en", "de"), PrepSettings(max_words=5))
    long = " ".join(f"word{i}" for i in range(1000))
    assert clean((f"{long}\nshort\n".encode(), b"x\ny\n")).tolist() == [False, True]
    assert clean.reasons["too long"] == {"pairs": 1, "src": 1, "tgt": 0}
    assert len(clean.texts[0].parts) < 10


@pytest.mark.parametrize(("subwords", "kept"), [("sentencepiece", False), ("bpe", True)])
def test_length_of_raw_chinese_text_is_its_number_of_characters(subwords, kept):
    """For BPE jieba cuts the 12 characters into fewer words."""
    clean = Cleaner(("zh", "en"), PrepSettings(subwords=subwords, max_words=10))
    assert clean(("几个人骑着自行车在街上走\n".encode(), b"a b c d\n")).tolist() == [kept]


def test_target_is_not_tidied_if_its_source_is_not_utf8():
    clean = Cleaner(("en", "de"), PrepSettings(on_bad_utf8="drop"))
    texts = b"\xff\n\xff\na\n", b"x  y\n\xff\nb\n"
    assert clean(texts).tolist() == [False, False, True]
    assert clean.reasons["not UTF-8"] == {"pairs": 2, "src": 2, "tgt": 0}
    assert not clean.changes[1]
