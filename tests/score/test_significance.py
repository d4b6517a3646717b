"""The tests against slow loops and sacreBLEU's own code, and what their p means in cases with a
known answer.
"""

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
    """A reference and further ones that share much with it."""
    return [ref, *(spoiled(ref, 0.4, 50 + i) for i in range(1, count))]


def both(better, worse, refs, score=metrics.bleu):
    return score(better, refs), score(worse, refs)


def score(key, hyps, refs):
    return metrics.Scorer(refs, side=single.TOKENS).score(key, hyps)


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize(
    ("test", "ratio", "drawn"),
    [
        ("paired_bootstrap", 1.0, 31),
        ("paired_bootstrap", 0.5, 15),
        ("paired_bootstrap_half", 1.0, 15),
    ],
)
def test_koehns_bootstrap_is_a_slow_loop_over_sacrebleu(test, ratio, drawn, references):
    ref = corpus(31)
    refs = references_of(ref, references)
    ours, theirs = spoiled(ref, 0.2, 1), spoiled(ref, 0.3, 2)
    gaps = slow.gaps(ours, theirs, refs, np.random.default_rng(7).integers(0, 31, (60, drawn)))
    wins = sum(gap > 0 for gap in gaps)
    found = compare(test, *both(ours, theirs, refs), Draws(31, 60, 10, ratio, seed=7))
    assert found.p == pytest.approx(1 - wins / 60, abs=1e-12)
    assert 0 < found.p < 1  # or else the loop would have proved little
    assert f"60 resamples of {drawn} sentences, seed 7" == found.setting


def test_the_interval_of_a_difference_is_that_of_a_slow_loop():
    ref = corpus(30)
    ours, theirs = spoiled(ref, 0.2, 1), spoiled(ref, 0.3, 2)
    draws = np.random.default_rng(7).integers(0, 30, (60, 30))
    bounds = np.quantile(slow.gaps(ours, theirs, [ref], draws), [0.025, 0.975])
    found = difference(*both(ours, theirs, [ref]), Draws(30, 60, 10, ratio=0.5, seed=7))
    assert (found.low, found.high) == pytest.approx(tuple(bounds), abs=1e-9)
    (whole,) = slow.gaps(ours, theirs, [ref], [range(30)])
    assert found.value == pytest.approx(whole)
    system, draws = metrics.bleu(ours, [ref]), Draws(30, 60, seed=7)
    assert replace(draws, ratio=0.5).score(system) == draws.score(system)
    assert Draws(100, ratio=0.29).drawn == 29  # 0.29 * 100 is less than 29


def sacrebleus_p(run, key, ours, theirs, refs, samples, seed):
    """p by sacreBLEU's own functions, which its command line calls."""
    build = {
        "bleu": sacrebleu.BLEU,
        "chrf": sacrebleu.CHRF,
        "ter": lambda references: sacrebleu.TER(case_sensitive=True, references=references),
    }
    metric = build[key](references=refs)
    statistics = metric._extract_corpus_statistics(theirs, None)
    base = {key: (statistics, metric._aggregate_and_compute(statistics))}
    return run(base, "ours", ours, None, {key: metric}, n_samples=samples, seed=seed)[1][
        key
    ].p_value


@pytest.mark.parametrize("key", ["bleu", "chrf", "ter"])
@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize("seed", [3, 12345])
def test_sacrebleus_two_tests_give_the_p_of_sacrebleu_itself(key, references, seed):
    ref = corpus(45, seed)
    refs = references_of(ref, references)
    ours, theirs = spoiled(ref, 0.27, 1), spoiled(ref, 0.3, 2)
    ours[:9] = theirs[:9]  # equal outputs: swapping them is a tie, which sacreBLEU does not count
    draws = Draws(45, 150, 230, seed=seed)
    system, baseline = score(key, ours, refs), score(key, theirs, refs)
    slow_tests = {
        "sacrebleu_bootstrap": (_paired_bs_test, 150),
        "sacrebleu_randomization": (_paired_ar_test, 230),
    }
    found = {test: compare(test, system, baseline, draws).p for test in slow_tests}
    expected = {
        test: sacrebleus_p(run, key, ours, theirs, refs, samples, seed)
        for test, (run, samples) in slow_tests.items()
    }
    assert found == pytest.approx(expected, abs=1e-12)
    assert all(0.01 < p < 1 for p in found.values())


def test_randomization_of_few_sentences_counts_ties_as_sacrebleu_does():
    """With six sentences most trials repeat the observed difference exactly: one bit of rounding
    would change p.
    """
    for seed in range(1, 9):
        ref = corpus(6, seed)
        ours, theirs = spoiled(ref, 0.2, seed + 1), spoiled(ref, 0.3, seed + 2)
        for key in ("bleu", "chrf", "ter"):
            systems = score(key, ours, [ref]), score(key, theirs, [ref])
            draws = Draws(6, 10, 300, seed=seed)
            found = TESTS["sacrebleu_randomization"].run(*systems, draws).p
            expected = sacrebleus_p(_paired_ar_test, key, ours, theirs, [ref], 300, seed)
            assert found == pytest.approx(expected, abs=1e-12), (seed, key)


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_sign_test_is_a_slow_loop_over_sacrebleu(seed, references):
    ref = corpus(40, seed)
    refs = references_of(ref, references)
    ours, theirs = spoiled(ref, 0.2, seed + 1), spoiled(ref, 0.3, seed + 9)
    ours[::7] = theirs[::7]
    counts = check_sign_test(ours, theirs, refs)
    assert min(counts) > 0


def check_sign_test(ours, theirs, refs, score=metrics.bleu, *whole):
    """Compare with the slow loop; return the numbers of sentences +, - and of ties."""
    *counts, p = slow.sign_test(ours, theirs, refs, *whole)
    found = compare("sign", *both(ours, theirs, refs, score), Draws(40, 10, 10))
    assert found.p == pytest.approx(p, abs=1e-12)
    assert found.setting == "{} sentences +, {} -, {} ties".format(*counts)
    return counts


def test_the_sign_test_knows_that_a_lower_ter_is_better():
    ref = corpus(40)
    ours, theirs = spoiled(ref, 0.1, 1), spoiled(ref, 0.5, 2)

    def whole(hyps, refs):
        return -sacrebleu.corpus_ter(hyps, refs, case_sensitive=True).score

    plus, minus, _ = check_sign_test(ours, theirs, [ref], single.ter, whole)
    assert plus > minus


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 900), st.integers(0, 900))
@example(0, 0)
def test_the_binomial_is_exact(plus, minus):
    assert binomial(plus, minus) == pytest.approx(slow.two_sided(plus, minus), rel=1e-9)
    assert binomial(plus, minus) == binomial(minus, plus)


@pytest.mark.parametrize(
    "block", [170, 53 * 40]
)  # of trials: 32, and what would be 40 but that 40 x 53 coins leave bits over
def test_draws_are_alike_in_one_block_or_in_many(monkeypatch, block):
    statistics = np.arange(106.0).reshape(53, 2)

    def sums():
        draws = Draws(53, 40, 100, seed=3)
        swapped = draws.swapped(statistics, statistics[::-1])
        return draws, (
            draws.half.counts,
            draws.half.sums(statistics),
            *swapped,
        )

    _, expected = sums()
    monkeypatch.setattr("nmtkit.score.resampling._BLOCK", block)
    blocks, found = sums()
    assert all(map(np.array_equal, found, expected))
    assert (blocks.half.counts.sum(1) == 26).all()
    assert len(list(blocks.kept())) == 4
    coins = np.random.default_rng(3).integers(2, size=(100, 53), dtype=bool)
    assert np.array_equal(np.concatenate(list(blocks.kept())), coins)


@pytest.mark.parametrize("key", list(metrics.METRICS))
def test_p_of_equal_of_much_better_and_of_swapped_systems(key):
    ref = corpus(120)
    good, bad = (score(key, spoiled(ref, share, 5), [ref]) for share in (0.05, 0.5))
    draws = Draws(120, 200, 300)
    same = {test: compare(test, good, good, draws) for test in TESTS}
    # sacreBLEU's tests count what exceeds the observed difference: of equal outputs nothing does,
    # and p would be as small as it can be.
    assert TESTS["sacrebleu_bootstrap"].run(good, good, draws).p == 1 / 201
    p = dict.fromkeys(TESTS, 1.0)
    p |= {"sacrebleu_bootstrap": None, "sacrebleu_randomization": None}
    assert {test: found.p for test, found in same.items()} == p
    assert same["sign"].setting == "0 sentences +, 0 -, 120 ties"
    for test in TESTS:
        up, down = compare(test, good, bad, draws), compare(test, bad, good, draws)
        assert max(up.p, down.p) <= 0.01
        if (
            test != "sign"
        ):  # which changes one system's output, and so is not the same seen from the other
            assert up.p == pytest.approx(down.p, abs=1e-12)
    up, down = difference(good, bad, draws), difference(bad, good, draws)
    assert up.value == -down.value == good.value - bad.value
    assert up.low == pytest.approx(-down.high)


@pytest.mark.parametrize("different", [1, 5, 6])
def test_swaps_of_fewer_than_six_sentences_have_no_p(different):
    """With sacreBLEU's p, one better sentence of 100 would be significant."""
    ref = corpus(100)
    theirs = [*(["x"] * different), *spoiled(ref, 0.3, 1)[different:]]
    ours, draws = [*ref[:different], *theirs[different:]], Draws(100, 50, 300)
    test = "sacrebleu_randomization"
    for key in ("bleu", "chrf", "ter"):
        system, baseline = score(key, ours, [ref]), score(key, theirs, [ref])
        assert TESTS[test].run(system, baseline, draws).p == 1 / 301
        found = compare(test, system, baseline, draws)
        assert (found.p is None) == (found.setting == FEW_DIFFERENT) == (different < 6)
        assert compare("sign", system, baseline, draws).p == pytest.approx(2 * 0.5**different)
    short, long = (metrics.bleu([text] * 100, [ref]) for text in ("x", "x x"))
    assert short.value == long.value == 0
    assert compare(test, short, long, draws).setting == FEW_DIFFERENT


def test_how_many_p_of_equal_systems_are_small_by_chance():
    ref, count = corpus(60), 300
    small = dict.fromkeys(TESTS, 0)
    for seed in range(count):
        ours, theirs = spoiled(ref, 0.3, 2 * seed + 1), spoiled(ref, 0.3, 2 * seed + 2)
        pair, draws = both(ours, theirs, [ref]), Draws(60, 200, 200, seed=seed)
        for test in small:
            small[test] += compare(test, *pair, draws).p < LEVEL
    for test, number in small.items():
        assert abs(number - count * TESTS[test].by_chance) < 13, test
    # The shares differ by more than the simulation's error.
    assert small["paired_bootstrap_half"] < 10 < 20 < small["paired_bootstrap"]
    assert small["sign"] < 20 < small["sacrebleu_bootstrap"]


def test_the_interval_is_the_middle_of_the_samples():
    samples = estimate(1.0, np.arange(1001.0), 10)
    assert (samples.low, samples.high) == pytest.approx((25, 975))
    assert estimate(math.nan, np.array([np.nan, np.nan]), 10) == Estimate(None)
    ref = corpus(200)
    metric = metrics.bleu(spoiled(ref, 0.3, 1), [ref])
    assert Draws(200, 500).scores(metric, formulas.length_ratio) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 9, 10, 29, 30])
def test_few_sentences_have_no_interval_and_fewer_than_thirty_no_p(count):
    ref = corpus(count)
    good, bad = (metrics.bleu(spoiled(ref, share, 5), [ref]) for share in (0.05, 0.5))
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


def test_wilsons_interval():
    """8 of 10: 49.0 to 94.3 (Wilson 1927's formula, worked by hand); the ends stay within 0 and
    100.
    """
    share = wilson(8, 10)
    assert (share.value, round(share.low, 1), round(share.high, 1)) == (80, 49.0, 94.3)
    for n in range(1, 300):
        assert wilson(0, n).low == 0.0 and wilson(n, n).high == 100.0
    assert wilson(0, 0).value is None


def test_scores_of_resamples_are_computed_once(monkeypatch):
    ref = corpus(20)
    metric, draws = metrics.bleu(spoiled(ref, 0.3, 1), [ref]), Draws(20, 10)
    first = draws.scores(metric)
    monkeypatch.setattr(Draws, "sums", lambda *_: pytest.fail("computed again"))
    assert draws.scores(metric) is first
    other = metrics.bleu(spoiled(ref, 0.4, 2), [ref])
    monkeypatch.undo()
    assert not np.array_equal(draws.scores(other), first)


def test_what_cannot_be_compared_is_refused():
    ref = ["ein Hund läuft hier", "eine Katze"]
    a = metrics.bleu(ref, [ref])
    for test in TESTS:
        refused(DataError, "signatures", compare, test, a, metrics.bleu(ref, [ref, ref]), Draws(2))
        refused(DataError, "signatures", compare, test, a, replace(a, key="chrf"), Draws(2))


def test_draws_and_tests_that_do_not_exist_are_refused():
    limits = {"resamples": [0], "ratio": [0.0, 1.5, -1.0, math.nan], "seed": [-1], "trials": [0]}
    for wrong in ({name: value} for name, values in limits.items() for value in values):
        error = refused(ConfigError, "must be", ScoreOptions.of, wrong)
        assert error.where == f"--{next(iter(wrong))}"
    error = refused(ConfigError, "'signs'", check_options, ScoreOptions(test="signs"))
    assert "'sign'" in error.hint


def test_the_p_of_koehn_is_a_share_of_the_resamples_to_the_last_bit():
    """One resample of 10,000 is p = 0.0001, which a table shows; not less, which is "<0.0001"."""
    samples = {20.0: np.array([0.0, *[2.0] * 9_999]), 10.0: np.ones(10_000)}
    draws = SimpleNamespace(scores=lambda metric: samples[metric.value], describe=str)
    better, worse = (SimpleNamespace(value=value) for value in samples)
    assert TESTS["paired_bootstrap"].run(better, worse, draws).p == 0.0001


@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
def test_draws_leave_memory_at_once(ratio):
    """Without a garbage collection: those of a large set take hundreds of megabytes."""
    draws = Draws(40, 5, ratio=ratio)
    assert draws.full.counts.sum() == 2 * draws.half.counts.sum() == 200
    held = weakref.ref(draws)
    del draws
    assert held() is None
