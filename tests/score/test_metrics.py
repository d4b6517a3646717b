"""Metrics equal sacreBLEU's and slow versions of mteval-v13a.pl and multi-bleu.perl."""

import logging
import random
import sys
from unittest.mock import Mock
from urllib.error import URLError

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.tokenizers import tokenizer_spm

from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.score import formulas, metrics
from tests.refused import refused

from . import single, slow
from .conftest import FLORES


def spoiled(line, rng, words, noise, drop=0.0):
    """Replace and leave out random words of a line."""
    return " ".join(
        word if rng.random() > noise else rng.choice(words)
        for word in line.split(" ")
        if rng.random() >= drop
    )


def sentences(seed, noise=0.3):
    """Return random hypotheses and two similar references, with empty lines and unusual spaces."""
    rng = random.Random(seed)
    text = "der Hund läuft , schnell heute Straße und\xa0so «a\u3000b» ."
    words = text.split(" ")
    first = [" ".join(rng.choices(words, k=rng.randint(0, 9))) for _ in range(40)]
    hyps, second = ([spoiled(line, rng, words, noise, 0.1) for line in first] for _ in range(2))
    return hyps, [first, second]


CASED = {
    "bleu": (sacrebleu.BLEU, {}),
    "chrf": (sacrebleu.CHRF, {}),
    "chrf++": (sacrebleu.CHRF, {"word_order": 2}),
    "spbleu": (sacrebleu.BLEU, {"tokenize": "flores200"}),
    "ter": (sacrebleu.TER, {"case_sensitive": True}),
}
"""Metrics -> class and options of sacreBLEU."""
UNCASED = {
    "bleu": (sacrebleu.BLEU, {"lowercase": True}),
    "chrf": (sacrebleu.CHRF, {"lowercase": True}),
    "ter": (sacrebleu.TER, {"case_sensitive": False}),
}


@pytest.mark.parametrize("seed", range(6))
def test_corpus_scores_and_signatures_equal_sacrebleus(seed):
    hyps, refs = sentences(seed)
    capitals = [line.upper() for line in hyps]
    for lowercase, entries, lines in ((False, CASED, hyps), (True, UNCASED, capitals)):
        for key, (kind, options) in entries.items():
            metric = kind(**options)
            score = metrics.Scorer(refs, "de", lowercase=lowercase).score(key, lines)
            assert score.value == metric.corpus_score(lines, refs).score > 0, key
            assert score.signature == metric.get_signature().format(), key


@pytest.mark.parametrize("seed", range(6))
def test_formula_of_summed_counts_equals_the_corpus_score(seed):
    hyps, refs = sentences(seed)
    scorer = metrics.Scorer(refs, "de", side=single.TOKENS)
    assert [*scorer.columns(), "chrf++", "spbleu"] == list(metrics.METRICS)
    for key in metrics.METRICS:
        metric = scorer.score(key, hyps)
        whole = metric.part(np.arange(len(hyps)))
        assert whole.value == pytest.approx(metric.value, abs=1e-10), key


def test_bleu_of_a_part_without_4_grams_is_0_as_sacrebleus():
    hyps = ["ein Hund läuft schnell", "ein Hund"]
    part = metrics.bleu(hyps, [hyps]).part(np.array([1]))
    assert part.value == sacrebleu.corpus_bleu(hyps[1:], [hyps[1:]]).score == 0
    assert part.sentence_scores() == pytest.approx([100])


@pytest.mark.parametrize("seed", range(6))
def test_sentence_scores_equal_sacrebleus(seed):
    hyps, refs = sentences(seed)
    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    pairs = list(zip(hyps, zip(*refs, strict=True), strict=True))
    for key, (kind, options) in CASED.items():
        more = {"effective_order": True} if kind is sacrebleu.BLEU else {}
        metric = kind(**options, **more)
        expected = [metric.sentence_score(hyp, list(lines)).score for hyp, lines in pairs]
        scores = metrics.Scorer(refs, "de").score(key, hyps).sentence_scores()
        assert scores == pytest.approx(expected, abs=1e-10), key


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from(["exp", "none"]),
)
def test_bleu_formula_equals_sacrebleus_on_random_counts(
    counts, hyp_len, ref_len, effective, smooth
):
    total = sorted(counts[4:], reverse=True)
    correct = [min(a, b) for a, b in zip(sorted(counts[:4], reverse=True), total, strict=True)]
    expected = sacrebleu.BLEU.compute_bleu(
        list(correct), list(total), hyp_len, ref_len, smooth, effective_order=effective
    ).score
    sums = np.array([[hyp_len, ref_len, *correct, *total]] * 2)
    assert formulas.bleu(sums, smooth=smooth, effective_order=effective) == pytest.approx(
        [expected] * 2, abs=1e-10
    )


@pytest.mark.parametrize("seed", range(8))
def test_tokenized_bleu_equals_multi_bleu_with_unicode_spaces(seed):
    hyps, refs = sentences(seed, noise=0.15)
    for references in (refs, refs[:1]):
        for lowercase in (False, True):
            expected = slow.multi_bleu(hyps, references, lowercase)
            metric = single.tokenized_bleu(hyps, references, lowercase)
            assert metric.value == pytest.approx(expected, abs=1e-9)
            assert expected > 0


HARD_TEXT = (
    "Ein ein Übung übung İ ẞ 3,5 a,b 5-3 12. U.S. $5.00 {x} 's «so» … - <skipped> &amp;lt; &quot;"
    " &QUOT; &apos; x\xa0y a\x1cb a\u3000b \t \x0b \x85 \u2028 \u200b \ufeff \x1f"
)
HARD_WORDS = HARD_TEXT.split(" ")


def hard_sentences(seed):
    """Return hypotheses and one to three references of words that are hard to tokenize."""
    rng = random.Random(seed)
    refs = [
        [" ".join(rng.choices(HARD_WORDS, k=rng.randint(0, 9))) for _ in range(30)]
        for _ in range(rng.randint(1, 3))
    ]
    return [spoiled(line, rng, HARD_WORDS, 0.3) for line in refs[0]], refs


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lowercase", [False, True])
def test_nist_bleu_equals_mteval_v13a(seed, lowercase):
    hyps, refs = hard_sentences(seed)
    metric = single.mteval(hyps, refs, lowercase)
    assert metric.value == pytest.approx(slow.mteval(hyps, refs, lowercase), abs=1e-9)
    assert metric.value > 0
    # The script's option -d 2 prints scores of segments.
    expected = [
        slow.mteval([hyp], [[line] for line in lines], lowercase)
        for hyp, *lines in zip(hyps, *refs, strict=True)
    ]
    assert metric.sentence_scores() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("hyps", "refs", "nist", "bleu"),
    [
        (["a b"], ["a b"], 100.0, 0.0),  # too short for a 4-gram
        (["x y z"], ["a b c d"], 16.186478197092, 0.0),  # no match
        (["a", "b c"], ["a d e f", "c b"], 30.934850332661, 0.0),
        (["Über den Hund lief er"], ["über den hund lief er"], 66.874030497642, 100.0),
    ],
)
def test_nist_bleu_equals_recorded_outputs_of_the_perl_script(hyps, refs, nist, bleu):
    """Source: the two subs of mteval-v13a.pl, run by Perl."""
    assert single.mteval(hyps, [refs], lowercase=True).value == pytest.approx(nist, abs=1e-9)
    assert metrics.bleu(hyps, [refs], lowercase=True).value == pytest.approx(bleu, abs=1e-9)


def test_nist_bleu_equals_sacrebleus_on_longer_text_and_is_cased():
    texts = sentences(3)
    bleu = metrics.bleu(*texts).value
    assert single.mteval(*texts).value == pytest.approx(bleu, abs=1e-9)
    assert single.mteval(["Über"], [["über"]]).value < 100


@pytest.mark.parametrize("lang", ["zh", "zho", "zh_Hans", "ja"])
def test_ter_counts_characters_of_chinese_and_japanese_text(lang):
    refs, hyps = ["我们今天去学校。", "他昨天没有来这里"], ["我们明天去学校。", "他昨天来这里"]
    scorer = metrics.Scorer([refs], lang)
    assert scorer.lacks("ter") is None
    metric = scorer.score("ter", hyps)
    assert metric.value == pytest.approx(100 * 3 / 16)  # 今 for 明; 没 and 有 are missing
    options = {"normalized": True, "asian_support": True, "case_sensitive": True}
    assert metric.value == sacrebleu.corpus_ter(hyps, [refs], **options).score
    assert "norm:yes" in metric.signature and "asian:yes" in metric.signature
    for other in ("de", "ko", "", lang):
        metric = metrics.Scorer([refs], other, tokenized=other == lang).score("ter", hyps)
        assert metric.value == 100.0
        assert "norm:no" in metric.signature and "asian:no" in metric.signature


@pytest.mark.parametrize("lang", ["th", "km-KH", "lo", "my"])
def test_ter_is_left_out_for_unsegmented_scripts_and_long_lines(lang):
    scorer = metrics.Scorer([["ผมไปโรงเรียน"]], lang)
    assert "ter" not in scorer.columns() and "'" + lang in scorer.lacks("ter")
    for tokenized in (True, False):
        scorer = metrics.Scorer([["ผม ไป โรงเรียน"]], lang, tokenized=tokenized)
        assert "ter" in scorer.columns()
    assert "501 words" in metrics.Scorer([["x " * 501]]).lacks("ter", [["x"]])


@pytest.mark.parametrize(
    ("lang", "refs", "present"),
    [
        ("zh", ["我们今天去学校。", "OK 他昨天没有来这里"], False),
        ("zh", ["我们 今天 去 学校 。", "OK 他 昨天 没有 来 这里"], True),
        ("ja", ["我们今天去学校。", "OK 他昨天没有来这里"], False),
        ("de", ["Donaudampfschifffahrt"] * 2, True),
    ],
)
def test_tokenized_bleu_is_left_out_for_unsegmented_references(lang, refs, present):
    scorer = metrics.Scorer([refs], lang, side=single.TOKENS)
    assert ("tokenized_bleu" in scorer.columns()) is present
    assert (scorer.lacks("tokenized_bleu") is None) is present


def test_tokenized_bleu_of_empty_lines_is_zero():
    scorer = metrics.Scorer([["", " "]], "zh", side=single.TOKENS)
    assert scorer.score("tokenized_bleu", ["", ""]).value == 0.0


def test_signatures_name_references_case_tokenizer_and_smoothing():
    metric = metrics.bleu(["Ein Hund ."], [["Ein Hund ."], ["Der Hund ."]], "de")
    version = f"version:{sacrebleu.__version__}"
    assert metric.signature == f"nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    a, b = ["A"], [["a"]]
    for metric, part in (
        (single.tokenized_bleu(a, b), f"nrefs:1|case:mixed|eff:no|tok:none|smooth:none|{version}"),
        (metrics.bleu(a, b, lowercase=True), "case:lc|"),
        (single.mteval(a, b), "case:mixed|eff:no|tok:mteval-v13a|smooth:mteval-v13a"),
        (single.mteval(a, b, lowercase=True), "case:lc-ascii"),
        (single.tokenized_bleu(a, b, lowercase=True), "case:lc-ascii"),
        (metrics.Scorer(b).score("chrf++", a), "nc:6|nw:2"),
        (metrics.Scorer(b).score("spbleu", a), "tok:flores200"),
    ):
        assert part in metric.signature


def test_ter_is_cased():
    assert single.ter(["Ein Hund"], [["ein Hund"]]).value == 50.0


def test_spbleu_without_its_tokenizer_raises_an_environment_error(monkeypatch, tmp_path):
    scorer = metrics.Scorer([["a"]])
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    for error in (URLError("no network"), SystemExit(1)):
        download = Mock(side_effect=error)
        monkeypatch.setattr(tokenizer_spm, "download_file", download)
        caught = refused(
            EnvironmentProblem, "cannot load its tokenizer", scorer.score, "spbleu", ["a"]
        )
        assert download.called and caught.where.endswith(f"models/{FLORES}")
        assert "without a network" in caught.hint
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    message = "needs the package sentencepiece"
    refused(EnvironmentProblem, message, scorer.score, "spbleu", ["a"])


@pytest.mark.parametrize(
    "score", [metrics.bleu, single.tokenized_bleu, single.mteval, single.chrf, single.ter]
)
def test_hypotheses_and_references_need_equal_line_counts(score):
    for hyps, refs, message in (
        (["a", "b", "c"], [["a"]], "3 lines, but reference 0 has 1"),
        (["a", "b"], [["a", "b"], ["a", "b", "c"]], "reference 1 has 3"),
    ):
        refused(DataError, message, score, hyps, refs)


def test_empty_hypotheses_are_scored_and_counted():
    refs = [["ein Hund läuft hier", "eine Katze schläft dort", ""]]
    hyps = ["ein Hund läuft hier", " ", "x"]
    metric = metrics.bleu(hyps, refs, "de")
    assert metric.empty_hypotheses == 1
    assert metric.value == sacrebleu.corpus_bleu(hyps, refs).score
    scorer = metrics.Scorer(refs, side=single.TOKENS)
    for key in scorer.columns():
        assert scorer.score(key, [""] * 3).value == (100.0 if key == "ter" else 0.0)


def test_sacrebleu_tokenizer_follows_the_target_language():
    assert metrics.tokenizer_for("de") == ("13a", None)
    for code in ("zh", "zh_Hans", "zh-TW", "zho", "cmn_Hant", "chi", "yue"):
        assert metrics.tokenizer_for(code)[0] == "zh"
    assert "zh" in metrics.tokenizer_for("zh")[1]
    name, remark = metrics.tokenizer_for("ja")
    assert (name, "sacrebleu[ja]" in remark) in {("ja-mecab", False), ("char", True)}
