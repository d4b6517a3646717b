"""Significance tests equal slow loops and sacreBLEU's code, and their p is right in known cases."""

import functools
import math
import random
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sacrebleu.significance import _paired_ar_test, _paired_bs_test

from nmtkit.errors import ConfigError, DataError
from nmtkit.score import formulas, metrics, resampling
from nmtkit.score.evaluate import check_options
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import (
    FEW_DIFFERENT,
    LEVEL,
    TESTS,
    binomial,
    compare,
    difference,
    wilson,
)
from nmtkit.tables.table import Estimate
from tests.refused import refused

from . import single, slow
from .conftest import WORDS, spoil

FEWER_WORDS = WORDS[:13]
spoiled = functools.partial(spoil, words=FEWER_WORDS)


def corpus(count, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(FEWER_WORDS, k=rng.randint(3, 12))) for _ in range(count)]


def references_of(ref, count):
    """Return a reference and similar further references."""
    return [ref, *(spoiled(ref, 0.4, 50 + i) for i in range(1, count))]


def scores(refs, *outputs, key="bleu"):
    """Return a metric of each output."""
    scorer = metrics.Scorer(refs, side=single.TOKENS)
    return [scorer.score(key, hyps) for hyps in outputs]


@pytest.fixture(scope="module")
def thirty():
    """Two systems of 30 sentences: (reference, better, worse)."""
    ref = corpus(30)
    return ref, spoiled(ref, 0.2, 1), spoiled(ref, 0.3, 2)


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize(
    ("test", "ratio", "drawn"),
    [
        ("paired_bootstrap", 1.0, 31),
        ("paired_bootstrap", 0.5, 15),
        ("paired_bootstrap_half", 1.0, 15),
    ],
)
def test_koehns_bootstrap_equals_a_loop_over_sacrebleu(test, ratio, drawn, references):
    ref = corpus(31)
    refs = references_of(ref, references)
    ours, theirs = spoiled(ref, 0.2, 1), spoiled(ref, 0.3, 2)
    gaps = slow.gaps(ours, theirs, refs, np.random.default_rng(7).integers(0, 31, (60, drawn)))
    wins = sum(gap > 0 for gap in gaps)
    found = compare(test, *scores(refs, ours, theirs), Draws(31, 60, 10, ratio, seed=7))
    assert found.p == pytest.approx(1 - wins / 60, abs=1e-12)
    assert 0 < found.p < 1  # or else the loop would have proved little
    assert f"60 resamples of {drawn} sentences, seed 7" == found.setting


def test_interval_of_a_difference_equals_a_loop_over_sacrebleu(thirty):
    ref, ours, theirs = thirty
    draws = np.random.default_rng(7).integers(0, 30, (60, 30))
    bounds = np.quantile(slow.gaps(ours, theirs, [ref], draws), [0.025, 0.975])
    found = difference(*scores([ref], ours, theirs), Draws(30, 60, 10, ratio=0.5, seed=7))
    assert (found.low, found.high) == pytest.approx(tuple(bounds), abs=1e-9)
    (whole,) = slow.gaps(ours, theirs, [ref], [range(30)])
    assert found.value == pytest.approx(whole)


def test_interval_of_a_score_does_not_depend_on_the_ratio(thirty):
    ref, ours, _ = thirty
    (system,), draws = scores([ref], ours), Draws(30, 60, seed=7)
    assert replace(draws, ratio=0.5).score(system) == draws.score(system)


def test_size_of_a_resample_has_no_rounding_error():
    assert Draws(100, ratio=0.29).drawn == 29  # in floating point 0.29 * 100 is less than 29


def sacrebleus_p(run, key, ours, theirs, refs, samples, seed):
    """Return p as computed by the functions that sacreBLEU's command line calls."""
    kind, options = {
        "bleu": (sacrebleu.BLEU, {}),
        "chrf": (sacrebleu.CHRF, {}),
        "ter": (sacrebleu.TER, {"case_sensitive": True}),
    }[key]
    metric = kind(references=refs, **options)
    statistics = metric._extract_corpus_statistics(theirs, None)
    base = {key: (statistics, metric._aggregate_and_compute(statistics))}
    _, results = run(base, "ours", ours, None, {key: metric}, n_samples=samples, seed=seed)
    return results[key].p_value


@pytest.mark.parametrize("key", ["bleu", "chrf", "ter"])
@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize("seed", [3, 12345])
def test_p_of_sacrebleus_two_tests_equals_sacrebleus(key, references, seed):
    ref = corpus(45, seed)
    refs = references_of(ref, references)
    ours, theirs = spoiled(ref, 0.27, 1), spoiled(ref, 0.3, 2)
    ours[:9] = theirs[:9]  # equal outputs: swapping them is a tie, which sacreBLEU does not count
    draws = Draws(45, 150, 230, ratio=0.5, seed=seed)  # sacreBLEU knows no ratio
    system, baseline = scores(refs, ours, theirs, key=key)
    for test, run, samples in (
        ("sacrebleu_bootstrap", _paired_bs_test, 150),
        ("sacrebleu_randomization", _paired_ar_test, 230),
    ):
        p = compare(test, system, baseline, draws).p
        expected = sacrebleus_p(run, key, ours, theirs, refs, samples, seed)
        assert p == pytest.approx(expected, abs=1e-12), test
        assert 0.01 < p < 1


@pytest.mark.parametrize("seed", range(1, 9))
def test_randomization_of_few_sentences_counts_ties_as_sacrebleu_does(seed):
    """With six sentences most trials repeat the observed difference exactly: one bit of rounding
    would change p.
    """
    ref = corpus(6, seed)
    ours, theirs = spoiled(ref, 0.2, seed + 1), spoiled(ref, 0.3, seed + 2)
    for key in ("bleu", "chrf", "ter"):
        systems = scores([ref], ours, theirs, key=key)
        draws = Draws(6, 10, 300, seed=seed)
        p = TESTS["sacrebleu_randomization"].run(*systems, draws).p
        expected = sacrebleus_p(_paired_ar_test, key, ours, theirs, [ref], 300, seed)
        assert p == pytest.approx(expected, abs=1e-12), key


@pytest.mark.parametrize("seed", range(4))
def test_randomization_p_of_ter_with_three_references_is_exact(seed):
    """Mean lengths of three references are thirds, so rounding may change sacreBLEU's p. Oracle:
    whole numbers.
    """
    ref = corpus(40, seed)
    refs = references_of(ref, 3)
    outputs = spoiled(ref, 0.2, seed + 1), spoiled(ref, 0.2, seed + 9)
    system, baseline = scores(refs, *outputs, key="ter")
    ours, theirs = (
        np.rint(metric.statistics * [1, 3]).astype(int) for metric in (system, baseline)
    )
    assert np.array_equal(ours[:, 1], theirs[:, 1])  # lengths of the references, in thirds
    gaps = ours[:, 0] - theirs[:, 0]
    observed = abs(int(gaps.sum()))
    coins = np.random.default_rng(seed).integers(2, size=(400, 40), dtype=bool)
    changed = np.abs(np.where(coins, gaps, -gaps).sum(1))
    assert (changed == observed).any()
    p = TESTS["sacrebleu_randomization"].run(system, baseline, Draws(40, 10, 400, seed=seed)).p
    assert p == ((changed > observed).sum() + 1) / 401


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_sign_test_equals_a_loop_over_sacrebleu(seed, references):
    ref = corpus(40, seed)
    refs = references_of(ref, references)
    ours, theirs = spoiled(ref, 0.2, seed + 1), spoiled(ref, 0.3, seed + 9)
    ours[::7] = theirs[::7]
    counts = check_sign_test(ours, theirs, refs)
    assert min(counts) > 0


def check_sign_test(ours, theirs, refs, key="bleu", corpus_score=slow.corpus_bleu):
    """Compare with the slow loop; return the numbers of sentences +, - and of ties."""
    *counts, p = slow.sign_test(ours, theirs, refs, corpus_score)
    found = compare("sign", *scores(refs, ours, theirs, key=key), Draws(40, 10, 10))
    assert found.p == pytest.approx(p, abs=1e-12)
    assert found.setting == "{} sentences +, {} -, {} ties".format(*counts)
    return counts


def test_sign_test_counts_lower_ter_as_better():
    ref = corpus(40)
    ours, theirs = spoiled(ref, 0.1, 1), spoiled(ref, 0.5, 2)

    def negative_ter(hyps, refs):
        return -sacrebleu.corpus_ter(hyps, refs, case_sensitive=True).score

    plus, minus, _ = check_sign_test(ours, theirs, [ref], "ter", negative_ter)
    assert plus > minus


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 900), st.integers(0, 900))
@example(0, 0)
def test_binomial_p_is_exact(plus, minus):
    assert binomial(plus, minus) == pytest.approx(slow.two_sided(plus, minus), rel=1e-9)
    assert binomial(plus, minus) == binomial(minus, plus)


# A block of trials has a multiple of 32 rows: 32 instead of 3, and 32 instead of 40, of which the
# 40 x 53 swaps would leave bits of the generator unused.
@pytest.mark.parametrize("block", [170, 53 * 40])
def test_draws_do_not_depend_on_block_size(monkeypatch, block):
    statistics = np.arange(106.0).reshape(53, 2)

    def arrays(draws):
        swapped = draws.swapped(statistics, statistics[::-1])
        return draws.half.counts, draws.half.sums(statistics), *swapped

    expected = arrays(Draws(53, 40, 100, seed=3))
    monkeypatch.setattr("nmtkit.score.resampling._BLOCK", block)
    draws = Draws(53, 40, 100, seed=3)
    assert all(map(np.array_equal, arrays(draws), expected))
    assert (draws.half.counts.sum(1) == 26).all()
    blocks = list(draws.kept())
    assert len(blocks) == 4
    coins = np.random.default_rng(3).integers(2, size=(100, 53), dtype=bool)
    assert np.array_equal(np.concatenate(blocks), coins)


@pytest.fixture
def unlike(request):
    """A good and a bad system of 120 sentences by the metric of the parameter `key`, and draws."""
    ref = corpus(120)
    outputs = (spoiled(ref, share, 5) for share in (0.05, 0.5))
    good, bad = scores([ref], *outputs, key=request.param)
    return good, bad, Draws(120, 200, 300)


every_metric = pytest.mark.parametrize("unlike", list(metrics.METRICS), indirect=True)


@every_metric
def test_equal_systems_have_p_1_or_none(unlike):
    good, _, draws = unlike
    found = {test: compare(test, good, good, draws) for test in TESTS}
    # sacreBLEU's tests count what exceeds the observed difference: of equal outputs nothing does,
    # and p would be as small as it can be.
    assert TESTS["sacrebleu_bootstrap"].run(good, good, draws).p == 1 / 201
    expected = dict.fromkeys(TESTS, 1.0)
    expected |= {"sacrebleu_bootstrap": None, "sacrebleu_randomization": None}
    assert {test: result.p for test, result in found.items()} == expected
    assert found["sign"].setting == "0 sentences +, 0 -, 120 ties"


@every_metric
def test_p_and_difference_are_symmetric_and_p_of_a_much_better_system_is_small(unlike):
    good, bad, draws = unlike
    for test in TESTS:
        up, down = compare(test, good, bad, draws), compare(test, bad, good, draws)
        assert max(up.p, down.p) <= 0.01
        if test != "sign":  # not symmetric: it changes only one system's output
            assert up.p == pytest.approx(down.p, abs=1e-12)
    up, down = difference(good, bad, draws), difference(bad, good, draws)
    assert up.value == -down.value == good.value - bad.value
    assert up.low == pytest.approx(-down.high)


@pytest.mark.parametrize("different", [1, 5, 6])
def test_randomization_has_no_p_if_fewer_than_six_sentences_differ(different):
    """sacreBLEU's p would call a single better sentence of 100 significant."""
    ref = corpus(100)
    theirs = [*(["x"] * different), *spoiled(ref, 0.3, 1)[different:]]
    ours, draws = [*ref[:different], *theirs[different:]], Draws(100, 50, 300)
    test = "sacrebleu_randomization"
    for key in ("bleu", "chrf", "ter"):
        system, baseline = scores([ref], ours, theirs, key=key)
        assert TESTS[test].run(system, baseline, draws).p == 1 / 301
        found = compare(test, system, baseline, draws)
        assert (found.p is None) == (found.setting == FEW_DIFFERENT) == (different < 6)
        assert compare("sign", system, baseline, draws).p == pytest.approx(2 * 0.5**different)


def test_sacrebleus_tests_have_no_p_for_different_outputs_with_equal_scores():
    ref = corpus(100)
    short, long = scores([ref], ["x"] * 100, ["x x"] * 100)
    assert short.value == long.value == 0
    p_values = {test: compare(test, short, long, Draws(100, 50, 300)).p for test in TESTS}
    expected = dict.fromkeys(TESTS, 1.0)
    expected |= {"sacrebleu_bootstrap": None, "sacrebleu_randomization": None}
    assert p_values == expected


def test_koehns_p_of_equal_scores_is_1_whichever_is_the_baseline():
    ref = ["a b c d e"] * 40
    one_bad, four_near = [*ref[1:], "z z z z e"], [*ref[4:], *["a b c d z"] * 4]
    pair = scores([ref], one_bad, four_near, key="ter")
    draws = Draws(40, 100)
    assert pair[0].value == pair[1].value
    for ours, theirs in (pair, pair[::-1]):
        assert compare("paired_bootstrap", ours, theirs, draws).p == 1


def of_values(*systems):
    """Return a metric of sentence scores for each system."""
    ones = np.ones(len(systems[0]))
    return [metrics.mean_metric("x", np.stack([v, ones], 1), "", True) for v in systems]


VALUES = np.random.default_rng(2).random(60)
ROUNDING = 1e-13


def test_resamples_without_a_difference_are_not_won_in_koehns_test():
    """Only the first of 60 sentences differs by more than rounding: a resample is won if it was
    drawn.
    """
    drawn = np.random.default_rng(7).integers(0, 60, (200, 60))
    p = 1 - (drawn == 0).any(1).mean()
    assert 0.3 < p < 0.45
    first = np.eye(60)[0]
    for pair in ((VALUES + first, VALUES), (VALUES + first, VALUES - ROUNDING)):
        for ours, theirs in (of_values(*pair), of_values(*pair[::-1])):
            found = compare("paired_bootstrap", ours, theirs, Draws(60, 200, seed=7))
            assert found.p == pytest.approx(p, abs=1e-12)


def test_scores_that_differ_by_rounding_only_are_equal():
    pair = of_values(VALUES, VALUES + ROUNDING)
    for ours, theirs in (pair, pair[::-1]):
        found = {test: compare(test, ours, theirs, Draws(60, 100, 100)) for test in TESTS}
        for test, result in found.items():
            assert result.p == (None if test.startswith("sacrebleu") else 1), test
        assert found["sign"].setting == "0 sentences +, 0 -, 60 ties"
    moved = VALUES + ROUNDING + np.eye(60)[0] - np.eye(60)[1]  # resamples differ
    pair = of_values(VALUES, moved)
    for ours, theirs in (pair, pair[::-1]):
        assert compare("paired_bootstrap", ours, theirs, Draws(60, 100)).p == 1


def test_equal_systems_have_small_p_by_chance_as_often_as_documented():
    ref, count = corpus(60), 300
    scorer = metrics.Scorer([ref])
    small = dict.fromkeys(TESTS, 0)
    for seed in range(count):
        outputs = (spoiled(ref, 0.3, 2 * seed + i) for i in (1, 2))
        pair = [scorer.score("bleu", hyps) for hyps in outputs]
        draws = Draws(60, 200, 200, seed=seed)
        for test in small:
            small[test] += compare(test, *pair, draws).p < LEVEL
    for test, number in small.items():
        assert abs(number - count * TESTS[test].by_chance) < 13, test
    # The shares differ by more than the simulation's error.
    assert small["paired_bootstrap_half"] < 10 < 20 < small["paired_bootstrap"]
    assert small["sign"] < 20 < small["sacrebleu_bootstrap"]


def test_interval_is_the_central_95_percent_of_finite_samples():
    interval = estimate(1.0, np.arange(1001.0), 10)
    assert (interval.low, interval.high) == pytest.approx((25, 975))
    assert estimate(math.nan, np.array([np.nan, np.nan]), 10) == Estimate(None)


def test_length_ratio_of_resamples_is_1_for_equal_lengths():
    ref = corpus(200)
    (metric,) = scores([ref], spoiled(ref, 0.3, 1))
    assert Draws(200, 500).scores(metric, formulas.length_ratio) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 9, 10, 29, 30])
def test_interval_needs_10_sentences_and_p_needs_30(count):
    ref = corpus(count)
    good, bad = scores([ref], *(spoiled(ref, share, 5) for share in (0.05, 0.5)))
    draws = Draws(count, 20, 20)
    gap = difference(good, bad, draws)
    assert gap.value == good.value - bad.value
    assert [gap.low is None, gap.high is None] == [count < 10] * 2
    known = np.where(np.arange(40) < count, 1.0, np.nan)
    assert (resampling.mean(known, Draws(40, 20)).low is None) == (count < 10)
    assert bool(resampling.few_note(100, count)) == (count < 30)
    for test in TESTS:
        found = compare(test, good, bad, draws)
        assert (found.p is None) == (found.setting == "no p below 30 sentences") == (count < 30)


def test_wilson_interval_equals_hand_computed_values_and_stays_within_0_and_100():
    """8 of 10: 49.0 to 94.3, computed by hand with the formula of Wilson (1927)."""
    share = wilson(8, 10)
    assert (share.value, round(share.low, 1), round(share.high, 1)) == (80, 49.0, 94.3)
    for n in range(1, 300):
        assert wilson(0, n).low == 0.0 and wilson(n, n).high == 100.0
    assert wilson(0, 0).value is None


def test_scores_of_resamples_are_computed_once(monkeypatch):
    ref = corpus(20)
    metric, other = scores([ref], spoiled(ref, 0.3, 1), spoiled(ref, 0.4, 2))
    draws = Draws(20, 10)
    first = draws.scores(metric)
    monkeypatch.setattr(Draws, "sums", lambda *_: pytest.fail("computed again"))
    assert draws.scores(metric) is first
    monkeypatch.undo()
    assert not np.array_equal(draws.scores(other), first)


@pytest.mark.parametrize("test", TESTS)
def test_metrics_with_different_signatures_are_refused(test):
    ref = ["ein Hund läuft hier", "eine Katze"]
    metric = metrics.bleu(ref, [ref])
    for other in (metrics.bleu(ref, [ref, ref]), replace(metric, key="chrf")):
        refused(DataError, "signatures", compare, test, metric, other, Draws(2))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("resamples", 0), ("trials", 0), ("seed", -1)],
        *[("ratio", ratio) for ratio in (0.0, 1.5, -1.0, math.nan)],
    ],
)
def test_invalid_draws_are_refused(option, value):
    error = refused(ConfigError, "must be", ScoreOptions.of, {option: value})
    assert error.where == f"--{option}"


def test_unknown_test_is_refused_with_the_nearest_name():
    error = refused(ConfigError, "'signs'", check_options, ScoreOptions(test="signs"))
    assert "'sign'" in error.hint


def test_koehns_p_of_one_resample_in_10_000_is_exactly_0_0001():
    """A table shows 0.0001; a slightly smaller p would be shown as "<0.0001"."""
    samples = {20.0: np.array([0.0, *[2.0] * 9_999]), 10.0: np.ones(10_000)}
    draws = SimpleNamespace(scores=lambda metric: samples[metric.value], describe=str)
    better, worse = (SimpleNamespace(value=value) for value in samples)
    assert TESTS["paired_bootstrap"].run(better, worse, draws).p == 0.0001


@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
def test_draws_are_freed_without_garbage_collection(ratio):
    """The draws of a large set take hundreds of megabytes."""
    draws = Draws(40, 5, ratio=ratio)
    assert draws.full.counts.sum() == 2 * draws.half.counts.sum() == 200
    held = weakref.ref(draws)
    del draws
    assert held() is None
