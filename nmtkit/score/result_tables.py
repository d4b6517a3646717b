"""The tables of a result (the record saved as scores.json): scores, significance, training seeds
and lengths. `print_results` prints the results of one or several test sets on stdout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nmtkit import console
from nmtkit.errors import counted
from nmtkit.score import lengths
from nmtkit.score.metrics import decimals, header
from nmtkit.score.notes import length_notes, main_notes, seed_notes, significance_notes
from nmtkit.score.options import ScoreOptions
from nmtkit.score.significance import LEVEL, header_of_test
from nmtkit.score.stored_scores import (
    GroupScore,
    LengthScore,
    Scores,
    SeedDifference,
)
from nmtkit.tables.fitting import as_wide
from nmtkit.tables.table import Column, Table, interval_column, text_column

FIRST = ("bleu", "delta", "p", "chrf", "ter", "length_ratio")
"""The columns that a narrow terminal keeps, the most important first."""
DELTA = interval_column("delta", "Δ", signed=True)
P_SEEDS = Column("p", "p", decimals=3, below=0.001)
SEED_COLUMNS = (
    text_column("system"),
    Column("n", "seeds"),
    Column("bleu", "BLEU mean"),
    Column("bleu_half_range", "± half-range"),
    Column("bleu_deviation", "deviation"),
)
SEED_DIFFERENCES = (
    Column("delta", "Δ mean", signed=True, interval=True),
    Column("better", f"better, p<{LEVEL:g}"),
    Column("pairs", "of"),
    P_SEEDS,
    replace(P_SEEDS, key="p_holm", header="p (Holm)"),
)
NAMES = {
    "set",
    *FIRST,
    *(c.key for c in (*lengths.COLUMNS, *SEED_COLUMNS, *SEED_DIFFERENCES)),
}
"""The names of all columns except those of metrics; no external metric may have one of them."""


def tables(result: Scores) -> dict[str, Table]:
    """Return every table of a result by the stem of its files, in the order of printing."""
    by_stem = {"table": main_table(result)}
    if result.compared:
        by_stem["significance"] = significance_table(result)
    if result.has_seeds:
        by_stem["seeds"] = seeds_table(result)
    return by_stem | length_tables(result)


def main_table(result: Scores) -> Table:
    """Return one row a system, with its difference to the baseline and p if there are several."""
    further = [key for key in result.signatures if key != "bleu"]
    columns = [text_column("system"), interval_column("bleu", "BLEU")]
    if result.compared:
        columns += [DELTA, p_column(result, result.test)]
    columns += [metric_column(result, key, key in result.asked) for key in further]
    columns.append(Column("length_ratio", "length", decimals=3))
    rows = []
    for system in result.systems:
        row = [system.name, system.scores["bleu"].estimate]
        if result.compared:
            p = system.tests[result.test]["bleu"].p if system.tests else None
            row += [system.differences.get("bleu"), p]
        for key in further:
            score = system.scores[key]
            row.append(score.estimate if key in result.asked else score.value)
        rows.append([*row, system.length_ratio.value])
    notes, turns = main_notes(result), bool(result.asked_further)
    return Table("score", _title(result), columns, rows, notes, FIRST, turns)


def metric_column(result: Scores, key: str, interval: bool) -> Column:
    """Return the column of a metric, with 95% intervals if `interval`."""
    shown = decimals(key, (system.scores[key].value for system in result.systems))
    return Column(key, header(key) + " [95%]" * interval, shown, interval=interval)


def significance_table(result: Scores, metrics: Sequence[str] | None = None) -> Table:
    """Return one row a system and metric, one column a test.

    Args:
        metrics: the metrics to show; None for all.
    """
    metrics = metrics or list(result.signatures)
    digits = max(metric_column(result, key, False).decimals for key in metrics)
    columns = [text_column("system"), text_column("metric"), replace(DELTA, decimals=digits)]
    columns += [
        replace(p_column(result, test), key=f"p_{test}", header=header_of_test(test))
        for test in result.tests
    ]
    rows = [
        [system.name, header(key), delta, *(system.tests[test][key].p for test in result.tests)]
        for system in result.systems
        for key, delta in system.differences.items()
        if key in metrics
    ]
    title = f"{result.set}: p against {result.baseline}, by test"
    first = ["metric", "delta", f"p_{result.test}"]
    return Table("significance", title, columns, rows, significance_notes(result, metrics), first)


def seeds_table(result: Scores) -> Table:
    """Return one row a group of systems that differ in the training seed: BLEU with its spread and
    its difference to the baseline's group, and the means of the other metrics.
    """
    assert result.seeds is not None
    groups = result.seeds.groups
    several = len(groups) > 1
    further = [key for key in groups[0].scores if key != "bleu"]
    columns = [*SEED_COLUMNS, *(SEED_DIFFERENCES if several else ())]
    for key in further:
        means = (group.scores[key].mean for group in groups)
        columns.append(Column(key, header(key), decimals(key, means)))
    rows = []
    for group in groups:
        bleu = group.scores["bleu"]
        half_range = bleu.half_range if bleu.n > 1 else None  # one value has no range
        row = [group.name, bleu.n, bleu.mean, half_range, bleu.deviation]
        if several:
            row += _difference_cells(group.against.get("bleu"))
        rows.append([*row, *(group.scores[key].mean for key in further)])
    against = f", Δ against {result.seeds.baseline}" if several else ""
    title = f"{_title(result)}, by training seed{against}"
    first = ["bleu", "bleu_half_range", "delta", "n", "p_holm", "p", "better", "pairs"]
    return Table("seeds", title, columns, rows, seed_notes(result, result.seeds), first)


def _difference_cells(against: SeedDifference | None) -> list[Any]:
    if against is None:
        return [None] * 5
    pairs = against.pairs
    tested = [pair.better and pair.p < LEVEL for pair in pairs if pair.p is not None]
    counts = [sum(tested) if tested else None, len(pairs) or None]
    return [against.estimate, *counts, against.p, against.p_holm]


def length_tables(result: Scores) -> dict[str, Table]:
    """Return the table of length groups of each metric that was asked for, by the stem of its
    files; none if the result has no length groups. A table has one row a group and system.
    """
    by_length = result.by_length
    if by_length is None:
        return {}
    tables = {}
    scores: dict[str, Sequence[LengthScore | GroupScore]] = {"bleu": by_length.groups}
    for metric, groups in (scores | by_length.further).items():
        column = metric_column(result, metric, True)
        columns, rows = [*lengths.COLUMNS[:3], column], [lengths.row(group) for group in groups]
        name = "lengths"
        title = f"{result.set} by length in {by_length.unit} (groups: {by_length.buckets})"
        if metric == "bleu":
            columns.append(lengths.COLUMNS[-1])
        else:
            name += f"-{metric}"
            title += f": {header(metric)}"
        if result.compared:
            columns[4:4] = [replace(DELTA, decimals=column.decimals), p_column(result, result.test)]
            for row, group in zip(rows, groups, strict=True):
                row[4:4] = [group.difference, group.p]
        first = ["system", metric, "delta", "p", "sentences"]
        notes = length_notes(result, metric, groups)
        tables[name] = Table(name, title, columns, rows, notes, first)
    return tables


def p_column(result: Scores, test: str) -> Column:
    """Return the column of p of a test, as fine as the resamples allow: if none of 1,000 resamples
    counts, p is shown as <0.001.
    """
    finest = result.tests[test].finest
    decimals = max(3, -math.floor(math.log10(finest))) if finest else 3
    return Column("p", "p", decimals=decimals, below=finest or 10.0**-decimals)


def _title(result: Scores) -> str:
    sentences = counted(result.sentences, "sentence")
    return f"{result.set}: {sentences}, {counted(result.references, 'reference')}"


def print_results(results: Sequence[Scores], options: ScoreOptions) -> None:
    """Print results, one a test set, on stdout. CSV gets a column `set`, JSON is one list.

    CSV has only the scores. If they are asked for, the scores by length and those of a paper follow
    after blank lines. Other forms have the significance of BLEU and of the metrics that are asked
    for. The significance of all metrics is in JSON and in the files of a run.
    """
    form = options.output_format
    if form == "json":
        console.print_json([result.model_dump() for result in results])
        return
    blocks = {result.set: _printed(result, options) for result in results}
    if form == "csv":
        _print_csv(blocks)
        return
    for number, result in enumerate(results):
        for stem, table in blocks[result.set].items():
            if number or stem != "scores":
                console.put()
            table.print(form)
        if form == "table" and result.by_length and "lengths" in blocks[result.set]:
            console.put("\n" + as_wide(lengths.bars(result.by_length.groups), console.width()))


def _print_csv(blocks: Mapping[str, Mapping[str, Table]]) -> None:
    """Print the tables of each kind as one, with a column `set` and the columns of all tables."""
    for stem in dict.fromkeys(stem for block in blocks.values() for stem in block):
        if stem == "significance":
            continue
        tables = {name: block[stem] for name, block in blocks.items() if stem in block}
        if stem != "scores":
            console.put()
        _joined(tables).print("csv")


def _joined(tables: Mapping[str, Table]) -> Table:
    """Return the tables of several sets as one."""
    widest_first = sorted(tables.values(), key=lambda table: -len(table.columns))
    columns = {column.key: column for table in widest_first for column in table.columns}
    rows = []
    for name, table in tables.items():
        for row in table.rows:
            cells = dict(zip([c.key for c in table.columns], row, strict=True))
            rows.append([name, *map(cells.get, columns)])
    return Table("score", "", [text_column("set"), *columns.values()], rows)


def _printed(result: Scores, options: ScoreOptions) -> dict[str, Table]:
    """Return the tables of a result that are asked for, in the order of printing."""
    by_seed = options.group_by is not None
    block = {"scores": seeds_table(result) if by_seed else main_table(result)}
    if result.compared and not by_seed:
        block["significance"] = significance_table(result, ["bleu", *result.asked_further])
    if result.paper and options.paper:
        block["paper"] = result.paper.table
    if options.length_groups is not None:
        block |= length_tables(result)
    return block
