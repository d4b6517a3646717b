"""Figures as SVG text, with matplotlib where it is installed (the extra `plots`): object API, no
display, no global state.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

from nmtkit import console
from nmtkit.tables.table import Estimate

MARKERS = "osD^vP*X"
COLOURS = (
    "#1f77b4",
    "#cc6d00",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#d65fa5",
    "#7f7f7f",
    "#8f8a00",
    "#1292a4",
)
"""Matplotlib's ten, those of them darker that are too light: each has a contrast of 3 to 1 with
white paper and with a dark page.
"""


@dataclass(frozen=True)
class Heat:
    """A heat map: values (rows, columns), not negative, and the names of both."""

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True)
class Curve:
    """Points of one thing, joined in order: `y` over `x`; curves of one name have one colour, a
    `faint` one is thin and without markers.
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
    """Points that belong together: `y` beside `x`."""

    x: Sequence[float]
    y: Sequence[float]


P = ParamSpec("P")


def available() -> bool:
    """True if matplotlib is installed; if not, one line says how to get it."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    console.say(
        "no figure: matplotlib is not installed (in nmtkit's checkout: pip install -e '.[plots]')"
    )
    return False


def _where_possible(draw: Callable[P, str]) -> Callable[P, str | None]:
    """Make a function that draws return None where matplotlib is missing."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> str | None:
        return draw(*args, **options) if available() else None

    return drawn


@_where_possible
def grouped_bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[Estimate]],
    xlabel: str,
    ylabel: str,
    title: str = "",
    upright: bool = False,
) -> str:
    """A bar for each series in each group, with its interval.

    Args:
        groups: labels along the horizontal axis; those of which no series has a number are left
            out.
        series: name -> one Estimate a group (an empty Estimate leaves a gap).
        xlabel, ylabel, title: texts.
        upright: whether the labels of groups are written upwards.
    Returns: SVG, the same bytes for the same input.
    """
    from matplotlib.figure import Figure

    known = [
        i
        for i in range(len(groups))
        if any(values[i].value is not None for values in series.values())
    ]
    groups, series = (
        [groups[i] for i in known],
        {name: [values[i] for i in known] for name, values in series.items()},
    )
    with _reproducible():
        figure = Figure(
            figsize=(max(4.5, 0.28 * len(groups) * (len(series) + 1) + 1.2), 3.2),
            layout="constrained",
        )
        axes = figure.add_subplot()
        step = 0.8 / max(1, len(series))
        for number, (name, values) in enumerate(series.items()):
            drawn = [(i, v) for i, v in enumerate(values) if v.value is not None]
            heights = [v.value or 0.0 for _, v in drawn]
            below = [
                max(0.0, h - (v.low if v.low is not None else h))
                for h, (_, v) in zip(heights, drawn, strict=True)
            ]
            above = [
                max(0.0, (v.high if v.high is not None else h) - h)
                for h, (_, v) in zip(heights, drawn, strict=True)
            ]
            places = [i - 0.4 + step * (number + 0.5) for i, _ in drawn]
            spread = (
                [below, above]
                if any(v.low is not None or v.high is not None for _, v in drawn)
                else None
            )
            axes.bar(
                places,
                heights,
                step * 0.92,
                label=name,
                yerr=spread,
                error_kw={"linewidth": 0.8},
                capsize=1.5,
            )
        axes.set_xticks(
            range(len(groups)), [_plain(g) for g in groups], rotation=90 if upright else 0
        )
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axes.spines[["top", "right"]].set_visible(False)
        if len(series) > 1:
            figure.legend(
                loc="outside upper left", frameon=False, fontsize=8, ncols=min(3, len(series))
            )  # where a phone begins to show it
        return _svg(figure)


@_where_possible
def lines(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    xlabel: str,
    ylabel: str,
    title: str = "",
    *,
    means: Mapping[str, float] | None = None,
    means_label: str = "",
) -> str:
    """A line for each series over groups that have an order.

    Args:
        groups: labels along the horizontal axis.
        series: name -> one number a group; None leaves a gap.
        xlabel, ylabel, title: texts.
        means: name -> one number for all groups together, drawn as bars on a panel of their own;
            means_label: their axis.
    Returns: SVG, the same bytes for the same input.
    """
    from matplotlib.figure import Figure

    with _reproducible():
        width = max(4.5, 0.5 * len(groups) + 1.5)
        height = max(3.2, 0.22 * len(means) + 0.8) if means else 3.2
        figure = Figure(figsize=(width * (2 if means else 1), height), layout="constrained")
        panels = figure.subplots(1, 2 if means else 1, squeeze=False)[0]
        axes = panels[0]
        for number, (name, values) in enumerate(series.items()):
            heights = [math.nan if value is None else value for value in values]
            axes.plot(
                range(len(groups)),
                heights,
                MARKERS[number % len(MARKERS)] + "-",
                label=_plain(name),
                linewidth=1.2,
                markersize=4,
            )
        axes.set_xticks(range(len(groups)), groups)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axes.legend(frameon=False, fontsize=8)
        if means:
            panels[1].barh(
                range(len(means)),
                list(means.values()),
                color=[f"C{list(series).index(name) % 10}" for name in means],
            )
            panels[1].set_yticks(range(len(means)), list(map(_plain, means)))
            panels[1].invert_yaxis()
            panels[1].set(xlabel=means_label)
        for axes in panels:
            axes.spines[["top", "right"]].set_visible(False)
        return _svg(figure)


@_where_possible
def curves(panels: Sequence[Sequence[Panel]]) -> str:
    """Panels in rows, with one legend for all; a row shares its vertical axis, and every horizontal
    one begins at 0.

    Args:
        panels: rows of as many panels each.
    Returns: SVG, the same bytes for the same input.
    """
    from matplotlib.figure import Figure

    names = list(
        dict.fromkeys(curve.name for row in panels for panel in row for curve in panel.curves)
    )
    with _reproducible():
        figure = Figure(
            figsize=(max(4.5, 3.2 * len(panels[0])), 2.6 * len(panels) + 0.4), layout="constrained"
        )
        shown: dict[str, Any] = {}
        for line, row in zip(
            figure.subplots(len(panels), len(panels[0]), squeeze=False, sharey="row"),
            panels,
            strict=True,
        ):
            for axes, panel in zip(line, row, strict=True):
                for curve in panel.curves:
                    number = names.index(curve.name)
                    marker = "" if curve.faint else MARKERS[number % len(MARKERS)]
                    width = 0.7 if curve.faint else 1.2
                    drawn = axes.plot(
                        curve.x,
                        curve.y,
                        f"{marker}-",
                        color=f"C{number % 10}",
                        linewidth=width,
                        markersize=3,
                    )
                    if not curve.faint:
                        shown.setdefault(curve.name, drawn[0])
                axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel if axes is line[0] else "")
                axes.set_xlim(left=0)
                axes.spines[["top", "right"]].set_visible(False)
        if shown:
            figure.legend(
                shown.values(),
                map(_plain, shown),
                loc="outside upper center",
                ncols=min(4, len(shown)),
                frameon=False,
                fontsize=8,
            )
        return _svg(figure)


@_where_possible
def scatter(panels: Mapping[str, Cloud], xlabel: str, ylabel: str) -> str:
    """One cloud of points a panel, side by side on the same axes, with the diagonal on which x = y.

    Args:
        panels: title -> points.
        xlabel, ylabel: texts.
    Returns: SVG, the same bytes for the same input.
    """
    from matplotlib.figure import Figure

    with _reproducible():
        figure = Figure(figsize=(3.4 * len(panels) + 0.4, 3.4), layout="constrained")
        row = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (title, cloud) in zip(row, panels.items(), strict=True):
            axes.plot([0, 1], [0, 1], "-", color="0.6", linewidth=0.8, zorder=0)
            axes.plot(cloud.x, cloud.y, "o", markersize=2, alpha=0.5, markeredgewidth=0)
            axes.set(xlabel=xlabel, ylabel=ylabel if axes is row[0] else "", title=title)
            axes.spines[["top", "right"]].set_visible(False)
        return _svg(figure)


@_where_possible
def heat_map(panels: Mapping[str, Heat], xlabel: str, ylabel: str) -> str:
    """One heat map a panel, side by side, darker for more.

    Args:
        panels: title -> what is drawn.
        xlabel, ylabel: texts.
    Returns: SVG, the same bytes for the same input.
    """
    from matplotlib.figure import Figure

    with _reproducible():
        width = sum(0.22 * len(panel.columns) + 2.0 for panel in panels.values())
        height = max(0.22 * len(panel.rows) for panel in panels.values()) + 1.8
        figure = Figure(figsize=(max(3.5, width), max(2.5, height)), layout="constrained")
        for axes, (title, panel) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            mesh = axes.pcolormesh(
                panel.values, cmap="Greys", vmin=0, edgecolors="none", rasterized=False
            )
            axes.set_xticks(
                [i + 0.5 for i in range(len(panel.columns))],
                [_plain(c) for c in panel.columns],
                rotation=90,
            )
            axes.set_yticks(
                [i + 0.5 for i in range(len(panel.rows))], [_plain(r) for r in panel.rows]
            )
            axes.invert_yaxis()
            axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
            figure.colorbar(mesh, ax=axes, shrink=0.8)
        return _svg(figure)


@contextlib.contextmanager
def _reproducible() -> Iterator[None]:
    """Text stays text (searchable, small), and element ids do not change from run to run."""
    import matplotlib
    from cycler import cycler

    colours = cycler(color=COLOURS)
    with matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "nmtkit",
            "font.size": 9,
            "axes.prop_cycle": colours,
        }
    ):
        yield


def _svg(figure: Any) -> str:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing"
        )  # Chinese, say: it is written as text, for the reader's fonts
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def _plain(label: str) -> str:
    """A label in which matplotlib sees no formula."""
    return label.replace("$", r"\$")
