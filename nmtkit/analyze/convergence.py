"""Analysis `convergence`: loss and dev BLEU of trainings, and when each training reached a BLEU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.study import Study
from nmtkit.curves import AXES, Curves, panels, read
from nmtkit.errors import ConfigError, LeftOut, counted
from nmtkit.files import JsonObject
from nmtkit.score.budgets import read_budget, unequal
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Rows, Table, csv_text, text_column

SHARES = (0.5, 0.75, 0.9)
"""The default levels are these shares of the best BLEU of all systems, and the best BLEU of the
weakest system.
"""
DECIMALS = {"updates": 0, "epochs": 2}
"""Decimals in the column of an axis; minutes have one."""
INTERPOLATED, FIRST, NEVER = "interpolated", "by the first validation", "not reached"


class ConvergenceOptions(Options):
    """Options of `convergence`."""

    levels: str = option("", "BLEU,…")
    """Levels of dev BLEU, such as 20,25,30 (default: computed from the best BLEU of the
    systems)."""


@dataclass(frozen=True)
class Trainings:
    """The trainings of some systems.

    Attributes:
        curves: system -> its curves.
        dev_bleu: system -> how it measured dev BLEU: signatures and hashes of the sentences in the
            order of the log, and the number of sentences by its settings. Systems without dev BLEU
            are left out.
        levels: levels of BLEU.
    """

    curves: dict[str, Curves]
    dev_bleu: dict[str, JsonObject]
    levels: list[float]

    @property
    def baseline(self) -> str:
        """The first system with a log."""
        return next(iter(self.curves))

    @property
    def comparable(self) -> bool:
        """True if all systems measured dev BLEU in the same way."""
        ways = self.dev_bleu.values()
        signatures, dev_sets = (
            {value for way in ways for value in way[key]} for key in ("signatures", "dev_sets")
        )
        hashes = dev_sets - {""}  # logs of earlier versions have none
        counts = {way["dev_sentences"] for way in ways if hashes != dev_sets}
        # A resumed training may have other settings.
        unchanged = all(len(way["dev_sets"]) == 1 for way in ways)
        return unchanged and max(map(len, (signatures, hashes, counts))) <= 1


class Convergence(Analysis[ConvergenceOptions, Trainings]):
    """Loss and dev BLEU of each training over updates, epochs and time."""

    name = "convergence"
    title = "dev BLEU reached, by updates, epochs and training time"
    reads_translations = False
    examples = ("--levels 20,25,30",)
    sets = "none"
    Options = ConvergenceOptions

    def measure(self, study: Study) -> Trainings:
        levels = parse_levels(self.options.levels) if self.options.levels else []
        run = study.run

        def curves_of(name: str) -> Curves:
            curves = read(run.system(name).metrics)
            if curves.train or curves.dev:
                return curves
            raise LeftOut("its log has no measurement yet")

        nobody = "no training of this run has logged anything"
        curves = study.each(curves_of, nobody, run.train_first)
        budgets = {name: budget for name in curves if (budget := read_budget(run, name))}
        study.warnings += unequal(
            {name: replace(b, updates=None, tokens=None) for name, b in budgets.items()}
        )
        bests, dev_bleu = [], {}
        for name, curve in curves.items():
            if curve.measured:
                bests.append(max(bleu for _, bleu in curve.measured))
                with_bleu = [line for line in curve.dev if line.dev_bleu is not None]
                dev_sets = dict.fromkeys(line.dev_set for line in with_bleu)
                dev_bleu[name] = {
                    "signatures": list(dict.fromkeys(line.signature for line in with_bleu)),
                    "dev_sets": list(dev_sets),
                    "dev_sentences": run.system(name).read_config().train.get("dev_sentences")
                    or "all",
                }
        result = Trainings(curves, dev_bleu, levels or default_levels(bests))
        if not result.comparable:
            how = "in several ways (facts in finding.json), so its levels cannot be compared"
            study.warn("dev BLEU", f"was measured {how}")
        return result

    def present(self, result: Trainings) -> Finding:
        columns = [
            text_column("point"),
            Column("bleu", "dev BLEU"),
            text_column("system"),
            *(Column(axis, axis.replace("_", " "), DECIMALS.get(axis, 1)) for axis in AXES),
            Column("ratio", f"updates, × {result.baseline}"),
            Column("dev_loss", "dev loss", decimals=3),
            text_column("how"),
        ]
        title = "Updates, epochs and minutes of training to each dev BLEU"
        drawn = panels(result.curves)
        return Finding(
            table=Table("convergence", title, columns, rows_of(result), notes(result)),
            text=(
                "Compare systems at the same level: fewer updates mean faster learning, but "
                "slower updates may take more minutes. The system that leads at a low level "
                "may not lead at the best one. Each training has one seed."
            ),
            figure=figures.curves(drawn) if drawn else None,
            facts={"levels": result.levels, "dev_bleu": result.dev_bleu},
            attachments={"curves.csv": curves_csv(result.curves)},
        )


def parse_levels(text: str) -> list[float]:
    """Return BLEU levels from text such as "20,25,30", in rising order.

    Raises: ConfigError for a value that is not a BLEU above 0 and up to 100.
    """
    levels = set()
    for part in text.split(","):
        try:
            level = float(part)
        except ValueError:
            level = math.nan
        if not 0 < level <= 100:
            hint = "numbers above 0 and up to 100, such as --levels 20,25,30"
            message = f"'{part.strip()}' is not a level of BLEU"
            raise ConfigError(message, where="--levels", hint=hint)
        levels.add(level)
    return sorted(levels)


def default_levels(bests: Sequence[float]) -> list[float]:
    """Return the lowest best BLEU, and SHARES of the highest best BLEU, rounded down to tenths."""
    levels = [min(bests), *(share * max(bests) for share in SHARES)] if bests else []
    tenths = {math.floor(round(10 * level, 6)) for level in levels}
    return sorted(tenth / 10 for tenth in tenths if tenth > 0)


def reach(measured: Sequence[tuple[int, float]], level: float) -> tuple[float | None, str]:
    """Return the updates after which a level of BLEU was reached for the first time, and how this
    is known.

    Args:
        measured: (updates, BLEU) of each validation, in order.
    Returns: INTERPOLATED updates, between the last validation below the level and the next one; the
        updates of the FIRST validation if it reached the level (an upper bound); or None and NEVER.
    """
    below: tuple[int, float] | None = None
    for step, bleu in measured:
        if bleu < level:
            below = step, bleu
        elif below is None:
            return float(step), FIRST
        else:
            share = (level - below[1]) / (bleu - below[1])
            return below[0] + share * (step - below[0]), INTERPOLATED
    return None, NEVER


def rows_of(result: Trainings) -> Rows:
    """Return a row for each level and training with dev BLEU, then the best row of each training:
    the validation with the best BLEU, or without BLEU the best loss.
    """
    rows: Rows = []
    for level in result.levels:
        reached = {name: reach(result.curves[name].measured, level) for name in result.dev_bleu}
        base, how_base = reached.get(result.baseline, (None, NEVER))
        for name, (steps, how) in reached.items():
            exact = how == how_base == INTERPOLATED  # the ratio of upper bounds says nothing
            ratio = steps / base if exact and steps and base else None
            place = result.curves[name].place(steps)
            rows.append(["level", level, name, *place, ratio, None, how])
    for name, curves in result.curves.items():
        if curves.dev:
            best = min(curves.dev, key=lambda v: (-(v.dev_bleu or 0), v.dev_loss or math.inf))
            place, loss = curves.place(best.step), best.dev_loss
            rows.append(["best", best.dev_bleu, name, *place, None, loss, "best validation"])
    return rows


def notes(result: Trainings) -> list[str]:
    """Return the notes of the table."""
    curves, ways = result.curves, list(result.dev_bleu.values())
    shared = ways[0]["signatures"][0] if ways and result.comparable else None
    signature = f", {shared}" if shared else ""
    lines = [
        (
            "reached: for the first time, interpolated linearly between two validations; "
            f"'{FIRST}': at the first validation or before; '{NEVER}': not by the end of "
            "this training"
        ),
        (
            "minutes: wall-clock time of updates only, as logged on each training's "
            "machine. Validation, saving and the time between a stop and a restart are not "
            "counted; an update repeated after a restart counts once"
        ),
        (
            "processor minutes: processor time of the same updates, over all threads of "
            "rank 0, times the number of processes; other work on the machine is not counted, nor "
            "is a GPU's"
        ),
        (
            f"dev BLEU: greedy search{signature}; dev loss and training loss: per target token, "
            "without label smoothing, training loss with dropout"
        ),
    ]
    if not ways:
        lines.append("no training measured BLEU (train.dev_bleu), so there are no levels")
    elif not result.levels:
        lines.append("no training reached a BLEU above zero, so there are no levels (--levels)")
    mute = ", ".join(n for n, curve in curves.items() if curve.dev and n not in result.dev_bleu)
    if ways and mute:
        lines.append(f"without dev BLEU, so without levels: {mute}")
    for name, curve in curves.items():
        if count := curve.unlogged:
            missing = (
                f"the log has no line of {counted(count, 'update')} (skipped ones, or lines lost)"
            )
            lines.append(f"{name}: {missing}")
    return lines


def curves_csv(curves: Mapping[str, Curves]) -> str:
    """Return every point of every curve as CSV."""
    rows = []
    for name, curve in curves.items():
        rows += [[name, "train", *curve.place(s.step), s.nll, None] for s in curve.train]
        rows += [[name, "dev", *curve.place(v.step), v.dev_loss, v.dev_bleu] for v in curve.dev]
    return csv_text([["system", "kind", *AXES, "loss", "bleu"], *rows])
