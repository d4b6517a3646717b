"""Figures as SVG text, with matplotlib where it is installed (the extra `plots`): object API, no display, no global state."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence

from nmtkit import console
from nmtkit.score.tables import Estimate


def available() -> bool:
    """Whether figures can be drawn; if not, one line says how to get them."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    console.say("no figure: matplotlib is not installed (pip install 'nmtkit[plots]')")
    return False


def grouped_bars(groups: Sequence[str], series: Mapping[str, Sequence[Estimate]], xlabel: str, ylabel: str, title: str = "") -> str:
    """A bar for each series in each group, with its interval.

    Args:
        groups: labels along the horizontal axis.
        series: name -> one Estimate a group (an empty Estimate leaves a gap).
        xlabel, ylabel, title: texts.
    Returns: SVG, the same bytes for the same input.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text (searchable, small), and element ids do not change from run to run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nmtkit", "font.size": 9}):
        figure = Figure(figsize=(max(4.5, 0.28 * len(groups) * (len(series) + 1) + 1.2), 3.2), layout="constrained")
        axes = figure.add_subplot()
        step = 0.8 / max(1, len(series))
        for number, (name, values) in enumerate(series.items()):
            drawn = [(i, v) for i, v in enumerate(values) if v.value is not None]
            heights = [v.value or 0.0 for _, v in drawn]
            below = [max(0.0, h - (v.low if v.low is not None else h)) for h, (_, v) in zip(heights, drawn, strict=True)]
            above = [max(0.0, (v.high if v.high is not None else h) - h) for h, (_, v) in zip(heights, drawn, strict=True)]
            places = [i - 0.4 + step * (number + 0.5) for i, _ in drawn]
            axes.bar(places, heights, step * 0.92, label=name, yerr=[below, above], error_kw={"linewidth": 0.8}, capsize=1.5)
        axes.set_xticks(range(len(groups)), groups)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axes.spines[["top", "right"]].set_visible(False)
        if len(series) > 1:
            axes.legend(frameon=False, fontsize=8, ncols=min(3, len(series)))
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
