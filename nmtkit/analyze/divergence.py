"""Analysis `divergence`: how far apart local and global attention heads are, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmtkit import toml
from nmtkit.analyze.analysis import Analysis, Finding, Options
from nmtkit.analyze.study import Study
from nmtkit.data.batches import Batch
from nmtkit.measures import recording
from nmtkit.models.base import Model
from nmtkit.nn.masks import real_positions
from nmtkit.tables import figures
from nmtkit.tables.figures import Curve, Panel
from nmtkit.tables.table import Column, Rows, Table, text_columns

LOCAL, GLOBAL = ".local", ".global"
TINY = torch.finfo(torch.float64).tiny
MEAN = "E_d"
STACKS = ("encoder", "decoder")
Values = dict[int, list[float]]
"""Layer -> dv by mode, in the order of REDUCTIONS."""


def max_raw(weights: Tensor) -> Tensor:
    """Return the maximum over the heads as printed: it does not sum to 1, so dv has no bound."""
    return weights.amax(1, keepdim=True)


def max_renorm(weights: Tensor) -> Tensor:
    """Return the maximum over the heads, scaled to sum to 1."""
    largest = max_raw(weights)
    return largest / largest.sum(-1, keepdim=True).clamp(min=TINY)


def peak_head(weights: Tensor) -> Tensor:
    """Return, for each query, the head with the largest weight, the first of equals."""
    best = weights.amax(-1).argmax(1)[:, None, :, None]  # (B, 1, T, 1)
    return weights.gather(1, best.expand(-1, -1, -1, weights.size(-1)))


def per_head(weights: Tensor) -> Tensor:
    """Return every head: dv compares the first local with the first global one, and so on."""
    return weights


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_renorm": max_renorm,
    "max_raw": max_raw,
    "peak_head": peak_head,
    "per_head": per_head,
}
"""How the heads of one group become one distribution: (B, H, T, S) -> (B, 1 or H, T, S)."""
SHOWN = next(iter(REDUCTIONS))
"""The mode in the figure."""


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Return ½ Σ p log(p/m) + ½ Σ q log(q/m), m = (p + q) / 2, over the last axis, in nats."""
    middle = (p + q) / 2
    terms = torch.xlogy(p, p) - torch.xlogy(p, middle) + torch.xlogy(q, q) - torch.xlogy(q, middle)
    return terms.sum(-1) / 2


def divergence(local: Tensor, whole: Tensor, mode: str) -> Tensor:
    """Return dv of each query (B, T).

    Args:
        local, whole: weights of local and of global heads (B, H, T, S).
        mode: one of REDUCTIONS.
    Source: Ampomah et al. 2021, Eqs. 10-12.
    """
    reduce = REDUCTIONS[mode]
    return jensen_shannon(reduce(local), reduce(whole)).mean(1)


def pairs_of(sites: Iterable[str]) -> list[str]:
    """Return the names, without ending, of attentions with local heads and global ones."""
    names = [site.removesuffix(LOCAL) for site in sites if site.endswith(LOCAL)]
    return [name for name in names if name + GLOBAL in sites]


def mean_divergence(model: Model, batches: Iterable[Batch]) -> dict[str, Values]:
    """Return the mean dv over all real queries: stack -> layer -> dv by mode."""
    sums: dict[str, dict[int, Tensor]] = {}
    for batch in batches:
        for stack, layer, values in _sums(model, batch):
            layers = sums.setdefault(stack, {})
            layers[layer] = layers.get(layer, 0) + values
    return {
        stack: {n: (values[:-1] / values[-1]).tolist() for n, values in layers.items()}
        for stack, layers in sums.items()
    }


def _sums(model: Model, batch: Batch) -> Iterator[tuple[str, int, Tensor]]:
    """Yield stack, layer, and the sums of dv over the real queries of a batch by mode, last the
    number of queries.
    """
    assert batch.tgt_lengths is not None
    for stack, sites in recording.look(model, batch).items():
        lengths = batch.src_lengths if stack == "encoder" else batch.tgt_lengths
        for name in pairs_of(sites):
            local, whole = (sites[name + ending].double() for ending in (LOCAL, GLOBAL))
            real = real_positions(lengths, local.size(2))  # (B, T)
            sums = [divergence(local, whole, mode)[real].sum() for mode in REDUCTIONS]
            yield stack, recording.layer_of(name), torch.stack([*sums, lengths.sum()]).cpu()


@dataclass(frozen=True)
class StackDivergence:
    """dv of each layer of one stack of one system."""

    system: str
    settings: str
    stack: str
    layers: Values

    @property
    def mean(self) -> list[float]:
        """E_d by mode: the mean over the layers."""
        columns = zip(*self.layers.values(), strict=True)
        return [sum(column) / len(self.layers) for column in columns]

    @property
    def about(self) -> list[str]:
        """The first cells of each of its rows."""
        return [self.system, self.settings, self.stack]

    @property
    def label(self) -> str:
        """The label of the stack in the figure, with E_d; the settings are in the table."""
        return f"{self.stack}, {MEAN} {self.mean[0]:.4f}: {self.system}"


@dataclass(frozen=True)
class Divergences:
    """dv of some systems on a set of sentences."""

    set_name: str
    sentences: int
    stacks: list[StackDivergence]


class Divergence(Analysis[Options, Divergences]):
    """dv and E_d of each system that has local and global heads."""

    name = "divergence"
    title = "divergence of local and global attention"
    reads_translations = False
    examples = ("--system dc-2 --system dc-5",)

    def measure(self, study: Study) -> Divergences:
        settings = {}

        def diverge(name: str, model: Model, _: object) -> dict[str, Values]:
            settings[name] = model.settings.model_dump(mode="json")
            return mean_divergence(model, study.batches(name, model))

        dual = study.models_with(
            lambda model: pairs_of(recording.sides(model)),
            "local and global attention",
            diverge,
        )
        texts = differing(settings)
        stacks = [
            StackDivergence(name, texts[name], stack, layers)
            for name, by_stack in dual.items()
            for stack, layers in by_stack.items()
        ]
        return Divergences(study.set_name, len(study.store), stacks)

    def present(self, result: Divergences) -> Finding:
        stacks = result.stacks
        curves = [
            Curve(dv.label, list(dv.layers), [values[0] for values in dv.layers.values()])
            for dv in stacks
        ]
        columns = [
            *text_columns("system", "settings", "stack"),
            Column("layer", "layer"),
            *(Column(mode, mode, decimals=4) for mode in REDUCTIONS),
        ]
        title = "Divergence of local and global attention, over all layers and by layer"
        title += f", on {result.set_name}"
        return Finding(
            table=Table("divergence", title, columns, _rows(stacks), NOTES),
            text=(
                "Near 0 the local heads attend to the same positions as the global ones and "
                "add little. A large dv means that they read different positions. Compare "
                "systems inside one column only."
            ),
            figure=figures.curves([Panel("layer", f"dv ({SHOWN})", curves)]),
            facts={"sentences": result.sentences},
        )


def _rows(stacks: Sequence[StackDivergence]) -> Rows:
    """Return E_d of all stacks, since a sweep compares systems, and then dv of all layers."""
    rows = [[*dv.about, MEAN, *dv.mean] for dv in stacks]
    for dv in stacks:
        rows += [[*dv.about, str(layer), *values] for layer, values in dv.layers.items()]
    return rows


NOTES = [
    (
        "dv: Jensen-Shannon divergence, natural logarithm, mean over the queries of "
        "all sentences; E_d: mean over the layers (Eqs. 10-13)"
    ),
    (
        "max_renorm: maximum over heads, renormalised; max_raw: as printed, not renormalised, so"
        " not bounded by log 2 = 0.6931; peak_head: each query's head with the largest weight;"
        " per_head: mean over pairs of heads"
    ),
]


def differing(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the model settings in which the systems differ, as one text for each system.

    An empty setting is left out, and so is a setting with the name of a stack: the rows name the
    stacks.
    """
    keys = [key for key in toml.differing([*models.values()]) if key not in STACKS]
    return {
        name: ", ".join(f"{key}={s[key]}" for key in keys if s.get(key) not in {None, ""})
        for name, s in models.items()
    }
