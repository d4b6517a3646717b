"""A paper's printed numbers beside measured ones: its file (recipes/<paper>/paper.toml), and the table of both."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nmtkit.errors import ConfigError, nearest
from nmtkit.score.metrics import METRICS
from nmtkit.score.tables import Column, Table
from nmtkit.settings import Section, build, read_toml

ABSENT = "not trained here"
LEFT_OUT, NOT_MEASURED = "not in this comparison", "not measured"
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
    task: str = ""
    """Of `analyze probing`: the task whose accuracy it is, or the category whose mean."""


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


def printed(path: Path, name: str | None, of: Literal["score", "task"] = "score") -> Printed:
    """One table of a paper's file.

    Args:
        path: the file; name: of the table.
        of: what its columns must be, some of them: scores of translations, or tasks of probing.
    Raises: as `load`; ConfigError for no table, an unknown one, or one that has no such column.
    """
    paper = load(path)
    if name is None:
        raise ConfigError("which of the paper's tables?", where="--paper", hint="--table NAME, one of: " + ", ".join(paper.tables))
    if name not in paper.tables:
        raise ConfigError(f"the paper's file has no table '{name}'", where=path, hint=nearest(name, paper.tables))
    having = [other for other, table in paper.tables.items() if any(getattr(column, of) for column in table.columns)]
    if name not in having:
        what = "scores of translations" if of == "score" else "accuracies of probing tasks"
        raise ConfigError(f"the paper's table '{name}' has no {what}", where=path, hint="these have: " + (", ".join(having) or "none"))
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
    of_scores = [column for column in paper.table.columns if column.score]
    same = [column for column in of_scores if (column.dataset, column.set) == (dataset, result["set"])]
    known = {s["name"]: {key: score["value"] for key, score in s["scores"].items()} for s in result["systems"]}
    found = _rows(paper.table, same or of_scores, known, bool(same), lambda column: column.score)
    rows = [[*row, None if row[MEASURED] is None else result["signatures"][column.score]] for row, column in found]
    title = f"{result['set']}: {paper.table.title}, printed and measured" + ("" if same else f" ({OTHER})")
    return _as_table(title, rows, _notes(paper, of_scores, same, result, dataset))


def accuracies_beside(paper: Printed, accuracies: Mapping[str, Mapping[str, float]], dataset: str, probes: str, signature: str) -> Table:
    """The same of the accuracies of `analyze probing`.

    Args:
        paper: a printed table, some of whose columns are tasks.
        accuracies: system -> task, or category of tasks -> accuracy in percent.
        dataset: the corpus of the run.
        probes: the probing files: there is a difference where both are the paper's.
        signature: how they were measured.
    """
    columns = [column for column in paper.table.columns if column.task]
    same = all((column.dataset, column.set) == (dataset, probes) for column in columns)
    rows = [
        [*row, None if row[MEASURED] is None else signature] for row, _ in _rows(paper.table, columns, accuracies, same, lambda column: column.task)
    ]
    theirs = ", ".join(dict.fromkeys(f"{column.dataset} {column.set}" for column in columns))
    notes = [f"paper: {paper.citation}; {paper.table.metric}"]
    notes.append("difference: measured - paper" if same else f"measured on {dataset} {probes}, printed of {theirs}: so there is no difference")
    return _as_table(f"{paper.table.title}, printed and measured" + ("" if same else f" ({OTHER})"), rows, [*notes, *paper.table.remarks])


MEASURED = 6
"""Where that number stands in a row."""


def _rows(
    table: PaperTable, columns: Sequence[PaperColumn], known: Mapping[str, Mapping[str, float]], same: bool, of: Callable[[PaperColumn], str]
) -> list[tuple[list[Any], PaperColumn]]:
    """The rows without their signatures, each with its column.

    Args:
        columns: those that are shown.
        known: system -> what was measured of it, by the keys that `of` gives of columns.
        same: whether it is the same that the paper measured.
    """
    rows: list[tuple[list[Any], PaperColumn]] = []
    for row in table.rows:
        found = [own for name, own in known.items() if row.system and re.fullmatch(rf"{re.escape(row.system)}(-s\d+)?", name)]
        shown: set[str] = set()
        for column in [column for column in columns if column.name in row.numbers]:
            number, key = row.numbers[column.name], of(column)
            value, spread = number if isinstance(number, tuple) else (number, None)
            there = [own[key] for own in found if key in own]
            values = there if same or key not in shown else []  # of another corpus a number stands once, not beside each of the paper's
            shown.add(key)
            mean = statistics.fmean(values) if values else None
            difference = mean - value if same and mean is not None else None
            who = row.system if there else NOT_MEASURED if found else LEFT_OUT if row.system else ABSENT
            rows.append(([row.printed, who, column.name, value, spread, len(values) or None, mean, difference], column))
    return rows


def _as_table(title: str, rows: list[list[Any]], notes: Sequence[str]) -> Table:
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
    return Table("paper", title, columns, rows, list(notes))


def _notes(paper: Printed, of_scores: Sequence[PaperColumn], same: Sequence[PaperColumn], result: Mapping[str, Any], dataset: str) -> list[str]:
    notes = [f"paper: {paper.citation}; {paper.table.metric}"]
    if same:
        notes.append("difference: measured - paper, on the same test set; sizes and updates of a system: its config.toml")
    else:
        theirs = ", ".join(dict.fromkeys(f"{column.dataset} {column.set}" for column in of_scores))
        notes.append(f"measured on {dataset} {result['set']}, printed of {theirs}: a difference would be one of corpora and mean nothing")
    notes.append("measured: mean over the seeds; " + "; ".join(dict.fromkeys(f"{c.name}: {METRICS[c.score].header}" for c in same or of_scores)))
    return [*notes, *paper.table.remarks]
