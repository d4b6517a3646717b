"""Analysis `divergence`: how far apart local and global attention heads are, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
ByLayer = dict[int, list[float]]
"""Layer -> dv for each reduction, in the order of REDUCTIONS."""


def max_raw(weights: Tensor) -> Tensor:
    """Return the maximum over the heads, as the paper prints it. It does not sum to 1, so dv has
    no bound.
    """
    return weights.amax(1, keepdim=True)


def max_renorm(weights: Tensor) -> Tensor:
    """Return the maximum over the heads, scaled to sum to 1."""
    largest = max_raw(weights)
    return largest / largest.sum(-1, keepdim=True).clamp(min=TINY)


def peak_head(weights: Tensor) -> Tensor:
    """Return the weights of the head with the largest weight, for each query (ties: the first)."""
    best = weights.amax(-1).argmax(1)[:, None, :, None]  # (B, 1, T, 1)
    return weights.gather(1, best.expand(-1, -1, -1, weights.size(-1)))


def per_head(weights: Tensor) -> Tensor:
    """Return every head: dv compares the first local head with the first global head, and so on."""
    return weights


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_renorm": max_renorm,
    "max_raw": max_raw,
    "peak_head": peak_head,
    "per_head": per_head,
}
"""How the heads of one group become one distribution: (B, H, T, S) -> (B, 1 or H, T, S)."""
SHOWN = next(iter(REDUCTIONS))
"""The reduction in the figure: the first one."""


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
    """Return the names, without ending, of the attentions with local and global heads."""
    names = [site.removesuffix(LOCAL) for site in sites if site.endswith(LOCAL)]
    return [name for name in names if name + GLOBAL in sites]


def mean_divergence(model: Model, batches: Iterable[Batch]) -> dict[str, ByLayer]:
    """Return the mean dv over all real queries, for each stack."""
    sums: dict[str, dict[int, Tensor]] = {}  # of each reduction, then the number of queries
    for batch in batches:
        assert batch.tgt_lengths is not None
        for stack, sites in recording.look(model, batch).items():
            lengths = batch.src_lengths if stack == "encoder" else batch.tgt_lengths
            for name in pairs_of(sites):
                local, whole = (sites[name + ending].double() for ending in (LOCAL, GLOBAL))
                real = real_positions(lengths, local.size(2))  # (B, T)
                dv = [divergence(local, whole, mode)[real].sum() for mode in REDUCTIONS]
                layers, layer = sums.setdefault(stack, {}), recording.layer_of(name)
                layers[layer] = layers.get(layer, 0) + torch.stack([*dv, lengths.sum()]).cpu()
    return {
        stack: {layer: (total[:-1] / total[-1]).tolist() for layer, total in layers.items()}
        for stack, layers in sums.items()
    }


@dataclass(frozen=True)
class StackDivergence:
    """dv of each layer of one stack of one system."""

    system: str
    settings: str
    stack: str
    layers: ByLayer

    @property
    def mean(self) -> list[float]:
        """E_d for each reduction: the mean over the layers."""
        columns = zip(*self.layers.values(), strict=True)
        return [sum(column) / len(self.layers) for column in columns]


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

        def diverge(name: str, model: Model, _: object) -> dict[str, ByLayer]:
            settings[name] = model.settings.model_dump(mode="json")
            return mean_divergence(model, study.batches(name, model))

        dual = study.models_with(
            lambda model: pairs_of(recording.sides(model)), "local and global attention", diverge
        )
        texts = differing(settings)
        stacks = [
            StackDivergence(name, texts[name], stack, layers)
            for name, by_stack in dual.items()
            for stack, layers in by_stack.items()
        ]
        return Divergences(study.set_name, len(study.store), stacks)

    def present(self, result: Divergences) -> Finding:
        curves = []
        for stack in result.stacks:
            label = f"{stack.stack}, {MEAN} {stack.mean[0]:.4f}: {stack.system}"
            curves.append(Curve(label, list(stack.layers), [dv[0] for dv in stack.layers.values()]))
        columns = [
            *text_columns("system", "settings", "stack"),
            Column("layer", "layer"),
            *(Column(mode, mode, decimals=4) for mode in REDUCTIONS),
        ]
        title = "Divergence of local and global attention, over all layers and by layer"
        title += f", on {result.set_name}"
        return Finding(
            table=Table("divergence", title, columns, _rows(result.stacks), NOTES),
            text=(
                "Near 0 the local heads attend to the same positions as the global ones and "
                "add little. A large dv means that they read different positions. Compare "
                "systems inside one column only."
            ),
            figure=figures.curves([Panel("layer", f"dv ({SHOWN})", curves)]),
            facts={"sentences": result.sentences},
        )


def _rows(stacks: Sequence[StackDivergence]) -> Rows:
    # E_d of all stacks comes first, because a sweep compares systems.
    rows: Rows = [[s.system, s.settings, s.stack, MEAN, *s.mean] for s in stacks]
    for stack in stacks:
        for layer, dv in stack.layers.items():
            rows.append([stack.system, stack.settings, stack.stack, str(layer), *dv])
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
    """Return the model settings in which the systems differ: system -> "key=value, …".

    Empty settings are left out. A setting with the name of a stack is left out too, because the
    rows name the stacks.
    """
    keys = [key for key in toml.differing([*models.values()]) if key not in STACKS]
    return {
        name: ", ".join(f"{key}={s[key]}" for key in keys if s.get(key) not in {None, ""})
        for name, s in models.items()
    }
