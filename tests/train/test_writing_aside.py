"""Checkpoints are written while the training goes on: the same files as if it had waited."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from nmtkit.errors import EnvironmentProblem, TrainingDiverged
from nmtkit.models import checkpoints
from nmtkit.train import loop, saving
from tests import ROOT
from tests.faults.trainings import fail
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


def tensors(run):
    """The bytes of all tensors of all checkpoints."""
    folder = run.system("transformer").checkpoints
    paths = sorted(folder.glob("*/*.safetensors"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("extra", [[], ["train.ema=0.9"]])
def test_updates_go_on_while_a_checkpoint_is_written(run, tmp_path, monkeypatch, extra):
    """The write of step 2 does not begin before step 4 is reached."""
    whole = make_run(tmp_path / "whole")
    go(whole, *extra)
    further, save, update = threading.Event(), checkpoints.save, loop.Trainer.update
    steps = {}

    def late(folder, step, *rest):
        if step == 2:
            assert further.wait(60)
        steps[step] = threading.current_thread() is threading.main_thread()
        return save(folder, step, *rest)

    def counted(self):
        update(self)
        if self.state.step == 4:
            further.set()

    monkeypatch.setattr(checkpoints, "save", late)
    monkeypatch.setattr(loop.Trainer, "update", counted)
    go(run, *extra)
    assert steps == dict.fromkeys((2, 4, 6, 8), False)
    assert tensors(run) == tensors(whole) and len(tensors(run)) == 8


def test_a_failed_write_ends_the_training_at_the_next_update(run, monkeypatch):
    failed, save = threading.Event(), checkpoints.save
    steps, update = [], loop.Trainer.update

    def failing(folder, step, *rest):
        if step == 4:
            raise EnvironmentProblem("cannot write checkpoint step-00000004: no disk")
        return save(folder, step, *rest)

    def waiting(self):
        if self.state.step == 4:  # the write has failed before the fifth update ends
            self.writer._writing.exception(60)
            failed.set()
        update(self)
        steps.append(self.state.step)

    monkeypatch.setattr(checkpoints, "save", failing)
    monkeypatch.setattr(loop.Trainer, "update", waiting)
    with pytest.raises(EnvironmentProblem, match="step-00000004: no disk"):
        go(run)
    assert failed.is_set() and steps == [1, 2, 3, 4, 5]
    assert [p.name for p in saved(run)] == ["step-00000002"]


def test_the_last_write_must_succeed_too(run, monkeypatch):
    fail(monkeypatch, checkpoints, "save", EnvironmentProblem("no disk"), {4, 5})
    with pytest.raises(EnvironmentProblem, match="no disk"):
        go(run)


def test_another_error_waits_for_the_write_and_is_told(run, monkeypatch):
    written, save, update = [], checkpoints.save, loop.Trainer.update

    def kept(folder, step, *rest):
        written.append(step)
        return save(folder, step, *rest)

    def diverging(self):
        if self.state.step == 2:
            raise TrainingDiverged("the loss is not finite")
        update(self)

    monkeypatch.setattr(checkpoints, "save", kept)
    monkeypatch.setattr(loop.Trainer, "update", diverging)
    with pytest.raises(TrainingDiverged):
        go(run)
    assert written == [2]
    assert len(saved(run)) == 1


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


def test_a_kill_during_a_write_leaves_the_checkpoint_before(run, tmp_path):
    """And the training that continues ends with the bits of one that was never killed."""
    whole = make_run(tmp_path / "whole")
    go(whole)
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(
        [*command, str(run.path), *SETTINGS],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = [p.name for p in saved(run)]
    assert names == ["step-00000002"]
    go(run)
    assert tensors(run) == tensors(whole)


@pytest.mark.parametrize(
    ("number", "pauses"), [(errno.ENOSPC, [0]), (errno.EIO, [0, 2, 4, 8, 16, 30])]
)
def test_a_full_disk_gets_one_more_attempt_and_another_failure_a_minute(
    monkeypatch, number, pauses
):
    slept = []
    monkeypatch.setattr(saving.time, "sleep", slept.append)

    def write():
        raise EnvironmentProblem("cannot be written") from OSError(number, "")

    refused(EnvironmentProblem, "cannot be written", saving.retried, write, list)
    assert slept == pauses
