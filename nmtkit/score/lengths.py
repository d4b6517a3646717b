"""Corpus BLEU by the length of the source: on which sentences does a system win?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmtkit.errors import ConfigError
from nmtkit.records import LengthScore
from nmtkit.score import formulas
from nmtkit.score.formulas import Array
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import compare, difference
from nmtkit.tables.table import Column, Estimate, bar, text_column


@dataclass(frozen=True)
class Group:
    """Source lengths from `low` to `high`, both included (high None: no upper end)."""

    label: str
    low: int
    high: int | None

    def mask(self, lengths: Array) -> Array:
        """(N) which of the lengths lie in the group."""
        inside: Array = (lengths >= self.low) & (
            lengths <= (self.high if self.high is not None else lengths.max(initial=0))
        )
        return inside


def groups(spec: str) -> list[Group]:
    """The length groups of a paper, or of your own borders; together they hold every length exactly
    once.

    Args:
        spec: "dc" (<10, [10,20), … ≥50), "pr" (≤15, (15,30], (30,45], >45), or borders such as
            "10,20,30", half-open like dc's.
    Raises: ConfigError for anything else.
    Source: the dual-context paper's groups by subwords (dc) and the phrase paper's (pr).
    """
    if spec == "pr":
        return [
            Group("≤15", 0, 15),
            Group("(15,30]", 16, 30),
            Group("(30,45]", 31, 45),
            Group(">45", 46, None),
        ]
    try:
        borders = [int(part) for part in ("10,20,30,40,50" if spec == "dc" else spec).split(",")]
    except ValueError:
        borders = []
    if (
        not borders
        or borders[0] < 1
        or any(a >= b for a, b in zip(borders, borders[1:], strict=False))
    ):
        raise ConfigError(
            f"cannot read the length groups '{spec}'",
            where="--buckets",
            hint="dc, pr, or rising whole numbers such as 10,20,30",
        )
    middle = [Group(f"[{a},{b})", a, b - 1) for a, b in zip(borders, borders[1:], strict=False)]
    return [
        Group(f"<{borders[0]}", 0, borders[0] - 1),
        *middle,
        Group(f"≥{borders[-1]}", borders[-1], None),
    ]


FEWEST = 30
"""Sentences a group needs for a p: resamples of fewer are too alike, and would call luck a
difference.
"""


def by_length(
    scores: dict[str, Metric],
    lengths: Array,
    spec: str,
    draws: Draws,
    baseline: str | None = None,
    test: str = "paired_bootstrap",
) -> list[LengthScore]:
    """Corpus BLEU and length ratio of each system in each group, each with the interval of
    resampling inside the group.

    Args:
        scores: BLEU by system, on the same lines.
        lengths: (N) source length of each line.
        spec: see `groups`.
        draws: of the whole set; inside a group as many are made, with the same seed.
        baseline: the system that the others are compared with inside each group; None for no
            comparison.
        test: one of `significance.TESTS`.
    Returns: by group, then by system.
    """
    found = []
    for group in groups(spec):
        rows = np.flatnonzero(group.mask(lengths))
        inside = (
            {system: metric.part(rows) for system, metric in scores.items()} if len(rows) else {}
        )
        own = replace(draws, sentences=max(1, len(rows)))
        for system in scores:
            if system not in inside:
                found.append(
                    LengthScore(
                        group.label, 0, system, None, Estimate(None), Estimate(None), Estimate(None)
                    )
                )
                continue
            metric = inside[system]
            bleu = estimate(metric.value, own.full.scores(metric))
            ratio = estimate(
                float(formulas.length_ratio(metric.statistics.sum(0))),
                own.full.scores(metric, formulas.length_ratio),
            )
            gap, p = Estimate(None), None
            if baseline is not None and system != baseline:
                gap = difference(metric, inside[baseline], own)
                p = compare(test, metric, inside[baseline], own).p if len(rows) >= FEWEST else None
            found.append(LengthScore(group.label, len(rows), system, p, bleu, ratio, gap))
    return found


COLUMNS = (
    text_column("group", "source length"),
    Column("sentences", "sentences"),
    text_column("system"),
    Column("bleu", "BLEU [95%]", interval=True),
    Column("length_ratio", "hyp/ref length [95%]", decimals=3, interval=True),
)


def row(found: LengthScore) -> list[Any]:
    """A group's cells, in the order of COLUMNS."""
    return [found.group, found.sentences, found.system, found.bleu, found.length_ratio]


def bars(found: Sequence[LengthScore], width: int = 40) -> str:
    """The groups as bars for a terminal (plain text, one line a system and group, a blank line
    between groups).
    """
    top = max((f.bleu.value or 0.0 for f in found), default=0.0)
    names, labels = (
        max((len(f.system) for f in found), default=0),
        max((len(f.group) for f in found), default=0),
    )
    lines: list[str] = []
    last = None
    for f in found:
        if last is not None and f.group != last:
            lines.append("")
        shown = "–" if f.bleu.value is None else f"{f.bleu.value:.1f}"
        lines.append(
            f"{f.group if f.group != last else '':<{labels}}  {f.system:<{names}} "
            f" {bar(f.bleu.value, top, width)} {shown}"
        )
        last = f.group
    return "\n".join(lines)


def figure(found: Sequence[LengthScore], unit: str, title: str = "") -> str | None:
    """Return the groups as a figure (SVG) with intervals as error bars; None without matplotlib."""
    from nmtkit.tables import figures

    labels = list(dict.fromkeys(f.group for f in found))
    series = {
        name: [f.bleu for f in found if f.system == name]
        for name in dict.fromkeys(f.system for f in found)
    }
    return figures.grouped_bars(labels, series, f"source length ({unit})", "BLEU", title)
