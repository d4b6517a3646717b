"""state.json of a checkpoint: the progress from which a training resumes exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import NonNegativeInt

from nmtkit.train.schedule import Plateau


@dataclass
class Window:
    """Sums over some updates; the log and the plateau schedule use their means.

    Attributes:
        tokens: real target tokens.
        positions: positions of both sides, padding included.
        cpu: processor seconds of all threads; they are more exact than the clock on a busy machine.
        norm: sum of the gradient norms.
    """

    steps: int = 0
    smoothed: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    positions: int = 0
    padding: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    norm: float = 0.0

    def add(self, other: Window) -> None:
        """Add the sums of another window."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Best:
    """The best validation so far.

    Only validations with the same development set (`dev_set`, see Validation) and the same
    signature of BLEU are compared.
    """

    step: int
    dev_loss: float
    dev_bleu: float | None
    dev_set: str = ""
    signature: str | None = None


@dataclass
class TrainState:
    """The progress of a training.

    Random numbers need no entry, because (seed, step, micro-batch) seeds each micro-batch.

    Attributes:
        window: of the epoch (see `nmtkit.data.order`).
        index: number of batches of this window that were used.
        seconds: training time without validation and saving.
        validated: the step of the last validation.
        log: sums since the last line of the log.
        loss: sums since the last validation.
        skipped: updates that were skipped because loss or gradient was not finite.
        skipped_in_row: how many of the last updates were skipped in a row.
        split_from: batches of this many positions or more did not fit into memory and are computed
            in parts; None if all batches fit.
        norms: the last gradient norms; they help to find out why a training diverged.
        scaler: of the loss in float16 (`GradScaler.state_dict`); empty in other precisions.
        overflows: number of times that a gradient overflowed in float16 and was computed again.
        processes: number of processes that trained together; no update depends on it.
    """

    step: NonNegativeInt = 0
    epoch: NonNegativeInt = 0
    window: NonNegativeInt = 0
    index: NonNegativeInt = 0
    seconds: float = 0.0
    tokens: int = 0
    validated: int = 0
    since_best: int = 0
    best: Best | None = None
    plateau: Plateau = field(default_factory=Plateau)
    log: Window = field(default_factory=Window)
    loss: Window = field(default_factory=Window)
    skipped: int = 0
    skipped_in_row: int = 0
    split_from: int | None = None
    norms: list[float] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    overflows: int = 0
    hardware: dict[str, Any] = field(default_factory=dict)
    processes: int = 1
