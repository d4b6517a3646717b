"""Truecasing: the model, truecasing and detruecasing equal sacremoses', and the recorded IWSLT 2015
files.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacremoses import MosesDetruecaser, MosesTruecaser

from nmtkit.errors import DataError
from nmtkit.text.moses import Moses
from nmtkit.text.truecase import Truecaser, detruecase, learn_truecaser, sentence_starts
from tests.prep.real import lines
from tests.text.evidence import evidence

VOCABULARY = "the The THE House house . : ! &quot; ( [ ' 12 - ß Über über A1"
TOKENS = st.lists(st.sampled_from(VOCABULARY.split()), max_size=12)
TAGGED = st.lists(st.sampled_from([*VOCABULARY.split(), "<b>", "</b>"]), max_size=12)


def learn(sentences, path):
    counts = Counter(word for tokens in sentences for word in evidence(tokens))
    learnt, read = learn_truecaser(counts, path), Truecaser.load(path)
    assert (learnt.best, learnt.known) == (read.best, read.known)
    return path.read_bytes()


def learn_by_sacremoses(sentences, path):
    MosesTruecaser().train(sentences, save_to=str(path))
    return path.read_bytes()


@pytest.fixture(scope="module")
def news(shared):
    return [
        Moses("en").tokenize(line).split()
        for line in lines(shared / "data/wmt_newstest/newstest2012.eng")
    ]


def test_model_of_real_text_equals_sacremoses(news, tmp_path):
    model = learn(news, tmp_path / "a")
    assert model == learn_by_sacremoses(news, tmp_path / "b")
    assert model.count(b"\n") > 8000


def test_truecasing_equals_sacremoses_on_real_text(news, shared, tmp_path):
    learn(news, tmp_path / "model")
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
@given(st.lists(TAGGED, max_size=6), TOKENS)
def test_model_and_truecasing_of_generated_text_equal_sacremoses(tmp_path_factory, sentences, line):
    folder = tmp_path_factory.mktemp("model")
    assert learn(sentences, folder / "a") == learn_by_sacremoses(sentences, folder / "b")
    cased = Truecaser.load(folder / "a").truecase(line)
    assert cased == MosesTruecaser(str(folder / "a")).truecase(" ".join(line), use_known=True)


@pytest.mark.parametrize("part", ["dev2010", "tst2010", "tst2011", "tst2012", "tst2013"])
def test_iwslt15_equals_the_recorded_truecased_text(shared, tmp_path, part):
    """*.tc.en is normalised, tokenized with -a, and truecased with the recorded model."""
    folder = shared / "data/iwslt15_zhen"
    model = tmp_path / "model"
    model.write_text("\n".join(lines(folder / "truecase-model.en")) + "\n", encoding="utf-8")
    truecaser, moses = Truecaser.load(model), Moses("en", aggressive_hyphens=True)
    result = [
        " ".join(truecaser.truecase(moses.tokenize(line).split()))
        for line in lines(folder / f"IWSLT15.TED.{part}.zh-en.en")
    ]
    assert result == lines(folder / f"IWSLT15.TED.{part}.tc.en")


def test_known_forms_keep_their_case_and_unknown_forms_get_the_usual_case(tmp_path):
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
def test_detruecasing_titlecases_the_first_letter_as_perls_ucfirst(word, first):
    """Capitals of Georgian are for headlines, not for the start of a sentence."""
    assert detruecase([word, word]) == [first, word]


@pytest.mark.parametrize(
    "text", ["word\n", "word 3\n", "word (3\n", "word 3)\n", "word (3/3) other\n"]
)
def test_missing_or_malformed_truecase_model_is_refused(tmp_path, text):
    path = tmp_path / "model"
    path.write_text("good (1/1)\n" + text, encoding="utf-8")
    with pytest.raises(DataError, match="line 2"):
        Truecaser.load(path)
    with pytest.raises(DataError, match="no such file"):
        Truecaser.load(tmp_path / "none")


def test_sentences_start_after_end_marks_and_include_opening_quotes():
    """By hand, from the rules of truecase.perl: a sentence starts after . : ? ! and includes the
    brackets and quotes before its first word.
    """
    tokens = ["(", '"', "Er", "(", "ging", ")", ".", "&quot;", "Ja", "?", "?", "Nein", "'", "gut"]
    starts = [token for token, first in zip(tokens, sentence_starts(tokens), strict=True) if first]
    assert starts == ["(", '"', "Er", "&quot;", "Ja", "?", "Nein"]
