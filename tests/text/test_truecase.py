"""Truecasing: the model, truecasing and its way back equal sacremoses' on real text, and the
recorded IWSLT 2015 files.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.text.moses import Moses
from nmtkit.text.truecase import Truecaser, detruecase, learn_truecaser, sentence_starts
from tests.prep.real import lines
from tests.text.evidence import evidence

VOCABULARY = "the The THE House house . : ! &quot; ( [ ' 12 - ß Über über A1"
TOKENS = st.lists(st.sampled_from(VOCABULARY.split()), max_size=12)


def ours(sentences, path):
    counts = Counter(word for tokens in sentences for word in evidence(tokens))
    learnt, read = learn_truecaser(counts, path), Truecaser.load(path)
    assert (learnt.best, learnt.known) == (read.best, read.known)
    return path.read_bytes()


def theirs(sentences, path):
    from sacremoses import MosesTruecaser

    MosesTruecaser().train(sentences, save_to=str(path))
    return path.read_bytes()


@pytest.fixture(scope="module")
def news(shared):
    return [
        Moses("en").tokenize(line).split()
        for line in lines(shared / "data/wmt_newstest/newstest2012.eng")
    ]


def test_model_is_sacremoses_byte_for_byte_on_real_text(news, tmp_path):
    model = ours(news, tmp_path / "a")
    assert model == theirs(news, tmp_path / "b")
    assert model.count(b"\n") > 8000


def test_truecasing_equals_sacremoses_on_real_text(news, shared, tmp_path):
    from sacremoses import MosesDetruecaser, MosesTruecaser

    ours(news, tmp_path / "model")
    truecaser = Truecaser.load(tmp_path / "model")
    reference = MosesTruecaser(str(tmp_path / "model"))
    moses, changed = Moses("en"), 0
    for line in lines(shared / "data/wmt_newstest/newstest2013.eng"):
        tokens = moses.tokenize(line).split()
        cased = truecaser.truecase(tokens)
        assert cased == reference.truecase(" ".join(tokens), use_known=True)
        assert detruecase(cased) == MosesDetruecaser().detruecase(" ".join(cased))
        changed += cased != tokens
    assert changed > 2000


@settings(deadline=None, max_examples=200)
@given(st.lists(TOKENS, max_size=6), TOKENS)
def test_equals_sacremoses_on_made_up_text(tmp_path_factory, sentences, line):
    from sacremoses import MosesTruecaser

    folder = tmp_path_factory.mktemp("model")
    assert ours(sentences, folder / "a") == theirs(sentences, folder / "b")
    cased = Truecaser.load(folder / "a").truecase(line)
    assert cased == MosesTruecaser(str(folder / "a")).truecase(" ".join(line), use_known=True)


@pytest.mark.parametrize("part", ["dev2010", "tst2010", "tst2011", "tst2012", "tst2013"])
def test_iwslt15_as_recorded(shared, tmp_path, part):
    """*.tc.en = normalised, tokenized with -a, truecased with the recorded model: not one line
    differs.
    """
    folder = shared / "data/iwslt15_zhen"
    model = tmp_path / "model"
    model.write_text("\n".join(lines(folder / "truecase-model.en")) + "\n", encoding="utf-8")
    truecaser, moses = Truecaser.load(model), Moses("en", aggressive_hyphens=True)
    result = [
        " ".join(truecaser.truecase(moses.tokenize(line).split()))
        for line in lines(folder / f"IWSLT15.TED.{part}.zh-en.en")
    ]
    assert result == lines(folder / f"IWSLT15.TED.{part}.tc.en")


def test_what_is_at_a_sentence_start_is_not_evidence():
    tokens = ["&quot;", "Never", "counted", ":", "(", "Nor", "this", "<b>", "12"]
    assert evidence(tokens) == ["counted", "this", "12"]


def test_words_keep_a_known_case_and_lose_an_unknown_one(tmp_path):
    path = tmp_path / "model"
    path.write_text("region (5/8) Region (3)\nObama (4/4)\n", encoding="utf-8")
    truecaser = Truecaser.load(path)
    cased = truecaser.truecase(["Region", "Region", "REGION", "OBAMA", "New", ".", "Region"])
    assert cased == ["region", "Region", "region", "Obama", "New", ".", "region"]
    assert truecaser.truecase([]) == []
    tokens = ["&quot;", "region", "x", ".", "über", "ß"]
    assert " ".join(detruecase(tokens)) == "&quot; Region x . Über ß"


@pytest.mark.parametrize(
    ("word", "first"),
    [("ეს", "ეს"), ("ßen", "Ssen"), ("ǆep", "ǅep"), ("ŉdag", "ʼNdag"), ("ﬁne", "Fine")]
    + [("ise", "Ise"), ("", "")],
)
def test_a_first_letter_is_titlecased_as_perls_ucfirst_does(word, first):
    """Capitals of Georgian are for headlines, not for the start of a sentence."""
    assert detruecase([word, word]) == [first, word]


@pytest.mark.parametrize("text", ["word\n", "word 3\n", "word (3/3) other\n"])
def test_a_file_that_is_no_model_is_refused(tmp_path, text):
    path = tmp_path / "model"
    path.write_text("good (1/1)\n" + text, encoding="utf-8")
    with pytest.raises(DataError, match="line 2"):
        Truecaser.load(path)
    with pytest.raises(DataError, match="no such file"):
        Truecaser.load(tmp_path / "none")


def test_where_sentences_start():
    """Checked by hand against truecase.perl's rules: after . : ? !, and past brackets and quotes
    that come first.
    """
    tokens = ["(", '"', "Er", "(", "ging", ")", ".", "&quot;", "Ja", "?", "?", "Nein", "'", "gut"]
    starts = [token for token, first in zip(tokens, sentence_starts(tokens), strict=True) if first]
    assert starts == ["(", '"', "Er", "&quot;", "Ja", "?", "Nein"]
