"""The curves of a training from its log: loss and dev BLEU over updates, epochs and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from nmtkit.arrays import Floats
from nmtkit.records import MetricsLine, load_lines
from nmtkit.tables.figures import Curve, Panel

AXES = ("updates", "epochs", "minutes", "processor_minutes")
"""Of curves; minutes are of updates alone, without validation, saving and pauses."""


def begin(line: MetricsLine) -> int:
    """Return the updates before those that a line of the log describes."""
    return max(0, line.step - max(1, line.updates))


def cpu_seconds(line: MetricsLine) -> float:
    """Return the processor time of these updates, of all processes."""
    return line.cpu_seconds * line.processes


@dataclass(frozen=True)
class Curves:
    """One training; losses are cross-entropies per target token without label smoothing.

    Attributes:
        train: lines about stretches of updates in order, not overlapping; their losses are with
            dropout.
        dev: lines about validations in the order of updates, one for each step.
    """

    train: list[MetricsLine] = field(default_factory=list)
    dev: list[MetricsLine] = field(default_factory=list)

    @property
    def measured(self) -> list[tuple[int, float]]:
        """(updates, dev BLEU) of the validations that measured BLEU."""
        return [(v.step, v.dev_bleu) for v in self.dev if v.dev_bleu is not None]

    @property
    def last(self) -> int:
        """The last update that the log knows."""
        return max([0, *(s.step for s in self.train[-1:]), *(v.step for v in self.dev[-1:])])

    @property
    def unlogged(self) -> int:
        """Updates without a line in the log: lost lines, or gradients that were not finite."""
        return self.last - sum(s.step - begin(s) for s in self.train) if self.train else 0

    @property
    def tokens(self) -> int | None:
        """Target tokens seen; None if the log lacks updates."""
        complete = bool(self.train) and not self.unlogged
        return sum(line.tgt_tokens for line in self.train) if complete else None

    def speed(self, on_cpu: bool) -> tuple[float | None, float | None]:
        """Return the target tokens/s and updates/s; None without a log.

        The speeds are medians over the lines of the log. The first line is left out, because it has
        the start. On a CPU a second is a second of processor time, which other work of the machine
        changes little.
        """
        times = [(cpu_seconds(s) if on_cpu else s.seconds, s) for s in self.train]
        rates = [(s.tgt_tokens / time, (s.step - begin(s)) / time) for time, s in times if time]
        if not rates:
            return None, None
        tokens, updates = np.median(rates[1:] or rates, axis=0)
        return float(tokens), float(updates)

    def at(self, step: float, axis: str) -> float | None:
        """Return where an update is on one of AXES.

        Returns: linear between lines of the log; None beyond the last, or if a line lacks it.
        """
        if axis == "updates":
            return step
        x, y = self._corners[axis]
        return float(np.interp(step, x, y)) if len(x) and step <= x[-1] else None

    def place(self, step: float | None) -> list[float | None]:
        """Return where an update is on each of AXES; None if there is no update."""
        return [None if step is None else self.at(step, axis) for axis in AXES]

    @cached_property
    def _corners(self) -> dict[str, Floats]:
        """By axis: updates and the values there (2, N), between which the axis is linear."""
        epochs = [(s.step, s.epoch) for s in self.train if s.epoch is not None]
        corners = {
            "epochs": [(0, 0.0), *epochs] if epochs else [],
            "minutes": self._minutes([s.seconds for s in self.train]),
            "processor_minutes": self._minutes([cpu_seconds(s) for s in self.train]),
        }
        return {
            axis: np.array(points, np.float64).reshape(-1, 2).T for axis, points in corners.items()
        }

    def _minutes(self, seconds: Sequence[float]) -> list[tuple[int, float]]:
        """Return (updates, minutes) where each stretch begins and ends; [] without logged time."""
        if not any(seconds):
            return []
        clock, corners = 0.0, [(0, 0.0)]
        for stretch, spent in zip(self.train, seconds, strict=True):
            corners += [(begin(stretch), clock / 60), (stretch.step, (clock + spent) / 60)]
            clock += spent
        return corners


def read(path: Path) -> Curves:
    """Return the curves in a metrics.jsonl, without a last line that was cut off.

    Each update counts once: a training that goes on after its end tells of its last updates again.

    Args:
        path: the file; a missing one has no curves.
    Raises: DataError for a damaged line.
    """
    train: list[MetricsLine] = []
    dev: dict[int, MetricsLine] = {}
    for line in load_lines(MetricsLine, path) if path.is_file() else ():
        if line.kind == "dev":
            dev[line.step] = line
        else:
            # A line replaces those of the same updates.
            train = [*(earlier for earlier in train if earlier.step <= begin(line)), line]
    return Curves(train, list(dev.values()))


def panels(
    curves: Mapping[str, Curves], axis: str = "updates", groups: Mapping[str, str] | None = None
) -> list[Panel]:
    """Return a panel of loss (training faint) and one of dev BLEU, each if it has a curve.

    Args:
        curves: by system; axis: one of AXES.
        groups: system -> the group whose colour and name it has; default: its own.
    """
    labels = {False: "loss (thin: training)", True: "dev BLEU"}
    both = [
        Panel(axis, label, _drawn(curves, axis, bleu, groups or {}))
        for bleu, label in labels.items()
    ]
    return [panel for panel in both if panel.curves]


def _drawn(
    curves: Mapping[str, Curves], axis: str, bleu: bool, groups: Mapping[str, str]
) -> list[Curve]:
    """Return the curves of a panel."""
    lines = []
    for name, training in curves.items():
        train = [] if bleu else [(s.step, s.nll) for s in training.train]
        dev = training.measured if bleu else [(v.step, v.dev_loss) for v in training.dev]
        for points, faint in ((train, True), (dev, False)):
            places = [(training.at(step, axis), value) for step, value in points]
            if known := [(x, y) for x, y in places if x is not None and y is not None]:
                x, y = zip(*known, strict=True)
                lines.append(Curve(groups.get(name, name), x, y, faint))
    return lines
