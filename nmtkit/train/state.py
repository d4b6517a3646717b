"""Everything a training must remember to continue as if it had never stopped; written to
state.json with each checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from nmtkit.train.schedules import Plateau


@dataclass
class Window:
    """Sums over the updates since some moment: what the log and the plateau schedule average."""

    steps: int = 0
    smoothed: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    """Real target tokens."""
    positions: int = 0
    """Positions of both sides, padding included."""
    padding: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of processor time, those of all threads of this process together: on a busy
    machine they say more than the clock.
    """
    norm: float = 0.0
    """Sum of the gradient norms."""


@dataclass
class Best:
    """The best validation so far."""

    step: int
    dev_loss: float
    dev_bleu: float | None
    dev_set: str = ""
    """What it was measured on (see Validation), and the signature of the BLEU: only the like is
    compared.
    """
    signature: str | None = None


@dataclass
class TrainState:
    """Where a training stands. Random numbers need no entry: each micro-batch's are seeded by
    (seed, step, micro-batch).
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Batches of this epoch already used."""
    seconds: float = 0.0
    """Training time, validation and saving not counted."""
    tokens: int = 0
    validated: int = 0
    """The step of the last validation."""
    since_best: int = 0
    best: Best | None = None
    plateau: Plateau = field(default_factory=Plateau)
    log: Window = field(default_factory=Window)
    """Since the last line of the log."""
    loss: Window = field(default_factory=Window)
    """Since the last validation."""
    skipped: int = 0
    skipped_in_row: int = 0
    split_from: int | None = None
    """Batches of so many positions or more are computed in parts, since memory did not hold one;
    None: all were held.
    """
    norms: list[float] = field(default_factory=list)
    """The last gradient norms, for whoever must find out why a training diverged."""
    hardware: dict[str, Any] = field(default_factory=dict)
    processes: int = 1
    """That trained together, as last said; no update depends on it."""

    def values(self) -> dict[str, Any]:
        """As plain values, for JSON; floats keep every bit."""
        return asdict(self)
