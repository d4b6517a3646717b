"""Analysis `importance`: whether source positions with more attention matter more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.study import SEED, Study, interval_note
from nmtkit.arrays import Floats, Ints
from nmtkit.measures import ablation, context_spread, recording
from nmtkit.measures.ablation import Ablation
from nmtkit.score.resampling import Draws, estimate, mean
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, csv_text, interval_column, text_columns

REMOVALS = {
    "renormalised": "the other weights of the step are scaled up to sum to one",
    "raw": "the other weights of the step stay as they are",
}
ROUNDING = 1e-9
"""A smaller |ΔJS| counts as 0: if all positions have the same effect, only rounding differs."""
DRAWN = 2000
"""Maximum points of a figure."""


@dataclass(frozen=True)
class Points:
    """One point for each target step of the sentences that were read.

    Attributes:
        rows, steps: (N) the sentence and the target step of each point, both from 0.
        alpha: (N) Δα, the largest weight minus the weight of the random other position.
        js: (N) ΔJS, the difference of the effects of the two removals, in bits.
        spread: (2, sentences of the set), as in `ablation.Comparison`.
    """

    rows: Ints
    steps: Ints
    alpha: Floats
    js: Floats
    spread: Floats


def points_of(study: Study, name: str, attention: Ablation, rows: Ints) -> Points:
    """Return the points of a system over some sentences of the set."""
    length = min(int(study.store.tgt_lengths.max()), recording.POSITIONS)
    sentences = len(study.store)
    alpha, js = np.full((2, sentences, length), np.nan)
    spread = np.full((2, sentences), np.nan)
    for batch in study.batches(name, attention.model, rows):
        read, compared = batch.rows.cpu().numpy(), ablation.compare(attention, batch)
        steps = slice(compared.alpha.size(1))
        alpha[read, steps], js[read, steps] = compared.alpha.cpu(), compared.js.cpu()
        spread[:, read] = compared.spread.cpu()
    known = np.isfinite(alpha)
    read_rows, read_steps = known.nonzero()
    return Points(read_rows, read_steps, alpha[known], js[known], spread)


def sums(points: Points, sentences: int) -> Floats:
    """Return sums over the points of each sentence, for `numbers_of`; x is Δα and y is ΔJS.

    Returns: (sentences, 8): count, Σx, Σy, Σx², Σy², Σxy, Σ(x-y)², number of y < 0.
    """
    x, y = points.alpha, points.js
    parts = (np.ones_like(x), x, y, x * x, y * y, x * y, (x - y) ** 2, y < -ROUNDING)
    columns = [np.bincount(points.rows, weights=part, minlength=sentences) for part in parts]
    return np.stack(columns, axis=1)


def numbers_of(totals: Floats) -> dict[str, Floats]:
    """Return the numbers of the table from sums over sentences (…, 8); NaN if undefined."""
    count, x, y, xx, yy, xy, loss, negative = np.moveaxis(totals, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # If all points have one x or y, rounding leaves a variance of 1e-16 of the squares.
        variance = np.stack([xx - x * x / count, yy - y * y / count])
        variance = np.where(variance > 1e-12 * np.stack([xx, yy]), variance, np.nan)
        return {
            "loss": loss,
            "loss_per_point": loss / count,
            "correlation": (xy - x * y / count) / np.sqrt(variance[0] * variance[1]),
            "d_alpha": x / count,
            "d_js": y / count,
            "explained": 100 * (1 - loss / xx),
            "against": 100 * negative / count,
        }


def estimates(points: Points, draws: Draws, rows: Ints) -> list[Estimate]:
    """Return the numbers of a system's row, with intervals over resampled sentences."""
    of_sentences = sums(points, points.spread.shape[1])[rows]
    values, resampled = numbers_of(of_sentences.sum(0)), numbers_of(draws.sums(of_sentences))
    count = (of_sentences[:, 0] > 0).sum()
    numbers = [estimate(float(value), resampled[key], count) for key, value in values.items()]
    return [*numbers, *(mean(spread[rows], draws) for spread in points.spread)]


def draw(size: int, count: int) -> Ints:
    """Return at most `count` random numbers from 0 to size - 1, sorted and without repetition."""
    return np.sort(np.random.default_rng(SEED).choice(size, min(count, size), replace=False))


class ImportanceOptions(Options):
    """Options of `importance`."""

    removal: Literal["renormalised", "raw"] = "renormalised"
    """The other weights after one weight is removed: scaled to sum to one (renormalised), or left
    as they are (raw)."""
    sentences: int = option(0, "N", ge=0)
    """Read only N sentences of the set, drawn at random (0: all)."""


@dataclass(frozen=True)
class SystemImportance:
    """The attention of a system that was changed, its points, and the numbers of its row."""

    site: str
    points: Points
    numbers: list[Estimate]


@dataclass(frozen=True)
class Importances:
    """The importance of source positions in `sentences` of the `set_size` sentences of a set."""

    set_name: str
    sentences: int
    set_size: int
    systems: dict[str, SystemImportance]


class Importance(Analysis[ImportanceOptions, Importances]):
    """Effect of removals against attention weight, for each system that attends to the source."""

    name = "importance"
    title = "what attention weights say about what matters"
    reads_translations = False
    examples = ("--on dev --removal raw --sentences 200",)
    Options = ImportanceOptions

    def measure(self, study: Study) -> Importances:
        size = len(study.store)
        rows = draw(size, self.options.sentences or size)
        draws = study.draws(len(rows))

        def importance_of(name: str) -> SystemImportance:
            model = study.model(name)
            site = recording.cross_sites(model)[-1]  # of the last layer
            attention = Ablation(model, site, self.options.removal == "renormalised")
            points = points_of(study, name, attention, rows)
            return SystemImportance(site, points, estimates(points, draws, rows))

        hint = "`nmtkit variants` lists the variants, with and without attention"
        systems = study.each(importance_of, "no system whose attention can be taken away", hint)
        return Importances(study.set_name, len(rows), size, systems)

    def present(self, result: Importances) -> Finding:
        removal, systems = self.options.removal, result.systems
        return Finding(
            table=self._table(result),
            text=(
                "If weights equalled importance, all points would lie on the diagonal and the "
                "correlation would be 1. ΔJS below 0: a random other position mattered more. "
                "The loss is also small if weights are nearly even and no position matters: "
                "its explained share is then near 0, and the mean ΔJS shows whether the source "
                "matters."
            ),
            figure=_figure(systems, removal),
            facts={
                "sentences": result.sentences,
                "of": result.set_size,
                "attentions": {name: system.site for name, system in systems.items()},
            },
            attachments={f"points.{name}.csv": _csv(s.points) for name, s in systems.items()},
        )

    def _table(self, result: Importances) -> Table:
        removal, part = self.options.removal, result.set_name
        if result.sentences != result.set_size:
            part = f"{result.sentences:,} of {result.set_size:,} sentences of {part}"
        notes = [
            (
                "at each step of the reference: position i has the largest weight, j is drawn "
                "from the other source positions, including </s>; Δα = α_i − α_j, ΔJS = JS(p, "
                "p without i) − JS(p, p without j), where p is the next word's distribution "
                "and JS is in base 2"
            ),
            (
                f"removal {removal}: the weight is set to zero at this step only, in all heads "
                f"of the last attention to the source, and {REMOVALS[removal]}; α is the mean "
                "over heads"
            ),
            f"{interval_note()}; j is drawn with the same seed; ΔJS < 0: by more than {ROUNDING:g}",
            (
                "explained: 1 − Σ(Δα−ΔJS)² / Σ Δα², the share of the squares of Δα that ΔJS "
                "explains (100: equal; 0: as good as no position mattering)"
            ),
            (
                f"{context_spread.NOTE}; with even weights: where all real positions weigh the same"
                f" ({context_spread.GATED})"
            ),
        ]
        rows = [
            [name, system.site, removal, len(system.points.rows), *system.numbers]
            for name, system in result.systems.items()
        ]
        title = "Importance of source positions against their attention weights"
        return Table("importance", f"{title} ({part}, removal {removal})", COLUMNS, rows, notes)


COLUMNS = [
    *text_columns("system", "attention", "removal"),
    Column("points", "points"),
    interval_column("loss", "Σ(Δα−ΔJS)²", 1),
    interval_column("loss_per_point", "loss per point", 3),
    interval_column("correlation", "correlation", 3),
    interval_column("d_alpha", "mean Δα", 3),
    interval_column("d_js", "mean ΔJS", 5),
    interval_column("explained", "explained, %", 1),
    interval_column("against", "ΔJS < 0, %", 1),
    interval_column("context_spread", "context spread", 3),
    interval_column("even_context_spread", "with even weights", 3),
]


def _figure(systems: Mapping[str, SystemImportance], removal: str) -> str | None:
    clouds = {}
    for name, system in systems.items():
        points, count = system.points, len(system.points.rows)
        shown = draw(count, DRAWN)
        cloud = figures.Cloud(points.alpha[shown].tolist(), points.js[shown].tolist())
        clouds[f"{name} ({len(shown):,} of {count:,} points)"] = cloud
    return figures.scatter(clouds, "Δα", f"ΔJS (base 2, {removal})")


def _csv(points: Points) -> str:
    columns = (points.rows + 1, points.steps + 1, points.alpha, points.js)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    cells = ([line, step, f"{alpha:.6f}", f"{js:.6f}"] for line, step, alpha, js in rows)
    return csv_text([["line", "step", "d_alpha", "d_js"], *cells])
