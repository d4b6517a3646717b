"""The random draws of the significance tests: resamples of a test set, and outputs swapped between
two systems.

They depend only on the number of sentences and the seed. So every system and metric gets the same
draws, and comparisons are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nmtkit.arrays import Array
from nmtkit.score.formulas import Formula
from nmtkit.score.metrics import Metric
from nmtkit.score.options import ScoreOptions
from nmtkit.tables.table import Estimate

_BLOCK = 4_000_000  # draws held at once, so that memory does not grow with resamples x sentences

FEWEST_FOR_INTERVAL, FEWEST_FOR_P = 10, 30
"""Sentences that an interval and a p need: resamples of fewer are too similar."""
FEW = (
    f"no interval below {FEWEST_FOR_INTERVAL} sentences, no p (significance) below"
    f" {FEWEST_FOR_P}: too few to resample"
)
"""The rule, for the footer of a table."""
TAILS = [(1 - 0.95) / 2, (1 + 0.95) / 2]
"""The ends of a 95% interval. Not 0.025: its last bit differs."""


@dataclass(frozen=True)
class Draws:
    """The resamples and swaps of all significance tests on a test set.

    Args:
        sentences: N, lines of the test set.
        resamples: how many (Koehn: 1000).
        trials: of approximate randomization (sacreBLEU: 10,000).
        ratio: sentences of a resample, as a share of N; Koehn draws N, compare-mt half of them.
        seed: of numpy's default generator, which draws line numbers with replacement (as sacreBLEU
            does with SACREBLEU_SEED), and the swaps.
    """

    sentences: int
    resamples: int = 1000
    trials: int = 10_000
    ratio: float = 1.0
    seed: int = 1

    @classmethod
    def of(cls, options: ScoreOptions, sentences: int) -> Draws:
        """Return the draws that options ask for."""
        return cls(sentences, options.resamples, options.trials, options.ratio, options.seed)

    @cached_property
    def _by_ratio(self) -> dict[float, Draws]:
        return {}

    def resized(self, ratio: float) -> Draws:
        """Return draws with resamples of another size, drawn once."""
        if ratio == self.ratio:
            return self
        return self._by_ratio.setdefault(ratio, replace(self, ratio=ratio))

    @property
    def full(self) -> Draws:
        """Resamples as large as the test set."""
        return self.resized(1.0)

    @property
    def drawn(self) -> int:
        """Sentences in one resample."""
        return max(1, math.floor(self.ratio * self.sentences + 1e-9))

    @cached_property
    def counts(self) -> Array:
        """(resamples, N): the number of times each sentence was drawn."""
        rng, lines = np.random.default_rng(self.seed), self.sentences
        counts = np.empty((self.resamples, lines), dtype=np.uint16)
        for row in counts:
            row[:] = np.bincount(rng.integers(0, lines, self.drawn), minlength=lines)
        return counts

    def sums(self, statistics: Array) -> Array:
        """Return the sums (resamples, F) of sentence statistics (N, F) over each resample, exact
        for whole numbers.
        """
        block = max(1, _BLOCK // self.sentences)
        return np.concatenate(
            [
                self.counts[i : i + block].astype(np.float64) @ statistics
                for i in range(0, self.resamples, block)
            ]
        )

    def scores(self, metric: Metric, formula: Formula | None = None) -> Array:
        """Return (resamples) the corpus score of each resample; `formula` reads another number from
        the same statistics.
        """
        formula = formula or metric.formula
        if (metric, formula) not in self._scores:
            self._scores[metric, formula] = formula(self.sums(metric.statistics))
        return self._scores[metric, formula]

    @cached_property
    def _scores(self) -> dict[tuple[Metric, Formula], Array]:
        """The scores of earlier calls: several tests ask for the same."""
        return {}

    def describe(self) -> str:
        """The setting, as it is written beside results."""
        return f"{self.resamples} resamples of {self.drawn:,} sentences, seed {self.seed}"

    def score(self, metric: Metric, formula: Formula | None = None) -> Estimate:
        """Return the corpus score with its interval; None of no sentences.

        Args:
            formula: as of `scores`.
        """
        if not self.sentences:
            return Estimate(None)
        value = float(formula(metric.statistics.sum(0))) if formula else metric.value
        return estimate(value, self.full.scores(metric, formula), self.sentences)

    def kept(self) -> Iterator[Array]:
        """Yield the trials of approximate randomization in blocks of (about _BLOCK / N, N): 1.0 if
        the first system keeps its own output, 0.0 if it gets the second's, by the toss of a coin.
        """
        # A coin is one bit of 32: with a multiple of 32 coins in a block none is thrown away, and
        # blocks draw what one call would.
        rng = np.random.default_rng(self.seed)
        rows = max(32, _BLOCK // self.sentences // 32 * 32)
        for start in range(0, self.trials, rows):
            size = min(rows, self.trials - start), self.sentences
            yield rng.integers(2, size=size, dtype=bool).astype(np.float64)

    def swapped(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Return the sums (trials, F) of two systems' statistics (N, F) after the swaps."""
        block = np.concatenate([second.sum(0) + coins @ (first - second) for coins in self.kept()])
        return block, first.sum(0) + second.sum(0) - block

    @property
    def swaps(self) -> str:
        """The setting of the swaps, as it is written beside results."""
        return f"{self.trials:,} trials, seed {self.seed}"


def few_note(*sentences: int) -> list[str]:
    """Return the footer's line if some group has too few sentences for an interval or a p."""
    return [FEW] * any(count < FEWEST_FOR_P for count in sentences)


def ratios(above: Array, below: Array, draws: Draws) -> list[Estimate]:
    """Return the ratio of two sums over the sentences, of each of K pairs, with its interval.

    Args:
        above, below: (N, K) the two numbers of each sentence; one with 0 below does not count.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        values, samples = above.sum(0) / below.sum(0), draws.sums(above) / draws.sums(below)
    columns = zip(values.tolist(), samples.T, (below > 0).sum(0), strict=True)
    return [estimate(*column) for column in columns]


def mean(values: Array, draws: Draws) -> Estimate:
    """Return the mean over the sentences with a value, with its interval over all sentences.

    Args:
        values: (N), NaN for a sentence without a value.
    """
    known = np.isfinite(values)
    return ratios(np.where(known, values, 0.0)[:, None], known[:, None], draws)[0]


def estimate(value: float | None, samples: Array, sentences: int) -> Estimate:
    """Return a value (None if it is not finite) with the 95% interval of its resamples (percentile
    bootstrap).

    Args:
        sentences: that the value is computed from; few of them have no interval.
    """
    finite = samples[np.isfinite(samples)] if sentences >= FEWEST_FOR_INTERVAL else samples[:0]
    low_high = map(float, np.quantile(finite, TAILS)) if len(finite) else ()
    return Estimate(value if value is not None and math.isfinite(value) else None, *low_high)
