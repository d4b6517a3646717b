"""What a training has measured so far, from its metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.verdict.folders import json_lines


@dataclass(frozen=True)
class Measured:
    """A training so far.

    Attributes:
        updates: done; 0 before the first line of the log.
        progress: the last line about updates.
        best: the validation with the highest dev BLEU, or without BLEU the lowest dev loss.
        last: the last validation (with a finite loss, like the best).
        training: processor seconds of the updates, those of rank 0 for every rank.
        validation: seconds of the validations.
    """

    updates: int
    progress: dict[str, Any] | None
    best: dict[str, Any] | None
    last: dict[str, Any] | None
    training: float
    validation: float

    @property
    def seconds(self) -> float:
        """The cost of updates and validations."""
        return self.training + self.validation


def measured(system: Path) -> Measured:
    """Return what the folder of a system, or of its results, says."""
    lines = json_lines(system / "metrics.jsonl")
    dev = [line for line in lines if line["kind"] == "dev" and line["dev_loss"] is not None]
    best = max(dev, key=lambda line: (line.get("dev_bleu") or 0.0, -line["dev_loss"]), default=None)
    progress = [line for line in lines if line["kind"] == "train"]
    return Measured(
        updates=max((line["step"] for line in lines), default=0),
        progress=progress[-1] if progress else None,
        best=best,
        last=dev[-1] if dev else None,
        training=sum((line.get("cpu_seconds") or 0.0) * line.get("processes", 1) for line in lines),
        validation=sum(
            (line.get(key) or 0.0) for line in dev for key in ("loss_seconds", "bleu_seconds")
        ),
    )
