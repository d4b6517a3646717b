"""Figures as SVG text, drawn with matplotlib if it is installed (the extra `plots`): object API, no
display, no global state.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import numpy as np

from nmtkit import console
from nmtkit.tables.table import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X"
COLOURS = [
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
]
"""Matplotlib's ten colours, the light ones darkened: each has a contrast of 3 to 1 with white paper
and with a dark page.
"""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable and small
    "svg.hashsalt": "nmtkit",  # the same element ids in every run
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SMALL_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8}


@dataclass(frozen=True)
class Heat:
    """A heat map: values (rows, columns), not negative, and the names of both."""

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True)
class Curve:
    """Points joined in order: `y` over `x`. Curves of one name have one colour; a `faint` curve is
    thin and without markers.
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
    """True if matplotlib is installed; if not, print how to install it."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    console.say(
        "no figure: matplotlib is not installed (in nmtkit's checkout: pip install -e '.[plots]')"
    )
    return False


def _as_svg(draw: Callable[Concatenate[Figure, P], None]) -> Callable[P, str | None]:
    """Make a function that draws into a figure return the SVG: the same bytes for the same input,
    None without matplotlib.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> str | None:
        if not available():
            return None
        import matplotlib
        from cycler import cycler
        from matplotlib.figure import Figure

        stream = io.StringIO()
        with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}):
            figure = Figure(layout="constrained")
            draw(figure, *args, **options)
            with warnings.catch_warnings():
                # Chinese, for example, is written as text, for the reader's fonts.
                warnings.filterwarnings("ignore", message="Glyph .* missing")
                figure.savefig(stream, format="svg", metadata={"Date": None})
        return stream.getvalue()

    return drawn


@_as_svg
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
        xlabel, ylabel, title: texts.
        upright: write the labels of groups upwards.
    """
    known = [
        i for i in range(len(groups)) if any(bars[i].value is not None for bars in series.values())
    ]
    figure.set_size_inches(max(4.5, 0.28 * len(known) * (len(series) + 1) + 1.2), 3.2)
    axes = figure.add_subplot()
    step = 0.8 / max(1, len(series))
    for number, (name, estimates) in enumerate(series.items()):
        by_place = {
            place - 0.4 + step * (number + 0.5): estimates[i] for place, i in enumerate(known)
        }
        _bars(axes, name, by_place, step * 0.92)
    axes.set_xticks(
        range(len(known)), [_plain(groups[i]) for i in known], rotation=90 if upright else 0
    )
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    if len(series) > 1:  # at the left, where a phone begins to show the figure
        figure.legend(loc="outside upper left", ncols=min(3, len(series)), **SMALL_LEGEND)


def _bars(axes: Axes, name: str, by_place: Mapping[float, Estimate], width: float) -> None:
    """Draw the bars of a series; an interval is an error bar, and no interval no bar."""
    shown = {place: bar for place, bar in by_place.items() if bar.value is not None}
    values = np.array([astuple(bar) for bar in shown.values()], np.float64)
    heights, low, high = values.reshape(-1, 3).T
    reach = np.stack([heights - low, high - heights])
    axes.bar(
        list(shown),
        heights,
        width,
        label=name,
        yerr=None if np.isnan(reach).all() else reach.clip(0),
        error_kw={"linewidth": 0.8},
        capsize=1.5,
    )


@_as_svg
def lines(
    figure: Figure,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    xlabel: str,
    ylabel: str,
    *,
    means: Mapping[str, float] | None = None,
    means_label: str = "",
) -> None:
    """Draw a line for each series over groups that have an order.

    Args:
        groups: labels along the horizontal axis.
        series: name -> one number a group; None leaves a gap.
        xlabel, ylabel: texts.
        means: name -> one number for all groups together, drawn as bars on a panel of their own;
            means_label: their axis.
    """
    columns = 2 if means else 1
    height = max(3.2, 0.22 * len(means or ()) + 0.8)
    figure.set_size_inches(max(4.5, 0.5 * len(groups) + 1.5) * columns, height)
    axes, *beside = figure.subplots(1, columns, squeeze=False)[0]
    for number, (name, values) in enumerate(series.items()):
        heights = [float("nan") if value is None else value for value in values]
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(
            range(len(groups)), heights, f"{marker}-", label=_plain(name), linewidth=1.2, ms=4
        )
    axes.set_xticks(range(len(groups)), groups)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(**SMALL_LEGEND)
    if means:
        colours = [f"C{list(series).index(name) % 10}" for name in means]
        _mean_bars(beside[0], means, colours, means_label)


def _mean_bars(axes: Axes, means: Mapping[str, float], colours: Sequence[str], label: str) -> None:
    axes.barh(range(len(means)), list(means.values()), color=colours)
    axes.set_yticks(range(len(means)), list(map(_plain, means)))
    axes.invert_yaxis()
    axes.set(xlabel=label)


@_as_svg
def curves(figure: Figure, panels: Sequence[Sequence[Panel]]) -> None:
    """Draw rows of as many panels each, with one legend for all. A row shares its vertical axis,
    and every horizontal axis begins at 0.
    """
    columns = len(panels[0])
    names = list(dict.fromkeys(curve.name for row in panels for at in row for curve in at.curves))
    figure.set_size_inches(max(4.5, 3.2 * columns), 2.6 * len(panels) + 0.4)
    shown: dict[str, Any] = {}
    grid = figure.subplots(len(panels), columns, squeeze=False, sharey="row")
    for line, row in zip(grid, panels, strict=True):
        for axes, panel in zip(line, row, strict=True):
            for curve in panel.curves:
                drawn = _curve(axes, curve, names.index(curve.name))
                if not curve.faint:
                    shown.setdefault(curve.name, drawn)
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel if axes is line[0] else "")
            axes.set_xlim(left=0)
    if shown:
        figure.legend(
            shown.values(),
            map(_plain, shown),
            loc="outside upper center",
            ncols=min(4, len(shown)),
            **SMALL_LEGEND,
        )


def _curve(axes: Axes, curve: Curve, number: int) -> Any:
    marker, width = ("", 0.7) if curve.faint else (MARKERS[number % len(MARKERS)], 1.2)
    (drawn,) = axes.plot(
        curve.x, curve.y, f"{marker}-", color=f"C{number % 10}", linewidth=width, ms=3
    )
    return drawn


@_as_svg
def scatter(figure: Figure, panels: Mapping[str, Cloud], xlabel: str, ylabel: str) -> None:
    """Draw one cloud of points a panel (title -> points), side by side on the same axes, with the
    diagonal on which x = y.
    """
    figure.set_size_inches(3.4 * len(panels) + 0.4, 3.4)
    row = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (title, cloud) in zip(row, panels.items(), strict=True):
        axes.plot([0, 1], [0, 1], "-", color="0.6", linewidth=0.8, zorder=0)
        axes.plot(cloud.x, cloud.y, "o", markersize=2, alpha=0.5, markeredgewidth=0)
        axes.set(xlabel=xlabel, ylabel=ylabel if axes is row[0] else "", title=title)


@_as_svg
def heat_map(figure: Figure, panels: Mapping[str, Heat], xlabel: str, ylabel: str) -> None:
    """Draw one heat map a panel (by title), side by side, darker for more."""
    width = sum(0.22 * len(panel.columns) + 2.0 for panel in panels.values())
    height = max(0.22 * len(panel.rows) for panel in panels.values()) + 1.8
    figure.set_size_inches(max(3.5, width), max(2.5, height))
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, panel) in zip(row, panels.items(), strict=True):
        axes.spines[:].set_visible(True)
        mesh = axes.pcolormesh(
            panel.values, cmap="Greys", vmin=0, edgecolors="none", rasterized=False
        )
        axes.set_xticks(*_middles(panel.columns), rotation=90)
        axes.set_yticks(*_middles(panel.rows))
        axes.invert_yaxis()
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        figure.colorbar(mesh, ax=axes, shrink=0.8)


def _middles(labels: Sequence[str]) -> tuple[list[float], list[str]]:
    """Return the places of cells, and their labels."""
    return [i + 0.5 for i in range(len(labels))], list(map(_plain, labels))


def _plain(label: str) -> str:
    """Return a label in which matplotlib sees no formula."""
    return label.replace("$", r"\$")
