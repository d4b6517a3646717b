"""Checkpoints of a training: writing, keeping and finding them."""

from __future__ import annotations

import glob
import itertools
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit import console, files
from nmtkit.errors import CheckpointError, EnvironmentProblem
from nmtkit.export.folder import owned as exported_files
from nmtkit.files import UNWRITABLE
from nmtkit.folders import NOT_OURS, keep_files_of_user, remove_folder, remove_owned
from nmtkit.models import checkpoints
from nmtkit.owned_files import HYPOTHESES, TRAINING
from nmtkit.records import BestCheckpoint, SystemRecord, load_or_warn
from nmtkit.run import Run, System
from nmtkit.settings import TrainSettings
from nmtkit.train.state import TrainState
from nmtkit.translate.systems import owned as translation_files

PAUSES = (0, 2, 4, 8, 16, 30)
"""Seconds before each further attempt to write: a network disk may be away for a minute."""


class Writer:
    """Writes checkpoints in a thread, one after the other, while the training goes on."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._writing: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Begin to write as soon as the write before has ended.

        Raises: as `finish`.
        """
        self.finish()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raise the error of a write that has failed, without waiting."""
        if self._writing is not None and self._writing.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the write; raise its error, usually an EnvironmentProblem."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def wait(self) -> None:
        """Wait, in any thread, until the write has ended or failed."""
        with suppress(RuntimeError):  # Python is shutting down, and waits by itself
            self._thread.submit(lambda: None).result()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in main memory, which later updates do not change."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def retried(write: Callable[[], object], tidy: Callable[[], object]) -> None:
    """Write; if the disk refuses, tidy up and write again.

    A full disk gets one more attempt. Any other failure gets attempts for a minute.
    """
    for attempt in itertools.count():
        try:
            write()
            return
        except (EnvironmentProblem, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            number = getattr(cause, "errno", None)
            pauses = PAUSES[:1] if number in {None, *UNWRITABLE} else PAUSES
            message = getattr(error, "message", str(error))
            if attempt >= len(pauses):
                if isinstance(error, EnvironmentProblem):
                    raise
                raise EnvironmentProblem(message) from error
            pause = pauses[attempt]
            console.warn(f"{message}; trying once more{f' in {pause} s' if pause else ''}")
            time.sleep(pause)
            with suppress(OSError, EnvironmentProblem):  # the next attempt meets the same error
                tidy()


def write(
    system: System,
    settings: TrainSettings,
    state: TrainState,
    weights: dict[str, Tensor],
    tensors: dict[str, Tensor],
    about: dict[str, Any],
) -> None:
    """Write a checkpoint and best.json, and remove old checkpoints.

    Args:
        system: whose checkpoint it is.
        settings: which checkpoints to keep.
        state: of the training.
        weights: of the model.
        tensors: of the optimiser.
        about: facts about model and corpus, for the manifest.
    Raises: EnvironmentProblem if the disk refuses.
    """
    folder, values = system.checkpoints, asdict(state)
    save = partial(checkpoints.save, folder, state.step, weights, tensors, values, about)
    retried(save, partial(checkpoints.clean, folder))

    def note() -> None:
        note_trained(system)
        write_best(system, state, settings)
        remove_replaced(system)
        prune(system, state, settings)

    retried(note, lambda: None)


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


def begin_anew(system: System) -> None:
    """Remove what an earlier training left in a system's folder, except its settings.

    Its checkpoints stay in `system.replaced` until a new one is saved. They move one by one, the
    best one last: if the process is killed, --init-from finds it in one of the folders.
    """
    replaced = system.replaced
    if steps := checkpoints.candidates(system.checkpoints):
        best = system.path / "best.json"
        remove_replaced(system)
        if replaced.path.exists():  # another process still reads a file in it
            keep_files_of_user(replaced.path, system.path)
        for path in (system.config, best):
            if path.is_file():
                files.write_text(replaced.path / path.name, path.read_text("utf-8"))
        replaced.checkpoints.mkdir(parents=True)
        last = steps[-1].name
        if stored := load_or_warn(BestCheckpoint, best):
            last = stored.checkpoint
        for path in sorted(steps, key=lambda path: path.name == last):
            os.replace(path, replaced.checkpoints / path.name)
    remove_owned(system.path, (*TRAINING, *_made_of(system)))
    for path in system.path.glob(f"translate/[!.]*/{HYPOTHESES}"):  # edited, and of the old weights
        if not path.parent.name.startswith(NOT_OURS):
            keep_files_of_user(path.parent, path.parents[1])


def _made_of(system: System) -> list[str]:
    """Return the files of a system's translations and exports."""
    kinds = ("translate/*/meta.json", translation_files), ("export/*/nmtkit.json", exported_files)
    return [
        f"{glob.escape(str(path.parent.relative_to(system.path)))}/{name}"
        for pattern, owned in kinds
        for path in system.path.glob(pattern)
        for name in owned(path.parent)
    ]


def remove_replaced(system: System) -> None:
    """Remove what `begin_anew` has moved."""
    if system.replaced.path.exists():
        remove_folder(system.replaced.path, ("config.toml", *TRAINING), system.path)


def write_record(system: System, run: Run, anew: bool, parameters: int) -> None:
    """Write system.json when a training begins or goes on; a system keeps its place in the order.

    Args:
        anew: True if the training has no checkpoint.
        parameters: of its model.
    """
    stored = system.read_record()
    known = stored is not None or system.config.is_file()
    after = [other.made + 1 for other in run.systems()]
    made = system.made if known else max([time.time_ns(), *after])
    trained = None
    if not anew and stored is not None:
        trained = stored.trained
    elif not anew:
        trained = checkpoints.candidates(system.checkpoints)[-1].stat().st_mtime_ns
    record = SystemRecord(made=made, trained=trained, parameters=parameters)
    if record != stored:
        record.write(system.record)


def note_trained(system: System) -> None:
    """Write the time into system.json after a checkpoint."""
    stored = system.read_record()
    size = stored.parameters if stored else None
    SystemRecord(made=system.made, trained=time.time_ns(), parameters=size).write(system.record)


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
        hint=system.train_again,
    )
