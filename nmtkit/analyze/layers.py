"""Analysis `layers`: how much each decoder layer reads of each encoder level.

A level is the embeddings or an encoder layer. The models learn a mixture of the levels.
"""

from __future__ import annotations

from nmtkit.analyze.analysis import Analysis, Finding, Options
from nmtkit.analyze.study import Study
from nmtkit.measures import recording
from nmtkit.models.base import Model
from nmtkit.tables import figures
from nmtkit.tables.bars import Heat, heat
from nmtkit.tables.table import Column, Table, text_column

ENDING = "_mixture"
"""The ending of the names under which models record mixtures."""
Shares = list[list[float]]
"""Weights (levels, decoder layers); each column sums to 1."""
ByMixture = dict[str, dict[str, Shares]]
"""System -> name of a mixture -> weights."""


def mixtures(model: Model) -> dict[str, Shares]:
    """Return the mixtures of levels that a model records while it encodes: name -> weights."""
    return {
        site.rpartition(".")[2].removesuffix(ENDING): shares.double().tolist()
        for site, shares in recording.probed(model)["encoder"].items()
        if site.endswith(ENDING)
    }


class Layers(Analysis[Options, ByMixture]):
    """The learned weights of each system that mixes the levels of its encoder."""

    name = "layers"
    title = "encoder levels that each decoder layer reads"
    reads_translations = False
    sets = "none"

    def measure(self, study: Study) -> ByMixture:
        tensors = "mixtures of encoder levels"
        return study.models_with(mixtures, tensors, lambda _name, _model, by_name: by_name)

    def present(self, result: ByMixture) -> Finding:
        depth = max(len(shares[0]) for by_name in result.values() for shares in by_name.values())
        rows, panels = [], {}
        for system, by_name in result.items():
            for mixture, shares in by_name.items():
                levels = ["embeddings", *(f"layer {i}" for i in range(1, len(shares)))]
                layers = [str(i + 1) for i in range(len(shares[0]))]
                panels[f"{system}, {mixture}"] = Heat(shares, levels, layers)
                missing = [None] * (depth - len(layers))
                for level, weights in zip(levels, shares, strict=True):
                    rows.append([system, mixture, level, *weights, *missing])
        columns = [
            text_column("system"),
            text_column("mixture", "of"),
            text_column("level", "encoder"),
            *(Column(f"decoder_{i + 1}", f"decoder {i + 1}", decimals=3) for i in range(depth)),
        ]
        notes = [
            (
                "a column: the share of each encoder level in the input of that decoder layer, "
                "softmax over the levels; sums to 1"
            )
        ]
        bars = [
            f"{label}: encoder level by decoder layer\n{heat(panel)}"
            for label, panel in panels.items()
        ]
        return Finding(
            table=Table("layers", "Weights of transparent attention", columns, rows, notes),
            text=(
                "A nearly even column has learned no preference. A dark cell is the level that "
                "this decoder layer reads most."
            ),
            figure=figures.heat_map(panels, "decoder layer", "encoder level"),
            bars="\n\n".join(bars),
            facts={
                "mixtures": {label: [len(h.rows), len(h.columns)] for label, h in panels.items()}
            },
        )
