"""The tables made of a result (the object saved as scores.json): scores, significance, training
seeds, lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nmtkit.records import LengthResult, Scores
from nmtkit.score import lengths, seeds
from nmtkit.score.metrics import METRICS
from nmtkit.score.significance import TESTS
from nmtkit.tables.table import Column, Estimate, Table

STEMS = ("table", "significance", "seeds", "lengths", "lengths-by-seed")
"""Of the files of every table that a result can have."""


def tables(result: Scores) -> dict[str, Table]:
    """Every table a result has, by the stem of its files, in the order in which they are
    printed.
    """
    found = {"table": main_table(result)}
    if len(result.systems) > 1:
        found["significance"] = significance_table(result)
    if result.has_seeds:
        found["seeds"] = seeds_table(result)
    if result.by_length:
        found["lengths"] = length_table(result)
        if result.has_seeds:
            found["lengths-by-seed"] = seed_length_table(result)
    return found


def main_table(result: Scores) -> Table:
    """One row a system; differences and p only where there is something to compare with."""
    columns = [Column("system", "system", left=True), Column("bleu", "BLEU [95%]", interval=True)]
    several = len(result.systems) > 1
    if several:
        columns += [
            Column("delta", "Δ [95%]", signed=True, interval=True),
            p_column(result, result.test, "p", "p"),
        ]
    others = [key for key in result.signatures if key != "bleu"]
    columns += [Column(key, METRICS[key].header) for key in others] + [
        Column("length_ratio", "length", decimals=3)
    ]
    rows = []
    for system in result.systems:
        row: list[Any] = [system.name, system.scores["bleu"].estimate]
        if several:
            row += (
                [system.differences["bleu"], system.tests[result.test]["bleu"].p]
                if system.tests
                else [None, None]
            )
        rows.append(
            [*row, *(system.scores[key].value for key in others), system.length_ratio.value]
        )
    return Table("score", _title(result), columns, rows, _main_notes(result, several))


def significance_table(result: Scores, metrics: Sequence[str] = tuple(METRICS)) -> Table:
    """One row a system and metric, one column a test.

    Args:
        metrics: only these.
    """
    columns = [
        Column("system", "system", left=True),
        Column("metric", "metric", left=True),
        Column("delta", "Δ [95%]", signed=True, interval=True),
    ]
    columns += [p_column(result, test, f"p_{test}", TESTS[test].header) for test in result.tests]
    rows = []
    for system in result.systems:
        for key, delta in system.differences.items():
            if key in metrics:
                rows.append(
                    [
                        system.name,
                        METRICS[key].header,
                        delta,
                        *(system.tests[test][key].p for test in result.tests),
                    ]
                )
    return Table(
        "significance",
        f"{result.set}: p against {result.baseline}, by test",
        columns,
        rows,
        _test_notes(result),
    )


def seeds_table(result: Scores) -> Table:
    """One row a group of systems that differ in the training seed alone."""
    assert result.seeds is not None
    against = f", Δ against {result.seeds.baseline}" if len(result.seeds.groups) > 1 else ""
    return seeds.table(
        result.seeds,
        f"{_title(result)}, by training seed{against}",
        [*_signatures(result), _version(result)],
    )


def length_table(result: Scores) -> Table:
    """The table by length of a result that has one."""
    assert result.by_length is not None
    draws = result.resampling
    notes = [
        f"BLEU: {result.signatures['bleu']}",
        (
            f"[95%]: percentile interval over {draws.resamples} resamples inside the group, seed"
            f" {draws.seed}; a small group has a wide one"
        ),
    ]
    p = None
    if len(result.systems) > 1:
        p = p_column(result, result.test, "p", "p")
        note = (
            f"Δ, p: against {result.baseline} inside the group, {_test(result, result.test)}; no p"
            f" below {lengths.FEWEST} sentences"
        )
        some = sum(row.p is not None for row in result.by_length.groups)
        notes.append(
            note + (f"; of {some} such p one in twenty is below 0.05 by luck alone" if some else "")
        )
    return lengths.table(result.by_length.groups, _length_title(result, result.by_length), notes, p)


def seed_length_table(result: Scores) -> Table:
    """The table by length with one row a group of training seeds, of a result that has both."""
    assert result.seeds is not None and result.by_length is not None
    title = f"{_length_title(result, result.by_length)}, by training seed"
    return seeds.length_table(
        result.seeds, result.by_length.groups, title, [f"BLEU: {result.signatures['bleu']}"]
    )


def _length_title(result: Scores, by_length: LengthResult) -> str:
    return f"{result.set} by source length in {by_length.unit} (groups: {by_length.buckets})"


def p_column(result: Scores, test: str, key: str, header: str) -> Column:
    """p as fine as the resamples allow: none in 1000 is p < 0.001, not 0."""
    finest = result.tests[test].finest
    decimals = max(3, -math.floor(math.log10(finest))) if finest else 3
    return Column(key, header, decimals=decimals, below=finest or 10.0**-decimals)


def _title(result: Scores) -> str:
    return (
        f"{result.set}: {result.sentences:,} sentences, {result.references}"
        f" reference{'s' if result.references > 1 else ''}"
    )


def _signatures(result: Scores) -> list[str]:
    return [f"{METRICS[key].header}: {signature}" for key, signature in result.signatures.items()]


def _version(result: Scores) -> str:
    return f"nmtkit {result.version}" + (f", commit {result.commit}" if result.commit else "")


def _test(result: Scores, test: str) -> str:
    return f"{result.tests[test].name}: {result.tests[test].reading}"


def _main_notes(result: Scores, several: bool) -> list[str]:
    draws = result.resampling
    notes = _signatures(result)
    notes.append(
        f"[95%]: percentile interval, {draws.resamples} resamples of the test set, seed"
        f" {draws.seed}; other intervals: --format json"
    )
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
    notes = []
    for test in result.tests:
        settings = {system.tests[test]["bleu"].setting for system in compared}
        notes.append(
            f"{TESTS[test].header}: {_test(result, test)}"
            + (f" ({settings.pop()})" if len(settings) == 1 else "")
        )
    if any(
        delta == Estimate(0.0, 0.0, 0.0)
        for system in compared
        for delta in system.differences.values()
    ):
        notes.append(
            "a difference of 0 in every resample: the outputs count alike, and sacreBLEU's p, small"
            " by definition, says nothing"
        )
    notes.append(
        "a p is comparable only with one of the same test; none says anything of the luck of a"
        " training seed (--group-by seed)"
    )
    return notes
