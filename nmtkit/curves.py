"""The curves of a training from metrics.jsonl: loss and dev BLEU over updates, epochs and time."""

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
"""The x axes of curves. Minutes are those of updates, without validation, saving and pauses."""


def begin(line: MetricsLine) -> int:
    """Return the update after which the updates of a line of the log begin."""
    return max(0, line.step - max(1, line.updates))


def cpu_seconds(line: MetricsLine) -> float:
    """Return the processor time of the updates of a line, summed over the processes."""
    return line.cpu_seconds * line.processes


@dataclass(frozen=True)
class Curves:
    """The curves of one training; losses are per target token, without label smoothing.

    Attributes:
        train: lines about updates, in order and not overlapping; their losses are with dropout.
        dev: lines about validations, in the order of updates, one for each step.
    """

    train: list[MetricsLine] = field(default_factory=list)
    dev: list[MetricsLine] = field(default_factory=list)

    @property
    def measured(self) -> list[tuple[int, float]]:
        """(updates, dev BLEU) of the validations that measured BLEU."""
        return [(v.step, v.dev_bleu) for v in self.dev if v.dev_bleu is not None]

    @property
    def last(self) -> int:
        """The last update in the log."""
        return max([0, *(line.step for line in self.train[-1:] + self.dev[-1:])])

    @property
    def unlogged(self) -> int:
        """The number of updates without a line: lost lines, or gradients that are not finite."""
        return self.last - sum(s.step - begin(s) for s in self.train) if self.train else 0

    @property
    def tokens(self) -> int | None:
        """The target tokens of all updates; None if the log lacks updates."""
        complete = bool(self.train) and not self.unlogged
        return sum(line.tgt_tokens for line in self.train) if complete else None

    def speed(self, on_cpu: bool) -> tuple[float | None, float | None]:
        """Return the target tokens/s and updates/s; None without a log.

        The speeds are medians over the lines of the log, without the first line, which has the slow
        start. On a CPU the seconds are processor time, which other work on the machine hardly
        changes.
        """
        times = [(cpu_seconds(s) if on_cpu else s.seconds, s) for s in self.train]
        rates = [(s.tgt_tokens / time, (s.step - begin(s)) / time) for time, s in times if time]
        if not rates:
            return None, None
        tokens, updates = np.median(rates[1:] or rates, axis=0)
        return float(tokens), float(updates)

    def at(self, step: float, axis: str) -> float | None:
        """Return the place of an update on one of AXES: linear between lines of the log; None after
        the last line, or if the log lacks the numbers.
        """
        if axis == "updates":
            return step
        x, y = self._corners[axis]
        return float(np.interp(step, x, y)) if len(x) and step <= x[-1] else None

    def place(self, step: float | None) -> list[float | None]:
        """Return the place of an update on each of AXES; None if there is no update."""
        return [None if step is None else self.at(step, axis) for axis in AXES]

    @cached_property
    def _corners(self) -> dict[str, Floats]:
        """Axis -> updates and their places (2, N), between which the axis is linear."""
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
        """Return (updates, minutes) at the begin and end of each line; [] without logged time."""
        if not any(seconds):
            return []
        clock, corners = 0.0, [(0, 0.0)]
        for line, spent in zip(self.train, seconds, strict=True):
            corners += [(begin(line), clock / 60), (line.step, (clock + spent) / 60)]
            clock += spent
        return corners


def read(path: Path) -> Curves:
    """Return the curves in a metrics.jsonl, without a last line that was cut off.

    Each update counts once, although a training that is resumed after its end logs its last updates
    again.

    Args:
        path: the file; a missing file has no curves.
    Raises: DataError for a damaged line.
    """
    train: list[MetricsLine] = []
    dev: dict[int, MetricsLine] = {}
    for line in load_lines(MetricsLine, path) if path.is_file() else ():
        if line.kind == "dev":
            dev[line.step] = line
        else:
            # A line replaces earlier lines about the same updates.
            train = [*(earlier for earlier in train if earlier.step <= begin(line)), line]
    return Curves(train, list(dev.values()))


def panels(
    curves: Mapping[str, Curves], axis: str = "updates", groups: Mapping[str, str] | None = None
) -> list[Panel]:
    """Return a panel of losses (those of training are faint) and one of dev BLEU, without empty
    panels.

    Args:
        curves: by system.
        axis: one of AXES.
        groups: system -> group, whose name and colour its curves get; default: the system.
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
