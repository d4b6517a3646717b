"""The random draws of the significance tests: resamples of a test set, and swaps of outputs between
two systems.

The draws depend only on the number of sentences and the seed. So every system and metric gets the
same draws, and comparisons are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nmtkit.arrays import Array
from nmtkit.errors import counted
from nmtkit.score.formulas import Formula
from nmtkit.score.metrics import Metric
from nmtkit.score.options import ScoreOptions
from nmtkit.tables.table import Estimate

_BLOCK = 4_000_000  # draws held at once, so that memory does not grow with resamples x sentences

FEWEST_FOR_INTERVAL, FEWEST_FOR_P = 10, 30
"""The fewest sentences for an interval and for a p: resamples of fewer are too similar."""
FEW = (
    f"no interval below {FEWEST_FOR_INTERVAL} sentences, no p (significance) below"
    f" {FEWEST_FOR_P}: too few to resample"
)
"""This rule as a note under a table."""
TAILS = [(1 - 0.95) / 2, (1 + 0.95) / 2]
"""The ends of a 95% interval. Not 0.025: its last bit differs."""


@dataclass(frozen=True)
class Draws:
    """The resamples and swaps of all significance tests on a test set.

    Args:
        sentences: N, the number of lines of the test set.
        resamples: the number of resamples (Koehn: 1000).
        trials: the number of trials of approximate randomization (sacreBLEU: 10,000).
        ratio: sentences of a resample, as a share of N; Koehn draws N, compare-mt N / 2.
        seed: seed of numpy's default generator, which draws line numbers with replacement (as
            sacreBLEU does with SACREBLEU_SEED), and the swaps.
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

    @property
    def full(self) -> Draws:
        """Resamples as large as the test set."""
        return self._resized(1.0)

    @property
    def half(self) -> Draws:
        """Resamples half as large as the test set."""
        return self._resized(0.5)

    def _resized(self, ratio: float) -> Draws:
        if ratio == self.ratio:  # it must not hold itself: memory would keep it for long
            return self
        return self._others.setdefault(ratio, replace(self, ratio=ratio))

    @cached_property
    def _others(self) -> dict[float, Draws]:
        return {}

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
        """Return (resamples) the corpus score of each resample, or another number that `formula`
        computes from the same statistics.
        """
        formula = formula or metric.formula
        if (metric, formula) not in self._scores:
            self._scores[metric, formula] = formula(self.sums(metric.statistics))
        return self._scores[metric, formula]

    @cached_property
    def _scores(self) -> dict[tuple[Metric, Formula], Array]:
        """The scores of earlier calls, because several tests need the same scores."""
        return {}

    def describe(self) -> str:
        """Return the setting of the resamples, for people."""
        return f"{self.resamples} resamples of {counted(self.drawn, 'sentence')}, seed {self.seed}"

    def score(self, metric: Metric, formula: Formula | None = None) -> Estimate:
        """Return the corpus score with its interval; None if there are no sentences.

        Args:
            formula: as in `scores`.
        """
        if not self.sentences:
            return Estimate(None)
        value = float(formula(metric.statistics.sum(0))) if formula else metric.value
        return estimate(value, self.full.scores(metric, formula), self.sentences)

    def kept(self) -> Iterator[Array]:
        """Yield the trials of approximate randomization in blocks of (about _BLOCK / N, N): 1.0
        where the first system keeps its own output, 0.0 where it gets the second system's. Both
        have a probability of 1/2.
        """
        # The generator uses 32 bits at once for 32 cells. With a multiple of 32 cells in a block no
        # bit is lost, so blocks draw the same as a single call.
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
        """The setting of the swaps, for people."""
        return f"{counted(self.trials, 'trial')}, seed {self.seed}"


def few_note(*sentences: int) -> list[str]:
    """Return the note on few sentences if some group has too few for an interval or a p."""
    return [FEW] * any(count < FEWEST_FOR_P for count in sentences)


def ratios(above: Array, below: Array, draws: Draws) -> list[Estimate]:
    """Return K ratios of sums over the sentences, each with its interval.

    Args:
        above, below: (N, K) numerator and denominator of each sentence. A sentence whose
            denominator is 0 does not count.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        values, samples = above.sum(0) / below.sum(0), draws.sums(above) / draws.sums(below)
    columns = zip(values.tolist(), samples.T, (below > 0).sum(0), strict=True)
    return [estimate(*column) for column in columns]


def mean(values: Array, draws: Draws) -> Estimate:
    """Return the mean over the sentences that have a value, with its interval over all sentences.

    Args:
        values: (N), NaN for a sentence without a value.
    """
    known = np.isfinite(values)
    return ratios(np.where(known, values, 0.0)[:, None], known[:, None], draws)[0]


def estimate(value: float | None, samples: Array, sentences: int) -> Estimate:
    """Return a value (None if it is not finite) with the 95% interval of its resamples (percentile
    bootstrap).

    Args:
        sentences: the number of sentences behind the value; few sentences have no interval.
    """
    finite = samples[np.isfinite(samples)] if sentences >= FEWEST_FOR_INTERVAL else samples[:0]
    low_high = map(float, np.quantile(finite, TAILS)) if len(finite) else ()
    return Estimate(value if value is not None and math.isfinite(value) else None, *low_high)
