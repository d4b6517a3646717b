"""Is the difference between two systems more than chance of the test set? Five tests.

The tests ask different questions, so their p differ (README.md of this folder). Compare a p only
with a p of the same test. No p accounts for the training seed: for that, train several seeds
(`nmtkit.score.seeds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nmtkit.arrays import Array
from nmtkit.errors import DataError, counted
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import FEWEST_FOR_P, Draws, estimate
from nmtkit.score.stored_scores import Comparison
from nmtkit.tables.table import Estimate

# Scores that differ by less are the same number, summed in another order. One n-gram in a million
# words makes a difference of 1e-4.
_SAME = 1e-9
FEWEST_DIFFERENT = 6
FEW_DIFFERENT = (
    "no p of sacreBLEU's tests if the scores are equal in every resample, and none of random swaps"
    f" if fewer than {FEWEST_DIFFERENT} sentences have another score"
)
"""sacreBLEU's p of equal scores is small by definition. Swaps of few sentences often repeat the
observed difference. sacreBLEU does not count these trials, so its p is small, although the exact p
(over the 2^n splits of n sentences) is above LEVEL.
"""


@dataclass(frozen=True)
class Test:
    """One significance test: an entry of TESTS.

    Attributes:
        header: the name in the header of a column; name: the full name with its source; reading:
            what p means.
        run: (system, baseline, draws) -> the result.
        counts: True if p is a share of the resamples, so that 0 means less than one resample.
        by_chance: the share of comparisons of equal systems that have p < LEVEL (simulated in
            tests/score/test_significance.py).
        fewest_different: the fewest sentences with different scores for a p. If it is not 0, some
            resample must have different scores, too.
    """

    header: str
    name: str
    reading: str
    run: Callable[[Metric, Metric, Draws], Comparison]
    counts: bool = False
    by_chance: float = 0.05
    fewest_different: int = 0

    def finest(self, draws: Draws) -> float:
        """Return the smallest p above 0 with these resamples (0: they set no limit)."""
        return 1 / draws.resamples if self.counts else 0.0


def _koehn(system: Metric, baseline: Metric, draws: Draws) -> Comparison:
    """p = 1 - share of resamples in which A > B, where A is the system with the higher score on the
    whole set (for equal scores p = 1).
    """
    gap, gaps = system.value - baseline.value, draws.scores(system) - draws.scores(baseline)
    won = (abs(gap) > _SAME) & (gaps * np.sign(gap) > _SAME)
    return Comparison(float((~won).mean()), draws.describe())


def _sacrebleu_bootstrap(system: Metric, baseline: Metric, draws: Draws) -> Comparison:
    """p = (1 + resamples whose |Δ|, minus the mean |Δ| of all, exceeds the observed |Δ|) / (1 +
    resamples).
    """
    draws = draws.full
    gaps = np.abs(draws.scores(system) - draws.scores(baseline))
    p = _share(gaps - gaps.mean(), abs(system.value - baseline.value))
    return Comparison(p, draws.describe())


def _sacrebleu_randomization(system: Metric, baseline: Metric, draws: Draws) -> Comparison:
    """p = (1 + trials whose |Δ| after swapping outputs at random exceeds the observed |Δ|) / (1
    + trials).
    """
    first, second = draws.swapped(baseline.statistics, system.statistics)
    gaps = np.abs(system.formula(first) - system.formula(second))
    return Comparison(_share(gaps, abs(system.value - baseline.value) + _SAME), draws.swaps)


def _share(samples: Array, observed: float) -> float:
    return (int((samples > observed).sum()) + 1) / (len(samples) + 1)


def _sign(system: Metric, baseline: Metric, draws: Draws) -> Comparison:
    """Does the corpus score rise or fall when the system's output of one sentence takes the
    place of the baseline's?
    """
    total = baseline.statistics.sum(0)
    replaced = total + (system.statistics - baseline.statistics)
    scores = baseline.formula(np.concatenate([total[None], replaced]))
    changes = (scores[1:] - scores[0]) * (1.0 if baseline.higher_is_better else -1.0)
    plus, minus = signs(changes)
    ties = counted(len(changes) - plus - minus, "tie")
    setting = f"{counted(plus, 'sentence')} +, {minus:,} -, {ties}"
    return Comparison(binomial(plus, minus), setting)


def signs(changes: Array) -> tuple[int, int]:
    """Return how many changes are above 0, and how many below."""
    return int((changes > _SAME).sum()), int((changes < -_SAME).sum())


def binomial(plus: int, minus: int) -> float:
    """Return the p of the two-sided sign test: the probability of a split at least as uneven if +
    and - are equally likely.

    Returns: 2 P(X <= min(plus, minus)) for X of Binomial(plus + minus, 1/2), at most 1; 1 if both
        are 0.
    """
    n, k = plus + minus, min(plus, minus)
    if n == 0:
        return 1.0
    steps = np.arange(1, k + 1)
    # Logarithms of P(X = 0), …, P(X = k).
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - steps + 1) / steps))]) - n * np.log(2.0)
    top = logs.max()
    return float(min(1.0, 2 * np.exp(top) * np.exp(logs - top).sum()))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p of several comparisons after the correction of Holm (1979), which limits the
    probability of any false difference among them.

    Args:
        p_values: None stays None and does not count.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected, largest = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        corrected[i] = largest
    return corrected


def wilson(successes: int, count: int) -> Estimate:
    """Return a share in percent with its 95% interval by Wilson (1927), which also suits few
    observations.

    Args:
        successes, count: the share is successes / count, or None if `count` is 0.
    """
    if not count:
        return Estimate(None)
    z = 1.959964
    share = successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    )
    # The limits 0 and 100 are exact, without rounding errors.
    low = centre - half if successes else 0.0
    high = centre + half if successes < count else 1.0
    return Estimate(100 * share, 100 * low, 100 * high)


_KOEHN = "one-sided; p = 1 - share of resamples in which the better of the two is better"
TESTS = {
    "paired_bootstrap": Test(
        "Koehn",
        "paired bootstrap (Koehn 2004)",
        _KOEHN,
        _koehn,
        counts=True,
        by_chance=0.1,
    ),
    "paired_bootstrap_half": Test(
        "Koehn ½",
        "paired bootstrap on half-size resamples (compare-mt's default)",
        _KOEHN,
        lambda a, b, draws: _koehn(a, b, draws.half),
        counts=True,
        by_chance=0.02,
    ),
    "sacrebleu_bootstrap": Test(
        "sacreBLEU bs",
        "sacreBLEU's paired bootstrap (--paired-bs)",
        "share of resamples whose |Δ|, less the mean |Δ|, exceeds the observed |Δ|, with 1 added "
        "to both counts; about as small as a one-sided p",
        _sacrebleu_bootstrap,
        by_chance=0.1,
        fewest_different=1,
    ),
    "sacrebleu_randomization": Test(
        "sacreBLEU ar",
        "sacreBLEU's approximate randomization (--paired-ar)",
        "two-sided; share of trials whose |Δ| after random swaps exceeds the observed |Δ|, with 1 "
        "added to both counts",
        _sacrebleu_randomization,
        fewest_different=FEWEST_DIFFERENT,
    ),
    "sign": Test(
        "sign",
        "sign test (Collins, Koehn and Kučerová 2005)",
        (
            "two-sided binomial over sentences: does the corpus score rise or fall if one "
            "output replaces the baseline's?"
        ),
        _sign,
    ),
}
"""Every test that `score` runs, by its key in scores.json, in the order of the tables. A new test
is a new entry.
"""
LEVEL = 0.05
"""A difference with a smaller p is significant."""


def header_of_test(test: str) -> str:
    """Return the column header of a test; its key if this version does not have the test."""
    return TESTS[test].header if test in TESTS else test


def chance_of(test: str) -> float:
    """Return the share of comparisons of equal systems with p < LEVEL; LEVEL if this version does
    not have the test.
    """
    return TESTS[test].by_chance if test in TESTS else LEVEL


def compare(test: str, system: Metric, baseline: Metric, draws: Draws) -> Comparison:
    """Return the result of one test; without p if there are few sentences, or few that differ.

    Args:
        test: one of TESTS.
        system, baseline: the same metric on the same lines.
        draws: the draws of all comparisons on a test set.
    Raises: DataError if the two have different signatures.
    """
    _check(system, baseline)
    if draws.sentences < FEWEST_FOR_P:
        return Comparison(None, f"no p below {FEWEST_FOR_P} sentences")
    if fewest := TESTS[test].fewest_different:
        different = np.abs(system.statistics - baseline.statistics).max(1) > _SAME
        ours, theirs = (draws.full.scores(metric) for metric in (system, baseline))
        if different.sum() < fewest or np.abs(ours - theirs).max() < _SAME:
            return Comparison(None, FEW_DIFFERENT)
    return TESTS[test].run(system, baseline, draws)


def difference(system: Metric, baseline: Metric, draws: Draws) -> Estimate:
    """Return system minus baseline with its 95% interval over resamples as large as the test set.

    Raises: DataError as `compare` does.
    """
    _check(system, baseline)
    samples = draws.full.scores(system) - draws.full.scores(baseline)
    return estimate(system.value - baseline.value, samples, draws.sentences)


def _check(system: Metric, baseline: Metric) -> None:
    if (system.key, system.signature) != (baseline.key, baseline.signature):
        raise DataError(
            f"{system.name} values with different signatures cannot be compared",
            where=f"{system.signature} / {baseline.signature}",
        )
