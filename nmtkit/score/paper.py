"""The printed numbers of a paper (papers/<paper>.toml) in one table with the measured ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nmtkit.errors import ConfigError, check_known, nearest
from nmtkit.score.metrics import METRICS
from nmtkit.score.seeds import without_mark
from nmtkit.score.stored_scores import Scores
from nmtkit.settings import Section, build
from nmtkit.tables.table import Column, Table, text_column
from nmtkit.toml import read_toml

Kind = Literal["score", "task", "cost", "group"]
KINDS: dict[Kind, str] = {
    "score": "scores of translations",
    "task": "accuracies of probing tasks",
    "cost": "parameters or speeds",
    "group": "gains by length",
}
"""What a column can hold. `nmtkit score` and the analyses probing, cost and lengths measure these
kinds, in this order.
"""
PAPERS = {path.stem: path for path in sorted(Path(__file__).parent.glob("papers/*.toml"))}
"""The files of the papers whose recipes come with nmtkit."""
OF_MACHINES = "updates_per_s"
"""Speed depends on the machine more than on the system, so its difference is not shown."""
COSTS = ("parameters", OF_MACHINES, "train_time_ratio", "decode_time_ratio")
"""Millions of parameters, updates a second, times relative to the baseline's."""
Numbers = Mapping[str, Mapping[str, float]]
"""Measured numbers by system and by key of a column."""


class PaperColumn(Section):
    """One column of a printed table."""

    name: str
    """The name that the rows use."""
    dataset: str = ""
    """The name of its corpus in the table of data sets."""
    set: str = ""
    """The name of its test set in that data set."""
    score: str = ""
    """The metric, by its key in scores.json (table of metrics in nmtkit/score/README.md)."""
    gain: bool = False
    """True if the numbers are gains of the score over the baseline."""
    task: str = ""
    """For `analyze probing`: a task (its accuracy) or a category (the mean of its tasks)."""
    cost: str = ""
    """For `analyze cost`: one of COSTS."""
    group: str = ""
    """For `analyze lengths`: a group of source lengths (the gain in BLEU over the baseline)."""

    @property
    def kind(self) -> Kind | None:
        """What the column holds; None if nmtkit does not measure it."""
        return next((kind for kind in KINDS if getattr(self, kind)), None)

    @property
    def key(self) -> str:
        """The key of the measured number."""
        if self.gain:
            return gain_of(self.score)
        return getattr(self, self.kind) if self.kind else ""


def gain_of(score: str) -> str:
    """Return the key of the gain in a score over the baseline."""
    return f"Δ {score}"


class PaperRow(Section):
    """One row of a printed table."""

    printed: str
    """Its name in the table of the paper's README."""
    system: str = ""
    """The recipe's system, without the mark of its seed; empty: the recipe does not train it."""
    numbers: dict[str, float | tuple[float, float]]
    """By column; two numbers are a printed "a ± b"."""


class PaperTable(Section):
    """One printed table."""

    title: str
    """Which table it is, and what of."""
    metric: str
    """The meaning of its numbers, as the paper defines them."""
    remarks: list[str] = []
    """Further notes for the reader."""
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
class Measured:
    """Measured numbers to compare with a paper's.

    Attributes:
        numbers: by system and by key of a column.
        set_name: the test set or the probing files; "" for neither.
        signatures: how the numbers were measured, by metric; "" is the key for an analysis.
        remarks: notes for the table of measured and printed numbers.
    """

    numbers: Numbers
    set_name: str
    signatures: Mapping[str, str]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Printed:
    """A table and its paper."""

    citation: str
    table: PaperTable


def load(path: Path) -> Paper:
    """Read a paper's file.

    Raises: ConfigError if it is missing or not TOML, has an unknown key, a metric or a cost that
        does not exist, a number of no column, a system twice.
    """
    values = read_toml(path, "the paper's numbers", "--paper", f"{PAPERS['phrase']} is an example")
    try:
        paper = build(Paper, values, path.name)
    except ConfigError as error:
        raise ConfigError(error.message, where=path, hint=error.hint) from None
    for name, table in paper.tables.items():
        for message, hint in _problems(table):
            raise ConfigError(message, where=f"{path}, [tables.{name}]", hint=hint)
    return paper


def _problems(table: PaperTable) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a table, each with what to do."""
    names = [column.name for column in table.columns]
    systems = [row.system for row in table.rows if row.system]
    for column in table.columns:
        place = f"the column '{column.name}'"
        for kind, value, known in (
            ("score", column.score, METRICS),
            ("cost", column.cost, COSTS),
        ):
            if value and value not in known:
                yield f"unknown {kind} '{value}' of {place}", nearest(value, known)
        if column.gain and not column.score:
            yield f"{place} has a gain, but no score", 'name it, for example: score = "bleu"'
        if sum(bool(getattr(column, kind)) for kind in KINDS) > 1:
            yield f"{place} has several kinds", f"one of: {', '.join(KINDS)}"
    for row in table.rows:
        for name in row.numbers:
            if name not in names:
                message = f"the row '{row.printed}' has a number for an unknown column: '{name}'"
                yield message, nearest(name, names)
    if len(set(systems)) < len(systems) or len(set(names)) < len(names):
        yield "a column or a system has more than one entry", "name each once"


def find_table(path: str | Path, name: str | None, of: Kind = "score") -> Printed | None:
    """Return the printed table that --paper and --table name; None if they are not given.

    Args:
        path: a name in PAPERS, or the paper's file; name: the name of the table.
        of: the kind of numbers that some column of the table must hold.
    Raises: as `load`; ConfigError for --table without --paper or the reverse, an unknown table, or
        a table without such a column.
    """
    if not path:
        if name:
            raise ConfigError("--table needs --paper", "--table", "--paper dual_context")
        return None
    file = PAPERS.get(str(path), Path(path))
    if not file.suffix and not file.exists():
        hint = f"{nearest(str(path), PAPERS)}; or name a file (.toml)"
        raise ConfigError(f"no paper '{path}'", "--paper", hint)
    paper = load(file)
    if not name:
        hint = f"--table NAME, one of: {', '.join(paper.tables)}"
        raise ConfigError("which of the paper's tables?", "--paper", hint)
    check_known(name, paper.tables, f"the paper's file has no table '{name}'", path)
    fitting = [key for key, table in paper.tables.items() if of in (c.kind for c in table.columns)]
    if name not in fitting:
        hint = f"these have: {', '.join(fitting) or 'none'}"
        raise ConfigError(f"the paper's table '{name}' has no {KINDS[of]}", path, hint)
    return Printed(paper.citation, paper.tables[name])


def compared(paper: Printed, of: Kind, ours: Measured, dataset: str) -> Table:
    """Return paper, measured, difference and signature: one row a printed row and column of a kind.

    Only the columns of this corpus and test set are shown. If the paper has no such column, all are
    shown: each measured number once, without a difference, since the corpora differ. The measured
    number of a row is the mean of the systems with its name, with or without a seed's mark (-s1,
    -s2).

    Args:
        paper: the printed table; of: the kind.
        dataset: the corpus of the run.
    """
    printed = paper.table
    of_kind = [column for column in printed.columns if column.kind == of]
    same = [c for c in of_kind if (c.dataset, c.set) == (dataset, ours.set_name)]
    shown = same or of_kind
    title = f"{ours.set_name}: " * bool(ours.set_name) + f"{printed.title}, printed and measured"
    if same:
        note = (
            "difference: measured - paper, on the same corpus; a system's config.toml has its sizes"
            " and updates"
        )
    else:
        title += " (another corpus than the paper's)"
        measured = f"{dataset} {ours.set_name}".strip()
        corpora = ", ".join(dict.fromkeys(f"{c.dataset} {c.set}".strip() for c in of_kind))
        note = (
            f"measured on {measured}, printed for {corpora or 'an unnamed corpus'}: no difference"
            " is shown, since the corpora differ"
        )
    notes = [f"paper: {paper.citation}; {printed.metric}", note, *ours.remarks]
    if meanings := [
        f"{c.name}: {METRICS[c.score].header}" + " gained over the baseline" * c.gain
        for c in shown
        if c.score
    ]:
        notes.append("; ".join(meanings))
    if missing := [
        c.group
        for c in shown
        if c.group and not any(c.key in values for values in ours.numbers.values())
    ]:
        notes.append(
            f"no group {', '.join(missing)} among the measured ones: --buckets names the groups"
            " (pr, dc, or borders)"
        )
    columns = [
        text_column("row", "paper's row"),
        text_column("system"),
        text_column("column", "paper's column"),
        Column("paper", "paper"),
        Column("paper_spread", "±"),
        Column("seeds", "seeds"),
        Column("measured", "measured"),
        Column("difference", "difference", signed=True),
        text_column("signature"),
    ]
    rows = [cells for row in printed.rows for cells in _cells(row, shown, ours, bool(same))]
    if all(row[4] is None for row in rows):  # no spread is printed
        columns, rows = columns[:4] + columns[5:], [row[:4] + row[5:] for row in rows]
    return Table("paper", title, columns, rows, [*notes, *printed.remarks])


def _cells(
    row: PaperRow, columns: Sequence[PaperColumn], ours: Measured, same: bool
) -> Iterator[list[Any]]:
    """Yield the cells of each number of a printed row, with what was measured.

    Args:
        same: True if the numbers were measured on the paper's own corpus. On another corpus a
            measured number stands once, not beside each of the paper's.
    """
    systems = [ours.numbers[name] for name in _of_row(row.system, ours.numbers)]
    keys = set()
    for column in columns:
        if column.name not in row.numbers:
            continue
        number = row.numbers[column.name]
        value, spread = number if isinstance(number, tuple) else (number, None)
        measured = [numbers[column.key] for numbers in systems if column.key in numbers]
        system = row.system
        if not measured:
            missing = "not in this comparison" if row.system else "not trained here"
            system = "not measured" if systems else missing
        cells = [row.printed, system, column.name, value, spread]
        if measured and (same or column.key not in keys):
            mean = statistics.fmean(measured)
            difference = mean - value if same and column.cost != OF_MACHINES else None
            cells += [len(measured), mean, difference, ours.signatures.get(column.score, "")]
        else:
            cells += [None] * 4
        keys.add(column.key)
        yield cells


def of_scores(result: Scores) -> Measured:
    """Return the scores of a test set by system, and the gains over the baseline."""
    scores = {
        s.name: {key: score.value or 0.0 for key, score in s.scores.items()} for s in result.systems
    }
    for name, gains in gains_over(result.baseline, scores).items():
        scores[name] |= {gain_of(key): gain for key, gain in gains.items()}
    baseline = ", ".join(other_seeds(result.baseline, result.names))
    remark = f"measured: mean over the seeds; gains: difference to {baseline}"
    return Measured(scores, result.set, result.signatures, [remark, *result.remarks])


def gains_over(baseline: str, numbers: Numbers) -> dict[str, dict[str, float]]:
    """Return how much larger the numbers of all other systems are than the mean over the seeds of
    the baseline.
    """
    base = other_seeds(baseline, numbers)
    means = {
        key: statistics.fmean(numbers[name][key] for name in base) for key in numbers[baseline]
    }
    return {
        name: {key: values[key] - mean for key, mean in means.items()}
        for name, values in numbers.items()
        if name not in base
    }


def other_seeds(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that differ only in the mark of a seed (-s1, -s2)."""
    return _of_row(without_mark(name), names)


def _of_row(system: str, names: Iterable[str]) -> list[str]:
    """Return the systems with the name of a row, or with this name and a seed's mark."""
    return [name for name in names if system in (name, without_mark(name))]
