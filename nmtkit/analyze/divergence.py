"""Analysis `divergence`: how far the heads that attend locally and those that attend globally are from each other, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nmtkit import console
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared import recording
from nmtkit.data.batches import Batch
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.run import Run
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Table, bar

LOCAL, GLOBAL = ".local", ".global"
TINY = torch.finfo(torch.float64).tiny
DEFAULT = "max_renorm"
POSITIONS = ("all", "without </s>")
MEAN = "E_d"
STACKS = ("encoder", "decoder")
Means = dict[tuple[str, str], dict[int, list[float]]]
"""(stack, positions) -> layer -> dv by mode."""


def max_raw(weights: Tensor) -> Tensor:
    """The element-wise maximum over the heads as printed, (B, H, T, S) -> (B, 1, T, S): no distribution, so the divergence is not bounded."""
    return weights.amax(1, keepdim=True)


def max_renorm(weights: Tensor) -> Tensor:
    """The element-wise maximum over the heads, made to sum to one again."""
    largest = max_raw(weights)
    return largest / largest.sum(-1, keepdim=True).clamp(min=TINY)


def peak_head(weights: Tensor) -> Tensor:
    """Of each query the head with the largest single weight, the first of equals (the paper's prose)."""
    best = weights.amax(-1).argmax(1)[:, None, :, None]  # (B, 1, T, 1)
    return weights.gather(1, best.expand(-1, -1, -1, weights.size(-1)))


def per_head(weights: Tensor) -> Tensor:
    """Every head: the first local one beside the first global one, and so on."""
    return weights


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {f.__name__: f for f in (max_renorm, max_raw, peak_head, per_head)}
"""How the heads of one group become one distribution: (B, H, T, S) -> (B, 1 or H, T, S)."""


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """½ Σ p log(p/m) + ½ Σ q log(q/m) with m = (p + q) / 2 over the last axis, natural logarithm, 0 · log 0 = 0."""
    middle = (p + q) / 2
    terms = torch.xlogy(p, p) - torch.xlogy(p, middle) + torch.xlogy(q, q) - torch.xlogy(q, middle)
    return terms.sum(-1) / 2


def divergence(local: Tensor, whole: Tensor, mode: str) -> Tensor:
    """dv of each query (B, T), from weights (B, H, T, S) of local and global heads, reduced as `mode` of REDUCTIONS says.

    Source: Ampomah et al. 2021, Eqs. 10-12.
    """
    reduce = REDUCTIONS[mode]
    return jensen_shannon(reduce(local), reduce(whole)).mean(1)


def pairs_of(sites: Sequence[str]) -> list[str]:
    """The names, without ending, of attentions that have local heads and global ones."""
    return [site.removesuffix(LOCAL) for site in sites if site.endswith(LOCAL) and site.removesuffix(LOCAL) + GLOBAL in sites]


class Sums:
    """dv of every layer of one system, summed over the real queries of a set."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str, int], Tensor] = {}
        """(stack, positions, layer) -> sums by mode (4)."""
        self.counts: dict[tuple[str, str, int], int] = {}

    def add(self, model: Model, batch: Batch) -> None:
        """Look at a batch."""
        assert batch.tgt_lengths is not None
        for stack, seen in recording.look(model, batch).items():
            lengths = batch.src_lengths if stack == "encoder" else batch.tgt_lengths
            for name in pairs_of(list(seen)):
                local, whole = (seen[name + ending].double() for ending in (LOCAL, GLOBAL))
                self._add((stack, POSITIONS[0], recording.layer_of(name)), local, whole, lengths)
                if stack == "encoder":  # what the decoder reads does not end in </s>
                    ends = lengths - 1
                    self._add((stack, POSITIONS[1], recording.layer_of(name)), _without(local, ends), _without(whole, ends), ends)

    def _add(self, key: tuple[str, str, int], local: Tensor, whole: Tensor, lengths: Tensor) -> None:
        real = torch.arange(local.size(2), device=lengths.device) < lengths[:, None]  # (B, T)
        found = torch.stack([divergence(local, whole, mode)[real].sum() for mode in REDUCTIONS]).cpu()
        self.totals[key] = self.totals.get(key, 0) + found
        self.counts[key] = self.counts.get(key, 0) + int(lengths.sum())

    def means(self) -> Means:
        """The mean dv of everything added."""
        found: Means = {}
        for stack, positions, layer in sorted(self.totals, key=lambda key: (key[0] != "encoder", POSITIONS.index(key[1]), key[2])):
            key = (stack, positions, layer)
            found.setdefault(key[:2], {})[layer] = (self.totals[key] / max(1, self.counts[key])).tolist()
        return found


def _without(weights: Tensor, ends: Tensor) -> Tensor:
    """The weights of every head without the key at `ends` (B), summing to one again."""
    kept = weights.masked_fill(torch.arange(weights.size(-1), device=ends.device) == ends[:, None, None, None], 0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=TINY)


def measured(run: Run, name: str, store: Store) -> tuple[Means, dict[str, Any]] | None:
    """`Sums.means` of a system over a set, and the settings of its model; None if it does not attend both locally and globally."""
    where = recording.device()
    model = loading.load_system(run, run.find_system(name), where)
    if not pairs_of(list(recording.sides(model, where))):
        return None
    sums = Sums()
    with console.progress(f"{name}: sentences", len(store)) as done:
        for batch in recording.batches(store, where, model.context_rule):
            sums.add(model, batch)
            done(len(batch.rows))
    return sums.means(), model.settings.model_dump(mode="json")


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = ()) -> Finding:
    """dv and E_d of each system that has local and global heads.

    Args:
        run: the run; systems: others than these with such heads are left out. set_names: one set, read with its references (default: the first
            test set).
    Raises: DataError if no system has such heads.
    """
    chosen = recording.one_set(run, set_names, "the divergence")
    store = Store(run.prep / chosen)
    found = {name: both for name in systems if (both := measured(run, name, store)) is not None}
    if not found:
        what = "no system of this run attends locally and globally"
        raise DataError(
            what, where=", ".join(systems), hint="train one with heads for the neighbourhood beside its others; `nmtkit variants` lists them"
        )
    if left := [name for name in systems if name not in found]:
        console.say(f"left out, for they do not attend both locally and globally: {', '.join(left)}")
    settings = differing({name: values for name, (_, values) in found.items()})
    over_layers: list[list[Any]] = []  # first: the systems beside each other, which is what sweeps ask for
    by_layer: list[list[Any]] = []
    series: dict[str, dict[int, float]] = {}
    overall: dict[str, float] = {}
    for name, (means, _) in found.items():
        for (stack, positions), layers in means.items():
            about = [name, settings[name], stack, positions]
            by_layer += [[*about, str(layer), *values] for layer, values in layers.items()]
            mean = [sum(values) / len(layers) for values in zip(*layers.values(), strict=True)]
            over_layers.append([*about, MEAN, *mean])
            if positions == POSITIONS[0]:
                label = name + (f" ({settings[name]})" if settings[name] else "") + f", {stack}"
                series[label] = {layer: values[list(REDUCTIONS).index(DEFAULT)] for layer, values in layers.items()}
                overall[label] = mean[list(REDUCTIONS).index(DEFAULT)]
    columns = [Column("system", "system", left=True), Column("settings", "settings", left=True), Column("stack", "stack", left=True)]
    columns += [Column("positions", "positions", left=True), Column("layer", "layer")]
    columns += [Column(mode, mode, decimals=4) for mode in REDUCTIONS]
    notes = [
        "dv: Jensen-Shannon divergence, natural logarithm, mean over the real queries of all sentences; E_d: mean over the layers (Eqs. 10-13)",
        "max_renorm: maximum over heads, renormalised; max_raw: as printed, not renormalised, so not bounded by log 2 = 0.6931; "
        "peak_head: each query's head with the largest weight; per_head: mean over pairs of heads",
        "without </s>: that position neither asks nor is attended to, other weights renormalised",
    ]
    numbers = sorted({layer for line in series.values() for layer in line})
    drawn = {label: [line.get(layer) for layer in numbers] for label, line in series.items()}
    return Finding(
        name="divergence",
        title="divergence of local and global attention",
        table=Table(
            "divergence",
            f"Divergence of local and global attention, over all layers and by layer, on {chosen}",
            columns,
            over_layers + by_layer,
            notes,
        ),
        text="Near 0 the local heads look where the global ones look and add little; a large dv means that the two read different things. "
        "Compare systems under the same mode only.",
        figure=_figure([str(n) for n in numbers], drawn, overall) if figures.available() else None,
        bars=_bars(series, overall),
        facts={"set": chosen, "sentences": len(store), "modes": list(REDUCTIONS), "shown": DEFAULT, "logarithm": "natural"},
    )


def differing(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Of each system the model settings in which these systems differ, as text; one that is empty is not named.

    Nor is one called as a stack of the model: whether that has something is to be seen by its rows.
    """
    keys = [key for key in dict.fromkeys(key for values in models.values() for key in values) if key not in STACKS]
    odd = [key for key in keys if len({repr(values.get(key)) for values in models.values()}) > 1]
    return {name: ", ".join(f"{key}={values[key]}" for key in odd if values.get(key) not in {None, ""}) for name, values in models.items()}


def _figure(layers: Sequence[str], series: Mapping[str, Sequence[float | None]], overall: Mapping[str, float]) -> str:
    label = f"dv ({DEFAULT})"
    if len(series) == 1:
        return figures.lines(layers, series, "layer", label)
    return figures.lines(layers, series, "layer", label, means=overall, means_label=f"{MEAN} ({DEFAULT})")


def _bars(series: Mapping[str, Mapping[int, float]], overall: Mapping[str, float]) -> str:
    """All systems by the mean over their layers, then each by layer."""
    top, width = max(value for line in series.values() for value in line.values()), max(map(len, overall))
    blocks = [[f"{MEAN} ({DEFAULT})", *(f"{label:<{width}} {bar(v, top)} {v:.4f}" for label, v in overall.items())]]
    blocks += [[f"{label} ({DEFAULT})", *(f"{n:>3} {bar(v, top)} {v:.4f}" for n, v in line.items())] for label, line in series.items()]
    return "\n\n".join("\n".join(block) for block in blocks)
