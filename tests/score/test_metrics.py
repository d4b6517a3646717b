"""Metrics against sacreBLEU itself, and slow versions of mteval-v13a.pl and multi-bleu.perl."""

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


def sentences(seed, count=40, words=9, noise=0.3):
    """Random hypotheses and two references that share much with them, with empty lines and nasty
    spaces.
    """
    rng = random.Random(seed)
    vocabulary = [
        "der",
        "Hund",
        "läuft",
        ",",
        "schnell",
        "heute",
        "Straße",
        "und\xa0so",
        "«a\u3000b»",
        ".",
    ]
    first = [" ".join(rng.choices(vocabulary, k=rng.randint(0, words))) for _ in range(count)]

    def spoil(line):
        return " ".join(
            w if rng.random() > noise else rng.choice(vocabulary)
            for w in line.split(" ")
            if rng.random() > 0.1
        )

    return [spoil(r) for r in first], [first, [spoil(r) for r in first]]


@pytest.mark.parametrize("seed", range(6))
def test_every_metric_is_exactly_sacrebleu(seed):
    hyps, refs = sentences(seed)
    assert metrics.bleu(hyps, refs, "de").value == sacrebleu.corpus_bleu(hyps, refs).score
    capitals = [line.upper() for line in hyps]
    uncased = {
        "bleu": sacrebleu.BLEU(lowercase=True),
        "chrf": sacrebleu.CHRF(lowercase=True),
        "ter": sacrebleu.TER(case_sensitive=False),
    }
    for key, counter in uncased.items():
        metric = metrics.Scorer(refs, "de", lowercase=True).score(key, capitals)
        assert metric.value == counter.corpus_score(capitals, refs).score
    assert single.chrf(hyps, refs).value == sacrebleu.corpus_chrf(hyps, refs).score
    ter = sacrebleu.corpus_ter(hyps, refs, case_sensitive=True)
    assert single.ter(hyps, refs).value == ter.score
    plus, subwords = (metrics.Scorer(refs).score(key, hyps) for key in ("chrf++", "spbleu"))
    assert plus.value == sacrebleu.corpus_chrf(hyps, refs, word_order=2).score
    assert "nc:6|nw:2" in plus.signature
    assert subwords.value == sacrebleu.corpus_bleu(hyps, refs, tokenize="flores200").score > 0
    assert "tok:flores200" in subwords.signature


@pytest.mark.parametrize("seed", range(6))
def test_formulas_equal_the_metric_on_the_whole_and_on_every_sentence(seed):
    hyps, refs = sentences(seed)
    scorer = metrics.Scorer(refs, "de", side=single.TOKENS)
    assert [*scorer.columns(), "chrf++", "spbleu"] == list(metrics.METRICS)
    for metric in (scorer.score(key, hyps) for key in metrics.METRICS):
        whole = metric.part(np.arange(len(hyps)))
        assert whole.value == pytest.approx(metric.value, abs=1e-10), metric.name
    streams = [list(column) for column in zip(*refs, strict=True)]
    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    for key, reference in (
        ("bleu", sacrebleu.BLEU(effective_order=True)),
        ("chrf", sacrebleu.CHRF()),
        ("chrf++", sacrebleu.CHRF(word_order=2)),
        ("spbleu", sacrebleu.BLEU(effective_order=True, tokenize="flores200")),
        ("ter", sacrebleu.TER(case_sensitive=True)),
    ):
        pairs = zip(hyps, streams, strict=True)
        expected = [reference.sentence_score(hyp, refs).score for hyp, refs in pairs]
        assert scorer.score(key, hyps).sentence_scores() == pytest.approx(expected, abs=1e-10)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from(["exp", "none"]),
)
def test_the_bleu_formula_is_sacrebleus_on_any_counts(counts, hyp_len, ref_len, effective, smooth):
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
def test_tokenized_bleu_is_multi_bleu_also_where_unicode_has_spaces_perl_does_not_see(seed):
    hyps, refs = sentences(seed, noise=0.15)
    for own in (refs, refs[:1]):
        for lowercase in (False, True):
            expected = slow.multi_bleu(hyps, own, lowercase)
            found = single.tokenized_bleu(hyps, own, lowercase)
            assert found.value == pytest.approx(expected, abs=1e-9)
            assert expected > 0


NASTY = [
    "Ein",
    "ein",
    "Übung",
    "übung",
    "İ",
    "ẞ",
    "3,5",
    "a,b",
    "5-3",
    "12.",
    "U.S.",
    "$5.00",
    "{x}",
    "'s",
    "«so»",
    "…",
    "-",
    "<skipped>",
    "&amp;lt;",
    "&quot;",
    "&QUOT;",
    "&apos;",
    "x\xa0y",
    "a\x1cb",
    "a\u3000b",
    "\t",
    "\x0b",
    "\x85",
    "\u2028",
    "\u200b",
    "\ufeff",
    "\x1f",
]


def nasty(seed, words=9, noise=0.3):
    """Text with whatever tokenization, case and white space may get wrong; one to three
    references.
    """
    rng = random.Random(seed)
    refs = [
        [" ".join(rng.choices(NASTY, k=rng.randint(0, words))) for _ in range(30)]
        for _ in range(rng.randint(1, 3))
    ]
    hyps = [
        " ".join(w if rng.random() > noise else rng.choice(NASTY) for w in line.split(" "))
        for line in refs[0]
    ]
    return hyps, refs


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lowercase", [False, True])
def test_nist_bleu_is_mteval_v13a_cased_and_uncased(seed, lowercase):
    hyps, refs = nasty(seed)
    metric = single.mteval(hyps, refs, lowercase)
    assert metric.value == pytest.approx(slow.mteval(hyps, refs, lowercase), abs=1e-9)
    assert metric.value > 0
    singles = [
        slow.mteval([h], [[r] for r in rs], lowercase) for h, *rs in zip(hyps, *refs, strict=True)
    ]
    assert metric.sentence_scores() == pytest.approx(singles, abs=1e-9)  # its segment scores (-d 2)


def test_nist_bleu_differs_from_sacrebleus_only_where_it_should():
    """Values that the script itself printed (its two subs, run by Perl): a text too short for a
    4-gram, one without any match, umlauts.
    """
    for hyps, refs, script, ours in [
        (["a b"], [["a b"]], 100.0, 0.0),
        (["x y z"], [["a b c d"]], 16.186478197092, 0.0),
        (["a", "b c"], [["a d e f", "c b"]], 30.934850332661, 0.0),
        (["Über den Hund lief er"], [["über den hund lief er"]], 66.874030497642, 100.0),
    ]:
        assert single.mteval(hyps, refs, lowercase=True).value == pytest.approx(script, abs=1e-9)
        assert metrics.bleu(hyps, refs, lowercase=True).value == pytest.approx(ours, abs=1e-9)
    assert single.mteval(["Über"], [["über"]]).value < 100
    same = sentences(3)
    assert single.mteval(*same).value == pytest.approx(metrics.bleu(*same).value, abs=1e-9)


@pytest.mark.parametrize("lang", ["zh", "zho", "zh_Hans", "ja"])
def test_ter_of_a_language_without_spaces_counts_its_characters(lang):
    refs, hyps = ["我们今天去学校。", "他昨天没有来这里"], ["我们明天去学校。", "他昨天来这里"]
    scorer = metrics.Scorer([refs], lang)
    assert scorer.lacks("ter") is None
    metric = scorer.score("ter", hyps)
    assert metric.value == pytest.approx(100 * 3 / 16)  # 今 for 明; 没 and 有 are missing
    options = {"normalized": True, "asian_support": True, "case_sensitive": True}
    assert metric.value == sacrebleu.corpus_ter(hyps, [refs], **options).score
    assert "norm:yes" in metric.signature and "asian:yes" in metric.signature
    for spaced in ("de", "ko", "", lang):
        scorer = metrics.Scorer([refs], spaced, tokenized=spaced == lang)
        metric = scorer.score("ter", hyps)
        assert metric.value == 100.0
        assert "norm:no" in metric.signature and "asian:no" in metric.signature


@pytest.mark.parametrize("lang", ["th", "km-KH", "lo", "my"])
def test_ter_is_left_out_where_sacrebleu_does_not_cut_the_text(lang):
    scorer = metrics.Scorer([["ผมไปโรงเรียน"]], lang)
    assert "ter" not in scorer.columns() and "'" + lang in scorer.lacks("ter")
    words = [["ผม ไป โรงเรียน"]]
    assert "ter" in metrics.Scorer(words, lang, tokenized=True).columns()
    assert "ter" in metrics.Scorer(words, lang).columns()
    assert "501 words" in metrics.Scorer([["x " * 501]]).lacks("ter", [["x"]])


def test_tokenised_bleu_needs_tokens():
    plain = ["我们今天去学校。", "OK 他昨天没有来这里"]
    tokens = ["我们 今天 去 学校 。", "OK 他 昨天 没有 来 这里"]
    for lang, stream, present in (
        ("zh", plain, False),
        ("zh", tokens, True),
        ("ja", plain, False),
        ("de", ["Donaudampfschifffahrt"] * 2, True),
    ):
        scorer = metrics.Scorer([stream], lang, side=single.TOKENS)
        assert ("tokenized_bleu" in scorer.columns()) is present
        assert (scorer.lacks("tokenized_bleu") is None) is present
    blank = metrics.Scorer([["", " "]], "zh", side=single.TOKENS)
    assert blank.score("tokenized_bleu", ["", ""]).value == 0.0


def test_the_signature_always_travels_with_the_value():
    metric = metrics.bleu(["Ein Hund ."], [["Ein Hund ."], ["Der Hund ."]], "de")
    version = f"version:{sacrebleu.__version__}"
    assert metric.signature == f"nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    a, b = ["A"], [["a"]]
    for metric, part in (
        (single.tokenized_bleu(a, b), "tok:none|smooth:none"),
        (metrics.bleu(a, b, lowercase=True), "case:lc|"),
        (single.mteval(a, b), "case:mixed|eff:no|tok:mteval-v13a|smooth:mteval-v13a"),
        (single.mteval(a, b, lowercase=True), "case:lc-ascii"),
        (single.tokenized_bleu(a, b, lowercase=True), "case:lc-ascii"),
    ):
        assert part in metric.signature
    assert single.ter(["Ein Hund"], [["ein Hund"]]).value == 50.0


def test_spbleu_without_its_tokenizer_names_the_file(monkeypatch, tmp_path):
    def scored():
        metrics.Scorer([["a"]]).score("spbleu", ["a"])

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    for error in (URLError("no network"), SystemExit(1)):
        download = Mock(side_effect=error)
        monkeypatch.setattr(tokenizer_spm, "download_file", download)
        caught = refused(EnvironmentProblem, "cannot load its tokenizer", scored)
        assert download.called and caught.where.endswith(f"models/{FLORES}")
        assert "without a network" in caught.hint
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    refused(EnvironmentProblem, "needs the package sentencepiece", scored)


@pytest.mark.parametrize(
    "score", [metrics.bleu, single.tokenized_bleu, single.mteval, single.chrf, single.ter]
)
def test_line_counts_are_checked_before_sacrebleu_cuts(score):
    for hyps, refs, message in (
        (["a", "b", "c"], [["a"]], "3 lines, but reference 0 has 1"),
        (["a", "b"], [["a", "b"], ["a", "b", "c"]], "reference 1 has 3"),
    ):
        refused(DataError, message, score, hyps, refs)


def test_empty_lines_are_scored_and_counted():
    refs = [["ein Hund läuft hier", "eine Katze schläft dort", ""]]
    hyps = ["ein Hund läuft hier", " ", "x"]
    metric = metrics.bleu(hyps, refs, "de")
    assert metric.empty_hypotheses == 1
    assert metric.value == sacrebleu.corpus_bleu(hyps, refs).score
    nothing = metrics.Scorer(refs, side=single.TOKENS)
    for key in nothing.columns():
        assert nothing.score(key, [""] * 3).value == (100.0 if key == "ter" else 0.0)


def test_the_tokenizer_follows_the_target_language():
    assert metrics.tokenizer_for("de") == ("13a", None)
    for code in ("zh", "zh_Hans", "zh-TW", "zho", "cmn_Hant", "chi", "yue"):
        assert metrics.tokenizer_for(code)[0] == "zh"
    assert "zh" in metrics.tokenizer_for("zh")[1]
    name, remark = metrics.tokenizer_for("ja")
    assert (name, "sacrebleu[ja]" in remark) in {("ja-mecab", False), ("char", True)}
