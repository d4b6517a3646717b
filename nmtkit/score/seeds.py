"""Several training seeds of one system: their mean and spread, and the difference of two groups.

A significance test on a test set asks if another test set would agree. It does not ask if another
training seed would agree. The test in this file asks both questions at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from nmtkit.arrays import Array
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import FEWEST_FOR_P, Draws, estimate
from nmtkit.score.significance import compare, holm
from nmtkit.score.stored_scores import (
    SeedDifference,
    SeedGroup,
    SeedPair,
    SeedResult,
    SeedScores,
    Spread,
)
from nmtkit.tables.table import Estimate
from nmtkit.toml import differing, flat

SPACED, ORDERS = 199, 20
"""Draws of Student's t for each quantile; random orders of the quantiles."""
_MARK = re.compile(r"[-_.]+(s|seed|run)?\d*[-_.]*$")
"""The end of the common part of several names: the beginning of a seed's mark."""
_WHOLE_MARK = re.compile(r"[-_.](s|seed|run)\d+$")
"""The mark of a seed at the end of a name."""
GROUPINGS = ("seed", "name")
"""How systems are grouped: the same settings except the seed, or the same name except its mark."""
FEWEST_FREEDOM = 3
"""The fewest degrees of freedom with which the seeds of other systems show how much a single seed
may vary. With fewer, hardly any difference would be clear.
"""
METHOD = 4
"""Version of all statistics; scores of another version are out of date."""
NOT_KNOWN = "no p over seeds: too few seeds to estimate how much they vary"


def group_systems(
    settings: Mapping[str, tuple[Mapping[str, Any], int | None]], by_name: bool = False
) -> list[SeedGroup]:
    """Group systems that differ only in the seed.

    Args:
        settings: system -> (everything else that its output depends on, as plain values; the seed).
            A system without a seed stays alone. So does a second system with the same settings and
            the same seed.
        by_name: group systems whose names differ only in the seed's mark, like `base-s1` and
            `base-s2`, whatever their settings.
    Returns: the groups, in the order of their first systems.
    """
    by_key: dict[str, list[str]] = {}
    for name, (rest, seed) in settings.items():
        key = without_mark(name) if by_name else json.dumps(rest, sort_keys=True, default=str)
        taken = not by_name and seed in [settings[other][1] for other in by_key.get(key, [])]
        by_key.setdefault(f"only {name}" if seed is None or taken else key, []).append(name)
    stems = [
        (key if by_name else _MARK.sub("", os.path.commonprefix(names))) if names[1:] else names[0]
        for key, names in by_key.items()
    ]
    groups = []
    for stem, names in zip(stems, by_key.values(), strict=True):
        unique = stem and stems.count(stem) == 1 and (stem in names or stem not in settings)
        seeds = [settings[name][1] for name in names]
        unequal = differing([flat(settings[name][0]) for name in names])
        groups.append(SeedGroup(stem if unique else names[0], names, seeds, unequal=unequal))
    return groups


def without_mark(name: str) -> str:
    """Return the name of a system without the mark of its seed."""
    return _WHOLE_MARK.sub("", name)


def spread(values: Sequence[float]) -> Spread:
    """Return mean, half-range and deviation of at least one value."""
    low, high = min(values), max(values)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(
        len(values),
        statistics.fmean(values),
        (high - low) / 2,
        (high + low) / 2,
        deviation,
        low,
        high,
    )


class Resampled(NamedTuple):
    """The score of one seed: on the test set, and on each resample of it."""

    value: float
    samples: Array

    @classmethod
    def of(cls, metric: Metric, draws: Draws) -> Self:
        """Return the score of a metric."""
        return cls(metric.value, draws.full.scores(metric))


def over_seeds(
    ours: Sequence[Resampled],
    theirs: Sequence[Resampled],
    sentences: int,
    seed: int,
    others: Sequence[Sequence[float]] = (),
    if_unknown: bool = False,
) -> tuple[Estimate, float | None]:
    """Return the difference of two groups' means with its 95% interval, and its two-sided p, over
    other training seeds and other sentences.

    This is a hierarchical bootstrap. Each resample draws sentences, the same for all systems, and
    adds an error of the seeds: the seeds' pooled standard deviation times √(1/n + 1/m) times a
    value of Student's t with n + m - 2 degrees of freedom (`student_t`). Two or three seeds drawn
    with replacement would vary too little: equal systems would have p < 0.05 far more often than
    once in twenty comparisons (tests/benchmarks/seed_tests.py).

    Args:
        ours, theirs: the scores of n and of m seeds, all on the same resamples. Both groups are
            assumed to have the same variance.
        sentences: number of sentences of the test set.
        seed: seed of the draws of Student's t.
        others: scores of the seeds of other systems. If n or m is 1, all groups are assumed to have
            the same variance, and all give degrees of freedom.
        if_unknown: if the error of the seeds is not known (fewer than FEWEST_FREEDOM degrees of
            freedom for a single seed), draw only other sentences.
    Returns: the difference; without interval and p if there are few sentences, or if the error of
        the seeds is not known and not `if_unknown`.
    """
    groups = [[score.value for score in group] for group in (ours, theirs)]
    gap = statistics.fmean(groups[0]) - statistics.fmean(groups[1])
    several = len(ours) > 1 and len(theirs) > 1
    # The groups whose variance gives the error of the seeds.
    varied = [*groups, *([] if several else others)]
    freedom = sum(len(group) - 1 for group in varied)
    known = several or freedom >= FEWEST_FREEDOM
    if sentences < FEWEST_FOR_P or not (known or if_unknown):
        return Estimate(gap), None
    means = [np.mean([score.samples for score in group], 0) for group in (ours, theirs)]
    samples = means[0] - means[1]
    if known:
        squares = sum(len(group) * np.var(group) for group in varied)
        error = math.sqrt(squares / freedom * (1 / len(ours) + 1 / len(theirs)))
        samples = samples + error * student_t(freedom, len(samples), seed)
    tail = min((samples <= 0).mean(), (samples >= 0).mean())
    resamples = samples.shape[-1]
    p = min(1.0, 2 * (float(tail) * resamples + 1) / (resamples + 1))
    return estimate(gap, samples, sentences), p


def smallest_p(resamples: int) -> float:
    """Return the smallest p of `over_seeds`: all resamples are on one side of 0."""
    return min(1.0, 2 / (resamples + 1))


@lru_cache(maxsize=16)
def student_t(freedom: int, count: int, seed: int) -> Array:
    """Return evenly spaced quantiles of Student's t in ORDERS random orders (ORDERS, count).

    Independent draws would be lopsided and would move every interval: for two against two seeds
    95 % of them were between -4.7 and 3.8 instead of ±4.3.
    """
    rng = np.random.default_rng((seed, freedom))
    middle = np.sort(rng.standard_t(freedom, count * SPACED))[SPACED // 2 :: SPACED]
    quantiles = (middle - middle[::-1]) / 2  # as symmetric as the distribution
    return rng.permuted(np.tile(quantiles, (ORDERS, 1)), axis=1)


def summarize(
    groups: Sequence[SeedGroup],
    metrics: Mapping[str, Mapping[str, Metric]],
    baseline: str,
    test: str,
    draws: Draws,
    grouping: str,
) -> SeedResult:
    """Return the scores of each group, and its difference to the baseline's group.

    Args:
        groups: all systems, each in one group.
        metrics: by key, the metric of each system.
        baseline: a system; all other groups are compared with its group.
        test: one of `significance.TESTS`, run on pairs of systems with equal seeds.
        draws: resamples of the test set.
        grouping: how the groups were made, one of GROUPINGS.
    """
    base = next(group for group in groups if baseline in group.systems)
    rows = [SeedScores(**vars(group), scores={}, against={}) for group in groups]
    others = [row for row in rows if row.name != base.name]
    for key, of_key in metrics.items():
        values = {row.name: [of_key[system].value for system in row.systems] for row in rows}
        for row in rows:
            row.scores[key] = spread(values[row.name])
        against = [_against(row, base, of_key, test, draws, values) for row in others]
        corrected = holm([difference.p for difference in against])
        for row, difference, p_holm in zip(others, against, corrected, strict=True):
            row.against[key] = replace(difference, p_holm=p_holm)
    return SeedResult(base.name, test, rows, grouping)


def _against(
    group: SeedGroup,
    base: SeedGroup,
    metrics: Mapping[str, Metric],
    test: str,
    draws: Draws,
    values: Mapping[str, Sequence[float]],
) -> SeedDifference:
    """Return the difference of two groups, and the test on each pair of systems with equal seeds.

    Args:
        values: the scores of every group, by its name.
    """
    partners = dict(zip(base.seeds, base.systems, strict=True))
    pairs = []
    for seed, name in zip(group.seeds, group.systems, strict=True):
        if seed is None or seed not in partners:
            continue
        partner = partners[seed]
        system, baseline = metrics[name], metrics[partner]
        gap = system.value - baseline.value
        better = gap > 0 if system.higher_is_better else gap < 0
        p = compare(test, system, baseline, draws).p
        pairs.append(SeedPair(seed, name, partner, gap, better, p))
    ours, theirs = (
        [Resampled.of(metrics[name], draws) for name in names.systems] for names in (group, base)
    )
    others = [values[name] for name in values if name not in (group.name, base.name)]
    delta, p_both = over_seeds(ours, theirs, draws.sentences, draws.seed, others)
    return SeedDifference(delta.value or 0.0, pairs, delta.low, delta.high, p_both)
