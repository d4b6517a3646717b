"""Count how often tests over seeds and sentences find a difference where there is none.

python -m tests.benchmarks.seed_tests [--repeats 2000]

Two systems are drawn again and again, with the same expected score over all seeds and sentences. A
score is a mean over sentences. Its variance has three sources: the sentences that favour one system
(their standard error is the unit), the training seed, and the sentences that favour one seed. A test
at 5 % should find a difference in at most 5 % of the draws. The last column is the share of draws in
which `over_seeds` finds a difference of four units. A system with one seed is compared
with a baseline of two, beside OTHERS systems of two, whose seeds vary equally.
"""

from __future__ import annotations

import argparse

import numpy as np

from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import Draws
from nmtkit.score.seeds import Resampled, over_seeds

SENTENCES = 200
OTHERS = 6
TESTS = ("sentences only", "seeds drawn with replacement", "over_seeds")


def mean_score(scores: np.ndarray) -> Metric:
    """Return a metric that is the mean of sentence scores (N)."""

    def formula(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / len(scores)

    return Metric("mean", "mean", float(scores.mean()), "", scores[:, None], formula, formula)


def draw(
    rng: np.random.Generator, seeds: int, seed_error: float, gap: float, wider: float = 1.0
) -> list[list[Metric]]:
    """Return the scores of a system, of a baseline and of OTHERS systems, one metric a seed.

    Args:
        seeds: of each; if the system has one, two of the others.
        seed_error: the standard deviation that a seed adds to a score, in standard errors of the
            difference from the sentences.
        gap: expected difference, in the same unit.
        wider: how many times as much the seeds of the system vary as those of the others.
    """
    unit = (SENTENCES / 2) ** 0.5
    common = rng.normal(0, 5 * unit, SENTENCES)
    groups = []
    others = [(0.0, max(seeds, 2), seed_error)] * (1 + OTHERS)
    for mean, count, error in ((gap, seeds, wider * seed_error), *others):
        of_system = mean + common + rng.normal(0, unit, SENTENCES)
        of_seeds = rng.normal(0, error, (count, 1)) + rng.normal(0, unit / 2, (count, SENTENCES))
        groups.append([mean_score(of_system + of_seed) for of_seed in of_seeds])
    return groups


def p_values(
    ours: list[Metric], theirs: list[Metric], *others: list[Metric], draws: Draws
) -> list[float]:
    """Return the p of each of TESTS."""
    samples = [
        np.array([draws.full.scores(metric) for metric in group]) for group in (ours, theirs)
    ]
    fixed = samples[0].mean(0) - samples[1].mean(0)
    rng = np.random.default_rng(2)
    drawn = [
        np.take_along_axis(group, rng.integers(len(group), size=group.shape), 0).mean(0)
        for group in samples
    ]
    values = [[metric.value for metric in of_system] for of_system in others]
    first, second = ([Resampled.of(metric, draws) for metric in of] for of in (ours, theirs))
    p = over_seeds(first, second, draws.sentences, draws.seed, values)[1]
    assert p is not None
    return [two_sided(fixed), two_sided(drawn[0] - drawn[1]), p]


def two_sided(samples: np.ndarray) -> float:
    """Return p of a difference from its resamples."""
    tail = min((samples <= 0).sum(), (samples >= 0).sum())
    return min(1.0, 2 * (int(tail) + 1) / (len(samples) + 1))


def shares(
    repeats: int, seeds: int, seed_error: float, gap: float, wider: float = 1.0
) -> np.ndarray:
    """Return the share of p < 0.05 of each of TESTS, in percent."""
    rng, draws = np.random.default_rng(1), Draws(SENTENCES)
    significant = [
        np.array(p_values(*draw(rng, seeds, seed_error, gap, wider), draws=draws)) < 0.05
        for _ in range(repeats)
    ]
    return 100 * np.mean(significant, 0)


def main() -> None:
    """Print a row for each number of seeds and error of a seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    repeats = parser.parse_args().repeats
    print("| seeds | error of a seed |", " | ".join(TESTS), "| found, difference of 4 |")
    print("|---:" * 6 + "|")
    for seeds in (1, 2, 3, 5):
        for seed_error in (0.0, 1.0, 2.0):
            _row(str(seeds), seed_error, repeats, seeds)
    _row("1, twice as wide", 1.0, repeats, 1, 2.0)
    _row("2, twice as wide", 1.0, repeats, 2, 2.0)


def _row(label: str, seed_error: float, repeats: int, seeds: int, wider: float = 1.0) -> None:
    false, true = (shares(repeats, seeds, seed_error, gap, wider) for gap in (0.0, 4.0))
    cells = [f"{share:.1f} %" for share in (*false, true[-1])]
    print(f"| {label} | {seed_error} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
