"""Corpus BLEU by the length of the source: on which sentences does a system win?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmtkit.arrays import Array
from nmtkit.errors import ConfigError
from nmtkit.score import formulas
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import Draws
from nmtkit.score.significance import compare, difference
from nmtkit.score.stored_scores import GroupScore, LengthScore
from nmtkit.tables import figures
from nmtkit.tables.bars import bar
from nmtkit.tables.table import Column, Estimate, interval_column, text_column


@dataclass(frozen=True)
class Group:
    """Source lengths from `low` to `high`, both included."""

    label: str
    low: int
    high: float = math.inf

    def mask(self, lengths: Array) -> Array:
        """Return (N) which of the lengths lie in the group."""
        return (lengths >= self.low) & (lengths <= self.high)


def groups(spec: str) -> list[Group]:
    """Return the length groups of a paper, or of other borders. Every length is in one group.

    Args:
        spec: "dc" (<10, [10,20), … ≥50), "pr" (≤15, (15,30], (30,45], >45), or borders such as
            "10,20,30" for groups like those of "dc".
    Raises: ConfigError for anything else.
    Source: the dual-context paper (dc, by subwords) and the phrase paper (pr).
    """
    if spec == "pr":
        return [
            Group("≤15", 0, 15),
            Group("(15,30]", 16, 30),
            Group("(30,45]", 31, 45),
            Group(">45", 46),
        ]
    try:
        borders = [int(part) for part in ("10,20,30,40,50" if spec == "dc" else spec).split(",")]
    except ValueError:
        borders = []
    between = list(itertools.pairwise(borders))
    if not borders or borders[0] < 1 or any(low >= high for low, high in between):
        raise ConfigError(
            f"cannot read the length groups '{spec}'",
            where="--buckets",
            hint="dc, pr, or rising whole numbers such as 10,20,30",
        )
    return [
        Group(f"<{borders[0]}", 0, borders[0] - 1),
        *(Group(f"[{low},{high})", low, high - 1) for low, high in between),
        Group(f"≥{borders[-1]}", borders[-1]),
    ]


def by_length(
    scores: dict[str, Metric],
    lengths: Array,
    spec: str,
    draws: Draws,
    baseline: str | None = None,
    test: str = "paired_bootstrap",
) -> list[LengthScore]:
    """Return corpus BLEU and length ratio of each system in each group, each with the interval over
    resamples inside the group.

    Args:
        scores: BLEU by system, on the same lines.
        lengths: (N) source length of each line.
        spec: see `groups`.
        draws: the draws of the whole set. Each group has draws of its own, with the same number of
            resamples and the same seed.
        baseline: the system that all others are compared with inside each group; None for no
            comparison.
        test: one of `significance.TESTS`.
    Returns: the results by group, then by system.
    """
    results = []
    for score, metric, group_draws in in_groups(scores, lengths, spec, draws, baseline, test):
        ratio = group_draws.score(metric, formulas.length_ratio)
        of_bleu = (score.p, score.score, ratio, score.difference)
        results.append(LengthScore(score.group, score.sentences, score.system, *of_bleu))
    return results


def in_groups(
    scores: dict[str, Metric],
    lengths: Array,
    spec: str,
    draws: Draws,
    baseline: str | None,
    test: str,
) -> Iterator[tuple[GroupScore, Metric, Draws]]:
    """Yield the score of each system in each group, its metric in this group and the group's draws.

    Args: as in `by_length`, for any metric.
    """
    for group in groups(spec):
        rows = np.flatnonzero(group.mask(lengths))
        inside = {system: metric.part(rows) for system, metric in scores.items()}
        group_draws = replace(draws, sentences=len(rows))
        for system, metric in inside.items():
            gap, p = Estimate(None), None
            if len(rows) and baseline not in (None, system):
                pair = metric, inside[baseline], group_draws
                gap, p = difference(*pair), compare(test, *pair).p
            value = group_draws.score(metric)
            score = GroupScore(group.label, len(rows), system, p, value, gap)
            yield score, metric, group_draws


COLUMNS = (
    text_column("group", "length"),
    Column("sentences", "sentences"),
    text_column("system"),
    interval_column("bleu", "BLEU"),
    interval_column("length_ratio", "hyp/ref length", decimals=3),
)


def row(score: LengthScore | GroupScore) -> list[Any]:
    """Return the cells of a group: for BLEU those of COLUMNS, else without the length ratio."""
    cells = [score.group, score.sentences, score.system]
    if isinstance(score, LengthScore):
        return [*cells, score.bleu, score.length_ratio]
    return [*cells, score.score]


def bars(scores: Sequence[LengthScore]) -> str:
    """Return the groups as bars for a terminal: one line per system and group, with blank lines
    between groups.
    """
    top = max((score.bleu.value or 0.0 for score in scores), default=0.0)
    names = max((len(score.system) for score in scores), default=0)
    labels = max((len(score.group) for score in scores), default=0)
    blocks = []
    for label, group in itertools.groupby(scores, lambda score: score.group):
        lines: list[str] = []
        for score in group:
            value = score.bleu.value
            shown = "–" if value is None else f"{value:.1f}"
            line = f"{score.system:<{names}}  {bar(value, top, 40)} {shown}"
            lines.append(f"{'' if lines else label:<{labels}}  {line}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def figure(scores: Sequence[LengthScore], unit: str, title: str) -> str | None:
    """Return a figure (SVG) of the groups with intervals as error bars; None without matplotlib."""
    labels = list(dict.fromkeys(score.group for score in scores))
    series: dict[str, list[Estimate]] = {}
    for score in scores:
        series.setdefault(score.system, []).append(score.bleu)
    return figures.grouped_bars(labels, series, f"length in {unit}", "BLEU", title)
