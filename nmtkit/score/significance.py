"""Is the difference between two systems more than luck of the test set? Resampling of cached sentence statistics.

The tests say nothing of the luck of a training seed: for that, train several seeds (design: a comparison needs both).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nmtkit.errors import ConfigError, DataError
from nmtkit.score.formulas import Array, Formula
from nmtkit.score.metrics import Metric
from nmtkit.score.tables import Estimate

_BLOCK = 4_000_000  # draws held at once, so that memory does not grow with resamples x sentences


@dataclass(frozen=True)
class Resampling:
    """Resamples of a test set, the same for every system and metric (that is what makes the comparison paired).

    Args:
        sentences: N, lines of the test set.
        resamples: how many (Koehn: 1000).
        ratio: sentences drawn, as a share of N; Koehn draws N, compare-mt half of them.
        seed: of numpy's default generator, which draws line numbers with replacement.
    Raises: ConfigError for sizes that make no sense.
    """

    sentences: int
    resamples: int = 1000
    ratio: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.resamples < 1 or not 0 < self.ratio <= 1 or self.sentences < 1 or self.seed < 0:
            raise ConfigError(
                f"cannot draw {self.resamples} resamples of {self.ratio:g} x {self.sentences} sentences with seed {self.seed}",
                hint="resamples >= 1, 0 < ratio <= 1, seed >= 0",
            )

    @property
    def drawn(self) -> int:
        """Sentences in one resample."""
        return max(1, round(self.ratio * self.sentences))

    @cached_property
    def counts(self) -> Array:
        """(resamples, N) how often each sentence was drawn."""
        rng = np.random.default_rng(self.seed)
        found = np.empty((self.resamples, self.sentences), dtype=np.uint16)
        block = max(1, _BLOCK // self.sentences)
        for start in range(0, self.resamples, block):
            size = min(block, self.resamples - start)
            lines = rng.integers(0, self.sentences, (size, self.drawn))
            lines += np.arange(size)[:, None] * self.sentences
            found[start : start + size] = np.bincount(lines.ravel(), minlength=size * self.sentences).reshape(size, self.sentences)
        return found

    def sums(self, statistics: Array) -> Array:
        """(N, F) sentence statistics -> (resamples, F) their sums over each resample (exact: they are whole numbers)."""
        block = max(1, _BLOCK // self.sentences)
        return np.concatenate([self.counts[i : i + block].astype(np.float64) @ statistics for i in range(0, self.resamples, block)])

    def scores(self, metric: Metric, formula: Formula | None = None) -> Array:
        """(resamples) the corpus score of each resample; `formula` reads another number from the same statistics."""
        if len(metric.statistics) != self.sentences:
            raise DataError(f"{metric.name}: {len(metric.statistics):,} sentences, but resamples of {self.sentences:,}")
        return (formula or metric.formula)(self.sums(metric.statistics))

    def describe(self) -> str:
        """The setting, as it is written beside results."""
        return f"{self.resamples} resamples of {self.drawn:,} sentences, seed {self.seed}"


def interval(samples: Array, level: float = 0.95) -> tuple[float, float] | None:
    """The central share `level` of resampled values (percentile bootstrap); None if there are none (all NaN)."""
    samples = samples[np.isfinite(samples)]
    if not len(samples):
        return None
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def estimate(value: float | None, samples: Array) -> Estimate:
    """A value with the 95% interval of its resamples."""
    bounds = interval(samples)
    return Estimate(value, *bounds) if bounds else Estimate(value)


@dataclass(frozen=True)
class Comparison:
    """The outcome of one significance test of a system against a baseline on one metric.

    Attributes:
        test: the test's name; metric: the metric's key.
        difference: system minus baseline, with its 95% interval.
        p: as the test defines it.
        better, worse, ties: shares of the resamples in which the system was better (for TER: lower), worse, equal.
        setting: resamples, ratio, seed.
    """

    test: str
    metric: str
    difference: Estimate
    p: float
    better: float
    worse: float
    ties: float
    setting: str


def paired_bootstrap(system: Metric, baseline: Metric, resampling: Resampling) -> Comparison:
    """Koehn's paired bootstrap: p = 1 - share of resamples in which A > B, A being the system that is better on the whole set.

    Args:
        system, baseline: the same metric on the same lines.
        resampling: shared by all comparisons on a test set.
    Returns: the comparison; two equal outputs have p = 1.
    Raises: DataError if the two cannot be compared (another signature or another number of lines).
    Source: Koehn 2004, Statistical significance tests for machine translation evaluation.
    """
    if (system.key, system.signature) != (baseline.key, baseline.signature):
        raise DataError(f"{system.name} values with different signatures cannot be compared", where=f"{system.signature} / {baseline.signature}")
    ours, theirs = resampling.scores(system), resampling.scores(baseline)
    sign = 1.0 if system.higher_is_better else -1.0
    better, worse = float((sign * ours > sign * theirs).mean()), float((sign * ours < sign * theirs).mean())
    ahead = sign * system.value >= sign * baseline.value
    return Comparison(
        test="paired bootstrap (Koehn 2004)",
        metric=system.key,
        difference=estimate(system.value - baseline.value, ours - theirs),
        p=1 - (better if ahead else worse),
        better=better,
        worse=worse,
        ties=1 - better - worse,
        setting=resampling.describe(),
    )


TESTS: dict[str, Callable[[Metric, Metric, Resampling], Comparison]] = {"paired_bootstrap": paired_bootstrap}
"""Every test that `score` runs, by the key it has in scores.json; another test is one more line."""
