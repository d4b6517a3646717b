"""Metrics against sacreBLEU itself, a slow multi-bleu.perl, and recorded values of real system outputs."""

import itertools
import logging
import math
import random
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.files import text_lines
from nmtkit.score import formulas, metrics


def multi_bleu(hyps, refs):
    """multi-bleu.perl, line by line: bytes split at ASCII white space, closest reference length, clipped counts."""
    correct, total, hyp_len, ref_len = Counter(), Counter(), 0, 0
    for i, hyp in enumerate(hyps):
        words = hyp.encode().split()
        best = None
        clip = Counter()
        for ref in refs:
            other = ref[i].encode().split()
            gap = (abs(len(words) - len(other)), len(other))
            best = gap if best is None else min(best, gap)
            for n in range(1, 5):
                for gram, count in Counter(zip(*(other[k:] for k in range(n)), strict=False)).items():
                    clip[gram] = max(clip[gram], count)
        hyp_len += len(words)
        ref_len += best[1]
        for n in range(1, 5):
            for gram, count in Counter(zip(*(words[k:] for k in range(n)), strict=False)).items():
                total[n] += count
                correct[n] += min(count, clip[gram])
    if any(correct[n] == 0 for n in range(1, 5)):
        return 0.0
    brevity = 1.0 if hyp_len >= ref_len else math.exp(1 - ref_len / hyp_len)
    return 100 * brevity * math.exp(sum(math.log(correct[n] / total[n]) for n in range(1, 5)) / 4)


def sentences(seed, count=40, words=9, noise=0.3):
    """Random hypotheses and two references that share much with them, with empty lines and nasty spaces."""
    rng = random.Random(seed)
    vocabulary = ["der", "Hund", "läuft", ",", "schnell", "heute", "Straße", "und\u00a0so", "«a\u3000b»", "."]
    first = [" ".join(rng.choices(vocabulary, k=rng.randint(0, words))) for _ in range(count)]

    def spoil(line):
        return " ".join(w if rng.random() > noise else rng.choice(vocabulary) for w in line.split(" ") if rng.random() > 0.1)

    return [spoil(r) for r in first], [first, [spoil(r) for r in first]]


@pytest.mark.parametrize("seed", range(6))
def test_every_metric_is_exactly_sacrebleu(seed):
    hyps, refs = sentences(seed)
    assert metrics.bleu(hyps, refs, "de").value == sacrebleu.corpus_bleu(hyps, refs).score
    assert metrics.bleu(hyps, refs, "de", lowercase=True).value == sacrebleu.corpus_bleu(hyps, refs, lowercase=True).score
    assert metrics.chrf(hyps, refs).value == sacrebleu.corpus_chrf(hyps, refs).score
    assert metrics.ter(hyps, refs).value == sacrebleu.corpus_ter(hyps, refs, case_sensitive=True).score


@pytest.mark.parametrize("seed", range(6))
def test_formulas_equal_the_metric_on_the_whole_and_on_every_sentence(seed):
    hyps, refs = sentences(seed)
    scorer = metrics.Scorer(refs, "de", tokenized_refs=refs)
    for metric in (scorer.bleu(hyps), scorer.tokenized_bleu(hyps), scorer.chrf(hyps), scorer.ter(hyps)):
        assert metric.on(np.arange(len(hyps))) == pytest.approx(metric.value, abs=1e-10), metric.name
    streams = [list(column) for column in zip(*refs, strict=True)]
    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    single = sacrebleu.BLEU(effective_order=True)
    expected = [single.sentence_score(h, r).score for h, r in zip(hyps, streams, strict=True)]
    assert scorer.bleu(hyps).sentence_scores() == pytest.approx(expected, abs=1e-10)
    expected = [sacrebleu.sentence_chrf(h, r).score for h, r in zip(hyps, streams, strict=True)]
    assert scorer.chrf(hyps).sentence_scores() == pytest.approx(expected, abs=1e-10)
    expected = [sacrebleu.TER(case_sensitive=True).sentence_score(h, r).score for h, r in zip(hyps, streams, strict=True)]
    assert scorer.ter(hyps).sentence_scores() == pytest.approx(expected, abs=1e-10)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 6), min_size=8, max_size=8), st.integers(0, 20), st.integers(0, 20), st.booleans(), st.sampled_from(["exp", "none"]))
def test_the_bleu_formula_is_sacrebleus_on_any_counts(counts, hyp_len, ref_len, effective, smooth):
    total = sorted(counts[4:], reverse=True)
    correct = [min(a, b) for a, b in zip(sorted(counts[:4], reverse=True), total, strict=True)]
    expected = sacrebleu.BLEU.compute_bleu(list(correct), list(total), hyp_len, ref_len, smooth, effective_order=effective).score
    sums = np.array([[hyp_len, ref_len, *correct, *total]] * 2)
    assert formulas.bleu(sums, smooth=smooth, effective_order=effective) == pytest.approx([expected] * 2, abs=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_tokenized_bleu_is_multi_bleu_also_where_unicode_has_spaces_perl_does_not_see(seed):
    hyps, refs = sentences(seed, noise=0.15)
    assert metrics.tokenized_bleu(hyps, refs).value == pytest.approx(multi_bleu(hyps, refs), abs=1e-9)
    assert metrics.tokenized_bleu(hyps, refs[:1]).value == pytest.approx(multi_bleu(hyps, refs[:1]), abs=1e-9)


def test_the_signature_always_travels_with_the_value():
    metric = metrics.bleu(["Ein Hund ."], [["Ein Hund ."], ["Der Hund ."]], "de")
    assert metric.signature == f"nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert metric.signature in str(metric)
    assert "tok:none|smooth:none" in metrics.tokenized_bleu(["a"], [["a"]]).signature
    assert "case:lc" in metrics.bleu(["A"], [["a"]], lowercase=True).signature
    assert metrics.ter(["Ein Hund"], [["ein Hund"]]).value == 50.0


@pytest.mark.parametrize("score", [metrics.bleu, metrics.tokenized_bleu, metrics.chrf, metrics.ter])
def test_line_counts_are_checked_before_sacrebleu_cuts(score):
    with pytest.raises(DataError, match=r"3 lines, but reference 0 has 1"):
        score(["a", "b", "c"], [["a"]])
    with pytest.raises(DataError, match=r"reference 1 has 3"):
        score(["a", "b"], [["a", "b"], ["a", "b", "c"]])
    with pytest.raises(DataError, match="no reference"):
        score(["a"], [])
    with pytest.raises(DataError, match="nothing to score"):
        score([], [[]])


def test_empty_lines_are_scored_and_counted():
    refs = [["ein Hund läuft hier", "eine Katze schläft dort", ""]]
    metric = metrics.bleu(["ein Hund läuft hier", " ", "x"], refs, "de")
    assert (metric.empty_hypotheses, metric.empty_references) == (1, 1)
    assert metric.value == sacrebleu.corpus_bleu(["ein Hund läuft hier", " ", "x"], refs).score
    nothing = metrics.Scorer(refs)
    for value in (nothing.bleu([""] * 3).value, nothing.chrf([""] * 3).value):
        assert value == 0.0


def test_the_tokenizer_follows_the_target_language():
    assert metrics.tokenizer_for("de") == ("13a", None)
    assert metrics.tokenizer_for("zh_Hans")[0] == "zh"
    assert "zh" in metrics.tokenizer_for("zh")[1]
    name, remark = metrics.tokenizer_for("ja")
    assert (name, "sacrebleu[ja]" in remark) in {("ja-mecab", False), ("char", True)}


# --- real text ---


def read(path):
    return list(text_lines(path if path.exists() else path.with_name(path.name + ".xz")))


HAN = {
    "TED_es-en": (["IWSLT14.TED.tst.tc.en"], ["baseline", "HA-enc-dec"]),
    "TED_zh-en": (["IWSLT15.TED.tst.tc.en"], ["baseline", "cache"]),
    "sub_zh-en": (["test_tgt_1", "test_tgt_2", "test_tgt_3"], ["baseline", "cache", "HA-enc", "HA-dec", "HA-enc-dec"]),
}


@pytest.mark.parametrize(("folder", "system"), [(f, s) for f, (_, names) in HAN.items() for s in names])
def test_recorded_multi_bleu_lines_of_five_published_systems(shared, folder, system):
    path = shared / "data" / "han_outputs" / folder
    refs = [read(path / name) for name in HAN[folder][0]]
    metric = metrics.tokenized_bleu(read(path / f"{folder}_{system}.en"), refs)
    assert metrics.multi_bleu_line(metric) == (path / f"{folder}_{system}.bleu").read_text("utf-8").strip().splitlines()[0]


def test_recorded_bleu_of_newstest2013_after_joining_bpe(shared):
    path = shared / "data" / "metrics_tfnmt"
    hyps, refs = ([line.replace("@@ ", "") for line in read(path / name)] for name in ("deen_output", "deen_ref_bpe"))
    metric = metrics.tokenized_bleu(hyps, [refs])
    assert metrics.multi_bleu_line(metric) == "BLEU = 22.58, 56.9/29.0/17.0/10.3 (BP=0.975, ratio=0.975, hyp_len=63211, ref_len=64807)"
    assert metric.empty_hypotheses == 3
    # The origin's own script splits an empty line into one empty word, and so recorded 22.5855084573.
    assert metrics.tokenized_bleu([h or "EMPTY" for h in hyps], [refs]).value == pytest.approx(22.5855084573, abs=1e-9)


def test_recorded_multi_bleu_of_three_optimiser_runs(shared):
    path = shared / "data" / "metrics_multeval"
    scorer = metrics.Scorer(refs := [read(path / "refs.test2010.lc.tok.en.0")], tokenized_refs=refs)
    names = [f"hyps.lc.tok.en.{s}.opt{i}" for s, i in itertools.product(("baseline", "sys1"), range(3))]
    assert [f"{scorer.tokenized_bleu(read(path / n)).value:.2f}" for n in names] == ["18.54", "18.46", "18.58", "18.99", "18.47", "18.98"]


def test_identical_chinese_lines_score_100(shared):
    lines = read(shared / "data" / "flores101_devtest" / "zho_simpl.devtest")[:200]
    assert metrics.bleu(lines, [lines], "zh").value == pytest.approx(100)
    assert metrics.Scorer([["".join(line.split()) for line in lines]], "zh").bleu(lines).value > 99
