"""A result table, written as Markdown, LaTeX, CSV, JSON and terminal text. Scores, analyses and the
report use it.
"""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nmtkit import console, files
from nmtkit.errors import check_known
from nmtkit.tables.fitting import Grid, fit, wrapped

SUFFIXES = ("md", "tex", "csv")
"""The files that `Table.write` makes."""
FORMATS = ("table", "json", *SUFFIXES)
EMPTY = "–"
LAST_LATIN_LETTER = "\u017f"
"""The last letter that pdflatex has."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HTML = re.compile(r"\\|<(?=[/!?A-Za-z])|&(?=#?\w+;)")
"""What Markdown reads as an escape, a tag or an entity."""
FORMULA = re.compile(r'^(?=[=+\-@\t\r\n])|(?<=[;\t\n])(?="*[=+\-@])')
"""The beginning of a formula in a spreadsheet. Some spreadsheets also split cells at ; or a tab."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
Rows = list[list[Any]]
"""The cells of a table."""
_LATEX = tomllib.loads((Path(__file__).parent / "latex.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval (low and high are None where there is none)."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Column:
    """How one column is shown.

    Args:
        key: the name in JSON and CSV.
        header: the name in all other formats.
        decimals: decimals of floating-point numbers.
        left: True for a left-aligned column (text).
        signed: True to write the sign of positive numbers too.
        interval: True if cells are Estimates (three columns in CSV).
        below: a smaller number is shown as "<below" (with 1000 resamples no p is below 0.001).
    """

    key: str
    header: str
    decimals: Annotated[int, Field(ge=0, le=99)] = 2
    left: bool = False
    signed: bool = False
    interval: bool = False
    below: float | None = None


def text_column(key: str, header: str | None = None) -> Column:
    """Return a column of text; its header is its key by default."""
    return Column(key, key if header is None else header, left=True)


def text_columns(*keys: str) -> list[Column]:
    """Return columns of text; each column's header is its key."""
    return list(map(text_column, keys))


def interval_column(key: str, header: str, decimals: int = 2, signed: bool = False) -> Column:
    """Return a column of numbers with their 95% intervals."""
    return Column(key, f"{header} [95%]", decimals, signed=signed, interval=True)


@dataclass(frozen=True)
class Table:
    """Columns and rows of raw values (None = not measured, Estimate = with interval), with a title
    above and notes below.

    Args:
        first: keys of the columns that a narrow terminal keeps, the most important first.
        turns: True if a narrow terminal may turn the table although it has `first`.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    first: Sequence[str] = ()
    turns: bool = False

    @property
    def may_turn(self) -> bool:
        """True if the table may be turned where space is narrow."""
        return self.turns or not self.first

    def cells(self) -> list[list[str]]:
        """Return the rows as text."""
        return [
            [text(value, column) for value, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def only(self, kept: Sequence[int]) -> Table:
        """Return the table with some of its columns."""
        rows = [[row[i] for i in kept] for row in self.rows]
        columns = [self.columns[i] for i in kept]
        keys = {column.key for column in columns}
        first = [key for key in self.first if key in keys]
        return replace(self, columns=columns, rows=rows, first=first)

    def turned(self) -> Table:
        """Return the table with a row for each column but the first, all cells as text."""
        names, *columns = self.grid().columns
        heads = [text_column("", self.columns[0].header), *(Column(name, name) for name in names)]
        rows = [[c.header, *cells] for c, cells in zip(self.columns[1:], columns, strict=True)]
        return Table(self.name, self.title, heads, rows, self.notes)

    def grid(self) -> Grid:
        """Return the table as cells of text."""
        headers = [column.header for column in self.columns]
        return Grid(headers, [column.left for column in self.columns], self.cells())

    def markdown(self) -> str:
        """Return a GitHub table. Vertical bars and HTML are escaped."""

        def escaped(words: str) -> str:
            return _HTML.sub(r"\\\g<0>", words.replace("\n", " "))

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(escaped(cell).replace("|", r"\|") for cell in cells) + " |"

        rule = "|" + "|".join(":---" if c.left else "---:" for c in self.columns) + "|"
        table = [line([c.header for c in self.columns]), rule, *map(line, self.cells())]
        notes = [f"{escaped(note)}  " for note in self.notes]
        return "\n".join([f"**{escaped(self.title)}**", "", *table, "", *notes]).rstrip() + "\n"

    def latex(self) -> str:
        """Return a booktabs tabular. LaTeX markup is escaped. Intervals are aligned in a column of
        their own.
        """
        columns = "".join("l" if c.left else "r@{~}r" if c.interval else "r" for c in self.columns)
        head = [
            rf"\multicolumn{{2}}{{c}}{{{tex(c.header)}}}" if c.interval else tex(c.header)
            for c in self.columns
        ]
        rows = [list(map(tex_cell, row, self.columns)) for row in self.rows]
        body = [_tex_row(head), r"\midrule", *map(_tex_row, rows)]
        lines = [_tex_comment(self.title), r"% \usepackage{booktabs}"]
        if max("".join(body)) > LAST_LATIN_LETTER:
            lines.append(
                "% it has letters that pdflatex lacks: lualatex or xelatex, and a font that has"
                " them"
            )
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body]
        lines += [r"\bottomrule", r"\end{tabular}", *map(_tex_comment, self.notes)]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return raw values at full precision; an interval takes the columns KEY, KEY_low,
        KEY_high.
        """
        rows = [
            [
                column.key + part
                for column in self.columns
                for part in (("", "_low", "_high") if column.interval else ("",))
            ]
        ]
        for row in self.rows:
            cells: list[Any] = []
            for value, column in zip(row, self.columns, strict=True):
                cells += astuple(value or Estimate(None)) if column.interval else [value]
            rows.append(cells)
        return csv_text(rows)

    def as_json(self) -> files.JsonObject:
        """Return plain values for JSON: the columns, and one object a row."""
        keys = [column.key for column in self.columns]
        return {
            "name": self.name,
            "title": self.title,
            "columns": [asdict(column) for column in self.columns],
            "rows": [dict(zip(keys, map(plain, row), strict=True)) for row in self.rows],
            "notes": list(self.notes),
        }

    def forms(self) -> dict[str, str]:
        """Return the content of each file that `write` makes, by suffix."""
        return dict(zip(SUFFIXES, (self.markdown(), self.latex(), self.csv()), strict=True))

    def write(self, folder: Path, stem: str = "table") -> None:
        """Write STEM.md, STEM.tex and STEM.csv."""
        for suffix, content in self.forms().items():
            files.write_text(folder / f"{stem}.{suffix}", content)

    def print(self, output_format: str = "table") -> None:
        """Print on stdout as one of SUFFIXES, or as a table that fits the terminal."""
        if output_format == "table":
            console.put("\n".join(self.lines(console.width())))
        else:
            console.put(self.forms()[output_format], end="")

    def lines(self, width: int | None = None) -> list[str]:
        """Return title, table and notes as lines for a terminal of this width; None: for a pipe."""
        title = wrapped(self.title, width) if self.title else []
        notes = [line for note in self.notes for line in wrapped(note, width, "  ")]
        return [*title, *fit(self, width), *notes]

    def ranked(self) -> list[int]:
        """Return the indices of the columns, the most important first: the first column, then
        those of `first` (or those with intervals), then all others from left to right.
        """
        keys = [column.key for column in self.columns]
        intervals = [i for i, column in enumerate(self.columns) if column.interval]
        first = [keys.index(key) for key in self.first if key in keys] or intervals
        return list(dict.fromkeys([0, *first, *range(len(keys))]))


class StoredTable(BaseModel):
    """A table in a JSON file, as `Table.as_json` describes it."""

    model_config = ConfigDict(frozen=True)
    name: str
    title: str
    columns: list[Column] = Field(min_length=1)
    rows: list[dict[str, Estimate | str | bool | int | float | None]]
    notes: list[str]

    @model_validator(mode="after")
    def _every_row_has_every_column(self) -> Self:
        keys = [column.key for column in self.columns]
        if any(list(row) != keys for row in self.rows):
            raise ValueError("a row has other cells than the table has columns")
        for number, row in enumerate(self.rows):
            for (key, cell), column in zip(row.items(), self.columns, strict=True):
                if cell is not None and isinstance(cell, Estimate) != column.interval:
                    raise ValueError(
                        f"has a value that its column cannot have: rows.{number}.{key}"
                    )
        return self

    @property
    def table(self) -> Table:
        """The table itself."""
        rows = [list(row.values()) for row in self.rows]
        return Table(self.name, self.title, self.columns, rows, self.notes)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as the text of a CSV file. A spreadsheet would run a FORMULA, so it gets a ' in
    front, unless the cell is a number. A carriage return, which would end a row, becomes a space.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows(map(_inert, row) for row in rows)
    return stream.getvalue()


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    return FORMULA.sub("'", cell).replace("\r", " ")


def check_format(output_format: str) -> None:
    """Raise ConfigError for an unknown --format, before any work is done."""
    check_known(output_format, FORMATS, f"unknown format '{output_format}'", "--format")


def text(value: Any, column: Column) -> str:
    """Return a cell for people: – for nothing, thousands separated, `decimals` digits, an interval
    in brackets.
    """
    if isinstance(value, Estimate):
        shown, low, high = (text(number, column) for number in astuple(value))
        return shown if EMPTY in (low, high) else f"{shown} [{low}, {high}]"
    if plain(value) is None:
        return EMPTY
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if column.below is not None and value < column.below:
        return f"<{column.below:.{column.decimals}f}"
    sign = "+" if column.signed else ""
    return f"{value:{sign},d}" if isinstance(value, int) else f"{value:{sign},.{column.decimals}f}"


def tex(value: str) -> str:
    """Return text as LaTeX source that prints it. TeX would join some pairs of signs ("--"); they
    stay two signs.
    """
    joined = re.sub(r"([-,'])(?=\1)", "\\1\0", _CONTROL.sub(" ", value))
    return joined.translate(str.maketrans(_LATEX))


def tex_cell(value: Any, column: Column) -> str:
    """Return a cell as LaTeX source. A minus is as wide as a plus. In a column of intervals the
    number and its interval are two cells.
    """
    shown = text(value, column)
    if isinstance(value, str):
        return tex(shown)
    number, bracket, interval = shown.replace("-", "−").partition(" [")
    if not column.interval:
        return tex(number)
    return f"{tex(number)} & {tex((bracket + interval).strip())}".rstrip()


def _tex_row(cells: Sequence[str]) -> str:
    joined = " & ".join(cells) + r" \\"
    # After \\ or a rule, LaTeX would read [ or * as an option.
    return "{}" + joined if joined.startswith(("[", "*")) else joined


def _tex_comment(words: str) -> str:
    return f"% {' '.join(words.split())}"


def plain(value: Any) -> Any:
    """Return a value for JSON: an Estimate becomes an object, a number that is not finite null."""
    if isinstance(value, Estimate):
        return {key: plain(number) for key, number in asdict(value).items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
