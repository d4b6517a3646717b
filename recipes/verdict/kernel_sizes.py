"""Draw the figure of recipes/dual_context: BLEU and E_d of Enc-DC by the window of its convolution.

bash recipes/picture.sh draws it. No weights are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from nmtkit.records import StoredFinding, load
from recipes.verdict import tables
from recipes.verdict.folders import Folders
from recipes.verdict.listing import HERE, Row, read_list

CORPUS, SETS = "multi30k-ende", {"test_2016_flickr": "2016", "test_2017_flickr": "2017"}
PAPER = 2
"""The window of the paper, and of the row `enc-dc`."""
TARGET = HERE.parent / "dual_context" / "kernel_size.png"


def size_of(row: Row) -> int | None:
    """Return the window of a row's convolution; None if it is not a row of Enc-DC alone."""
    if row.name == "enc-dc":
        return PAPER
    stem, _, size = row.name.rpartition("-f")
    return int(size) if stem == "enc-dc" and size.isdigit() else None


def divergences(paths: Sequence[Path]) -> list[float]:
    """Return E_d over all layers of the encoder, of each seed that has it."""
    files = [path / "analyze" / "divergence.json" for path in paths]
    rows = [row for file in files if file.is_file() for row in load(StoredFinding, file).table.rows]
    rows = [row for row in rows if row.get("positions", "all") == "all"]
    return [row["max_renorm"] for row in rows if row["layer"] == "E_d"]


def draw(found: tables.Found, folders: Folders, target: Path) -> None:
    """Draw the figure of the captions' results."""
    sizes = {size: row for row in found if (size := size_of(row)) is not None}
    order = sorted(sizes)
    figure = Figure(figsize=(9, 3.2), dpi=110, layout="constrained")
    bleu, divergence = figure.subplots(1, 2)
    for number, (name, label) in enumerate(SETS.items()):
        table = tables.scores(name, found, folders)
        delta = [column.key for column in table.columns].index("delta")
        deltas = {row[0]: row[delta] for row in table.rows}
        estimates = [deltas[sizes[size].name] for size in order]
        values, lows, highs = np.array([(e.value, e.low, e.high) for e in estimates]).T
        places = [size + 0.14 * number - 0.07 for size in order]
        options = {"fmt": "os"[number], "label": label, "capsize": 2, "ms": 5}
        bleu.errorbar(places, values, [values - lows, highs - values], **options)
    bleu.axhline(0, color="0.5", linewidth=0.8)
    bleu.set(xlabel="f (positions)", ylabel="Δ BLEU to the Transformer [95%]", xticks=order)
    bleu.margins(y=0.3)  # room for the legend
    bleu.legend(title="test set", frameon=False, ncols=2, loc="lower right")
    points = [(size, value) for size in order for value in divergences(found[sizes[size]])]
    divergence.plot(*zip(*points, strict=True), "o", color="C2")
    divergence.set(xlabel="f (positions)", ylabel="E_d (at most 0.69)", xticks=order, ylim=(0, 0.7))
    figure.savefig(target)


if __name__ == "__main__":
    results = Folders(HERE, HERE / "results")
    corpora = tables.finished(read_list(HERE / "systems.sh"), results)
    draw(next(found for found in corpora if next(iter(found)).dataset == CORPUS), results, TARGET)
