"""A training that is stopped anywhere and resumed ends with the same weights, optimiser state and
curve, bit for bit, as one that was never stopped.
"""

import os
import random
import signal
import subprocess
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nmtkit.errors import Interrupted
from nmtkit.models import checkpoints
from nmtkit.nn.dropout import dropout, seed_everything
from nmtkit.train import best, loop, saving
from nmtkit.train import loss as losses
from nmtkit.train.optimizer import OptimizerStep
from nmtkit.train.stage import train
from nmtkit.train.stop import Stop
from nmtkit.train.validation import Validator
from tests import ROOT
from tests.faults.trainings import interfere, killed
from tests.manifests import read_json
from tests.train.tiny import last, make_run, metrics, options, saved, state_of, trainer

# 7 micro-batches an epoch of about 64 target tokens, 3 an update: updates cross the borders of
# epochs. plateau remembers losses. The last line of the log is that of the end.
SETTINGS = options(
    "train.max_steps=12",
    "train.log_every=5",
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


CLOCKS = (
    "seconds",
    "cpu_seconds",
    "tgt_tokens_per_s",
    "memory_gib",
    "loss_seconds",
    "bleu_seconds",
)


def outcome(run):
    """Return what must be equal: weights, optimiser, state and curve, without measured times."""
    state = state_of(run)
    for part in (state, state["log"], state["loss"]):
        del part["seconds"]
        part.pop("cpu", None)  # a window's
    tensors = {
        name: {k: v.tolist() for k, v in load_file(last(run) / name).items()}
        for name in ("model.safetensors", "optimizer.safetensors")
    }
    return {
        "step": last(run).name,
        "state": state,
        "curve": [{k: v for k, v in line.items() if k not in CLOCKS} for line in metrics(run)],
        "best": read_json(run.system("transformer").path / "best.json"),
        **tensors,
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    torch.set_num_threads(1)
    run = make_run(tmp_path_factory.mktemp("whole") / "run")
    go(run)
    return outcome(run)


def test_log_has_the_passes_over_the_training_set_after_its_last_update(uninterrupted):
    epochs = [line["epoch"] for line in uninterrupted["curve"] if line["kind"] == "train"]
    assert epochs == pytest.approx([3 * step / 7 for step in (5, 10, 12)], abs=1e-3)


def test_state_counts_the_target_tokens_of_all_updates(uninterrupted):
    of_lines = [line["tgt_tokens"] for line in uninterrupted["curve"] if line["kind"] == "train"]
    assert uninterrupted["state"]["tokens"] == sum(of_lines) > 12 * 3 * 40


def test_plateau_observes_the_mean_loss_of_the_updates_since_the_last_validation(run):
    go(run, "train.log_every=4")
    losses = [line["loss"] for line in metrics(run, "train")]
    assert len(losses) == 3 and state_of(run)["plateau"]["best"] == pytest.approx(min(losses))


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        np.random.rand,
        lambda: float(torch.rand(1)),
        lambda: str(dropout(torch.ones(99), 0.5).tolist()),
    ],
    ids=["random", "numpy", "torch", "dropout"],
)
def test_each_micro_batch_seeds_all_sources_of_random_numbers(draw):
    """By seed, update and place in the update, so that a user's model may draw from any source."""
    places = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    first, second = ([(seed_everything(*place), draw())[1] for place in places] for _ in range(2))
    assert first == second and len(set(first)) == 4


def stop(monkeypatch, call, go, *args, at=(loop.Trainer, "update"), **values):
    """Train until SIGTERM comes, when the function `at` is called for this time (from 1)."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interfere(patch, *at, {call}, lambda: os.kill(os.getpid(), signal.SIGTERM))
        go(*args, **values)


@pytest.mark.parametrize(
    ("at", "call", "step"),
    [
        # The first call tries the largest batch; an update has three.
        pytest.param((losses, "backward"), 1 + 3 * 5 + 2, 6, id="mid-accumulation"),
        pytest.param((Validator, "_bleu"), 1, 4, id="while validating"),
        pytest.param((best, "is_better"), 2, 8, id="right after validation"),
        pytest.param((Validator, "_bleu"), 3, 12, id="in the last validation"),
    ],
)
def test_stopped_training_resumes_exactly(at, call, step, run, monkeypatch, uninterrupted):
    stop(monkeypatch, call, go, run, at=at)
    assert last(run).name == f"step-{step:08d}"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    go(run)
    assert outcome(run) == uninterrupted


@pytest.mark.parametrize(
    "at", [(loop.Trainer, "update", 8), (Validator, "_loss", 2)], ids=["update", "validation"]
)
def test_training_stopped_before_patience_runs_out_has_the_last_line_of_the_log(
    at, tmp_path, monkeypatch
):
    """The validation of step 8 uses up the patience, and lowers the learning rate."""
    monkeypatch.setattr(Validator, "_loss", lambda self, stop: stop.check() or 1.0)
    whole, stopped = (make_run(tmp_path / name) for name in ("whole", "stopped"))
    settings = ["train.patience=1", "train.plateau_on=dev_loss", "train.decay_patience=0"]
    settings += ["train.dev_bleu=false", "train.samples=0"]
    go(whole, *settings)
    *function, call = at
    stop(monkeypatch, call, go, stopped, *settings, at=function)
    assert state_of(stopped)["validated"] == 4
    go(stopped, *settings)
    assert [line["step"] for line in metrics(whole, "train")] == [5, 8]
    assert state_of(whole)["plateau"]["factor"] < 1
    assert outcome(stopped) == outcome(whole)


def test_training_stopped_after_every_update_resumes_exactly(run, monkeypatch, uninterrupted):
    """And counts its time and its processor time once: here, a second an update."""
    updates, step = [], OptimizerStep.step
    monkeypatch.setattr(OptimizerStep, "step", lambda *update: updates.append(1) or step(*update))
    clocks = dict.fromkeys(("monotonic", "process_time"), lambda: float(len(updates)))
    monkeypatch.setattr(loop, "time", SimpleNamespace(**clocks))
    for _ in range(12):
        stop(monkeypatch, 1, go, run)
    go(run)
    assert outcome(run) == uninterrupted
    assert state_of(run)["seconds"] == 12
    for line in metrics(run, "train"):
        assert line["cpu_seconds"] == line["seconds"] == line["updates"]


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
def test_training_on_two_threads_resumes_exactly(precision, tmp_path, monkeypatch):
    torch.set_num_threads(2)
    runs = [make_run(tmp_path / name, pairs=100, dev=2) for name in ("whole", "stopped")]
    settings = [*WIDE, f"train.precision={precision}"]
    stop(monkeypatch, 1, train, runs[1], assignments=settings)
    for run in runs:
        train(run, assignments=settings)
    whole, stopped = map(outcome, runs)
    assert whole["state"]["hardware"]["threads"] == 2
    assert stopped == whole


def test_training_under_nohup_ignores_sighup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop().listening():
        handlers = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
    signal.signal(signal.SIGHUP, before)
    assert handlers[0] == signal.SIG_IGN != handlers[1]


def test_repeated_validation_is_in_the_log_once_if_a_kill_follows(tmp_path, monkeypatch):
    """A signal stops the second validation, and the process is killed soon after its repetition."""
    monkeypatch.setattr(best, "is_better", lambda new, best, by: best is None)
    whole, stopped = (make_run(tmp_path / name) for name in ("whole", "stopped"))
    go(whole)
    stop(monkeypatch, 2, go, stopped, at=(Validator, "_bleu"))
    with killed(loop.Trainer, "update"):
        go(stopped)
    assert (last(stopped).name, metrics(stopped, "dev")[-1]["step"]) == ("step-00000008", 8)
    go(stopped)
    assert outcome(stopped) == outcome(whole)


def press_ctrl_c_twice(run, monkeypatch):
    """Interrupt the fourth batch: no batch follows."""

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    calls = interfere(monkeypatch, losses, "backward", {4}, twice)
    with pytest.raises(KeyboardInterrupt):
        go(run)
    assert calls[0] == 4  # the step was not finished


def test_second_ctrl_c_ends_the_training_at_once(run, monkeypatch):
    press_ctrl_c_twice(run, monkeypatch)
    assert checkpoints.candidates(run.system("transformer").checkpoints) == []


def test_training_killed_at_random_times_resumes_exactly(run, uninterrupted):
    """The newest valid checkpoint never goes backwards."""
    command = [sys.executable, "-m", "tests.train.killed", str(run.path), *SETTINGS]
    draw = random.Random(3)
    kills = steps = 0
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, **pipes, text=True) as server:
        for attempt in range(40):
            # The first kills are early: a fast machine trains all steps in less than half a second.
            latest = 0.2 if attempt < 3 else 0.6
            server.stdin.write(f"{draw.uniform(0.05, latest) if attempt < 9 else 60}\n")
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


# Batches cut into parts because memory is short


def short_of_memory(monkeypatch, calls, positions=60):
    """Let memory hold this many positions for the first calls of the backward pass, as if other
    programs ended then.
    """
    original, done = losses.backward, [0]

    def backward(logits_of, hidden, batch, *args):
        done[0] += 1
        if done[0] <= calls and batch.src.numel() + batch.tgt_out.numel() > positions:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return original(logits_of, hidden, batch, *args)

    monkeypatch.setattr(losses, "backward", backward)


@pytest.mark.parametrize(("packed", "positions"), [("no", 60), ("yes", 100)])
def test_resumed_training_cuts_the_same_batches(
    packed, positions, tmp_path, monkeypatch, stderr, uninterrupted
):
    packing = f"train.packed={packed}"
    runs = [make_run(tmp_path / name) for name in ("whole", "stopped")]
    with monkeypatch.context() as patch:
        short_of_memory(patch, 12, positions)
        go(runs[0], packing)
    with monkeypatch.context() as patch:
        short_of_memory(patch, 12, positions)
        stop(monkeypatch, 3, go, runs[1], packing)
    stderr()
    go(runs[1], packing)
    message = stderr()
    whole, stopped = map(outcome, runs)
    assert stopped == whole
    split_from = whole["state"]["split_from"]
    assert f"a batch of {split_from} positions does not fit into memory" in message
    assert uninterrupted["state"]["split_from"] is None
    # The same pairs, with other masks, as the warning says.
    assert whole["state"]["tokens"] == uninterrupted["state"]["tokens"]
    assert whole["model.safetensors"] != uninterrupted["model.safetensors"]


def test_resuming_on_another_machine_tries_whole_batches_again(run, monkeypatch):
    with monkeypatch.context() as patch:
        short_of_memory(patch, calls=12)
        go(run, "train.max_steps=4")
    assert state_of(run)["split_from"] is not None
    monkeypatch.setattr("nmtkit.nn.hardware._name", lambda device: "a machine with more memory")
    go(run)
    assert state_of(run)["split_from"] is None


def test_resumed_training_lets_go_of_the_checkpoint_that_it_has_read(run, monkeypatch):
    """The checkpoint's files are mapped: they would fill memory, and a network disk could not remove
    them.
    """
    go(run, "train.max_steps=5")
    read, newest, live = [], saving.newest, []

    def noted(system):
        result = newest(system)
        read.extend(weakref.ref(tensor) for part in result[:2] for tensor in part.values())
        return result

    def trains(trainer):
        live.extend(reference for reference in read if reference() is not None)

    monkeypatch.setattr(saving, "newest", noted)
    monkeypatch.setattr(loop.Trainer, "run", trains)
    go(run)
    assert read and not live
