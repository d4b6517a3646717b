"""Checkpoints of a training: writing, keeping and finding them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from nmtkit import console
from nmtkit.errors import CheckpointError, EnvironmentProblem
from nmtkit.files import UNWRITABLE
from nmtkit.models import checkpoints
from nmtkit.records import BestCheckpoint
from nmtkit.run import System
from nmtkit.settings import TrainSettings
from nmtkit.train.state import TrainState

PAUSES = (0, 2, 4, 8, 16, 30)
"""Seconds before each further attempt to write: a network disk may be away for a minute."""


class Writer:
    """Writes checkpoints in a thread, one after the other, while the training goes on."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._writing: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Begin to write, as soon as what was begun before is written.

        Raises: as `finish`.
        """
        self.finish()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raise the error of a write that has failed, without waiting."""
        if self._writing is not None and self._writing.done():
            self.finish()

    def finish(self) -> None:
        """Wait until everything is written.

        Raises: EnvironmentProblem, or what else the write has raised.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in main memory, which no further update changes."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def retried(write: Callable[[], object], tidy: Callable[[], object]) -> None:
    """Write something; if the disk refuses, tidy up and write again.

    A full disk gets one more attempt, another failure gets attempts for a minute.
    """
    for attempt in itertools.count():
        try:
            write()
            return
        except EnvironmentProblem as error:
            number = getattr(error.__cause__, "errno", None)
            pauses = PAUSES[:1] if number is None or number in UNWRITABLE else PAUSES
            if attempt >= len(pauses):
                raise
            pause = pauses[attempt]
            console.warn(f"{error.message}; trying once more{f' in {pause} s' if pause else ''}")
            time.sleep(pause)
            tidy()


def prune(system: System, state: TrainState, settings: TrainSettings) -> None:
    """Remove the checkpoints that are not to be kept.

    Damaged checkpoints of later steps, which resuming has skipped, stay and do not count.
    """
    steps = [checkpoints.step_of(path) for path in checkpoints.candidates(system.checkpoints)]
    later = [step for step in steps if step > state.step]
    regular = [s for s in steps if s <= state.step and s % settings.checkpoint_every == 0]
    keep = {*regular[-settings.keep_checkpoints :], *later, state.step}
    if state.best is not None:
        keep.add(state.best.step)
    checkpoints.prune(system.checkpoints, {f"step-{step:08d}" for step in keep})


def write_best(system: System, state: TrainState, settings: TrainSettings) -> None:
    """Write best.json, which names the best checkpoint."""
    if state.best is None:
        return
    best = state.best
    by_bleu = settings.best_by == "dev_bleu" and best.dev_bleu is not None
    BestCheckpoint(
        step=best.step,
        checkpoint=f"step-{best.step:08d}",
        metric="dev_bleu" if by_bleu else "dev_loss",
        dev_loss=best.dev_loss,
        dev_bleu=best.dev_bleu,
    ).write(system.path / "best.json")


def newest(system: System) -> tuple[dict[str, Tensor], dict[str, Tensor], TrainState, Path]:
    """Return weights, optimiser tensors, state and folder of the newest undamaged checkpoint.

    Damaged ones are skipped with a warning.

    Raises: CheckpointError if all are damaged.
    """
    for path in reversed(checkpoints.candidates(system.checkpoints)):
        try:
            return *checkpoints.load_training(path, TrainState), path
        except CheckpointError as error:
            console.warn(f"skipping {path}: {error.message}")
    raise CheckpointError(
        "every checkpoint of this system is damaged",
        where=system.checkpoints,
        hint="nmtkit train --force begins anew",
    )
