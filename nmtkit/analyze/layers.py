"""Analysis `layers`: which levels of the encoder each decoder layer reads, in models that learn
a mixture of them.
"""

from __future__ import annotations

from typing import Any

import torch

from nmtkit.analyze.analysis import Analysis, Finding, LeftOut, Options
from nmtkit.analyze.shared.presenting import text_columns
from nmtkit.analyze.study import Study
from nmtkit.data.batches import source_batch
from nmtkit.models.base import Model
from nmtkit.nn.capture import capture
from nmtkit.tables import figures
from nmtkit.tables.figures import Heat
from nmtkit.tables.table import Column, Table, heat
from nmtkit.text.vocabulary import EOS, UNK

ENDING = "_mixture"
Shares = list[list[float]]
"""(levels, decoder layers); each column sums to 1."""


def mixtures(model: Model) -> dict[str, Shares]:
    """Return the mixtures of levels that a model records while it encodes, by name."""
    with torch.inference_mode(), capture() as recorded:
        model.encode(source_batch([[UNK, EOS]]))
    sites = {site: values[0] for site, values in recorded.items() if site.endswith(ENDING)}
    return {
        site.rpartition(".")[2].removesuffix(ENDING): shares.double().tolist()
        for site, shares in sites.items()
    }


class Layers(Analysis[Options, dict[str, dict[str, Shares]]]):
    """The learned weights of each system that mixes the levels of its encoder."""

    name = "layers"
    title = "encoder levels that each decoder layer reads"
    sets = "none"

    def measure(self, study: Study) -> dict[str, dict[str, Shares]]:
        def mixtures_of(name: str) -> dict[str, Shares]:
            if shares := mixtures(study.model(name)):
                return shares
            raise LeftOut("it does not mix the levels of its encoder for each decoder layer")

        hint = "train a system with transparent attention; `nmtkit variants` lists the variants"
        return study.each(
            mixtures_of, "no system of this run mixes the levels of its encoder", hint
        )

    def present(self, result: dict[str, dict[str, Shares]]) -> Finding:
        rows: list[list[Any]] = []
        heats: dict[str, Heat] = {}
        for system, by_name in result.items():
            for mixture, shares in by_name.items():
                levels = ["embeddings", *(f"layer {i}" for i in range(1, len(shares)))]
                rows += [[system, mixture, *row] for row in zip(levels, shares, strict=True)]
                layers = [str(i + 1) for i in range(len(shares[0]))]
                heats[f"{system}, {mixture}"] = Heat(shares, levels, layers)
        most = max(len(panel.columns) for panel in heats.values())
        rows = [[*about, *row, *[None] * (most - len(row))] for *about, row in rows]
        columns = [
            *text_columns("system"),
            Column("mixture", "of", left=True),
            Column("level", "encoder", left=True),
            *(Column(f"decoder_{i + 1}", f"decoder {i + 1}", decimals=3) for i in range(most)),
        ]
        notes = [
            (
                "a column: the share of each encoder level in the input of that decoder layer, "
                "softmax over the levels; sums to 1"
            )
        ]
        bars = (
            f"{label}: encoder level by decoder layer\n{heat(h.values, h.rows, h.columns)}"
            for label, h in heats.items()
        )
        return Finding(
            table=Table("layers", "Weights of transparent attention", columns, rows, notes),
            text=(
                "A nearly even column has learned no preference. A dark cell is the level that "
                "this decoder layer reads most."
            ),
            figure=figures.heat_map(heats, "decoder layer", "encoder level"),
            bars="\n\n".join(bars),
            facts={
                "mixtures": {label: [len(h.rows), len(h.columns)] for label, h in heats.items()}
            },
        )
