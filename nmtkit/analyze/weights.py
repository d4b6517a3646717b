"""Analysis `weights`: what each source word of one sentence weighs in gated attention: attention, how open its gate is, and both together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit import console
from nmtkit.analyze import gates
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared import recording
from nmtkit.data.batches import Batch, collate
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.run import Run
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, named_bars

END = "</s>"
COLUMNS = ("attention", "gate", "weighted")


@dataclass(frozen=True)
class Weights:
    """Of the source words of a sentence (N), its end the last of them; all over the target's steps.

    attention and weighted (attention times gate) are sums over the steps and a word's subwords, gate is a mean; a step at which the gate has no say
    counts for attention alone.
    """

    attention: NDArray[np.float64]
    gate: NDArray[np.float64]
    weighted: NDArray[np.float64]


def attentions_of(model: Model, where: torch.device) -> list[str]:
    """The sites of attention whose source positions have gates of their own."""
    seen = recording.look(model, recording.probe(model, where))["decoder"]
    ends = [site.removesuffix(gates.ENDING) for site, value in seen.items() if site.endswith(gates.ENDING) and value.dim() == 3]
    return [site for site in ends if site in seen and seen[site].dim() == 4]


def of_words(alpha: NDArray[np.float64], opened: NDArray[np.float64], owners: NDArray[np.int64]) -> Weights:
    """What words weigh.

    Args:
        alpha, opened: attention and gate (T, S), NaN where the gate has no say.
        owners: of each subword the word it belongs to (S - 1); the last position is the end.
    Source: Im & Chan 2024, Table 3, as models.md 4.9 reads it (its mean over the steps is this sum divided by T).
    """
    owners = np.append(owners, owners[-1] + 1 if len(owners) else 0)
    known = np.isfinite(opened)
    asked = known.sum(0)
    gate = np.divide(np.where(known, opened, 0).sum(0), asked, out=np.full(len(owners), np.nan), where=asked > 0)
    product = (alpha * np.where(known, opened, 0)).sum(0)

    def over(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(owners, weights=values).astype(np.float64)

    return Weights(over(alpha.sum(0)), over(gate) / np.bincount(owners), over(product))


def measured(model: Model, site: str, batch: Batch, owners: NDArray[np.int64]) -> Weights:
    """What the words of the one sentence of a batch weigh at a site, the mean over heads."""
    seen = recording.look(model, batch)["decoder"]
    alpha, opened = seen[site][0].mean(0).double().cpu().numpy(), seen[site + gates.ENDING][0].double().cpu().numpy()
    return of_words(alpha, opened, owners)


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = (), sentence: int = 1) -> Finding:
    """What each source word of a sentence weighs, by system, with the reference given.

    Args:
        run: the run; systems: those without gated attention are left out.
        set_names: one set (default: the first test set); sentence: its line, from 1.
    Raises: ConfigError for a line that is not there; DataError if no system has gated attention.
    """
    chosen = recording.one_set(run, set_names, "a sentence")
    store = Store(run.prep / chosen)
    if not 1 <= sentence <= len(store):
        raise ConfigError(f"no line {sentence}: there are {len(store):,}", where="--sentence", hint=f"1 to {len(store)}")
    words = gates.read_words(run, chosen, "src", store.src_lengths)
    own, owners = words.lines[sentence - 1], words.owners[sentence - 1]
    found: dict[str, Weights] = {}
    opens: dict[str, list[str]] = {}
    without = []
    for name in systems:
        model = loading.load_system(run, run.find_system(name), recording.device())
        sites = attentions_of(model, recording.device())
        if not sites:
            without.append(name)
            continue
        batch = collate(store, np.array([sentence - 1]), recording.device(), model.context_rule)
        opens[name] = gates.opens_of(model)
        found |= {name if len(sites) == 1 else f"{name}, {site}": measured(model, site, batch, owners) for site in sites}
    if not found:
        hint = f"variants that have it: {gates.having(attentions_of)}"
        raise DataError(f"no gated attention to look at: {', '.join(without)}", where=run.path, hint=hint)
    if without:
        console.say(f"left out, for there is no gated attention: {', '.join(without)}")
    steps = int(store.tgt_lengths[sentence - 1])
    labels = [*own, END]
    weighted = {name: [Estimate(float(value)) for value in weights.weighted] for name, weights in found.items()}
    where = f"{chosen}, line {sentence}"
    return Finding(
        name="weights",
        title="what each source word weighs in gated attention",
        table=_table(labels, found, opens, where, steps),
        text="A word weighs much if steps attend to it while its gate is open; attention alone adds up to the number of steps. One sentence "
        "shows how to read it, and measures nothing: `nmtkit analyze gates` has means over all of them.",
        figure=figures.grouped_bars(labels, weighted, where, "attention × gate", upright=True) if figures.available() else None,
        bars="\n\n".join(_bars(name, labels, weights, where) for name, weights in found.items()),
        facts={"set": chosen, "line": sentence, "steps": steps, "left_out": without},
    )


def _table(labels: Sequence[str], found: Mapping[str, Weights], opens: Mapping[str, list[str]], where: str, steps: int) -> Table:
    rows: list[list[Any]] = []
    for i, label in enumerate(labels):
        rows.append([i + 1, label, *(float(getattr(weights, key)[i]) for weights in found.values() for key in COLUMNS)])
    sums = [[float(weights.attention.sum()), None, float(weights.weighted.sum())] for weights in found.values()]
    rows.append([None, "sum", *(value for own in sums for value in own)])
    columns = [Column("position", "position"), Column("word", "word", left=True)]
    columns += [Column(f"{name}_{key}", f"{name}: {key}", decimals=3) for name in found for key in COLUMNS]
    notes = [
        f"attention: summed over the {steps} target steps, the reference given, and over a word's subwords; gate: how open, 0 to 1, mean over its "
        "numbers, the steps at which it has a say, and a word's subwords",
        f"weighted: attention times gate, summed as attention is; divided by {steps} it is the mean over the steps",
        *(f"{meaning} ({', '.join(own)})" for meaning, own in gates.by_meaning(opens).items()),
    ]
    return Table("weights", f"What each source word weighs ({where})", columns, rows, notes)


def _bars(name: str, labels: Sequence[str], weights: Weights, where: str) -> str:
    bars = [(label, value, "") for label, value in zip(labels, weights.weighted.tolist(), strict=True)]
    return "\n".join([f"{name}: attention × gate ({where})", *named_bars(bars)])
