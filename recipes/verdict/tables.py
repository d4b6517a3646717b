"""The tables of the results: scores with tests, costs, and what analyses found."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from nmtkit import console, files
from nmtkit.analyze.timing import processor_of
from nmtkit.errors import DataError
from nmtkit.records import Part, Record, StoredFinding, SystemConfig, load
from nmtkit.score.metrics import Metric, Scorer
from nmtkit.score.resampling import Draws
from nmtkit.score.seeds import FEWEST_FREEDOM, Resampled, over_seeds
from nmtkit.score.significance import holm
from nmtkit.score.stored_scores import Scores
from nmtkit.tables.table import Column, Estimate, StoredTable, Table, text_column
from recipes.verdict.folders import REPEAT, Folders, json_lines, read_json
from recipes.verdict.listing import Item, Row

BASELINE = "transformer"
Found = Mapping[Row, Sequence[Path]]
"""The results of the finished seeds of each row of a corpus, the baseline first."""
SYSTEM = (text_column("system"), Column("n", "seeds"))
P_VALUES = (Column("p", "p", decimals=3), Column("p_holm", "p (Holm)", decimals=3))


def _difference(key: str, heading: str) -> Column:
    return Column(key, f"{heading} [95%]", signed=True, interval=True)


SCORES = (
    *SYSTEM,
    Column("bleu", "BLEU"),
    Column("half_range", "±"),
    _difference("delta", "Δ"),
    *P_VALUES,
    Column("chrf", "chrF"),
)
LENGTHS = (
    *SYSTEM,
    _difference("short", "Δ short"),
    _difference("long", "Δ long"),
    _difference("growth", "growth"),
    *P_VALUES,
)
COSTS = (
    *SYSTEM,
    Column("parameters", "parameters", decimals=0),
    text_column("rate", "lr"),
    Column("dev_bleu", "dev BLEU"),
    Column("best_at", "best at update", decimals=0),
    Column("seconds", "s an update", decimals=3),
    Column("over", "÷ baseline"),
    Column("hours", "core hours"),
    Column("choice", "for the rate"),
)

SEED_ERROR = (
    "the error of a single seed is that of all systems with several seeds, or not counted with"
    f" fewer than {FEWEST_FREEDOM} degrees of freedom"
)
"""The note on systems with one seed."""


class Best(Part):
    """The best validation of a system."""

    step: int
    dev_bleu: float


class Seconds(Part):
    """Processor seconds of a system."""

    training: float
    validation: float


class Summary(Record):
    """What the tables read of a system's summary.json."""

    again = REPEAT
    parameters: int
    rate: str
    updates: Annotated[int, Field(gt=0)]
    best: Best
    seconds: Seconds


def tables(items: Iterable[Item], folders: Folders) -> list[Table]:
    """Return the tables of each corpus.

    A test set whose texts are not here is left out, with a warning.

    Raises: DataError as `finished`.
    """
    made: list[Table] = []
    for found in finished(items, folders):
        row, first = next(iter(found.items()))
        sets = sorted(path.stem for path in (first[0] / "scores").glob("*.json"))
        for name in sets.copy():
            if not all(folders.texts(row.dataset, f"{name}.{kind}") for kind in ("src", "ref")):
                console.warn(f"{row.dataset}: no texts of {name}; --page prepares the corpus")
                sets.remove(name)
        made += [table(name, found, folders) for table in (scores, lengths) for name in sets]
        made.append(costs(found, folders))
        made += findings(found)
    return made


def finished(items: Iterable[Item], folders: Folders) -> list[Found]:
    """Return the results of each corpus on which the baseline and another system are finished.

    Raises: DataError if there is none.
    """
    corpora: dict[str, dict[Row, list[Path]]] = {}
    for item in sorted(items, key=lambda item: item.row.name != BASELINE):
        if (path := folders.result(item)) is not None:
            corpora.setdefault(item.row.dataset, {}).setdefault(item.row, []).append(path)
    complete = [
        found for found in corpora.values() if next(iter(found)).name == BASELINE and len(found) > 1
    ]
    if not complete:
        message = f"no corpus has results of '{BASELINE}' and another system yet"
        raise DataError(
            message, where=folders.results, hint="bash recipes/verdict.sh trains the list"
        )
    return complete


def scores(name: str, found: Found, folders: Folders) -> Table:
    """Return the scores of a test set; p covers the choice of seeds and of sentences
    (`over_seeds`).
    """
    first = next(iter(found))
    scorer = _scorer(name, found, folders)
    draws = Draws(len(scorer.refs[0]))
    bleu, chrf = (_metrics(scorer, key, found, name) for key in ("bleu", "chrf"))
    resampled = {row: [Resampled.of(metric, draws) for metric in bleu[row]] for row in found}
    compared = against_first(resampled, draws.sentences, draws.seed)
    p_holm = corrected({row: p for row, (_, p) in compared.items()})
    rows = []
    for row in found:
        values = [metric.value for metric in bleu[row]]
        half_range = (max(values) - min(values)) / 2 if len(values) > 1 else None
        cells = [None] * 3 if row == first else [*compared[row], p_holm[row]]
        mean_chrf = statistics.fmean(metric.value for metric in chrf[row])
        mean_bleu = statistics.fmean(values)
        rows.append([row.name, len(values), mean_bleu, half_range, *cells, mean_chrf])
    title = f"{first.dataset}: {name}, {draws.sentences:,} lines"
    notes = [
        "BLEU, chrF: means over seeds; ±: half the range",
        f"Δ, p: BLEU against {BASELINE}; two-sided bootstrap ({draws.resamples:,} resamples) of"
        f" sentences and seeds; {SEED_ERROR}",
        holm_note(compared),
        f"BLEU: {bleu[first][0].signature}",
    ]
    return Table(f"{first.dataset}-{name}", title, SCORES, rows, notes)


def lengths(name: str, found: Found, folders: Folders) -> Table:
    """Return how the differences to the baseline on a test set grow with the length of the source.

    The third of the sentences with the shortest sources and the third with the longest are
    resampled separately.
    """
    first = next(iter(found))
    sources = _text(name, first, folders, "src")[0]
    unit, counts = "words", np.array([len(line.split()) for line in sources])
    low, high = np.quantile(counts, [1 / 3, 2 / 3])
    if low == high:  # Chinese has no spaces
        unit, counts = "characters", np.array([len(line) for line in sources])
        low, high = np.quantile(counts, [1 / 3, 2 / 3])
    parts = [np.flatnonzero(counts <= low), np.flatnonzero(counts >= high)]
    draws = [Draws(len(part), seed=seed) for seed, part in enumerate(parts, 1)]
    bleu = _metrics(_scorer(name, found, folders), "bleu", found, name)
    short, long = (
        {row: [Resampled.of(m.part(part), of_part) for m in bleu[row]] for row in found}
        for part, of_part in zip(parts, draws, strict=True)
    )
    growth = {row: list(map(_growth, short[row], long[row])) for row in found}
    of_short = against_first(short, len(parts[0]), draws[0].seed)
    of_long = against_first(long, len(parts[1]), draws[1].seed)
    of_growth = against_first(growth, min(map(len, parts)), draws[0].seed)
    p_holm = corrected({row: p for row, (_, p) in of_growth.items()})
    rows = [
        [row.name, len(bleu[row]), of_short[row][0], of_long[row][0], *of_growth[row], p]
        for row, p in p_holm.items()
    ]
    title = (
        f"{first.dataset}: {name}, Δ BLEU of {len(parts[0]):,} short sources (up to {low:g} {unit})"
        f" and {len(parts[1]):,} long ones (from {high:g})"
    )
    notes = [
        f"Δ: BLEU against {BASELINE}; growth: Δ of long sources - Δ of short ones",
        f"p, [95%]: two-sided bootstrap ({draws[0].resamples:,} resamples) of sentences and seeds;"
        f" {SEED_ERROR}",
        holm_note(of_growth),
    ]
    return Table(f"{first.dataset}-{name}-lengths", title, LENGTHS, rows, notes)


def against_first(
    resampled: Mapping[Row, Sequence[Resampled]], sentences: int, seed: int
) -> dict[Row, tuple[Estimate, float | None]]:
    """Return the difference of each row to the first one, with its p (`over_seeds`)."""
    values = {row: [score.value for score in scores] for row, scores in resampled.items()}
    first, *rows = resampled
    return {
        row: over_seeds(
            resampled[row],
            resampled[first],
            sentences,
            seed,
            [values[other] for other in values if other not in (first, row)],
            if_unknown=True,
        )
        for row in rows
    }


def corrected(p_values: Mapping[Row, float | None]) -> dict[Row, float | None]:
    """Return each p after Holm's correction over the systems of the same part of the list.

    Systems of other parts, such as sweeps, do not make the correction stricter.
    """
    by_row = dict(p_values)
    for part in {row.part for row in p_values}:
        rows = [row for row in p_values if row.part == part]
        by_row |= zip(rows, holm([p_values[row] for row in rows]), strict=True)
    return by_row


def holm_note(compared: Iterable[Row]) -> str:
    """Return which comparisons a p is corrected for."""
    parts = Counter(row.part for row in compared)
    each = ", ".join(f"{count} of {part}" for part, count in parts.items())
    return f"p (Holm): corrected for the comparisons of each part of the list ({each})"


def _growth(short: Resampled, long: Resampled) -> Resampled:
    return Resampled(long.value - short.value, long.samples - short.samples)


def _text(name: str, row: Row, folders: Folders, kind: str) -> list[list[str]]:
    """Return the lines of the sources (src) or of each of the references (ref) of a test set."""
    return [list(files.text_lines(path)) for path in folders.texts(row.dataset, f"{name}.{kind}")]


def _scorer(name: str, found: Found, folders: Folders) -> Scorer:
    first = next(iter(found))
    language = load(Scores, found[first][0] / "scores" / f"{name}.json").language
    return Scorer(_text(name, first, folders, "ref"), language)


def _metrics(scorer: Scorer, key: str, found: Found, name: str) -> dict[Row, list[Metric]]:
    """Return a metric of every translation of a test set."""
    return {row: [_score(scorer, key, path, name) for path in found[row]] for row in found}


def _score(scorer: Scorer, key: str, result: Path, name: str) -> Metric:
    path = result / "translate" / name / "hyp.txt"
    lines = list(files.text_lines(path))
    try:
        return scorer.score(key, lines)
    except DataError as error:
        raise DataError(error.message, where=path, hint=REPEAT) from None


def costs(found: Found, folders: Folders) -> Table:
    """Return what the systems of a corpus cost: means over seeds, sums of hours."""
    rows: list[list[Any]] = []
    for row, paths in found.items():
        summaries = {path: load(Summary, path / "summary.json") for path in paths}
        timed = [path for path in paths if _was_on_a_cpu(path)]
        configs = [load(SystemConfig, path / "config.toml") for path in timed]
        processors = {processor_of(config.hardware) for config in configs}
        spent = [summaries[path].seconds for path in timed]
        updates = sum(summaries[path].updates for path in timed)
        seconds = sum(of.training for of in spent) / updates if updates else None
        if not rows:  # the baseline
            of_baseline = seconds, processors
        alike = seconds and of_baseline[0] and processors == of_baseline[1]
        rate = summaries[paths[0]].rate
        rows.append(
            [
                row.name,
                len(paths),
                summaries[paths[0]].parameters,
                rate,
                statistics.fmean(of.best.dev_bleu for of in summaries.values()),
                statistics.fmean(of.best.step for of in summaries.values()),
                seconds,
                seconds / of_baseline[0] if alike else None,
                sum(of.training + of.validation for of in spent) / 3600 if spent else None,
                _hours_of_other_rates(row, rate, folders),
            ]
        )
    notes = [
        "s an update, core hours: processor seconds of trainings on a CPU; other work of the"
        " machine makes them longer; ÷ baseline: only with the baseline's CPU and number type",
        "core hours: of all seeds; for the rate: those of the learning rates that were not chosen",
    ]
    dataset = next(iter(found)).dataset
    return Table(f"{dataset}-costs", f"{dataset}: costs", COSTS, rows, notes)


def _was_on_a_cpu(path: Path) -> bool:
    """True if no training of a system was on a GPU."""
    calls = json_lines(path / "history.jsonl")
    devices = [str(call["device"]) for call in calls if call["stage"] == "train"]
    return not any(device.startswith(("cuda", "mps")) for device in devices)


def _hours_of_other_rates(row: Row, rate: str, folders: Folders) -> float:
    """Return the hours of the trainings with learning rates that were not chosen."""
    choice = folders.rates(row)
    trials = [] if choice is None else read_json(choice)["trials"]
    others = [trial for trial in trials if trial["rate"] != rate]
    return sum(trial["training_seconds"] + trial["validation_seconds"] for trial in others) / 3600


def findings(found: Found) -> list[Table]:
    """Return a table of each analysis, with the systems side by side."""
    dataset = next(iter(found)).dataset
    by_label = findings_by_label(path for paths in found.values() for path in paths)
    return [
        side_by_side(f"{dataset}-{label}", [finding.table for finding in of_label])
        for label, of_label in by_label.items()
    ]


def findings_by_label(results: Iterable[Path]) -> dict[str, list[StoredFinding]]:
    """Return the findings of each analysis, in the order of the systems' results."""
    by_label: dict[str, list[StoredFinding]] = {}
    for result in results:
        for path in sorted((result / "analyze").glob("*.json")):
            by_label.setdefault(path.stem, []).append(load(StoredFinding, path))
    return by_label


def side_by_side(name: str, tables: Sequence[StoredTable]) -> Table:
    """Join tables of single systems: the columns that all of them have, then the columns of each
    system. Rows with the same words become one row.
    """
    of_all = [c for c in tables[0].columns if all(c in table.columns for table in tables)]
    all_rows = [row for table in tables for row in table.rows]
    words = [c.key for c in of_all if any(isinstance(row[c.key], str) for row in all_rows)]
    columns, rows = list(of_all), {}
    for table in tables:
        more = [column for column in table.columns if column not in of_all]
        for row in table.rows:
            cells = {column.key: row[column.key] for column in of_all}
            place = rows.setdefault(tuple(row[key] for key in words), cells)
            place |= {column.key: row[column.key] for column in more}
        columns += more
    cells = [[row.get(column.key) for column in columns] for row in rows.values()]
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return Table(name, tables[0].title, columns, cells, list(notes))
