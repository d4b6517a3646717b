"""One result table, written as Markdown, LaTeX, CSV, JSON and terminal text; scores and analyses
use the same.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nmtkit import console, files
from nmtkit.errors import ConfigError, nearest

FORMATS = ("table", "json", "md", "tex", "csv")
SUFFIXES = ("md", "tex", "csv")
"""Of the files that `Table.write` makes."""
EMPTY = "–"
SHADES = " ·░▒▓█"
_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "–": "--", "−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "Δ": r"$\Delta$",
    "×": r"$\times$", "±": r"$\pm$", "∞": r"$\infty$", "→": r"$\rightarrow$", "…": r"\ldots{}", "·": r"$\cdot$", "Σ": r"$\Sigma$",
    "α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "²": "$^2$", "½": r"$\frac12$", "|": r"\textbar{}", "`": r"\textasciigrave{}",
    '"': "''", "\n": " ", "\t": " ", "\0": "{}",
}  # fmt: skip


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
        key: its name in JSON and CSV.
        header: its name for people.
        decimals: of floating numbers.
        left: left-aligned (text).
        signed: write the sign of positive numbers too.
        interval: cells are Estimates (three columns in CSV).
        below: a smaller number is shown as "<below" (a p of 1000 resamples is no finer than 0.001).
    """

    key: str
    header: str
    decimals: int = 2
    left: bool = False
    signed: bool = False
    interval: bool = False
    below: float | None = None


@dataclass(frozen=True)
class Table:
    """Columns and rows of raw values (None = not measured, Estimate = with interval), a title
    above, notes below.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), (
            "a row has as many cells as there are columns"
        )

    def cells(self) -> list[list[str]]:
        """The rows as text."""
        return [
            [text(value, column) for value, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def markdown(self) -> str:
        """A GitHub table; vertical bars are escaped."""

        def line(cells: Sequence[str]) -> str:
            return (
                "| "
                + " | ".join(
                    cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
                    for cell in cells
                )
                + " |"
            )

        rule = "|" + "|".join(":---" if c.left else "---:" for c in self.columns) + "|"
        lines = [
            f"**{self.title}**",
            "",
            line([c.header for c in self.columns]),
            rule,
            *map(line, self.cells()),
            "",
        ]
        return "\n".join(lines + [f"{note}  " for note in self.notes]).rstrip() + "\n"

    def latex(self) -> str:
        """A booktabs tabular; everything that LaTeX would read as markup is escaped, an interval
        is aligned in a column of its own.
        """

        def line(cells: Sequence[str]) -> str:
            joined = " & ".join(cells) + r" \\"
            return (
                "{}" + joined if joined.startswith(("[", "*")) else joined
            )  # after \\ or a rule, either would be an option of it

        columns = "".join("l" if c.left else "r@{~}r" if c.interval else "r" for c in self.columns)
        head = [
            rf"\multicolumn{{2}}{{c}}{{{tex(c.header)}}}" if c.interval else tex(c.header)
            for c in self.columns
        ]
        body = [
            line([tex_cell(value, column) for value, column in zip(row, self.columns, strict=True)])
            for row in self.rows
        ]
        body = [line(head), r"\midrule", *body]
        further = (
            ["it has letters that pdflatex lacks: lualatex or xelatex, and a font that has them"]
            if _beyond_latin(body)
            else []
        )
        above = [
            f"% {' '.join(note.split())}"
            for note in (self.title, r"\usepackage{booktabs}", *further)
        ]
        below = [f"% {' '.join(note.split())}" for note in self.notes]
        return (
            "\n".join(
                [
                    *above,
                    rf"\begin{{tabular}}{{{columns}}}",
                    r"\toprule",
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}",
                    *below,
                ]
            )
            + "\n"
        )

    def csv(self) -> str:
        """Raw values at full precision; an interval takes the columns KEY, KEY_low, KEY_high."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            [
                name
                for c in self.columns
                for name in ([c.key, f"{c.key}_low", f"{c.key}_high"] if c.interval else [c.key])
            ]
        )
        for row in self.rows:
            cells: list[Any] = []
            for value, column in zip(row, self.columns, strict=True):
                if column.interval:
                    value = value or Estimate(None)
                    cells += [value.value, value.low, value.high]
                else:
                    cells.append(value)
            writer.writerow(cells)
        return stream.getvalue()

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON: the columns, and one object a row."""
        rows = [
            {c.key: plain(v) for v, c in zip(row, self.columns, strict=True)} for row in self.rows
        ]
        return {
            "name": self.name,
            "title": self.title,
            "columns": [asdict(c) for c in self.columns],
            "rows": rows,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Table:
        """A table read back from `as_json`."""
        columns = [Column(**column) for column in value["columns"]]
        rows = [
            [
                Estimate(**row[c.key]) if c.interval and row[c.key] is not None else row[c.key]
                for c in columns
            ]
            for row in value["rows"]
        ]
        return cls(value["name"], value["title"], columns, rows, value["notes"])

    def json(self) -> str:
        """`as_json` as text."""
        return json.dumps(self.as_json(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"

    def forms(self) -> dict[str, str]:
        """What is written of it, by suffix."""
        return dict(zip(SUFFIXES, (self.markdown(), self.latex(), self.csv()), strict=True))

    def write(self, folder: Path, stem: str = "table") -> None:
        """Write STEM.md, STEM.tex and STEM.csv."""
        for suffix, content in self.forms().items():
            files.write_text(folder / f"{stem}.{suffix}", content)

    def text(self) -> str:
        """Aligned columns, as they are printed into a file."""
        return "\n".join([self.title, *console.aligned(self._headers(), self.cells()), *self.notes])

    def _headers(self) -> list[str]:
        return [("<" if column.left else "") + column.header for column in self.columns]

    def print(self, output_format: str = "table") -> None:
        """Print on stdout.

        Args:
            output_format: one of FORMATS.
        """
        if output_format == "table":
            console.print_table(self.title, self._headers(), self.cells())
            for note in self.notes:
                print(note)
        else:
            print(
                {"md": self.markdown, "tex": self.latex, "csv": self.csv, "json": self.json}[
                    output_format
                ](),
                end="",
            )


def check_format(output_format: str) -> None:
    """Refuse an unknown --format before any work is done.

    Raises: ConfigError naming the nearest one.
    """
    if output_format not in FORMATS:
        raise ConfigError(
            f"unknown format '{output_format}'",
            where="--format",
            hint=nearest(output_format, FORMATS),
        )


def text(value: Any, column: Column) -> str:
    """A cell for people: – for nothing, thousands separated, `decimals` digits, an interval in
    brackets.
    """
    if isinstance(value, Estimate):
        shown = text(value.value, column)
        if value.low is None or value.high is None:
            return shown
        return f"{shown} [{text(value.low, column)}, {text(value.high, column)}]"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return EMPTY
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if column.below is not None and value < column.below:
        return f"<{column.below:.{column.decimals}f}"
    sign = "+" if column.signed else ""
    return f"{value:{sign},d}" if isinstance(value, int) else f"{value:{sign},.{column.decimals}f}"


def tex(value: str) -> str:
    """Text as LaTeX source that prints it; signs that TeX would join to one ("--") stay two."""
    return "".join(
        _TEX.get(character, character) for character in re.sub(r"([-,'])(?=\1)", "\\1\0", value)
    )


def tex_cell(value: Any, column: Column) -> str:
    """A cell as LaTeX source: a number with a minus that is as wide as a plus; number & interval
    where the column has intervals.
    """
    shown = text(value, column)
    if isinstance(value, str):
        return tex(shown)
    number, bracket, interval = shown.replace("-", "−").partition(" [")
    return (
        f"{tex(number)} & {tex((bracket + interval).strip())}".rstrip()
        if column.interval
        else tex(number)
    )


def _beyond_latin(lines: Sequence[str]) -> bool:
    return any(character > "\u017f" for line in lines for character in line)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: an Estimate becomes an object, a number that is not finite
    null.
    """
    if isinstance(value, Estimate):
        return {"value": plain(value.value), "low": plain(value.low), "high": plain(value.high)}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def bar(value: float | None, top: float, width: int = 30) -> str:
    """A horizontal bar of eighth blocks: `value` of `top` in `width` characters; empty for None."""
    if value is None or not math.isfinite(value) or top <= 0:
        return ""
    eighths = round(8 * width * min(max(value / top, 0.0), 1.0))
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def named_bars(
    bars: Sequence[tuple[str, float, str]], top: float | None = None, digits: str = ".3f"
) -> list[str]:
    """Return a line for each bar: its name flush right, the bar, the value and a remark.

    Args:
        bars: name, value, remark.
        top: the value of a full bar (default: the largest value).
        digits: how the values are written.
    """
    from rich.cells import cell_len  # a Chinese character takes two places

    width = max((cell_len(name) for name, _, _ in bars), default=0)
    full = max((value for _, value, _ in bars), default=0.0) if top is None else top
    return [
        " " * (width - cell_len(name)) + f"{name} {bar(value, full)} {value:{digits}}{remark}"
        for name, value, remark in bars
    ]


def percent_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[Estimate]], remarks: Sequence[str] = ()
) -> str:
    """Return shares in percent as bars for a terminal: a block for each series, a line for each
    label.

    Args:
        labels: of the lines.
        series: name -> a share for each label.
        remarks: behind each line (default: none).
    """
    blocks = []
    for name, shares in series.items():
        values = [share.value or 0.0 for share in shares]
        bars = list(zip(labels, values, remarks or [""] * len(labels), strict=True))
        blocks.append("\n".join([name, *named_bars(bars, 100.0, "5.1f")]))
    return "\n\n".join(blocks)


def heat(values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str]) -> str:
    """A heat map for a terminal: a block a cell, darker for more, its columns numbered and named
    below.

    Args:
        values: (rows, columns), not negative; the darkest shade is the largest of them.
        rows, columns: names.
    """
    from rich.cells import cell_len  # a Chinese character takes two places

    top = max((value for row in values for value in row), default=0.0) or 1.0
    width = max(map(cell_len, rows), default=0)
    lines = [" " * width + "".join(f"{number:3d}" for number in range(1, len(columns) + 1))]
    for name, row in zip(rows, values, strict=True):
        cells = "".join(" " + 2 * SHADES[round(5 * value / top)] for value in row).rstrip()
        lines.append(" " * (width - cell_len(name)) + name + cells)
    lines.append(
        "columns: " + "  ".join(f"{number} {name}" for number, name in enumerate(columns, 1))
    )
    lines.append(
        "shades: about "
        + "  ".join(f"{2 * shade} {top * i / 5:.2f}" for i, shade in enumerate(SHADES) if i)
    )
    return "\n".join(lines)
