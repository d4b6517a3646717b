"""Stop anywhere, give the same command again: the same weights bit for bit, the same optimiser,
the same curve.
"""

import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from nmtkit.errors import Interrupted
from nmtkit.models import checkpoints
from nmtkit.train import best, loop
from nmtkit.train import loss as losses
from nmtkit.train.optimizer import OptimizerStep
from nmtkit.train.stage import train
from nmtkit.train.validation import Validator
from tests import ROOT
from tests.faults.trainings import interfere
from tests.manifests import read_json
from tests.train.tiny import last, make_run, metrics, options, saved, state_of, trainer

# 7 micro-batches an epoch of about 64 target tokens, 3 an update: updates cross the borders of
# epochs. plateau remembers losses.
SETTINGS = options(
    "train.max_steps=12",
    "train.update_size=180",
    "train.validate_every=4",
    "train.checkpoint_every=5",
    "train.keep_checkpoints=2",
    "train.schedule=plateau",
    "train.plateau_on=train_loss",
    "train.min_lr=0.0001",
    "train.clip_norm=1.0",
)
go = trainer(SETTINGS)


def outcome(run):
    """Everything that must be equal: weights, optimiser, state and curve, without what a clock
    measures.
    """
    state = state_of(run)
    for part in (state, state["log"], state["loss"]):
        del part["seconds"]
        part.pop("cpu", None)  # a window's
    clocks = {
        "seconds",
        "cpu_seconds",
        "tgt_tokens_per_s",
        "memory_gib",
        "loss_seconds",
        "bleu_seconds",
    }
    curve = [{k: v for k, v in line.items() if k not in clocks} for line in metrics(run)]
    tensors = {
        name: {k: v.tolist() for k, v in load_file(last(run) / name).items()}
        for name in ("model.safetensors", "optimizer.safetensors")
    }
    return {
        "step": last(run).name,
        "state": state,
        "curve": curve,
        "best": read_json(run.system("transformer").path / "best.json"),
        **tensors,
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    torch.set_num_threads(1)
    run = make_run(tmp_path_factory.mktemp("whole") / "run")
    go(run)
    return outcome(run)


def stop(monkeypatch, call, go, *args, at=(loop.Trainer, "update"), **values):
    """Train until SIGTERM comes, when a function is called for the n-th time."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interfere(patch, *at, {call}, lambda: os.kill(os.getpid(), signal.SIGTERM))
        go(*args, **values)


MOMENTS = {
    "mid-accumulation": (
        losses,
        "backward",
        3 * 5 + 1 + 2,
        6,
    ),  # one call is the probe of the largest batch
    "while validating": (Validator, "_bleu", 1, 4),
    "right after validation": (best, "is_better", 2, 8),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_stopped_and_continued_is_as_if_never_stopped(moment, run, monkeypatch, uninterrupted):
    owner, name, call, step = MOMENTS[moment]
    stop(monkeypatch, call, go, run, at=(owner, name))
    assert last(run).name == f"step-{step:08d}"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    go(run)
    assert outcome(run) == uninterrupted


def test_stopped_at_every_step_is_as_if_never_stopped(tmp_path, monkeypatch, uninterrupted):
    run, updates, step = make_run(tmp_path / "run"), [], OptimizerStep.step
    monkeypatch.setattr(OptimizerStep, "step", lambda *update: updates.append(1) or step(*update))
    clocks = {
        "monotonic": time.monotonic,
        "sleep": time.sleep,
        "process_time": lambda: float(len(updates)),
    }
    monkeypatch.setattr(
        loop, "time", SimpleNamespace(**clocks)
    )  # a second of processor time an update
    for _ in range(12):
        stop(monkeypatch, 1, go, run)
    go(run)
    assert outcome(run) == uninterrupted
    for line in metrics(run, "train"):
        assert line["cpu_seconds"] == line["updates"]


# Wide enough that torch shares element-wise work (from 32,768 numbers on) and matrix products among
# threads.
WIDE = options(
    "model.d_model=128",
    "model.d_ff=256",
    "model.heads=4",
    "train.batch_size=512",
    "train.max_steps=2",
    "train.validate_every=100",
    "train.clip_norm=1.0",
    "train.dev_bleu=false",
    "train.samples=0",
)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_on_two_threads_too(precision, tmp_path, monkeypatch):
    torch.set_num_threads(2)
    runs = [make_run(tmp_path / name, pairs=300, dev=6) for name in ("whole", "stopped")]
    settings = [*WIDE, f"train.precision={precision}"]
    stop(monkeypatch, 1, train, runs[1], assignments=settings)
    for run in runs:
        train(run, assignments=settings)
    whole, stopped = map(outcome, runs)
    assert whole["state"]["hardware"]["threads"] == 2
    assert stopped == whole


def two_ctrl_c(run, monkeypatch):
    """Press Ctrl-C twice in the fourth batch: it is the last one."""

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    calls = interfere(monkeypatch, losses, "backward", {4}, twice)
    with pytest.raises(KeyboardInterrupt):
        go(run)
    assert calls[0] == 4  # the step was not finished


def test_a_second_ctrl_c_ends_at_once(run, monkeypatch):
    two_ctrl_c(run, monkeypatch)
    assert checkpoints.candidates(run.system("transformer").checkpoints) == []


def test_killed_at_random_times(run, uninterrupted):
    """SIGKILL whenever it strikes: the newest valid checkpoint never goes backwards, and the end
    is the same bits.
    """
    command = [sys.executable, "-m", "tests.train.killed", str(run.path), *SETTINGS]
    draw = random.Random(3)
    kills = steps = 0
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        for attempt in range(40):
            server.stdin.write(f"{draw.uniform(0.05, 0.6) if attempt < 9 else 60}\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
            newest = [checkpoints.step_of(p) for p in saved(run)][-1:] or [0]
            assert newest[0] >= steps
            steps = newest[0]
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
        server.stdin.close()
    assert kills >= 3
    assert outcome(run) == uninterrupted
    assert not list(run.system("transformer").checkpoints.glob(".*"))


# Computed in parts, where memory was short


def short_of_memory(monkeypatch, calls, positions=60):
    """Memory holds so many positions while so many batches are computed; then other programs end and
    it holds everything.
    """
    original, done = losses.backward, [0]

    def small(logits_of, hidden, batch, *args):
        done[0] += 1
        if done[0] <= calls and batch.src.numel() + batch.tgt_out.numel() > positions:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"
                " bytes"
            )
        return original(logits_of, hidden, batch, *args)

    monkeypatch.setattr(losses, "backward", small)


def test_a_continued_training_splits_the_same_batches(tmp_path, monkeypatch, stderr, uninterrupted):
    runs = [make_run(tmp_path / name) for name in ("whole", "stopped")]
    with monkeypatch.context() as patch:
        short_of_memory(patch, calls=12)
        go(runs[0])
    with monkeypatch.context() as patch:
        short_of_memory(patch, calls=12)
        stop(monkeypatch, 3, go, runs[1])
    stderr()
    go(runs[1])
    whole, stopped = map(outcome, runs)
    assert (
        f"a batch of {whole['state']['split_from']} positions does not fit into memory" in stderr()
    )
    assert stopped == whole
    assert uninterrupted["state"]["split_from"] is None
    assert (
        uninterrupted["model.safetensors"] != whole["model.safetensors"]
    )  # other masks: what the warning says


def test_packed_batches_continue_and_split_the_same(tmp_path, monkeypatch, uninterrupted):
    runs = [make_run(tmp_path / name) for name in ("whole", "stopped")]
    for run in runs:
        with monkeypatch.context() as patch:
            short_of_memory(patch, calls=12, positions=100)
            if run is runs[1]:
                stop(monkeypatch, 3, go, run, "train.packed=yes")
            else:
                go(run, "train.packed=yes")
    go(runs[1], "train.packed=yes")
    whole, stopped = map(outcome, runs)
    assert stopped == whole
    assert whole["state"]["split_from"] is not None
    # The same pairs, with other masks.
    assert whole["state"]["tokens"] == uninterrupted["state"]["tokens"]
    assert whole["model.safetensors"] != uninterrupted["model.safetensors"]


def test_on_another_machine_memory_is_found_anew(run, monkeypatch):
    with monkeypatch.context() as patch:
        short_of_memory(patch, calls=12)
        go(run, "train.max_steps=4")
    assert state_of(run)["split_from"] is not None
    monkeypatch.setattr("nmtkit.nn.hardware._name", lambda device: "a machine with more memory")
    go(run)
    assert outcome(run)["state"]["split_from"] is None
