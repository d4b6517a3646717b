"""Analysis `layers`: which levels of the encoder each decoder layer reads, in models that learn a mixture of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmtkit.analyze.finding import Finding
from nmtkit.data.batches import source_batch
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.nn.capture import capture
from nmtkit.run import Run
from nmtkit.tables import figures
from nmtkit.tables.figures import Heat
from nmtkit.tables.table import Column, Table, heat
from nmtkit.text.vocabulary import EOS, UNK

ENDING = "_mixture"


def mixtures(model: Model) -> dict[str, Tensor]:
    """What a model records as a mixture of levels while it encodes: name -> shares (levels, decoder layers), each column summing to 1."""
    with torch.inference_mode(), capture() as seen:
        model.encode(source_batch([[UNK, EOS]]))
    return {site.rpartition(".")[2].removesuffix(ENDING): found[0].double() for site, found in seen.items() if site.endswith(ENDING)}


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = ()) -> Finding:
    """The learned weights of each system that mixes the levels of its encoder.

    Args:
        run: the run; systems: those among them that have such weights are shown. set_names is of no use here.
    Raises: ConfigError for a set; DataError if no system has such weights.
    """
    if set_names:
        raise ConfigError("the weights are the model's own, the same for all sentences", where="--set-name", hint="leave it out")
    found = {f"{name}, {what}": shares for name in systems for what, shares in mixtures(loading.load_system(run, run.find_system(name))).items()}
    if not found:
        what = "no system of this run mixes the levels of its encoder for each decoder layer"
        raise DataError(what, where=", ".join(systems), hint="train one with transparent attention; `nmtkit variants` lists them")
    most = max(shares.size(1) for shares in found.values())
    rows: list[list[Any]] = []
    heats: dict[str, Heat] = {}
    for label, shares in found.items():
        system, _, what = label.rpartition(", ")
        values = shares.tolist()
        levels = ["embeddings", *(f"layer {i}" for i in range(1, len(values)))]
        rows += [[system, what, level, *own, *[None] * (most - len(own))] for level, own in zip(levels, values, strict=True)]
        heats[label] = Heat(values, levels, [str(i + 1) for i in range(shares.size(1))])
    columns = [Column("system", "system", left=True), Column("mixture", "of", left=True), Column("level", "encoder", left=True)]
    columns += [Column(f"decoder_{i + 1}", f"decoder {i + 1}", decimals=3) for i in range(most)]
    notes = ["a column: the share of each level in what that decoder layer reads, softmax over the levels; 1 in all"]
    return Finding(
        name="layers",
        title="encoder levels that each decoder layer reads",
        table=Table("layers", "Weights of transparent attention", columns, rows, notes),
        text="A column that is nearly even has learned no preference; a dark cell is the level that this decoder layer reads most.",
        figure=figures.heat_map(heats, "decoder layer", "encoder level") if figures.available() else None,
        bars="\n\n".join(f"{label}: encoder level by decoder layer\n{heat(h.values, h.rows, h.columns)}" for label, h in heats.items()),
        facts={"mixtures": {label: list(shares.shape) for label, shares in found.items()}},
    )
