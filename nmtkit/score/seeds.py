"""Several training seeds of one system: their mean and spread, and what may be said of a difference
between two such groups.

A significance test on a test set asks whether another test set would agree; it takes the two
trained models as given. Whether another seed would agree is another question, and a few seeds
answer it only roughly. Both answers are given here, side by side.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nmtkit.records import (
    LengthScore,
    SeedDifference,
    SeedGroup,
    SeedPair,
    SeedResult,
    SeedScores,
    Spread,
)
from nmtkit.score.metrics import METRICS, Metric
from nmtkit.score.resampling import Draws
from nmtkit.score.significance import compare
from nmtkit.tables.table import Column, Table

LEVEL = 0.05
"""Below it a p counts as significant in the table."""
_MOST_SPLITS = 200_000
_MARK = re.compile(r"[-_.]+(s|seed|run)?\d*[-_.]*$")
"""How the mark of a seed begins, at the end of what names share."""


def group_systems(settings: Mapping[str, tuple[Any, int | None]]) -> list[SeedGroup]:
    """Put together what differs only in the seed.

    Args:
        settings: system -> (everything else its output follows from, as plain values; the seed). A
            system without a seed stays alone.
    Returns: in the order of the first of each.
    """
    found: list[tuple[Any, list[str], list[int | None]]] = []
    for name, (rest, seed) in settings.items():
        for other, names, seeds in found:
            if seed is not None and seeds[0] is not None and other == rest:
                names.append(name)
                seeds.append(seed)
                break
        else:
            found.append((rest, [name], [seed]))
    stems = [
        _MARK.sub("", os.path.commonprefix(names)) if len(names) > 1 else names[0]
        for _, names, _ in found
    ]
    groups = []
    for stem, (_, names, seeds) in zip(stems, found, strict=True):
        alone = stem and stems.count(stem) == 1 and (stem in names or stem not in settings)
        groups.append(SeedGroup(stem if alone else names[0], names, seeds))
    return groups


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


def permutation(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float | None, float]:
    """Exact permutation test: had the seeds been dealt to the two groups by chance, how often would
    their means lie as far apart?

    Args:
        ours, theirs: one score a seed.
    Returns: p, two-sided (None where there are too many splits to count), and the smallest p that
        groups of these sizes can have.
    Source: Fisher 1935, The design of experiments, on randomization.
    """
    pool, n = np.array([*ours, *theirs]), len(ours)
    splits = math.comb(len(pool), n)
    smallest = (2 if len(theirs) == n else 1) / splits
    if splits > _MOST_SPLITS:
        return None, smallest
    members = np.array(list(itertools.combinations(range(len(pool)), n)))
    sums = pool[members].sum(1)
    gaps = np.abs(sums / n - (pool.sum() - sums) / len(theirs))
    return float((gaps >= gaps[0] - 1e-9).mean()), smallest


def summarize(
    groups: Sequence[SeedGroup],
    metrics: Mapping[str, Mapping[str, Metric]],
    baseline: str,
    test: str,
    draws: Draws,
) -> SeedResult:
    """The groups' scores, and each group against the baseline's.

    Args:
        groups: all systems, each in one group.
        metrics: metric by system and key.
        baseline: a system; its group is what the others are compared with.
        test: one of `significance.TESTS`, run on pairs of systems with equal seeds.
        draws: of the test set.
    """
    base = next(group for group in groups if baseline in group.systems)
    rows = []
    for group in groups:
        row = SeedScores(group.name, group.systems, group.seeds, {}, {})
        for key in metrics[baseline]:
            ours, theirs = (
                [metrics[name][key].value for name in one.systems] for one in (group, base)
            )
            row.scores[key] = spread(ours)
            if group is not base:
                gap = statistics.fmean(ours) - statistics.fmean(theirs)
                row.against[key] = SeedDifference(
                    gap, _pairs(group, base, metrics, key, test, draws), *permutation(ours, theirs)
                )
        rows.append(row)
    return SeedResult(base.name, test, rows)


def _pairs(
    group: SeedGroup,
    base: SeedGroup,
    metrics: Mapping[str, Mapping[str, Metric]],
    key: str,
    test: str,
    draws: Draws,
) -> list[SeedPair]:
    """The test on the systems of each seed that both groups have."""
    partners = {
        seed: name for name, seed in zip(base.systems, base.seeds, strict=True) if seed is not None
    }
    found = []
    for name, seed in zip(group.systems, group.seeds, strict=True):
        if seed in partners:
            ours, theirs = metrics[name][key], metrics[partners[seed]][key]
            sign = 1 if ours.higher_is_better else -1
            better = sign * (ours.value - theirs.value) > 0
            p = compare(test, ours, theirs, draws).p
            found.append(SeedPair(seed, name, partners[seed], ours.value - theirs.value, better, p))
    return found


def table(result: SeedResult, title: str, notes: Sequence[str]) -> Table:
    """One row a group: BLEU with its spread and its difference to the baseline's group, and the
    means of the other metrics.

    Args:
        result: of `summarize`; title, notes: what stands around the table.
    """
    others = [key for key in result.groups[0].scores if key != "bleu"]
    several = len(result.groups) > 1
    columns = [
        Column("system", "system", left=True),
        Column("n", "seeds"),
        Column("bleu", "BLEU mean"),
        Column("bleu_half_range", "± half-range"),
        Column("bleu_deviation", "deviation"),
    ]
    if several:
        columns += [
            Column("delta", "Δ mean", signed=True),
            Column("better", f"better, p<{LEVEL:g}"),
            Column("pairs", "of"),
        ]
        columns += [Column("p_seeds", "p (seeds)", decimals=3)]
    columns += [Column(key, METRICS[key].header) for key in others]
    rows = []
    for group in result.groups:
        bleu, against = group.scores["bleu"], group.against.get("bleu")
        row: list[Any] = [
            group.name,
            bleu.n,
            bleu.mean,
            bleu.half_range if bleu.n > 1 else None,
            bleu.deviation,
        ]
        if several:
            row += (
                [against.difference, *_significant(against.pairs), against.p_seeds]
                if against
                else [None] * 4
            )
        rows.append([*row, *(group.scores[key].mean for key in others)])
    return Table("seeds", title, columns, rows, [*notes, *_notes(result)])


def length_table(
    result: SeedResult, found: Sequence[LengthScore], title: str, notes: Sequence[str]
) -> Table:
    """One row a length group and a group of seeds: mean BLEU, its spread, and the mean's difference
    to the baseline's group.

    Args:
        result: of `summarize`.
        found: BLEU by length, of every system.
        title, notes: what stands around the table.
    """
    columns = [
        Column("group", "source length", left=True),
        Column("sentences", "sentences"),
        Column("system", "system", left=True),
        Column("n", "seeds"),
        Column("bleu", "BLEU mean"),
        Column("bleu_half_range", "± half-range"),
        Column("delta", "Δ mean", signed=True),
    ]
    bleu = {(one.group, one.system): one.bleu.value for one in found}
    rows: list[list[Any]] = []
    for label, sentences in dict.fromkeys((one.group, one.sentences) for one in found):
        values = {
            group.name: [v for name in group.systems if (v := bleu[label, name]) is not None]
            for group in result.groups
        }
        for name, of in values.items():
            mean, half_range, delta = None, None, None
            if of:
                mean, half_range = (
                    statistics.fmean(of),
                    (spread(of).half_range if len(of) > 1 else None),
                )
                delta = (
                    mean - statistics.fmean(values[result.baseline])
                    if name != result.baseline
                    else None
                )
            rows.append([label, sentences, name, len(of), mean, half_range, delta])
    return Table(
        "lengths-by-seed",
        title,
        columns,
        rows,
        [*notes, "half-range: (max - min) / 2 of the seeds"],
    )


def _significant(pairs: Sequence[SeedPair]) -> tuple[int | None, int | None]:
    """How many of the pairs show the system to be better, and how many pairs there are."""
    return (
        (sum(pair.better and pair.p < LEVEL for pair in pairs), len(pairs))
        if pairs
        else (None, None)
    )


def _notes(result: SeedResult) -> list[str]:
    notes = [
        "half-range: (max - min) / 2; deviation: of a sample (n - 1); the other columns: means over"
        " the seeds"
    ]
    members = [
        f"{g.name}: "
        + ", ".join(f"{s} (seed {seed})" for s, seed in zip(g.systems, g.seeds, strict=True))
        for g in result.groups
    ]
    notes += [
        line for line, group in zip(members, result.groups, strict=True) if len(group.systems) > 1
    ]
    compared = [group.against["bleu"] for group in result.groups if group.against]
    if compared:
        notes.append(
            f"better, p<{LEVEL:g}: of the pairs with equal seeds, those with the system's BLEU"
            f" higher and p < {LEVEL:g} ({result.test}); a test inside one seed says nothing of the"
            " luck of that seed"
        )
        limit = ", ".join(sorted({f"{one.smallest_p_seeds:.2g}" for one in compared}))
        notes.append(
            "p (seeds): exact permutation of the scores between the two groups, two-sided; with so"
            f" many seeds it cannot be below {limit}"
        )
    for group in result.groups:
        seeds = [seed for seed in group.seeds if seed is not None]
        if len(set(seeds)) < len(seeds):
            notes.append(f"{group.name}: a seed occurs twice, so its spread is too small")
    if not result.several:
        notes.append("no two systems differ in train.seed alone, so every row is one system")
    return notes
