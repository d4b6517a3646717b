"""Bars and heat maps of characters, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from nmtkit.tables.fitting import padded

SHADES = " ·░▒▓█"


def bar(value: float | None, top: float, width: int) -> str:
    """Return a horizontal bar of eighth blocks: `value` of `top` in `width` characters; empty for
    None.
    """
    if value is None or not math.isfinite(value) or top <= 0:
        return ""
    eighths = round(8 * width * min(max(value / top, 0.0), 1.0))
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


@dataclass(frozen=True)
class Heat:
    """A heat map: non-negative values (rows, columns), and the names of rows and columns."""

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]


def heat(panel: Heat) -> str:
    """Return a heat map for a terminal: a block a cell, darker for larger values. Columns have
    numbers, whose names stand below. The darkest shade is the largest value.
    """
    top = max((value for row in panel.values for value in row), default=0.0) or 1.0
    width = max(map(cell_len, panel.rows), default=0)
    lines = [" " * width + "".join(f"{number:3d}" for number in range(1, len(panel.columns) + 1))]
    for name, row in zip(panel.rows, panel.values, strict=True):
        cells = "".join(" " + 2 * SHADES[round(5 * value / top)] for value in row)
        lines.append(padded(name, width, left=False) + cells.rstrip())
    named = "  ".join(f"{number} {name}" for number, name in enumerate(panel.columns, 1))
    shades = [f"{2 * shade} {top * i / 5:.2f}" for i, shade in enumerate(SHADES) if i]
    return "\n".join([*lines, f"columns: {named}", f"shades: about {'  '.join(shades)}"])
