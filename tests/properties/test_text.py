"""Any text, to subwords and ids and back: no character is lost, no token becomes a control symbol,
and a line stays one line.
"""

import itertools
import unicodedata
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit import files
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy
from nmtkit.text.truecase import Truecaser, detruecase
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from tests.manifests import read_json

SETTINGS = {"normalize": False, "aggressive_hyphens": True, "escape": False, "lowercase": False}
WORDS = ["@@", "a@@", "@-@", "<unk>", "</s>", "&apos;", "&amp;amp;", "&#124;"]
WORDS += ["Der", "hund", "Hund", "U-Bahn", "don't", "rug,", "8'", "...", "Mr.", "1,000"]
# Separators, joiners, combining and zero-width marks, private and unassigned code points, letters
# whose case has another length.
ODD = (
    "\x00\t\r\x0b\x0c\x1c\x85\u2028\u2029\ufeff"
    " \u00a0\u00ad\u3000\u200b\u200d\u0301@-&;<>|[]'\".,!?#ßŉǰİıſﬀ\ue000\uffff日我，。"
)
HIDDEN = (
    "\xad\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
CHARACTERS = st.one_of(
    st.sampled_from(ODD), st.characters(exclude_categories=["Cs"], exclude_characters="\n")
)
TEXT = st.lists(st.one_of(st.text(CHARACTERS, max_size=8), st.sampled_from(WORDS)), max_size=8).map(
    " ".join
)
SPELLED = st.text(CHARACTERS.filter(lambda c: not c.isspace()), min_size=1, max_size=12)
WORD = st.one_of(
    SPELLED, st.sampled_from(WORDS), st.tuples(SPELLED, st.sampled_from(WORDS)).map("".join)
)


def visible(text):
    """The characters that must survive: all but white space and what `tidy` treats as such."""
    return "".join(
        c
        for c in text
        if not c.isspace() and c not in HIDDEN and unicodedata.category(c) not in {"Cc", "Zl", "Zp"}
    )


def with_hyphens(text):
    """A text in which Moses' mark of a split hyphen is a hyphen; a text may have the mark, too."""
    return text.replace("@-@", "-")


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    path = tmp_path_factory.mktemp("properties") / "codes"
    counts = {"der": 9, "den": 7, "Hund": 5, "hunde": 5, "a@@": 4, "@@": 4, "@-@": 3}
    counts |= {"<unk>": 2, "我们": 3, "日我": 2, "e\u0301e\u0301": 3}
    learn_bpe([*counts], [*counts.values()], 40, path)
    return path


CASER = Truecaser({"der": "der", "hund": "Hund", "i\u0307": "İ"}, frozenset({"der", "Hund"}))


@pytest.fixture(scope="module", params=["en", "de", "fr", "cs", "zh"])
def side(request, codes):
    return TextSide(request.param, SimpleNamespace(**SETTINGS), CASER, Bpe(codes))


@given(TEXT)
def test_tidy_keeps_every_visible_character_in_one_line(line):
    clean = tidy(line)
    assert "  " not in clean and clean == clean.strip(" ")
    assert visible(clean) == visible(line)
    assert len(clean.splitlines()) <= 1
    assert tidy(clean) == clean


@given(st.data())
def test_tokens_have_all_visible_characters(side, data):
    line = data.draw(TEXT)
    tokens = side.tokenized(tidy(line)).split(" ")
    assert with_hyphens("".join(tokens)) == with_hyphens(visible(line))


@given(st.lists(WORD, max_size=8))
def test_truecasing_and_detruecasing_change_only_case(tokens):
    folded = [word.casefold() for word in tokens]
    cased = CASER.truecase(tokens)
    assert [word.casefold() for word in cased] == folded
    assert [word.casefold() for word in detruecase(cased)] == folded


@given(st.lists(WORD, max_size=8))
def test_subwords_of_bpe_join_to_the_words(codes, words):
    bpe = Bpe(codes)
    subwords = bpe.segment(words)
    assert bpe.join(subwords) == words
    assert all(subwords) and not any(map(str.isspace, itertools.chain(*subwords)))


@given(st.data())
def test_decoded_subwords_equal_the_line_except_for_case_and_spaces(side, data):
    line = data.draw(TEXT)
    subwords = side.encode(line)
    assert side.surface(subwords) == " ".join(side.tokens(line))
    text = side.decode(subwords)
    assert len(text.splitlines()) <= 1
    assert with_hyphens(visible(text)).casefold() == with_hyphens(visible(line)).casefold()


@given(st.lists(st.lists(WORD, max_size=6), max_size=5))
def test_decoded_ids_equal_the_tokens_and_no_token_becomes_a_control_symbol(
    tmp_path_factory, lines
):
    counts = {word: 1 for words in lines for word in words}
    vocabulary = Vocabulary.from_counts(counts)
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert list(loaded) == list(vocabulary)
    for words in lines:
        ids = loaded.encode(words)
        assert loaded.decode(ids) == ["<unk>" if word in SPECIALS else word for word in words]
        assert len(ids) == len(words) + 1
        assert not {0, 1, 2} & set(ids[:-1])


@given(TEXT)
def test_text_and_json_files_keep_any_line(tmp_path_factory, line):
    path = tmp_path_factory.mktemp("lines") / "x.txt"
    files.write_lines(path, [line, "", line])
    assert list(files.text_lines(path)) == [line, "", line]
    files.write_json(path, {"line": line})
    assert read_json(path) == {"line": line}
