"""The curves of a training as its metrics.jsonl has them: loss and dev BLEU over updates, epochs and training time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nmtkit.records import MetricsLine, load_lines


@dataclass(frozen=True)
class Stretch:
    """Updates begin+1 … end that one line of the log tells of: their seconds by the clock and of processor time, the epoch at the end, their mean
    loss (None: not logged)."""

    begin: int
    end: int
    seconds: float | None
    cpu: float | None
    epoch: float | None
    loss: float | None

    def until(self, end: int) -> Stretch:
        """The part up to an earlier update, with its share of the seconds."""
        share = (end - self.begin) / (self.end - self.begin)
        seconds, cpu = (None if whole is None else whole * share for whole in (self.seconds, self.cpu))
        return Stretch(self.begin, end, seconds, cpu, None, self.loss)


@dataclass(frozen=True)
class Look:
    """One validation: loss per target token, BLEU of greedy search and its signature (None: not measured)."""

    step: int
    loss: float | None
    bleu: float | None
    signature: str | None


@dataclass
class Curves:
    """One training. Losses are cross-entropies per target token, without label smoothing: with dropout on training batches, without on dev."""

    train: list[Stretch] = field(default_factory=list)
    """In order, not overlapping: of updates that were made again after a restart only the later ones are here."""
    dev: list[Look] = field(default_factory=list)
    """In order of updates, one a step."""

    @property
    def measured(self) -> list[tuple[int, float]]:
        """(updates, dev BLEU) of the validations that have BLEU."""
        return [(look.step, look.bleu) for look in self.dev if look.bleu is not None]

    @property
    def last(self) -> int:
        """The last update that anything is known of."""
        return max([0, *(s.end for s in self.train[-1:]), *(look.step for look in self.dev[-1:])])

    @property
    def unlogged(self) -> int:
        """Updates that no line tells of: lines that were lost, or updates that were skipped as their gradients were not finite."""
        return self.last - sum(s.end - s.begin for s in self.train) if self.train else 0

    @property
    def timed(self) -> bool:
        """Whether every line of the log has processor time."""
        return bool(self.train) and all(s.cpu is not None for s in self.train)

    def epochs(self, steps: Sequence[float]) -> list[float | None]:
        """Passes over the training set after so many updates, linear between lines of the log; None beyond the last."""
        known = [(s.end, s.epoch) for s in self.train if s.epoch is not None]
        return _between([(0, 0.0), *known], steps) if known else [None] * len(steps)

    def minutes(self, steps: Sequence[float]) -> list[float | None]:
        """Minutes spent on so many updates, linear inside a stretch; None beyond the last, or where the log has no times.

        They are of updates alone: validation, saving, and the time between a stop and a restart are not in them.
        """
        return self._minutes(steps, [s.seconds for s in self.train])

    def processor_minutes(self, steps: Sequence[float]) -> list[float | None]:
        """As `minutes`, of processor time: what other work takes of the machine is not in it; None, too, where older lines of the log lack it."""
        return self._minutes(steps, [s.cpu for s in self.train])

    def _minutes(self, steps: Sequence[float], seconds: Sequence[float | None]) -> list[float | None]:
        if not seconds or None in seconds:
            return [None] * len(steps)
        clock, corners = 0.0, [(0, 0.0)]
        for stretch, spent in zip(self.train, seconds, strict=True):
            corners.append((stretch.begin, clock / 60))
            clock += spent or 0.0
            corners.append((stretch.end, clock / 60))
        return _between(corners, steps)


def _between(corners: Sequence[tuple[int, float]], steps: Sequence[float]) -> list[float | None]:
    """Values at steps, linear between corners."""
    x, y = np.array(corners, dtype=np.float64).T
    return [float(np.interp(step, x, y)) if step <= x[-1] else None for step in steps]


def read(path: Path, log_every: int | None = None) -> Curves:
    """Return the curves in a metrics.jsonl; a last line that was cut off is passed over.

    Where a training went back to a checkpoint, what was written beyond it is dropped: each update counts once, as it was made last.

    Args:
        path: the file; one that isn't there has no curves.
        log_every: updates between two lines, for logs that don't say how many updates a line is of.
    Raises: DataError for a damaged line.
    """
    found = Curves()
    if not path.is_file():
        return found
    last: tuple[int, str] = (0, "")
    for line in load_lines(MetricsLine, path):
        step, kind = line.step, line.kind
        if step < last[0] or (step, kind) == last:  # a restart
            found.dev = [look for look in found.dev if look.step < step]
            found.train = [s for s in found.train if s.end < step]
        last = (step, kind)
        if kind == "dev":
            found.dev.append(Look(step, line.dev_loss, line.dev_bleu, line.signature))
        else:
            begin = _begin(line, found.train[-1].end if found.train else 0, log_every)
            found.train = [s if s.end <= begin else s.until(begin) for s in found.train if s.begin < begin]
            found.train.append(Stretch(begin, step, line.seconds, line.cpu_seconds, line.epoch, line.nll))
    return found


def _begin(line: MetricsLine, before: int, log_every: int | None) -> int:
    """Return the update after which a line's stretch begins."""
    if line.updates is not None:
        return max(0, line.step - max(1, line.updates))
    return (line.step - 1) // log_every * log_every if log_every else min(before, line.step - 1)
