"""The tables of a result (the record saved as scores.json): scores, significance, training seeds,
lengths; and how they are printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nmtkit import console
from nmtkit.errors import counted
from nmtkit.records import GroupScore, LengthResult, LengthScore, Scores
from nmtkit.score import lengths, seeds
from nmtkit.score.metrics import decimals, header
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import few_note
from nmtkit.score.significance import LEVEL, TESTS
from nmtkit.tables.fitting import as_wide
from nmtkit.tables.table import Column, Estimate, Table, text_column

FIRST = ("bleu", "delta", "p", "chrf", "ter", "length_ratio")
"""The columns that a narrow terminal keeps, the most important first."""
DELTA = Column("delta", "Δ [95%]", signed=True, interval=True)


def tables(result: Scores) -> dict[str, Table]:
    """Return every table of a result by the stem of its files, in the order of printing."""
    by_stem = {"table": main_table(result)}
    if len(result.systems) > 1:
        by_stem["significance"] = significance_table(result)
    if result.has_seeds:
        by_stem["seeds"] = seeds_table(result)
    by_stem |= length_tables(result)
    if result.by_length and result.has_seeds:
        by_stem["lengths-by-seed"] = seed_length_table(result)
    return by_stem


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
        by_system = "lengths" in block and block["lengths"].name == "lengths"
        if form == "table" and result.by_length and by_system:
            console.put("\n" + as_wide(lengths.bars(result.by_length.groups), console.width()))


def _print_csv(set_names: Sequence[str], blocks: Sequence[dict[str, Table]]) -> None:
    """Print the tables of each kind as one, with a column `set` and the columns of the widest
    table.
    """
    for stem in dict.fromkeys(stem for block in blocks for stem in block):
        if stem == "significance":
            continue
        tables = {
            name: block[stem]
            for name, block in zip(set_names, blocks, strict=True)
            if stem in block
        }
        columns = max((table.columns for table in tables.values()), key=len)
        rows = []
        for name, table in tables.items():
            for row in table.rows:
                cells = dict(zip([c.key for c in table.columns], row, strict=True))
                rows.append([name, *(cells.get(column.key) for column in columns)])
        if stem != "scores":
            console.put()
        Table("score", "", [text_column("set"), *columns], rows).print("csv")


def _printed(result: Scores, options: ScoreOptions) -> dict[str, Table]:
    """Return the tables of a result that are asked for, in their order."""
    by_seed = options.group_by is not None
    block = {"scores": seeds_table(result) if by_seed else main_table(result)}
    if len(result.systems) > 1 and not by_seed:
        block["significance"] = significance_table(result, ["bleu", *result.asked])
    if result.paper and options.paper:
        block["paper"] = result.paper.table
    if options.length_groups is not None and result.by_length:
        block |= length_tables(result)
        if by_seed and result.has_seeds:
            block["lengths"] = seed_length_table(result)
    return block


def main_table(result: Scores) -> Table:
    """Return one row a system; differences and p only if there is something to compare with."""
    several = len(result.systems) > 1
    further = [key for key in result.signatures if key != "bleu"]
    columns = [text_column("system"), Column("bleu", "BLEU [95%]", interval=True)]
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
    first = () if result.asked_further else FIRST  # then it is turned, not cut
    return Table("score", _title(result), columns, rows, _main_notes(result, several), first)


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
    columns += [p_column(result, test, f"p_{test}", _header_of(test)) for test in result.tests]
    rows = [
        [
            *(system.name, header(key), delta),
            *(system.tests[test][key].p for test in result.tests),
        ]
        for system in result.systems
        for key, delta in system.differences.items()
        if key in metrics
    ]
    title = f"{result.set}: p against {result.baseline}, by test"
    first = ["metric", "delta", f"p_{result.test}"]
    return Table("significance", title, columns, rows, _test_notes(result), first)


def seeds_table(result: Scores) -> Table:
    """Return one row a group of systems that differ in the training seed."""
    assert result.seeds is not None
    against = f", Δ against {result.seeds.baseline}" if len(result.seeds.groups) > 1 else ""
    title = f"{_title(result)}, by training seed{against}"
    notes = [*_signatures(result), *few_note(result.sentences), *result.remarks, _version(result)]
    return seeds.table(result.seeds, title, notes)


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
    of_bleu, draws = key == "bleu", result.resampling
    groups: Sequence[LengthScore | GroupScore] = (
        by_length.groups if of_bleu else by_length.further[key]
    )
    notes = [
        f"{header(key)}: {result.signatures[key]}",
        (
            f"[95%]: percentile interval over {draws.resamples} resamples inside the group, "
            f"seed {draws.seed}; small groups have wide intervals"
        ),
        *few_note(*(score.sentences for score in groups)),
        *result.remarks,
    ]
    column = metric_column(result, key, True)
    columns, rows = [*lengths.COLUMNS[:3], column], [lengths.row(score) for score in groups]
    if of_bleu:
        columns.append(lengths.COLUMNS[-1])
    if len(result.systems) > 1:
        delta = replace(DELTA, decimals=column.decimals)
        columns[4:4] = [delta, p_column(result, result.test, "p", "p")]
        for row, score in zip(rows, groups, strict=True):
            row[4:4] = [score.difference, score.p]
        note = f"Δ, p: against {result.baseline} inside the group, {_test(result, result.test)}"
        if tests := sum(score.p is not None for score in groups):
            by_chance = tests * TESTS[result.test].by_chance
            note += f"; about {by_chance:.1f} of {tests} such p are below {LEVEL:g} by chance"
        notes.append(note)
    name = "lengths" if of_bleu else f"lengths-{key}"
    first = ["system", key, "delta", "p", "sentences"]
    return Table(name, _length_title(result, by_length), columns, rows, notes, first)


def seed_length_table(result: Scores) -> Table:
    """Return one row a length group and group of training seeds."""
    by_length = result.by_length
    assert result.seeds is not None and by_length is not None
    title = f"{_length_title(result, by_length)}, by training seed"
    notes = [f"BLEU: {result.signatures['bleu']}", *result.remarks]
    return seeds.length_table(result.seeds, by_length.groups, title, notes)


def _length_title(result: Scores, by_length: LengthResult) -> str:
    return f"{result.set} by source length in {by_length.unit} (groups: {by_length.buckets})"


def p_column(result: Scores, test: str, key: str, header: str) -> Column:
    """Return a column of p as fine as the resamples allow: none in 1000 is p < 0.001, not 0."""
    finest = result.tests[test].finest
    decimals = max(3, -math.floor(math.log10(finest))) if finest else 3
    return Column(key, header, decimals=decimals, below=finest or 10.0**-decimals)


def _title(result: Scores) -> str:
    return (
        f"{result.set}: {result.sentences:,} sentences, {counted(result.references, 'reference')}"
    )


def _signatures(result: Scores) -> list[str]:
    return [f"{header(key)}: {signature}" for key, signature in result.signatures.items()]


def _version(result: Scores) -> str:
    return f"nmtkit {result.version}" + (f", commit {result.commit}" if result.commit else "")


def _test(result: Scores, test: str) -> str:
    return f"{result.tests[test].name}: {result.tests[test].reading}"


def _header_of(test: str) -> str:
    """Return the name of a test, which another version may have run, as the head of a column."""
    return TESTS[test].header if test in TESTS else test


def _main_notes(result: Scores, several: bool) -> list[str]:
    draws = result.resampling
    notes = _signatures(result)
    notes.append(
        f"[95%]: percentile interval, {draws.resamples} resamples of the test set, seed"
        f" {draws.seed}; other intervals: --format json"
    )
    notes += few_note(result.sentences)
    if several:
        notes.append(f"Δ, p: BLEU against {result.baseline}; {_test(result, result.test)}")
    else:
        notes.append("one system: nothing to compare with")
    empty = [f"{s.name} {s.empty_hypotheses}" for s in result.systems if s.empty_hypotheses]
    if empty:
        notes.append("empty hypotheses: " + ", ".join(empty))
    if result.empty_references:
        notes.append(f"empty references: {result.empty_references}")
    return [*notes, *result.remarks, _version(result)]


def _test_notes(result: Scores) -> list[str]:
    compared = [system for system in result.systems if system.tests]
    notes = [*few_note(result.sentences), *result.remarks]
    for test in result.tests:
        note = f"{_header_of(test)}: {_test(result, test)}"
        settings = {system.tests[test]["bleu"].setting for system in compared}
        notes.append(note + (f" ({settings.pop()})" if len(settings) == 1 else ""))
    nothing = Estimate(0.0, 0.0, 0.0)
    if any(nothing in system.differences.values() for system in compared):
        notes.append(
            "a difference of 0 in every resample: the outputs score the same, and "
            "sacreBLEU's p, small by definition, means nothing"
        )
    notes.append(
        "compare a p only with a p of the same test; no p accounts for the training "
        "seed (--group-by seed)"
    )
    return notes
