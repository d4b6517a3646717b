"""Scores and p that other tools recorded for real outputs are reproduced, or the difference is
explained.

The outputs are in ../shared/data. Values that are not in its files are quoted from the origin that
each test names.
"""

import statistics

import numpy as np
import pytest

from nmtkit.files import text_lines
from nmtkit.score import lengths, metrics, seeds
from nmtkit.score.resampling import Draws
from nmtkit.score.significance import TESTS, compare, difference

from . import single, slow


def read(path):
    return list(text_lines(path if path.exists() else path.with_name(path.name + ".xz")))


# --- han_outputs: idiap/HAN_NMT, BLEU lines of multi-bleu.perl ---

HAN = {
    "TED_es-en": ["IWSLT14.TED.tst.tc.en"],
    "TED_zh-en": ["IWSLT15.TED.tst.tc.en"],
    "sub_es-en": ["test.en"],
    "sub_zh-en": ["test_tgt_1", "test_tgt_2", "test_tgt_3"],
}
SYSTEMS = ["baseline", "cache", "HA-enc", "HA-dec", "HA-enc-dec"]


@pytest.mark.parametrize("folder", HAN)
@pytest.mark.parametrize("system", SYSTEMS)
def test_lines_of_multi_bleu_for_published_outputs_are_reproduced(shared, folder, system):
    path = shared / "data" / "han_outputs" / folder
    (line,) = [
        file for file in path.glob("*.bleu") if file.name.split(".")[0] == f"{folder}_{system}"
    ]
    refs = [read(path / name) for name in HAN[folder]]
    metric = single.tokenized_bleu(read(path / f"{folder}_{system}.en"), refs)
    assert single.multi_bleu_line(metric) == line.read_text("utf-8").strip()


# --- metrics_tfnmt: tensorflow/nmt, evaluation_utils_test.py ---


def test_bleu_of_tensorflow_nmt_on_newstest2013_is_reproduced(shared):
    path = shared / "data" / "metrics_tfnmt"
    names = ("deen_output", "deen_ref_bpe")
    hyps, bpe = ([line.replace("@@ ", "") for line in read(path / name)] for name in names)
    spm = read(path / "deen_ref_spm")
    pieces = [line.replace(" ", "").replace("\u2581", " ").strip() for line in spm]
    for ref in (bpe, pieces):
        metric = single.tokenized_bleu(hyps, [ref])
        counts = "BP=0.975, ratio=0.975, hyp_len=63211, ref_len=64807"
        assert single.multi_bleu_line(metric) == f"BLEU = 22.58, 56.9/29.0/17.0/10.3 ({counts})"
        # The script of the origin, which recorded 22.5855084573, splits an empty line into one
        # empty word. With 3 empty lines the difference is 0.0009.
        assert metric.empty_hypotheses == 3
        with_words = single.tokenized_bleu([line or "EMPTY" for line in hyps], [ref])
        assert with_words.value == pytest.approx(22.5855084573, abs=1e-9)
        assert 22.5855084573 - metric.value == pytest.approx(0.0009, abs=1e-4)


# --- metrics_multeval: jhclark/multeval, values of the data's README, of
# reg-test/hyps.baseline.opt0.bleu.gold and of the table in its README. ---
# The table's TER, 65.7 (0.2) and 64.8 (0.6), was reproduced once by hand: sacreBLEU needs three
# minutes for it.


@pytest.fixture(scope="module")
def multeval(shared):
    """BLEU of three optimiser runs of three systems, and draws."""
    path = shared / "data" / "metrics_multeval"
    refs = [read(path / "refs.test2010.lc.tok.en.0")]
    scorer = metrics.Scorer(refs, side=single.TOKENS)
    scores = {
        system: [
            scorer.score("tokenized_bleu", read(path / f"hyps.lc.tok.en.{system}.opt{i}"))
            for i in range(3)
        ]
        for system in ("baseline", "sys1", "sys2")
    }
    return scores, Draws(len(refs[0]))


def test_bleu_of_multevals_optimiser_runs_is_reproduced(multeval):
    scores, _ = multeval
    recorded = {"baseline": "18.54 18.46 18.58", "sys1": "18.99 18.47 18.98"}
    recorded["sys2"] = recorded["baseline"]
    found = {name: " ".join(f"{run.value:.2f}" for run in runs) for name, runs in scores.items()}
    assert found == recorded


@pytest.mark.parametrize(
    ("system", "row"),
    [
        ("baseline", "18.5 0.3 0.1 107.5"),
        ("sys1", "18.8 0.3 0.3 107.7"),
        ("sys2", "18.5 0.3 0.1 107.5"),
    ],
)
def test_spread_of_multevals_optimiser_runs_is_reproduced(multeval, system, row):
    """ "BLEU (s_sel/s_opt)", s_sel the deviation over resamples (mean of the runs), s_opt the
    deviation over the runs; and "Length" in percent.
    """
    scores, draws = multeval
    runs = scores[system]
    spread = seeds.spread([run.value for run in runs])
    selection = statistics.fmean(float(draws.full.scores(run).std()) for run in runs)
    ratio = 100 * statistics.fmean(run.details["ratio"] for run in runs)
    values = (spread.mean, selection, spread.deviation, ratio)
    assert " ".join(f"{value:.1f}" for value in values) == row


def test_p_of_multevals_optimiser_runs_differs_between_runs(multeval):
    """multeval's p, which pools the runs, is 0.00. Run by run, one of the three differences is
    chance.
    """
    scores, draws = multeval
    pairs = zip(scores["sys1"], scores["baseline"], strict=True)
    p_values = [compare("sacrebleu_randomization", *pair, draws).p for pair in pairs]
    assert [p < 0.05 for p in p_values] == [True, False, True]


def test_equal_systems_of_multeval_get_no_p(multeval):
    """sys2 is the baseline again. multeval says p = 0.00 of two equal systems (its README explains
    why), and sacreBLEU says 1/10,001.
    """
    scores, draws = multeval
    equal = scores["sys2"][0], scores["baseline"][0], draws
    assert TESTS["sacrebleu_randomization"].run(*equal).p == 1 / 10_001
    assert compare("sacrebleu_randomization", *equal).p is None
    assert compare("paired_bootstrap", *equal).p == 1.0


# --- metrics_comparemt: neulab/compare-mt, tests/test_scorers.py, outputs/report.html, and its
# printed report of 1,000 resamples ---


@pytest.fixture(scope="module")
def comparemt(shared):
    path = shared / "data" / "metrics_comparemt"
    return [
        read(path / f"ted.{name}.eng")
        for name in ("ref", "sys1", "sys2", "ref.detok", "sys1.detok", "sys2.detok")
    ]


def test_scores_of_compare_mt_are_reproduced(comparemt):
    ref, one, two, *_ = comparemt
    bleu = [single.tokenized_bleu(hyps, [ref]) for hyps in (one, two)]
    assert f"{bleu[0].value:.2f}" == "22.44"  # test_scorers.py: "Compare to moses multi-bleu.pl"
    sizes = [(m.details["hyp_len"], m.details["ref_len"]) for m in bleu]
    assert sizes == [(45672, 48183), (45207, 48183)]
    assert f"{single.chrf(one, [ref]).value / 100:.2f}" == "0.48"
    # compare-mt's BLEU is NLTK's, which counts one n-gram more in each sentence shorter than it.
    assert [f"{slow.nltk_bleu(hyps, [ref]):.4f}" for hyps in (one, two)] == ["22.4309", "24.0322"]
    short = [sum(max(0, 4 - len(line.split())) for line in hyps) for hyps in (one, two)]
    assert short == [38, 43]
    gaps = [m.value - recorded for m, recorded in zip(bleu, (22.4309, 24.0322), strict=True)]
    assert [f"{gap:.4f}" for gap in gaps] == ["0.0055", "0.0067"]


RECORDED_BY_LENGTH = {
    "<10": (22.3102, 25.3150),
    "[10,20)": (20.9790, 24.6741),
    "[20,30)": (23.1616, 23.7933),
    "[30,40)": (21.7460, 23.1794),
    "[40,50)": (22.1873, 21.8982),
    "[50,60)": (23.3107, 25.5426),
    "≥60": (27.2580, 24.7044),
}


def test_bleu_of_compare_mt_by_length_is_reproduced(comparemt):
    """compare-mt groups each system's sentences by the length of its output; its BLEU is NLTK's."""
    ref, *outputs = comparemt[:3]
    equal = 0
    for system, hyps in enumerate(outputs):
        sizes = np.array([len(line.split()) for line in hyps])
        scores, borders = {"system": single.tokenized_bleu(hyps, [ref])}, "10,20,30,40,50,60"
        found = lengths.by_length(scores, sizes, borders, Draws(len(ref), 50))
        assert [f.group for f in found] == list(RECORDED_BY_LENGTH)
        for score, group in zip(found, lengths.groups(borders), strict=True):
            recorded = f"{RECORDED_BY_LENGTH[score.group][system]:.4f}"
            rows = np.flatnonzero(group.mask(sizes))
            nltk = slow.nltk_bleu([hyps[i] for i in rows], [[ref[i] for i in rows]])
            assert f"{nltk:.4f}" == recorded
            same = f"{score.bleu.value:.4f}" == recorded
            # Different only where outputs are too short for a 4-gram.
            assert same == (score.group != "<10")
            equal += same
    assert equal == 12


def test_significance_of_compare_mt_is_reproduced(comparemt):
    """Recorded with bootstrap=1000 of half the sentences: BLEU s2>s1, p=0.0000, [21.6638,23.2117]
    and [23.2452,24.7964].
    """
    ref, one, two, *_ = comparemt
    first, second = (single.tokenized_bleu(hyps, [ref]) for hyps in (one, two))
    draws = Draws(len(ref))
    found = compare("paired_bootstrap_half", second, first, draws)
    assert (found.p, found.setting) == (0.0, "1000 resamples of 1,222 sentences, seed 1")
    for metric, recorded in ((first, (21.6638, 23.2117)), (second, (23.2452, 24.7964))):
        bounds = np.quantile(draws.half.scores(metric), [0.025, 0.975])
        full = np.quantile(draws.full.scores(metric), [0.025, 0.975])
        # The ends of an interval vary by about 0.05 with the seed. The recorded ends fit resamples
        # of the whole set, not of half of it.
        assert full == pytest.approx(recorded, abs=0.15)
        assert bounds[1] - bounds[0] > 1.25 * (recorded[1] - recorded[0])
    gap = difference(second, first, draws)
    assert 0 < gap.low < gap.value < gap.high


def test_nist_bleu_of_real_outputs_equals_the_perl_script(comparemt, shared):
    """Source of the values: the two subs of mteval-v13a.pl, run by Perl on these files."""
    *_, ref, one, _ = comparemt
    path = shared / "data" / "han_outputs" / "sub_zh-en"
    refs = [read(path / name) for name in HAN["sub_zh-en"]]
    for metric, expected in (
        (single.mteval(one, [ref]), 21.710598944177),
        (single.mteval(one, [ref], lowercase=True), 22.246542124608),
        (single.mteval(read(path / "sub_zh-en_HA-enc.en"), refs), 36.023390807277),
    ):
        assert metric.value == pytest.approx(expected, abs=1e-9)


def test_nist_uncased_bleu_does_not_lowercase_umlauts(shared):
    data = shared / "data"
    ref = read(data / "wmt_newstest" / "newstest2015.eng-deu.deu")
    hyps = read(data / "lingeval97_baselines" / "sennrich2016.newstest2015")
    cased = metrics.bleu(hyps, [ref]).value
    assert single.mteval(hyps, [ref]).value == pytest.approx(cased, abs=1e-9)
    uncased = [score(hyps, [ref], lowercase=True).value for score in (single.mteval, metrics.bleu)]
    assert [f"{value:.2f}" for value in uncased] == ["28.38", "28.39"]
