"""A paper's printed numbers beside measured ones: its file (recipes/<paper>/paper.toml), and the table of both."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from nmtkit.errors import ConfigError, nearest
from nmtkit.score.metrics import METRICS
from nmtkit.score.tables import Column, Table
from nmtkit.settings import Section, build, read_toml

ABSENT = "not trained here"
LEFT_OUT = "not in this comparison"
OTHER = "another corpus than the paper's"


class PaperColumn(Section):
    """One column of a printed table."""

    name: str
    """As its rows name it."""
    dataset: str = ""
    """The corpus of its numbers, by its name in the table of data sets."""
    set: str = ""
    """The test set, by its name there."""
    score: str = ""
    """The key in scores.json of what the paper measured (see the table of metrics in nmtkit/score/README.md); empty: no score of translations."""


class PaperRow(Section):
    """One row of a printed table."""

    printed: str
    """As the table of the paper's README names it."""
    system: str = ""
    """The recipe's system, without the mark of its seed; empty: the recipe does not train it."""
    numbers: dict[str, float | tuple[float, float]]
    """By column; two numbers are a printed "a ± b"."""


class PaperTable(Section):
    """One printed table."""

    title: str
    """Which table it is, and what of."""
    metric: str
    """What its numbers are, as the paper defines them."""
    remarks: list[str] = []
    """What else must be known to read them."""
    columns: list[PaperColumn] = Field(min_length=1)
    """In the order of the paper's README."""
    rows: list[PaperRow] = Field(min_length=1)
    """In the same order."""


class Paper(Section):
    """All that a paper prints in tables."""

    citation: str
    """Authors, year, title."""
    tables: dict[str, PaperTable]
    """By the name of the recipe that makes the table, where there is one."""


@dataclass(frozen=True)
class Printed:
    """A table and the paper that it is of."""

    citation: str
    table: PaperTable


def load(path: Path) -> Paper:
    """A paper's file.

    Raises: ConfigError if it is missing or not TOML, has an unknown key, names a metric that does not exist, a number of no column, a system twice.
    """
    paper = build(Paper, read_toml(path, "the paper's numbers", "--paper", "recipes/phrase/paper.toml is an example"), path.name)
    for name, table in paper.tables.items():
        _check(table, f"{path}, [tables.{name}]")
    return paper


def _check(table: PaperTable, where: str) -> None:
    columns, systems = [column.name for column in table.columns], [row.system for row in table.rows if row.system]
    for column in table.columns:
        if column.score and column.score not in METRICS:
            raise ConfigError(f"unknown score '{column.score}' of the column '{column.name}'", where=where, hint=nearest(column.score, METRICS))
    for row in table.rows:
        for name in row.numbers:
            if name not in columns:
                raise ConfigError(f"the row '{row.printed}' has a number of no column: '{name}'", where=where, hint=nearest(name, columns))
    if len(set(systems)) < len(systems) or len(set(columns)) < len(columns):
        raise ConfigError("a column or a system has more than one entry", where=where, hint="give each once")


def printed(path: Path, name: str | None) -> Printed:
    """One table of a paper's file.

    Args:
        path: the file; name: of the table.
    Raises: as `load`; ConfigError for no table, an unknown one, or one that has nothing to do with translations.
    """
    paper = load(path)
    if name is None:
        raise ConfigError("which of the paper's tables?", where="--paper", hint="--table NAME, one of: " + ", ".join(paper.tables))
    if name not in paper.tables:
        raise ConfigError(f"the paper's file has no table '{name}'", where=path, hint=nearest(name, paper.tables))
    if not any(column.score for column in paper.tables[name].columns):
        of_scores = [other for other, table in paper.tables.items() if any(column.score for column in table.columns)]
        raise ConfigError(f"the paper's table '{name}' has no scores of translations", where=path, hint="these have: " + ", ".join(of_scores))
    return Printed(paper.citation, paper.tables[name])


def beside(paper: Printed, result: Mapping[str, Any], dataset: str) -> Table:
    """Paper, measured, difference and signature: one row a printed row and column of scores.

    Of the columns, those of this test set are shown, or all where the paper has none of it: then what was measured stands once, and there is no
    difference, since it would be one of corpora. A row is measured by the systems of its name, or of
    its name and a seed's mark (-s1, -s2): their mean.

    Args:
        paper: the printed table.
        result: of a test set, as in scores.json.
        dataset: the corpus of the run.
    """
    table = paper.table
    of_scores = [column for column in table.columns if column.score]
    same = [column for column in of_scores if (column.dataset, column.set) == (dataset, result["set"])]
    rows: list[list[Any]] = []
    for row in table.rows:
        found = [s["scores"] for s in result["systems"] if row.system and re.fullmatch(rf"{re.escape(row.system)}(-s\d+)?", s["name"])]
        shown: set[str] = set()
        for column in [column for column in same or of_scores if column.name in row.numbers]:
            number = row.numbers[column.name]
            value, spread = number if isinstance(number, tuple) else (number, None)
            known = [scores[column.score]["value"] for scores in found if column.score in scores]
            values = known if same or column.score not in shown else []  # of another corpus a number stands once, not beside each of the paper's
            shown.add(column.score)
            mean = statistics.fmean(values) if values else None
            difference = mean - value if same and mean is not None else None
            cells = [
                row.printed,
                row.system if known else LEFT_OUT if row.system else ABSENT,
                column.name,
                value,
                spread,
                len(values) or None,
                mean,
                difference,
            ]
            rows.append([*cells, result["signatures"][column.score] if values else None])
    columns = [
        Column("row", "paper's row", left=True),
        Column("system", "system", left=True),
        Column("column", "paper's column", left=True),
        Column("paper", "paper"),
        Column("paper_spread", "±"),
        Column("seeds", "seeds"),
        Column("measured", "measured"),
        Column("difference", "difference", signed=True),
        Column("signature", "signature", left=True),
    ]
    if all(row[4] is None for row in rows):  # no spread is printed
        columns, rows = columns[:4] + columns[5:], [row[:4] + row[5:] for row in rows]
    title = f"{result['set']}: {table.title}, printed and measured" + ("" if same else f" ({OTHER})")
    return Table("paper", title, columns, rows, _notes(paper, of_scores, same, result, dataset))


def _notes(paper: Printed, of_scores: Sequence[PaperColumn], same: Sequence[PaperColumn], result: Mapping[str, Any], dataset: str) -> list[str]:
    notes = [f"paper: {paper.citation}; {paper.table.metric}"]
    if same:
        notes.append("difference: measured - paper, on the same test set; sizes and updates of a system: its config.toml")
    else:
        theirs = ", ".join(dict.fromkeys(f"{column.dataset} {column.set}" for column in of_scores))
        notes.append(f"measured on {dataset} {result['set']}, printed of {theirs}: a difference would be one of corpora and mean nothing")
    notes.append("measured: mean over the seeds; " + "; ".join(dict.fromkeys(f"{c.name}: {METRICS[c.score].header}" for c in same or of_scores)))
    return [*notes, *paper.table.remarks]
