"""A paper's printed numbers beside measured ones: its file (recipes/<paper>/paper.toml), and the
table of both.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nmtkit.errors import ConfigError, nearest
from nmtkit.records import Scores
from nmtkit.score.metrics import METRICS
from nmtkit.settings import Section, build, read_toml
from nmtkit.tables.table import Column, Table

ABSENT = "not trained here"
LEFT_OUT, NOT_MEASURED = "not in this comparison", "not measured"
OTHER = "another corpus than the paper's"
Kind = Literal["score", "task", "cost", "group", "sentence"]
KINDS: dict[Kind, str] = {
    **{"score": "scores of translations", "task": "accuracies of probing tasks"},
    **{
        "cost": "parameters or speeds",
        "group": "gains by length",
        "sentence": "scores of a sentence",
    },
}
"""What a column can have, and what measures it: `nmtkit score`, and the analyses probing, cost,
lengths and examples.
"""
OF_MACHINES = "updates_per_s"
"""The cost that tells more of a machine than of a system, so that there is no difference."""
COSTS = ("parameters", OF_MACHINES, "train_time_ratio", "decode_time_ratio")
"""Millions of parameters, updates a second, times relative to the baseline's."""


class PaperColumn(Section):
    """One column of a printed table."""

    name: str
    """As its rows name it."""
    dataset: str = ""
    """The corpus of its numbers, by its name in the table of data sets."""
    set: str = ""
    """The test set, by its name there."""
    score: str = ""
    """The key in scores.json of what the paper measured (see the table of metrics in
    nmtkit/score/README.md).
    """
    gain: bool = False
    """Of a score: it is how much more than the baseline has."""
    task: str = ""
    """Of `analyze probing`: the task whose accuracy it is, or the category whose mean."""
    cost: str = ""
    """Of `analyze cost`: which of COSTS it is."""
    group: str = ""
    """Of `analyze lengths`: the group of sources in which it is how much more BLEU than the
    baseline has.
    """
    sentence: Literal["", "bleu"] = ""
    """Of `analyze examples`: the score of one sentence, from 0 to 1."""

    @property
    def kind(self) -> Kind | None:
        """What it has; None: nothing that is measured here."""
        return next((kind for kind in KINDS if getattr(self, kind)), None)

    @property
    def key(self) -> str:
        """By which its measured number is known."""
        return (
            gain_of(self.score)
            if self.gain
            else ""
            if self.kind is None
            else getattr(self, self.kind)
        )


def gain_of(score: str) -> str:
    """The key of how much more of a score than the baseline has."""
    return f"Δ {score}"


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

    Raises: ConfigError if it is missing or not TOML, has an unknown key, a metric or a cost that
        does not exist, a number of no column, a system twice.
    """
    values = read_toml(
        path, "the paper's numbers", "--paper", "recipes/phrase/paper.toml is an example"
    )
    try:
        paper = build(Paper, values, path.name)
    except ConfigError as error:
        raise ConfigError(error.message, where=path, hint=error.hint) from None
    for name, table in paper.tables.items():
        _check(table, f"{path}, [tables.{name}]")
    return paper


def _check(table: PaperTable, where: str) -> None:
    columns, systems = (
        [column.name for column in table.columns],
        [row.system for row in table.rows if row.system],
    )
    for column in table.columns:
        if column.score and column.score not in METRICS:
            raise ConfigError(
                f"unknown score '{column.score}' of the column '{column.name}'",
                where=where,
                hint=nearest(column.score, METRICS),
            )
        if column.cost and column.cost not in COSTS:
            raise ConfigError(
                f"unknown cost '{column.cost}' of the column '{column.name}'",
                where=where,
                hint=nearest(column.cost, COSTS),
            )
        if column.gain and not column.score:
            raise ConfigError(
                f"the column '{column.name}' is a gain of no score",
                where=where,
                hint='name it, for example: score = "bleu"',
            )
        if sum(bool(getattr(column, kind)) for kind in KINDS) > 1:
            raise ConfigError(
                f"the column '{column.name}' is several things at once",
                where=where,
                hint=f"one of: {', '.join(KINDS)}",
            )
    for row in table.rows:
        for name in row.numbers:
            if name not in columns:
                raise ConfigError(
                    f"the row '{row.printed}' has a number of no column: '{name}'",
                    where=where,
                    hint=nearest(name, columns),
                )
    if len(set(systems)) < len(systems) or len(set(columns)) < len(columns):
        raise ConfigError(
            "a column or a system has more than one entry", where=where, hint="give each once"
        )


def printed(path: Path, name: str | None, of: Kind = "score") -> Printed:
    """One table of a paper's file.

    Args:
        path: the file; name: of the table.
        of: what some of its columns must be.
    Raises: as `load`; ConfigError for no table, an unknown one, or one that has no such column.
    """
    paper = load(path)
    if name is None:
        raise ConfigError(
            "which of the paper's tables?",
            where="--paper",
            hint="--table NAME, one of: " + ", ".join(paper.tables),
        )
    if name not in paper.tables:
        raise ConfigError(
            f"the paper's file has no table '{name}'", where=path, hint=nearest(name, paper.tables)
        )
    having = [
        other
        for other, table in paper.tables.items()
        if any(column.kind == of for column in table.columns)
    ]
    if name not in having:
        raise ConfigError(
            f"the paper's table '{name}' has no {KINDS[of]}",
            where=path,
            hint="these have: " + (", ".join(having) or "none"),
        )
    return Printed(paper.citation, paper.tables[name])


def asked(path: str, name: str, of: Kind) -> Printed | None:
    """The table that an analysis is asked to put its numbers beside; None if no paper is named.

    Raises: as `printed`; ConfigError for a table of no paper.
    """
    if name and not path:
        raise ConfigError(
            "a table of which paper?",
            where="--table",
            hint="--paper recipes/dual_context/paper.toml",
        )
    return printed(Path(path), name or None, of) if path else None


def beside(paper: Printed, result: Scores, dataset: str) -> Table:
    """Paper, measured, difference and signature: one row a printed row and column of scores.

    Of the columns, those of this test set are shown, or all where the paper has none of it: then
    what was measured stands once, and there is no difference, since it would be one of corpora. A
    row is measured by the systems of its name, or of its name and a seed's mark (-s1, -s2): their
    mean.

    Args:
        paper: the printed table.
        result: of a test set.
        dataset: the corpus of the run.
    """
    of_scores = [column for column in paper.table.columns if column.kind == "score"]
    same = [column for column in of_scores if (column.dataset, column.set) == (dataset, result.set)]
    found = _rows(paper.table, same or of_scores, _scores(result), bool(same))
    rows = [
        [*row, None if row[MEASURED] is None else result.signatures[column.score]]
        for row, column in found
    ]
    title = f"{result.set}: {paper.table.title}, printed and measured" + (
        "" if same else f" ({OTHER})"
    )
    return _as_table(title, rows, _notes(paper, of_scores, same, result, dataset))


def _scores(result: Scores) -> dict[str, dict[str, float]]:
    """System -> its scores by their keys, and how much more they are than the baseline's, the
    mean over its seeds.
    """
    known = {
        s.name: {key: score.value or 0.0 for key, score in s.scores.items()} for s in result.systems
    }
    base = other_seeds(result.baseline, known)
    means = {
        key: statistics.fmean(known[name][key] for name in base) for key in known[result.baseline]
    }
    gains = {
        name: {gain_of(key): value - means[key] for key, value in own.items()}
        for name, own in known.items()
        if name not in base
    }
    return {name: own | gains.get(name, {}) for name, own in known.items()}


def other_seeds(name: str, names: Iterable[str]) -> list[str]:
    """Those of the names that are one system's, but for the mark of a seed (-s1, -s2)."""
    return _of_row(re.sub(r"-s\d+$", "", name), names)


def _of_row(system: str, names: Iterable[str]) -> list[str]:
    """The systems that measure a row: of its name, or of its name and a seed's mark."""
    return [name for name in names if re.fullmatch(rf"{re.escape(system)}(-s\d+)?", name)]


def numbers_beside(
    paper: Printed,
    of: Kind,
    known: Mapping[str, Mapping[str, float]],
    dataset: str,
    set_name: str,
    signature: str,
    remarks: Sequence[str] = (),
) -> Table:
    """The same of what an analysis found.

    Args:
        paper: a printed table, some of whose columns are of this kind.
        known: system -> what was measured of it, by the columns' keys.
        dataset: the corpus of the run; set_name: what was read of it, or beside it (a test set,
            probing files, or nothing that has a name): there is a difference where both are the
            paper's.
        signature: how it was measured.
        remarks: notes before the paper's own.
    """
    columns = [column for column in paper.table.columns if column.kind == of]
    same = all((column.dataset, column.set) == (dataset, set_name) for column in columns)
    rows = [
        [*row, None if row[MEASURED] is None else signature]
        for row, _ in _rows(paper.table, columns, known, same)
    ]
    theirs = (
        ", ".join(dict.fromkeys(f"{column.dataset} {column.set}".strip() for column in columns))
        or "a corpus that it does not name"
    )
    here = f"{dataset} {set_name}".strip()
    notes = [f"paper: {paper.citation}; {paper.table.metric}"]
    notes.append(
        "difference: measured - paper"
        if same
        else f"measured on {here}, printed of {theirs}: so there is no difference"
    )
    if missing := [
        column.group
        for column in columns
        if column.group and not any(column.key in own for own in known.values())
    ]:
        notes.append(
            f"no group {', '.join(missing)} among the measured ones: --buckets names the groups"
            " (pr, dc, or borders)"
        )
    title = f"{paper.table.title}, printed and measured" + ("" if same else f" ({OTHER})")
    return _as_table(
        title, rows, [*notes, *remarks, *paper.table.remarks], 3 if of == "sentence" else 2
    )


MEASURED = 6
"""Where that number stands in a row."""


def _rows(
    table: PaperTable,
    columns: Sequence[PaperColumn],
    known: Mapping[str, Mapping[str, float]],
    same: bool,
) -> list[tuple[list[Any], PaperColumn]]:
    """The rows without their signatures, each with its column.

    Args:
        columns: those that are shown.
        known: system -> what was measured of it, by the columns' keys.
        same: whether it is the same that the paper measured.
    """
    rows: list[tuple[list[Any], PaperColumn]] = []
    for row in table.rows:
        found = [known[name] for name in _of_row(row.system, known)] if row.system else []
        shown: set[str] = set()
        for column in [column for column in columns if column.name in row.numbers]:
            number, key = row.numbers[column.name], column.key
            value, spread = number if isinstance(number, tuple) else (number, None)
            there = [own[key] for own in found if key in own]
            values = (
                there if same or key not in shown else []
            )  # of another corpus a number stands once, not beside each of the paper's
            shown.add(key)
            mean = statistics.fmean(values) if values else None
            comparable = same and column.cost != OF_MACHINES
            difference = mean - value if comparable and mean is not None else None
            who = (
                row.system
                if there
                else NOT_MEASURED
                if found
                else LEFT_OUT
                if row.system
                else ABSENT
            )
            rows.append(
                (
                    [
                        row.printed,
                        who,
                        column.name,
                        value,
                        spread,
                        len(values) or None,
                        mean,
                        difference,
                    ],
                    column,
                )
            )
    return rows


def _as_table(title: str, rows: list[list[Any]], notes: Sequence[str], decimals: int = 2) -> Table:
    columns = [
        Column("row", "paper's row", left=True),
        Column("system", "system", left=True),
        Column("column", "paper's column", left=True),
        Column("paper", "paper", decimals),
        Column("paper_spread", "±"),
        Column("seeds", "seeds"),
        Column("measured", "measured", decimals),
        Column("difference", "difference", decimals, signed=True),
        Column("signature", "signature", left=True),
    ]
    if all(row[4] is None for row in rows):  # no spread is printed
        columns, rows = columns[:4] + columns[5:], [row[:4] + row[5:] for row in rows]
    return Table("paper", title, columns, rows, list(notes))


def _notes(
    paper: Printed,
    of_scores: Sequence[PaperColumn],
    same: Sequence[PaperColumn],
    result: Scores,
    dataset: str,
) -> list[str]:
    notes = [f"paper: {paper.citation}; {paper.table.metric}"]
    if same:
        notes.append(
            "difference: measured - paper, on the same test set; sizes and updates of a system: its"
            " config.toml"
        )
    else:
        theirs = ", ".join(dict.fromkeys(f"{column.dataset} {column.set}" for column in of_scores))
        notes.append(
            f"measured on {dataset} {result.set}, printed of {theirs}: a difference would be one of"
            " corpora and mean nothing"
        )
    baseline = ", ".join(other_seeds(result.baseline, result.names))
    notes.append(
        "measured: mean over the seeds; "
        + "; ".join(dict.fromkeys(_what(column, baseline) for column in same or of_scores))
    )
    return [*notes, *paper.table.remarks]


def _what(column: PaperColumn, baseline: str) -> str:
    """Of a column of scores: which score it is, and over whom it is a gain."""
    return f"{column.name}: {METRICS[column.score].header}" + (
        f", how much more than {baseline}" if column.gain else ""
    )
