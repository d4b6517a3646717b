"""Results on stdout, in the format asked for."""

from __future__ import annotations

from collections.abc import Sequence

from nmtkit import console
from nmtkit.records import Scores
from nmtkit.score import lengths
from nmtkit.score.views import (
    length_table,
    main_table,
    seed_length_table,
    seeds_table,
    significance_table,
)
from nmtkit.tables.table import Column, Table


def show(
    results: Sequence[Scores], output_format: str, by_length: bool, by_seed: bool = False
) -> None:
    """Print results on stdout in one of the formats; CSV gets a column `set`, JSON is one list.

    Args:
        results: one a test set.
        output_format: one of tables.FORMATS; CSV is the scores alone (and each after a blank line,
            those by length and those of a paper, if asked for), other forms have the significance
            of BLEU too (that of all metrics is in the files of a run, and in JSON).
        by_length: also the table by length.
        by_seed: one row a group of training seeds instead of one a system.
    """
    if output_format == "json":
        console.print_json([result.model_dump() for result in results])
        return
    tables = [
        (
            result,
            seeds_table(result) if by_seed else main_table(result),
            _lengths(result, by_seed) if by_length else None,
        )
        for result in results
    ]
    if output_format == "csv":
        _joined([(result.set, table) for result, table, _ in tables]).print("csv")
        if by_length:
            print()
            _joined([(result.set, table) for result, _, table in tables if table]).print("csv")
        if any(result.paper for result in results):
            print()
            _joined([(result.set, result.paper.table) for result in results if result.paper]).print(
                "csv"
            )
        return
    for number, (result, table, by) in enumerate(tables):
        if number:
            print()
        table.print(output_format)
        if len(result.systems) > 1 and not by_seed:
            print()
            significance_table(result, ["bleu"]).print(output_format)
        if result.paper:
            print()
            result.paper.table.print(output_format)
        if by:
            print()
            by.print(output_format)
            if result.by_length and output_format == "table" and by.name == "lengths":
                print("\n" + lengths.bars(result.by_length.groups))


def _lengths(result: Scores, by_seed: bool) -> Table:
    return seed_length_table(result) if by_seed and result.has_seeds else length_table(result)


def _joined(tables: Sequence[tuple[str, Table]]) -> Table:
    columns = max((table.columns for _, table in tables), key=len)
    rows = []
    for name, table in tables:
        cells = [dict(zip([c.key for c in table.columns], row, strict=True)) for row in table.rows]
        rows += [[name, *(row.get(c.key) for c in columns)] for row in cells]
    return Table("score", "", [Column("set", "set", left=True), *columns], rows)
