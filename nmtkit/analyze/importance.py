"""Analysis `importance`: whether a source position with more attention matters more to the next word (ΔJS against Δα)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit import console
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared import ablation, context_spread, recording
from nmtkit.data.batches import Batch
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.nn.capture import capture
from nmtkit.run import Run
from nmtkit.score.resampling import Resampling, estimate
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Table, bar

Numbers = NDArray[np.float64]
REMOVALS = {
    "renormalised": "the other weights of the step are scaled up to sum to one",
    "raw": "the other weights of the step stay as they are",
}
"""What becomes of the weights that are left when one is set to zero."""
RESAMPLES, SEED = 1000, 1
BINS = 10
ROUNDING = 1e-9
"""ΔJS nearer to 0 than that is 0: where all positions give the same, as at the first step of CAAtt, only rounding tells them apart."""
DRAWN = 2000
"""Points in a figure, at most."""


@dataclass(frozen=True)
class Points:
    """One point for each target step: what tells its strongest source position from another one, drawn at random."""

    rows: NDArray[np.int64]
    """(N) the sentence, from 0."""
    steps: NDArray[np.int64]
    """(N) the target step, from 0."""
    alpha: Numbers
    """(N) Δα: by how much its weight is larger."""
    js: Numbers
    """(N) ΔJS: by how much the next word's distribution changes more without it, in bits."""
    spread: Numbers
    """(2, sentences) of `context_spread.spread`, as the attention is and with even weights; NaN where there is none."""


def drawn_chances(rows: Tensor, steps: int, tgt_lengths: Tensor) -> Tensor:
    """A number from 0 to 1 for each step, by which another position is drawn; a sentence's draws are its own, whatever its batch.

    Args:
        rows: (B) the number of each sentence, which seeds its draws.
        tgt_lengths: (B) real steps.
    Returns: (B, steps) in float64, 0 behind the end.
    """
    found = np.zeros((len(rows), steps))
    for own, row, length in zip(found, rows.tolist(), tgt_lengths.tolist(), strict=True):
        own[:length] = np.random.default_rng([SEED, row]).random(length)
    return torch.from_numpy(found).to(rows.device)


def other_positions(chances: Tensor, strongest: Tensor, src_lengths: Tensor) -> Tensor:
    """For each step a source position other than the strongest, all alike likely.

    Args:
        chances: (B, T) of `drawn_chances`.
        strongest: (B, T).
        src_lengths: (B) real positions.
    Returns: (B, T); without meaning behind the end, or where a source has one position only.
    """
    found = (chances * (src_lengths - 1).clamp(min=1)[:, None]).long()
    return found + (found >= strongest)


def compare(model: Model, site: str, batch: Batch, renormalise: bool, way: ablation.Way) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Δα and ΔJS of every step of a batch, and how its contexts spread, also where all positions are read alike.

    Args:
        model: in evaluation mode; site: its attention to the source; renormalise, way: see `ablation`.
    Returns: Δα, ΔJS, and which of them are points (B, T); both spreads (2, B), NaN where contexts are not recorded.
    Source: Im & Chan 2024, after Serrano & Smith 2019, Is attention interpretable?
    """
    assert batch.tgt_in is not None and batch.tgt_lengths is not None
    chances = drawn_chances(batch.rows, batch.tgt_in.size(1), batch.tgt_lengths)

    def pick(weights: Tensor, first: int) -> Tensor:
        best = ablation.strongest(weights)
        return torch.stack([best, other_positions(chances[:, first : first + best.size(1)], best, batch.src_lengths)], dim=1)

    with torch.inference_mode():
        with capture():  # some keep the source states only if somebody listens
            memory = model.encode(batch)
        found = way(model, site, memory, batch.tgt_in, pick, 2, renormalise)
        weights, where = found.weights.mean(1).double(), found.positions.transpose(1, 2)  # (B, T, S), (B, T, 2)
        alpha = weights.gather(-1, where.clamp(max=weights.size(-1) - 1))
        steps = torch.arange(batch.tgt_in.size(1), device=weights.device)
        points = (steps < batch.tgt_lengths[:, None]) & (batch.src_lengths > 1)[:, None]
        js = alpha.new_zeros(alpha.shape)
        js[points] = ablation.divergences(model, found.intact[points], found.changed.transpose(1, 2)[points])
        with capture(context_spread.evenly(site, batch.src_lengths)) as even:
            model.decode(batch.tgt_in, memory)
        given = (found.contexts, next(iter(even.get(site + context_spread.ENDING, ())), None))
        spread = [alpha.new_full((len(alpha),), torch.nan) if own is None else context_spread.spread(own, batch.tgt_lengths) for own in given]
    return alpha[..., 0] - alpha[..., 1], js[..., 0] - js[..., 1], points, torch.stack(spread)


def measured(run: Run, name: str, store: Store, chosen: NDArray[np.int64], renormalise: bool) -> tuple[str, Points] | str:
    """The points of a system over the chosen sentences of a set and the attention they are of; or why there are none."""
    where = recording.device()
    model = loading.load_system(run, run.find_system(name), where)
    site = ablation.attention_site(model, where)
    if site is None:
        return "it has no attention to the source"
    way = ablation.way(model, site, where)
    if way is None:
        return f"the weights of its attention '{site}' cannot be changed (see nmtkit.nn.capture)"
    found: list[Tensor] = []
    spreads = np.full((2, len(store)), np.nan)
    with console.progress(f"{name}: sentences", len(chosen)) as done:
        for batch in recording.batches(store, where, model.context_rule, chosen=chosen):
            alpha, js, points, spread = compare(model, site, batch, renormalise, way)
            row, step = points.nonzero(as_tuple=True)
            found.append(torch.stack([batch.rows[row].double(), step.double(), alpha[points], js[points]]).cpu())
            spreads[:, batch.rows.cpu().numpy()] = spread.cpu().numpy()
            done(len(batch.rows))
    rows, steps, d_alpha, d_js = torch.cat(found, dim=1).numpy()
    order = np.lexsort((steps, rows))
    return site, Points(rows[order].astype(np.int64), steps[order].astype(np.int64), d_alpha[order], d_js[order], spreads)


def sums(points: Points, sentences: int) -> Numbers:
    """What every number of the table is made of, for each sentence (sentences, 8): count, Σx, Σy, Σx², Σy², Σxy, Σ(x-y)², how often y < 0."""
    x, y = points.alpha, points.js
    parts = (np.ones_like(x), x, y, x * x, y * y, x * y, (x - y) ** 2, (y < -ROUNDING).astype(np.float64))
    return np.stack([np.bincount(points.rows, weights=part, minlength=sentences) for part in parts], axis=1)


def numbers_of(totals: Numbers) -> dict[str, Numbers]:
    """The numbers of the table from sums over sentences (…, 8); NaN where there is none."""
    count, x, y, xx, yy, xy, loss, negative = np.moveaxis(totals, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Where all points lie on one x or y, rounding leaves a variance of about 1e-16 of the squares.
        spread = np.stack([xx - x * x / count, yy - y * y / count])
        spread = np.where(spread > 1e-12 * np.stack([xx, yy]), spread, np.nan)
        correlation = (xy - x * y / count) / np.sqrt(spread[0] * spread[1])
        means = {"loss_per_point": loss / count, "correlation": correlation, "d_alpha": x / count, "d_js": y / count}
        return {"loss": loss, **means, "explained": 100 * (1 - loss / xx), "against": 100 * negative / count}


def row_of(points: Points, draws: Resampling, chosen: NDArray[np.int64]) -> list[Any]:
    """The numbers of a system with their intervals over resamples of the chosen sentences, as the columns have them."""
    own = sums(points, points.spread.shape[1])[chosen]
    values, resampled = numbers_of(own.sum(0)), numbers_of(draws.sums(own))
    found = [estimate(float(values[key]) if np.isfinite(values[key]) else None, resampled[key]) for key in values]
    return [len(points.rows), *found, *(context_spread.mean(spread[chosen], draws) for spread in points.spread)]


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = (), removal: str = "renormalised", sentences: int = 0) -> Finding:
    """ΔJS against Δα of each system that attends to the source.

    Args:
        run: the run; systems: those without such an attention are left out. set_names: one set, read with its references (default: the first
            test set).
        removal: of REMOVALS.
        sentences: only so many of the set, drawn at random, the same for all systems; 0 = all.
    Raises: ConfigError for another removal; DataError if no system attends to the source.
    """
    if removal not in REMOVALS:
        raise ConfigError(f"no such removal: '{removal}'", where="--removal", hint=nearest(removal, REMOVALS))
    name_of_set = recording.one_set(run, set_names, "the importance")
    store = Store(run.prep / name_of_set)
    chosen = recording.some(store, sentences, SEED)
    draws = Resampling(len(chosen), RESAMPLES, seed=SEED)
    rows: list[list[Any]] = []
    found: dict[str, Points] = {}
    missing: dict[str, str] = {}
    for name in systems:
        own = measured(run, name, store, chosen, removal == "renormalised")
        if isinstance(own, str):
            missing[name] = own
            continue
        site, found[name] = own
        rows.append([name, site, removal, *row_of(found[name], draws, chosen)])
    if not found:
        what = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise DataError(f"no system whose attention can be taken away: {what}", where=run.path, hint="`nmtkit variants` lists what attends")
    for name, why in missing.items():
        console.say(f"left out, for {why}: {name}")
    return Finding(
        name="importance",
        title="what attention weights say about what matters",
        table=_table(rows, _what(name_of_set, len(chosen), len(store)), removal),
        text="Were weights the same as importance, all points would lie on the diagonal and the correlation would be 1: a position with more "
        "attention would be the one that the next word hangs on. ΔJS below 0: a random other position mattered more. The loss is small, too, where "
        "weights are nearly even and nothing hangs on any of them: its explained share is then near 0, and the mean ΔJS tells whether the source "
        "matters.",
        figure=_figure(found, removal) if figures.available() else None,
        bars="\n\n".join(_bars(name, points, removal) for name, points in found.items()),
        facts={
            **{
                "set": name_of_set,
                "sentences": len(chosen),
                "of": len(store),
                "removal": removal,
                "logarithm": "base 2",
                "seed": SEED,
                "resamples": RESAMPLES,
            },
            **{"attentions": {row[0]: row[1] for row in rows}, "left_out": missing},
        },
        attachments={f"points.{name}.csv": _csv(points) for name, points in found.items()},
    )


def _what(name: str, count: int, every: int) -> str:
    """The set, and how much of it."""
    return name if count == every else f"{count:,} of {every:,} sentences of {name}"


def _table(rows: list[list[Any]], what: str, mode: str) -> Table:
    columns = [Column("system", "system", left=True), Column("attention", "attention", left=True), Column("removal", "removal", left=True)]
    columns += [Column("points", "points"), Column("loss", "Σ(Δα−ΔJS)² [95%]", decimals=1, interval=True)]
    columns += [Column(key, f"{key.replace('_', ' ')} [95%]", decimals=3, interval=True) for key in ("loss_per_point", "correlation")]
    columns += [Column("d_alpha", "mean Δα [95%]", decimals=3, interval=True), Column("d_js", "mean ΔJS [95%]", decimals=5, interval=True)]
    columns += [Column(key, f"{title}, % [95%]", decimals=1, interval=True) for key, title in (("explained", "explained"), ("against", "ΔJS < 0"))]
    columns += [context_spread.column(), context_spread.column("even_context_spread", "with even weights")]
    notes = [
        "at each step of the reference: position i has the largest weight, j is drawn from the other real positions, </s> among them; "
        "Δα = α_i − α_j, ΔJS = JS(p, p without i) − JS(p, p without j), where p is the next word's distribution and JS is in base 2",
        f"removal {mode}: the weight is set to zero in all heads of the last attention to the source at that step alone, and {REMOVALS[mode]}; "
        "α is the mean over heads",
        f"[95%]: percentile interval over {RESAMPLES} resamples of the sentences; draws and resamples of seed {SEED}; "
        f"ΔJS < 0: by more than {ROUNDING:g}",
        "explained: 1 − Σ(Δα−ΔJS)² / Σ Δα², what ΔJS has of the squares of Δα (100: the same; 0: no better than nothing hanging on any position)",
        f"{context_spread.NOTE}; with even weights: where all real positions weigh the same ({context_spread.GATED})",
    ]
    return Table("importance", f"Importance of source positions against their attention weights ({what}, removal {mode})", columns, rows, notes)


def _figure(found: dict[str, Points], mode: str) -> str:
    shown = {}
    for name, points in found.items():
        count = len(points.rows)
        some = np.arange(count) if count <= DRAWN else np.sort(np.random.default_rng(SEED).choice(count, DRAWN, replace=False))
        title = f"{name} ({len(some):,} of {count:,} points)"
        shown[title] = figures.Cloud(points.alpha[some].tolist(), points.js[some].tolist())
    return figures.scatter(shown, "Δα", f"ΔJS (base 2, {mode})")


def _bars(name: str, points: Points, mode: str) -> str:
    """The mean ΔJS in each tenth of Δα."""
    bins = np.minimum((points.alpha * BINS).astype(np.int64), BINS - 1)
    lines = [f"{name}: mean ΔJS by Δα, {mode} (in brackets: points)"]
    for number in range(BINS):
        own = points.js[bins == number]
        if len(own):
            lines.append(f"{number / BINS:.1f}–{(number + 1) / BINS:.1f} {bar(max(0.0, own.mean()), 1.0)} {own.mean():6.3f} ({len(own):,})")
    return "\n".join(lines)


def _csv(points: Points) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["line", "step", "d_alpha", "d_js"])
    rows = zip(points.rows.tolist(), points.steps.tolist(), points.alpha.tolist(), points.js.tolist(), strict=True)
    writer.writerows([row + 1, step + 1, f"{x:.6f}", f"{y:.6f}"] for row, step, x, y in rows)
    return stream.getvalue()
