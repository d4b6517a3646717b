"""The paired bootstrap against a slow loop, and what its p means in cases with a known answer."""

import random
import time

import numpy as np
import pytest
import sacrebleu

from nmtkit.errors import ConfigError, DataError
from nmtkit.score import formulas, metrics
from nmtkit.score.significance import Resampling, interval, paired_bootstrap

WORDS = ["ein", "der", "Hund", "die", "Katze", "läuft", "schläft", "heute", "hier", "dort", "schnell", "langsam", "und"]


def corpus(count, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(count)]


def spoiled(lines, share, seed):
    """The lines with this share of words replaced."""
    rng = random.Random(seed)
    return [" ".join(w if rng.random() > share else rng.choice(WORDS) for w in line.split()) for line in lines]


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_bootstrap_equals_a_slow_loop_over_sacrebleu(ratio):
    ref = corpus(30)
    ours, theirs = spoiled(ref, 0.2, 1), spoiled(ref, 0.3, 2)
    rng = np.random.default_rng(7)
    wins = 0
    differences = []
    for draw in rng.integers(0, 30, (60, round(30 * ratio))):
        a, b = (sacrebleu.corpus_bleu([hyp[i] for i in draw], [[ref[i] for i in draw]]).score for hyp in (ours, theirs))
        wins += a > b
        differences.append(a - b)
    found = paired_bootstrap(metrics.bleu(ours, [ref]), metrics.bleu(theirs, [ref]), Resampling(30, 60, ratio, seed=7))
    assert found.p == pytest.approx(1 - wins / 60, abs=1e-12)
    assert (found.difference.low, found.difference.high) == pytest.approx(tuple(np.quantile(differences, [0.025, 0.975])), abs=1e-9)
    assert 0 < found.p < 1  # or else the loop would have proved little
    assert f"60 resamples of {round(30 * ratio)} sentences, seed 7" == found.setting


def test_resamples_are_drawn_alike_in_one_block_or_in_many(monkeypatch):
    whole = Resampling(50, 40, 0.5, seed=3)
    monkeypatch.setattr("nmtkit.score.significance._BLOCK", 170)
    blocks = Resampling(50, 40, 0.5, seed=3)
    statistics = np.arange(100.0).reshape(50, 2)
    assert np.array_equal(whole.counts, blocks.counts)
    assert np.array_equal(whole.sums(statistics), blocks.sums(statistics))
    assert (whole.counts.sum(1) == 25).all()


@pytest.mark.parametrize("key", ["bleu", "chrf", "ter"])
def test_p_of_equal_of_much_better_and_of_swapped_systems(key):
    ref = corpus(120)
    good, bad = (getattr(metrics, key)(spoiled(ref, share, 5), [ref]) for share in (0.05, 0.5))
    draws = Resampling(120, 200)
    same = paired_bootstrap(good, good, draws)
    assert (same.p, same.ties, same.difference.value) == (1.0, 1.0, 0.0)
    up, down = paired_bootstrap(good, bad, draws), paired_bootstrap(bad, good, draws)
    assert (up.p, up.better, down.p, down.worse) == (0.0, 1.0, 0.0, 1.0)
    assert up.difference.value == -down.difference.value == good.value - bad.value
    assert up.difference.low == pytest.approx(-down.difference.high)


def test_under_the_null_hypothesis_p_is_rarely_small():
    """Two systems of the same quality: p < 0.05 (one-sided, direction chosen afterwards) in about a tenth of test sets."""
    small = 0
    for seed in range(60):
        ref = corpus(60, seed)
        a, b = (metrics.bleu(spoiled(ref, 0.3, seed * 2 + k), [ref]) for k in (101, 102))
        small += paired_bootstrap(a, b, Resampling(60, 200)).p < 0.05
    assert 0 < small <= 15


def test_the_interval_covers_the_value_and_has_the_right_width():
    samples = np.arange(1001.0)
    assert interval(samples) == pytest.approx((25, 975))
    assert interval(np.array([np.nan, np.nan])) is None
    ref = corpus(200)
    metric = metrics.bleu(spoiled(ref, 0.3, 1), [ref])
    low, high = interval(Resampling(200, 500).scores(metric))
    assert low < metric.value < high
    assert Resampling(200, 500).scores(metric, formulas.length_ratio) == pytest.approx(1.0)


def test_what_cannot_be_compared_is_refused():
    ref = ["ein Hund läuft hier", "eine Katze"]
    a = metrics.bleu(ref, [ref])
    with pytest.raises(DataError, match="signatures"):
        paired_bootstrap(a, metrics.bleu(ref, [ref, ref]), Resampling(2))
    with pytest.raises(DataError, match="resamples of 3"):
        paired_bootstrap(a, a, Resampling(3))
    for wrong in ({"resamples": 0}, {"ratio": 0.0}, {"ratio": 1.5}, {"seed": -1}):
        with pytest.raises(ConfigError):
            Resampling(2, **wrong)


def test_a_thousand_resamples_of_3000_sentences_are_quick():
    """The cached counts make it a matrix product: loops would take minutes."""
    ref = corpus(3000)
    a, b = (metrics.bleu(spoiled(ref, s, 1), [ref]) for s in (0.2, 0.21))
    start = time.process_time()
    paired_bootstrap(a, b, Resampling(3000, 1000))
    assert time.process_time() - start < 5
