"""The kinds of figures: each function draws a figure and returns its SVG, or None without
matplotlib.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nmtkit.tables import drawing
from nmtkit.tables.bars import Heat
from nmtkit.tables.table import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"
HATCHES = ("", "//", "xx", "--")
"""Hatches of bars: there are only ten colours, so every ten series have another hatch."""


@dataclass(frozen=True)
class Curve:
    """Points joined in order: `y` over `x`. Curves with the same name have the same colour. A
    `faint` curve is thin and has no markers.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    faint: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves on one pair of axes."""

    xlabel: str
    ylabel: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Cloud:
    """Points of one panel: `y` over `x`."""

    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Difference:
    """The difference of a system to a baseline.

    Attributes:
        name: the label; group: its group, which has one colour.
        seeds: the differences of single training seeds, if `delta` is the difference of their mean.
    """

    name: str
    group: str
    delta: Estimate
    seeds: Sequence[float] = ()


@drawing.as_svg
def differences(
    figure: Figure, points: Sequence[Difference], xlabel: str, groups: Sequence[str]
) -> None:
    """Draw one line a difference, the first on top: the interval, a dot, and the value as text. The
    mean of seeds is a diamond, with a small dot for each seed.

    Args:
        points: the differences; xlabel: label of the horizontal axis.
        groups: all groups in the order of their colours.
    """
    column_height = 0.17 * len(points) + 0.6
    (axes,) = drawing.panels(figure, 7.2, 0.3 * len(points) + 0.75, column_height=column_height)
    if column := drawing.column_width.get():
        xlabel = textwrap.fill(xlabel, int(15 * column))
    for place, point in enumerate(points):
        colour, delta = f"C{groups.index(point.group) % 10}", point.delta
        if delta.low is not None and delta.high is not None:
            axes.plot([delta.low, delta.high], [place, place], "-", color=colour, linewidth=1.6)
        marker = "D" if point.seeds else "o"
        axes.plot(point.seeds, [place] * len(point.seeds), "o", color=colour, ms=3.5, alpha=0.5)
        value = math.nan if delta.value is None else delta.value
        axes.plot([value], [place], marker, color=colour, markersize=5)
        label = f"{value:+.2f}"
        axes.annotate(label, (1.01, place), xycoords=("axes fraction", "data"), va="center")
    axes.axvline(0, color="0.5", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(points)), [drawing.short(point.name) for point in points])
    axes.set(xlabel=xlabel, ylim=(len(points) - 0.5, -0.5))


@drawing.as_svg
def grouped_bars(
    figure: Figure,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Estimate]],
    xlabel: str,
    ylabel: str,
    title: str = "",
    upright: bool = False,
) -> None:
    """Draw a bar with its interval for each series in each group.

    Args:
        groups: labels along the horizontal axis; a group without any number is left out.
        series: name -> one Estimate a group (an empty Estimate leaves a gap).
        xlabel, ylabel, title: labels of the axes, and the title.
        upright: True to turn the labels of the groups upwards.
    """
    known = [
        i for i in range(len(groups)) if any(of[i].value is not None for of in series.values())
    ]
    (axes,) = drawing.panels(figure, max(4.5, 0.28 * len(known) * (len(series) + 1) + 1.2), 3.2)
    if column := drawing.column_width.get():
        upright = upright or sum(len(groups[i]) + 2 for i in known) > 15 * column
    step = 0.8 / max(1, len(series))
    for number, (name, estimates) in enumerate(series.items()):
        places, bars = [], []
        for place, i in enumerate(known):
            if estimates[i].value is not None:
                places.append(place - 0.4 + step * (number + 0.5))
                bars.append(astuple(estimates[i]))
        heights, low, high = np.array(bars, np.float64).reshape(-1, 3).T
        reach = np.stack([heights - low, high - heights])
        axes.bar(
            places,
            heights,
            step * 0.92,
            label=name,
            hatch=HATCHES[number // 10 % len(HATCHES)],
            yerr=None if np.isnan(reach).all() else reach.clip(0),
            error_kw={"linewidth": 0.8},
            capsize=1.5,
        )
    axes.set_xticks(range(len(known)), [groups[i] for i in known], rotation=90 if upright else 0)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    if len(series) > 1:
        handles, names = axes.get_legend_handles_labels()
        drawing.legend(figure, dict(zip(names, handles, strict=True)), min(3, len(series)))


@drawing.as_svg
def curves(figure: Figure, panels: Sequence[Panel]) -> None:
    """Draw panels side by side with one legend. Every horizontal axis begins at 0."""
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    grid = drawing.panels(figure, max(4.5, 4.2 * len(panels)), 3.2, len(panels))
    shown: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=True):
        for curve in panel.curves:
            number = names.index(curve.name)
            marker, width = ("", 0.7) if curve.faint else (MARKERS[number % len(MARKERS)], 1.2)
            style: dict[str, Any] = {"color": f"C{number % 10}", "linewidth": width, "ms": 3}
            (drawn,) = axes.plot(curve.x, curve.y, f"{marker}-", **style)
            if not curve.faint:
                shown.setdefault(curve.name, drawn)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        axes.set_xlim(left=0)
        if all(float(x).is_integer() for curve in panel.curves for x in curve.x):
            axes.xaxis.get_major_locator().set_params(integer=True)
    if shown:
        drawing.legend(figure, shown, min(4, len(shown)))


@drawing.as_svg
def scatter(figure: Figure, panels: Mapping[str, Cloud], xlabel: str, ylabel: str) -> None:
    """Draw one panel of points for each title, side by side, with the same axes and the diagonal
    x = y.
    """
    row = drawing.panels(figure, 3.4 * len(panels) + 0.4, 3.4, len(panels), same=True)
    for axes, (title, cloud) in zip(row, panels.items(), strict=True):
        axes.plot([0, 1], [0, 1], "-", color="0.6", linewidth=0.8, zorder=0)
        axes.plot(cloud.x, cloud.y, "o", markersize=2, alpha=0.5, markeredgewidth=0)
        leftmost = axes is row[0] or drawing.column_width.get() is not None
        axes.set(xlabel=xlabel, ylabel=ylabel if leftmost else "", title=title)


@drawing.as_svg
def heat_map(figure: Figure, panels: Mapping[str, Heat], xlabel: str, ylabel: str) -> None:
    """Draw one heat map for each title, side by side, darker for larger values, on one scale."""
    width = sum(0.22 * len(panel.columns) + 2.0 for panel in panels.values())
    height = max(0.22 * len(panel.rows) for panel in panels.values()) + 1.8
    column = drawing.column_width.get()
    below = column and len(panels) * column
    grid = drawing.panels(figure, max(3.5, width), max(2.5, height), len(panels), below)
    top = max((max(row, default=0.0) for heat in panels.values() for row in heat.values), default=0)
    for axes, (title, panel) in zip(grid, panels.items(), strict=True):
        axes.spines[:].set_visible(True)
        mesh = axes.pcolormesh(panel.values, cmap="Greys", vmin=0, vmax=top or 1, edgecolors="none")
        axes.set_xticks(np.arange(len(panel.columns)) + 0.5, panel.columns, rotation=90)
        axes.set_yticks(np.arange(len(panel.rows)) + 0.5, panel.rows)
        if column:
            axes.tick_params(labelsize=6, length=2)
        axes.invert_yaxis()
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    figure.colorbar(mesh, ax=grid, shrink=0.8, aspect=30)
