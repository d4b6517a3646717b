"""Checkpoints are written in a thread while the training goes on."""

import errno
import os
import signal
import threading

import pytest

from nmtkit.errors import EnvironmentProblem, TrainingDiverged
from nmtkit.models import checkpoints
from nmtkit.train import loop, saving
from tests.faults.trainings import fail
from tests.processes import python
from tests.refused import refused
from tests.train.tiny import make_run, options, saved, trainer

SETTINGS = options(
    "train.max_steps=8",
    "train.checkpoint_every=2",
    "train.validate_every=4",
    "train.keep_checkpoints=9",
    "train.dev_bleu=false",
    "train.samples=0",
)
go = trainer(SETTINGS)


def tensor_files(run):
    """The bytes of all files of tensors, of all checkpoints."""
    folder = run.system("transformer").checkpoints
    paths = sorted(folder.glob("*/*.safetensors"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("extra", [[], ["train.ema=0.9"]])
def test_updates_go_on_while_a_checkpoint_is_written(run, tmp_path, monkeypatch, extra):
    """The write of step 2 does not begin before step 4 is reached."""
    whole = make_run(tmp_path / "whole")
    go(whole, *extra)
    step_4, save, update = threading.Event(), checkpoints.save, loop.Trainer.update
    in_main_thread = {}

    def save_later(folder, step, *rest):
        if step == 2:
            assert step_4.wait(60)
        in_main_thread[step] = threading.current_thread() is threading.main_thread()
        return save(folder, step, *rest)

    def counted(self):
        update(self)
        if self.state.step == 4:
            step_4.set()

    monkeypatch.setattr(checkpoints, "save", save_later)
    monkeypatch.setattr(loop.Trainer, "update", counted)
    go(run, *extra)
    assert in_main_thread == dict.fromkeys((2, 4, 6, 8), False)
    assert tensor_files(run) == tensor_files(whole) and len(tensor_files(run)) == 8


def test_failed_write_ends_the_training_at_the_next_update(run, monkeypatch):
    steps, save, update = [], checkpoints.save, loop.Trainer.update

    def failing(folder, step, *rest):
        if step == 4:
            raise EnvironmentProblem("cannot write checkpoint step-00000004: no disk")
        return save(folder, step, *rest)

    def waiting(self):
        if self.state.step == 4:  # the write has failed before the fifth update ends
            assert self.writer._writing.exception(60)
        update(self)
        steps.append(self.state.step)

    monkeypatch.setattr(checkpoints, "save", failing)
    monkeypatch.setattr(loop.Trainer, "update", waiting)
    with pytest.raises(EnvironmentProblem, match="step-00000004: no disk"):
        go(run)
    assert steps == [1, 2, 3, 4, 5]
    assert [p.name for p in saved(run)] == ["step-00000002"]


def test_failed_write_of_the_last_checkpoint_is_an_error(run, monkeypatch):
    fail(monkeypatch, checkpoints, "save", EnvironmentProblem("no disk"), {4, 5})
    with pytest.raises(EnvironmentProblem, match="no disk"):
        go(run)


def test_checkpoint_is_complete_if_the_training_fails_meanwhile(run, monkeypatch):
    fail(monkeypatch, loop.Trainer, "update", TrainingDiverged("the loss is not finite"), {3})
    with pytest.raises(TrainingDiverged):
        go(run)
    assert [path.name for path in saved(run)] == ["step-00000002"]


KILLED = """
import os, signal, sys
import safetensors.torch
from pathlib import Path
from nmtkit.run import Run
from nmtkit.train.stage import train
save, calls = safetensors.torch.save_file, []
def killed(*arguments):
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return save(*arguments)
safetensors.torch.save_file = killed
train(Run(Path(sys.argv[1])), assignments=sys.argv[2:])
"""


def test_kill_during_a_write_leaves_the_checkpoint_before_it(run, tmp_path):
    """From which the training resumes exactly."""
    whole = make_run(tmp_path / "whole")
    go(whole)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = python("-c", KILLED, str(run.path), *SETTINGS, env=one_thread)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in saved(run)] == ["step-00000002"]
    go(run)
    assert tensor_files(run) == tensor_files(whole)


@pytest.mark.parametrize(
    ("number", "pauses"), [(errno.ENOSPC, [0]), (errno.EIO, [0, 2, 4, 8, 16, 30])]
)
def test_failed_write_is_repeated_once_if_the_disk_is_full_else_for_a_minute(
    monkeypatch, number, pauses
):
    slept = []
    monkeypatch.setattr(saving.time, "sleep", slept.append)

    def write():
        raise EnvironmentProblem("cannot be written") from OSError(number, "")

    refused(EnvironmentProblem, "cannot be written", saving.retried, write, list)
    assert slept == pauses
