"""The tables of a result (the record saved as scores.json): scores, significance, training seeds,
lengths; and how the results of a test set, or of several, are printed on stdout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
"""The names of all columns but those of metrics on request; no external metric may have one."""


def tables(result: Scores) -> dict[str, Table]:
    """Return every table of a result by the stem of its files, in the order of printing."""
    by_stem = {"table": main_table(result)}
    if len(result.systems) > 1:
        by_stem["significance"] = significance_table(result)
    if result.has_seeds:
        by_stem["seeds"] = seeds_table(result)
    return by_stem | length_tables(result)


def main_table(result: Scores) -> Table:
    """Return one row a system; differences and p only if there is something to compare with."""
    several = len(result.systems) > 1
    further = [key for key in result.signatures if key != "bleu"]
    columns = [text_column("system"), interval_column("bleu", "BLEU")]
    if several:
        columns += [DELTA, p_column(result, result.test, "p", "p")]
    columns += [metric_column(result, key, key in result.asked) for key in further]
    columns.append(Column("length_ratio", "length", decimals=3))
    rows = []
    for system in result.systems:
        row = [system.name, system.scores["bleu"].estimate]
        if several:
            p = system.tests[result.test]["bleu"].p if system.tests else None
            row += [system.differences.get("bleu"), p]
        for key in further:
            score = system.scores[key]
            row.append(score.estimate if key in result.asked else score.value)
        rows.append([*row, system.length_ratio.value])
    notes, turns = main_notes(result), bool(result.asked_further)
    return Table("score", _title(result), columns, rows, notes, FIRST, turns)


def metric_column(result: Scores, key: str, interval: bool) -> Column:
    """Return the column of a metric."""
    shown = decimals(key, (system.scores[key].value for system in result.systems))
    return Column(key, header(key) + " [95%]" * interval, shown, interval=interval)


def significance_table(result: Scores, metrics: Sequence[str] | None = None) -> Table:
    """Return one row a system and metric, one column a test.

    Args:
        metrics: only these; None for all.
    """
    metrics = metrics or list(result.signatures)
    digits = max(metric_column(result, key, False).decimals for key in metrics)
    columns = [text_column("system"), text_column("metric"), replace(DELTA, decimals=digits)]
    columns += [p_column(result, test, f"p_{test}", header_of_test(test)) for test in result.tests]
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
    """Return the table of the length groups of each metric that was asked for, if any, by the stem
    of its files.
    """
    metrics = ["bleu", *result.by_length.further] if result.by_length else []
    tables = [length_table(result, key) for key in metrics]
    return {table.name: table for table in tables}


def length_table(result: Scores, key: str) -> Table:
    """Return one row a length group and system, for BLEU with the length ratio.

    Args:
        key: the metric.
    """
    by_length = result.by_length
    assert by_length is not None
    of_bleu = key == "bleu"
    groups: Sequence[LengthScore | GroupScore] = (
        by_length.groups if of_bleu else by_length.further[key]
    )
    column = metric_column(result, key, True)
    columns, rows = [*lengths.COLUMNS[:3], column], [lengths.row(score) for score in groups]
    if of_bleu:
        columns.append(lengths.COLUMNS[-1])
    if len(result.systems) > 1:
        delta = replace(DELTA, decimals=column.decimals)
        columns[4:4] = [delta, p_column(result, result.test, "p", "p")]
        for row, score in zip(rows, groups, strict=True):
            row[4:4] = [score.difference, score.p]
    name = "lengths" if of_bleu else f"lengths-{key}"
    title = f"{result.set} by length in {by_length.unit} (groups: {by_length.buckets})"
    title += "" if of_bleu else f": {header(key)}"
    first = ["system", key, "delta", "p", "sentences"]
    notes = length_notes(result, key, groups)
    return Table(name, title, columns, rows, notes, first)


def p_column(result: Scores, test: str, key: str, header: str) -> Column:
    """Return a column of p as fine as the resamples allow: none in 1000 is p < 0.001, not 0."""
    finest = result.tests[test].finest
    decimals = max(3, -math.floor(math.log10(finest))) if finest else 3
    return Column(key, header, decimals=decimals, below=finest or 10.0**-decimals)


def _title(result: Scores) -> str:
    sentences = counted(result.sentences, "sentence")
    return f"{result.set}: {sentences}, {counted(result.references, 'reference')}"


def print_results(results: Sequence[Scores], options: ScoreOptions) -> None:
    """Print results, one a test set, on stdout. CSV gets a column `set`, JSON is one list.

    CSV has the scores alone (and each after a blank line, those by length and those of a paper, if
    asked for). Other forms have the significance of BLEU and of metrics that are asked for too;
    that of all metrics is in the files of a run, and in JSON.
    """
    form = options.output_format
    if form == "json":
        console.print_json([result.model_dump() for result in results])
        return
    blocks = [_printed(result, options) for result in results]
    if form == "csv":
        _print_csv([result.set for result in results], blocks)
        return
    for number, (result, block) in enumerate(zip(results, blocks, strict=True)):
        for stem, table in block.items():
            if number or stem != "scores":
                console.put()
            table.print(form)
        if form == "table" and result.by_length and "lengths" in block:
            console.put("\n" + as_wide(lengths.bars(result.by_length.groups), console.width()))


def _print_csv(set_names: Sequence[str], blocks: Sequence[dict[str, Table]]) -> None:
    """Print the tables of each kind as one, with a column `set` and the columns of all tables."""
    for stem in dict.fromkeys(stem for block in blocks for stem in block):
        if stem == "significance":
            continue
        tables = {
            name: block[stem]
            for name, block in zip(set_names, blocks, strict=True)
            if stem in block
        }
        widest_first = sorted(tables.values(), key=lambda table: -len(table.columns))
        columns = {column.key: column for table in widest_first for column in table.columns}
        rows = []
        for name, table in tables.items():
            for row in table.rows:
                cells = dict(zip([c.key for c in table.columns], row, strict=True))
                rows.append([name, *map(cells.get, columns)])
        if stem != "scores":
            console.put()
        Table("score", "", [text_column("set"), *columns.values()], rows).print("csv")


def _printed(result: Scores, options: ScoreOptions) -> dict[str, Table]:
    """Return the tables of a result that are asked for, in their order."""
    by_seed = options.group_by is not None
    block = {"scores": seeds_table(result) if by_seed else main_table(result)}
    if len(result.systems) > 1 and not by_seed:
        block["significance"] = significance_table(result, ["bleu", *result.asked_further])
    if result.paper and options.paper:
        block["paper"] = result.paper.table
    if options.length_groups is not None and result.by_length:
        block |= length_tables(result)
    return block
