"""The curves of a training as its metrics.jsonl has them: loss and dev BLEU over updates, epochs and training time."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import files


@dataclass(frozen=True)
class Stretch:
    """Updates begin+1 … end that one line of the log tells of: their seconds, the epoch at the end, their mean loss (None: not logged)."""

    begin: int
    end: int
    seconds: float | None
    epoch: float | None
    loss: float | None

    def until(self, end: int) -> Stretch:
        """The part up to an earlier update, with its share of the seconds."""
        share = (end - self.begin) / (self.end - self.begin)
        return Stretch(self.begin, end, None if self.seconds is None else self.seconds * share, None, self.loss)


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

    def epochs(self, steps: Sequence[float]) -> list[float | None]:
        """Passes over the training set after so many updates, linear between lines of the log; None beyond the last."""
        known = [(s.end, s.epoch) for s in self.train if s.epoch is not None]
        return _between([(0, 0.0), *known], steps) if known else [None] * len(steps)

    def minutes(self, steps: Sequence[float]) -> list[float | None]:
        """Minutes spent on so many updates, linear inside a stretch; None beyond the last, or where the log has no times.

        They are of updates alone: validation, saving, and the time between a stop and a restart are not in them.
        """
        if not self.train or any(s.seconds is None for s in self.train):
            return [None] * len(steps)
        clock, corners = 0.0, [(0, 0.0)]
        for stretch in self.train:
            corners.append((stretch.begin, clock / 60))
            clock += stretch.seconds or 0.0
            corners.append((stretch.end, clock / 60))
        return _between(corners, steps)


def _between(corners: Sequence[tuple[int, float]], steps: Sequence[float]) -> list[float | None]:
    """Values at steps, linear between corners."""
    x, y = np.array(corners, dtype=np.float64).T
    return [float(np.interp(step, x, y)) if step <= x[-1] else None for step in steps]


def read(path: Path, log_every: int | None = None) -> Curves:
    """The curves in a metrics.jsonl; lines cut off or not understood are passed over.

    Where a training went back to a checkpoint, what was written beyond it is dropped: each update counts once, as it was made last.

    Args:
        path: the file; one that isn't there has no curves.
        log_every: updates between two lines, for logs that don't say how many updates a line is of.
    """
    found = Curves()
    if not path.is_file():
        return found
    last: tuple[int, str] = (0, "")
    for line in files.text_lines(path):
        record = _record(line)
        if record is None:
            continue
        step, kind = record["step"], record["kind"]
        if step < last[0] or (step, kind) == last:  # a restart
            found.dev = [look for look in found.dev if look.step < step]
            found.train = [s for s in found.train if s.end < step]
        last = (step, kind)
        if kind == "dev":
            found.dev.append(Look(step, _number(record, "dev_loss"), _number(record, "dev_bleu"), record.get("signature")))
        else:
            begin = _begin(record, found.train[-1].end if found.train else 0, log_every)
            found.train = [s if s.end <= begin else s.until(begin) for s in found.train if s.begin < begin]
            found.train.append(Stretch(begin, step, _number(record, "seconds"), _number(record, "epoch"), _number(record, "nll")))
    return found


def _begin(record: dict[str, Any], before: int, log_every: int | None) -> int:
    """The update after which a line's stretch begins."""
    step = int(record["step"])
    updates = record.get("updates")
    if isinstance(updates, int):
        return max(0, step - max(1, updates))
    return (step - 1) // log_every * log_every if log_every else min(before, step - 1)


def _record(line: str) -> dict[str, Any] | None:
    """A line that has a step from 1 and tells of training or validation."""
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and type(found.get("step")) is int and found["step"] > 0 and found.get("kind") in {"train", "dev"}:
            return found
    return None


def _number(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None
