"""A table as lines of text, at most as wide as a terminal. Numbers and names are never broken.

First, headers and prose are wrapped at words. A table that is still too wide is turned (a line a
column), or loses its least important columns. If even the other columns do not fit, it becomes a
list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len  # a Chinese character takes two places

if TYPE_CHECKING:
    from nmtkit.tables.table import Table

GAP = "  "
LEAST_PROSE = 20
"""The least width, in characters, to which longer prose is wrapped."""
LONG = 40
"""A longer cell of text is prose, even without a space."""
WHOLE = "the whole table: pipe the command to less -S"
BLOCKS = frozenset("░▒▓█▏▎▍▌▋▊▉")
"""The characters of bars and shades."""
PIECES = re.compile(r"[ \n\t]*(?:[\u2e80-\uffef]|[^ \n\t\u2e80-\uffef]+)")
"""Words, and single characters of scripts without spaces, each with the space before it."""


@dataclass(frozen=True)
class Grid:
    """The cells of a table as text.

    Args:
        headers: the header of each column; left: True for each left-aligned column.
        rows: the cells.
    """

    headers: Sequence[str]
    left: Sequence[bool]
    rows: Sequence[Sequence[str]]

    @property
    def columns(self) -> list[list[str]]:
        """The cells by column."""
        return [[row[i] for row in self.rows] for i in range(len(self.headers))]

    def least(self) -> list[int]:
        """Return the least width of each column if headers and prose are wrapped."""
        widths = []
        for header, left, cells in zip(self.headers, self.left, self.columns, strict=True):
            longest = max(map(cell_len, cells), default=0)
            if left and any(" " in cell or cell_len(cell) > LONG for cell in cells):
                longest = max(min(longest, LEAST_PROSE), *map(_longest_word, cells))
            widths.append(max(longest, _longest_word(header)))
        return widths

    @property
    def width(self) -> int:
        """The width of the wrapped table."""
        return sum(self.least()) + len(GAP) * (len(self.headers) - 1)

    def lines(self, width: int | None = None) -> list[str]:
        """Return the table as text. The wrapped columns share the room that a width leaves."""
        contents = zip(self.headers, self.columns, strict=True)
        widths = [max(map(cell_len, [header, *cells])) for header, cells in contents]
        least = self.least()
        wishes = [much - little for much, little in zip(widths, least, strict=True)]
        if width is not None and (room := width - self.width) < sum(wishes):
            shares = [wish * room // sum(wishes) for wish in wishes]
            widths = [little + share for little, share in zip(least, shares, strict=True)]
        rules = ["-" * size for size in widths]
        heads = [wrapped(header, size) for header, size in zip(self.headers, widths, strict=True)]
        deepest = max(map(len, heads))
        heads = [[""] * (deepest - len(head)) + head for head in heads]
        lines = self._row(heads, widths) + [GAP.join(rules)]
        for row in self.rows:
            cells = [wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
            lines += self._row(cells, widths)
        return lines

    def _row(self, cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
        """Return the lines of one row of wrapped cells."""
        lines = []
        for pieces in zip_longest(*cells, fillvalue=""):
            row = zip(pieces, widths, self.left, strict=True)
            lines.append(GAP.join(padded(*cell) for cell in row).rstrip())
        return lines

    def listed(self, width: int) -> list[str]:
        """Return every row as a list of headers and cells."""
        size = max(map(cell_len, self.headers))
        lines: list[str] = []
        for row in self.rows:
            lines += [""] * bool(lines)
            for header, left, cell in zip(self.headers, self.left, row, strict=True):
                start = padded(header, size) + GAP
                lines += wrapped(start + cell, width if left else None, " " * len(start))
        return lines


def padded(text: str, width: int, left: bool = True) -> str:
    """Return a text filled up to a width with spaces: after the text if `left`, else before it."""
    space = " " * (width - cell_len(text))
    return text + space if left else space + text


def fit(table: Table, width: int | None) -> list[str]:
    """Return a table as lines of at most `width` characters (None: any width). The last line names
    the columns that are left out.
    """
    grid = table.grid()
    if width is None or grid.width <= width:
        return grid.lines(width)
    if table.may_turn and len(table.rows) < len(table.columns):
        turned = table.turned().grid()
        if turned.width <= width:
            return turned.lines(width)
    ranked = table.ranked()
    always = 1 + min(len(table.first), 3) if table.first else 2
    for count in range(len(ranked) - 1, always - 1, -1):
        smaller = table.only(sorted(ranked[:count])).grid()
        if smaller.width <= width:
            names = " · ".join(grid.headers[i] for i in sorted(ranked[count:]))
            return [*smaller.lines(width), *wrapped(f"left out: {names}; {WHOLE}", width)]
    return grid.listed(width)


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text as lines of at most `width` characters, broken only at spaces. A longer word
    has a line of its own.

    Args:
        text: one paragraph.
        width: None for one line.
        indent: in front of every line but the first.
    """
    if width is None or cell_len(text) <= width:
        return [text]
    lines, line = [], ""
    for piece in PIECES.findall(text):
        if line.strip() and cell_len(line + piece) > width:
            lines.append(line)
            line = indent + piece.lstrip(" \n\t")
        else:
            line += piece
    return [*lines, line]


def as_wide(figure: str, width: int | None) -> str:
    """Return a figure of text with its prose wrapped. If its bars or shades are wider than the
    terminal, return where to see them instead.
    """
    lines = figure.split("\n")
    wide = [cell_len(line) for line in lines if width is not None and cell_len(line) > width]
    if any(cell_len(line) in wide and BLOCKS.intersection(line) for line in lines):
        return f"(a figure of {max(wide)} characters: pipe it to less -S, or see the report)"
    return "\n".join(piece for line in lines for piece in wrapped(line, width, GAP))


def _longest_word(text: str) -> int:
    return max((cell_len(piece.lstrip(" \n\t")) for piece in PIECES.findall(text)), default=0)
