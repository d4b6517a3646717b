"""How the results of a test set, or of several, are printed on stdout."""

from __future__ import annotations

from collections.abc import Sequence

from nmtkit import console
from nmtkit.score import lengths
from nmtkit.score.options import ScoreOptions
from nmtkit.score.result_tables import (
    length_tables,
    main_table,
    seeds_table,
    significance_table,
)
from nmtkit.score.stored_scores import Scores
from nmtkit.tables.fitting import as_wide
from nmtkit.tables.table import Table, text_column


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
