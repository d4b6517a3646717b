"""Bars and heat maps of characters, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from nmtkit.tables.fitting import padded
from nmtkit.tables.table import Estimate

SHADES = " ·░▒▓█"


def bar(value: float | None, top: float, width: int = 30) -> str:
    """Return a horizontal bar of eighth blocks: `value` of `top` in `width` characters; empty for
    None.
    """
    if value is None or not math.isfinite(value) or top <= 0:
        return ""
    eighths = round(8 * width * min(max(value / top, 0.0), 1.0))
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def named_bars(
    title: str,
    bars: Sequence[tuple[str, float, str]],
    top: float | None = None,
    digits: str = ".3f",
) -> str:
    """Return a title and a line for each bar: its name flush right, the bar, the value and a
    remark.

    Args:
        title: the first line.
        bars: name, value, remark.
        top: the value of a full bar (default: the largest value).
        digits: how the values are written.
    """
    full = max((value for _, value, _ in bars), default=0.0) if top is None else top
    names = _flush_right([name for name, _, _ in bars])
    lines = [title]
    for name, (_, value, remark) in zip(names, bars, strict=True):
        lines.append(f"{name} {bar(value, full)} {value:{digits}}{remark}")
    return "\n".join(lines)


def _flush_right(names: Sequence[str]) -> list[str]:
    width = max(map(cell_len, names), default=0)
    return [padded(name, width, left=False) for name in names]


def percent_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[Estimate]], remarks: Sequence[str] = ()
) -> str:
    """Return shares in percent as bars for a terminal: a block for each series, a line for each
    label.

    Args:
        labels: of the lines.
        series: name -> a share for each label; an empty one has no line.
        remarks: behind each line (default: none).
    """
    blocks = []
    for name, shares in series.items():
        lines = zip(labels, shares, remarks or [""] * len(labels), strict=True)
        bars = [(label, s.value, remark) for label, s, remark in lines if s.value is not None]
        blocks.append(named_bars(name, bars, 100.0, "5.1f"))
    return "\n\n".join(blocks)


@dataclass(frozen=True)
class Heat:
    """A heat map: values (rows, columns), not negative, and the names of both."""

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]


def heat(panel: Heat) -> str:
    """Return a heat map for a terminal: a block a cell, darker for more, columns numbered and named
    below. The darkest shade is the largest value.
    """
    top = max((value for row in panel.values for value in row), default=0.0) or 1.0
    indent, *names = _flush_right(["", *panel.rows])
    lines = [indent + "".join(f"{number:3d}" for number in range(1, len(panel.columns) + 1))]
    for name, row in zip(names, panel.values, strict=True):
        cells = "".join(" " + 2 * SHADES[round(5 * value / top)] for value in row)
        lines.append(name + cells.rstrip())
    named = "  ".join(f"{number} {name}" for number, name in enumerate(panel.columns, 1))
    shades = [f"{2 * shade} {top * i / 5:.2f}" for i, shade in enumerate(SHADES) if i]
    return "\n".join([*lines, f"columns: {named}", f"shades: about {'  '.join(shades)}"])
