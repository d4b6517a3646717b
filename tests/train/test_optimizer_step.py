"""Training in float16: gradients equal those of float32, updates that overflow are computed again
with a lower loss scale, and the scale survives stops and is that of all ranks.
"""

import math
import os
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch.amp import GradScaler

from nmtkit.errors import TrainingDiverged
from nmtkit.nn import hardware
from nmtkit.train import optimizer
from nmtkit.train.gradients import Gradients, autocast_arguments
from tests.train.test_ranks import largest_difference, train_in_ranks, weights
from tests.train.test_resume import outcome, stop
from tests.train.tiny import last, make_run, metrics, options, state_of, trainer

# Three micro-batches an update.
SETTINGS = options(
    "train.max_steps=10",
    "train.update_size=150",
    "train.validate_every=5",
    "train.checkpoint_every=5",
    "train.clip_norm=1.0",
    "train.schedule=noam",
    "train.warmup=4",
    "train.dev_bleu=false",
    "train.ema=0.5",
    "train.precision=float16",
)
go = trainer(SETTINGS)


def overflowing(monkeypatch, steps, times=1):
    """Make the gradient of one parameter infinite, the first times that these updates are computed;
    return the divisors of all computations, by update.
    """
    original, divisors = Gradients.compute, {}

    def compute(self, update, step, divisor, *more):
        sums = original(self, update, step, divisor, *more)
        divisors.setdefault(step, []).append(divisor)
        if step in steps and len(divisors[step]) <= times:
            next(self.model.parameters()).grad.view(-1)[3] = math.inf
        return sums

    monkeypatch.setattr(Gradients, "compute", compute)
    return divisors


def gradients_of_first_update(monkeypatch, run, *settings):
    """The gradients, after the scale is divided out and before they are clipped, and the norm."""
    found, clip = [], optimizer.OptimizerStep._clip

    def clipped(self, losses):
        gradients = {n: p.grad.clone() for n, p in self.model.named_parameters()}
        sums = clip(self, losses)
        found.append((gradients, float(sums[2])))
        return sums

    with monkeypatch.context() as patch:
        patch.setattr(optimizer.OptimizerStep, "_clip", clipped)
        go(run, "train.max_steps=1", *settings, force=True)
    return found[0]


def distance(one, other):
    """The norm of the difference of two gradients, relative to the norm of the second."""
    parts = [(one[n].double() - other[n].double(), other[n].double()) for n in other]
    difference, size = (sum(float(p.square().sum()) for p in ps) for ps in zip(*parts, strict=True))
    return math.sqrt(difference / size)


def with_scaler(patch, **values):
    patch.setattr(optimizer, "GradScaler", partial(GradScaler, **values))


def test_gradients_equal_those_of_float32_and_small_ones_need_the_loss_scale(run, monkeypatch):
    expected, norm = gradients_of_first_update(monkeypatch, run, "train.precision=float32")
    found, scaled_norm = gradients_of_first_update(monkeypatch, run)
    assert distance(found, expected) < 4e-3 and scaled_norm == pytest.approx(norm, rel=4e-3)
    # An update of a million times as many tokens: the loss of each one is a millionth.
    compute = Gradients.compute
    monkeypatch.setattr(
        Gradients, "compute", lambda self, rows, step, n, *m: compute(self, rows, step, n * 1e6, *m)
    )
    small = {name: gradient / 1e6 for name, gradient in expected.items()}
    assert distance(gradients_of_first_update(monkeypatch, run)[0], small) < 4e-2
    with monkeypatch.context() as patch:
        with_scaler(patch, init_scale=1.0)
        assert distance(gradients_of_first_update(patch, run)[0], small) > 0.9


def test_overflowing_update_is_computed_again_with_a_lower_scale(run, tmp_path, monkeypatch):
    """The result equals a training that started with that scale, to the bit."""
    with monkeypatch.context() as patch:
        divisors = overflowing(patch, {1}, times=2)
        go(run)
    assert [len(divisors[step]) for step in range(1, 11)] == [3] + [1] * 9
    first, second, third = divisors[1]
    assert third == 2 * second == 4 * first
    text = (run.system("transformer").path / "train.log").read_text("utf-8")
    assert (
        "step 1: the gradient overflowed in float16 and was computed again (2 times, 2 so far);"
        " loss scale now 16,384\n"
    ) in text
    assert text.count("overflowed") == 1
    other = make_run(tmp_path / "other")
    with monkeypatch.context() as patch:
        with_scaler(patch, init_scale=2.0**14)
        go(other)
    found, expected = outcome(run), outcome(other)
    assert (found["state"].pop("overflows"), expected["state"].pop("overflows")) == (2, 0)
    assert found == expected
    assert found["state"]["skipped"] == 0 and found["state"]["scaler"]["scale"] == 2**14


@pytest.mark.parametrize("call", [3, 7])
def test_stopped_training_in_float16_resumes_exactly(call, tmp_path, monkeypatch):
    """The scale doubles after three updates without an overflow."""
    with_scaler(monkeypatch, growth_interval=3)
    found = []
    for name in ("whole", "stopped"):
        run = make_run(tmp_path / name)
        with monkeypatch.context() as patch:
            overflowing(patch, {2, 6})
            if name == "stopped":
                stop(monkeypatch, call, go, run)
                assert state_of(run)["scaler"]["_growth_tracker"] > 0
            go(run)
        found.append(outcome(run))
    assert found[0] == found[1]
    # 1: good, 2: halved, 2 to 4 good: doubled, 5: good, 6: halved, 6 to 8 good: doubled
    assert found[0]["state"]["scaler"] | {"growth_interval": 3} == found[0]["state"]["scaler"]
    assert found[0]["state"]["scaler"]["scale"] == 2**16
    assert found[0]["state"]["scaler"]["_growth_tracker"] == 2
    assert found[0]["state"]["overflows"] == 2
    text = (run.system("transformer").path / "train.log").read_text("utf-8")
    assert "step 6: the gradient overflowed" in text and "(1 time, 2 so far)" in text


def test_gradient_that_overflows_with_every_scale_ends_the_training(run, monkeypatch):
    divisors = overflowing(monkeypatch, range(3, 10), times=99)
    with pytest.raises(TrainingDiverged, match="5 updates in a row, up to step 7"):
        go(run)
    assert [len(divisors[step]) for step in range(1, 8)] == [1, 1, 17, 1, 1, 1, 1]


@pytest.mark.parametrize("gradient", [math.nan, 0.5])
def test_update_with_a_loss_that_is_not_finite_is_skipped_at_once(run, monkeypatch, gradient):
    original, calls = Gradients.compute, []

    def compute(self, update, step, divisor, *more):
        sums = original(self, update, step, divisor, *more)
        calls.append(step)
        if step == 4:
            next(self.model.parameters()).grad.fill_(gradient)
            sums[0] = math.nan
        return sums

    monkeypatch.setattr(Gradients, "compute", compute)
    go(run)
    state = state_of(run)
    assert calls == [0, *range(1, 11)]
    assert (state["step"], state["skipped"], state["overflows"]) == (10, 1, 0)
    moments = load_file(last(run) / "optimizer.safetensors")
    assert {int(n) for key, n in moments.items() if key.startswith("step/")} == {9}


def overflow_in_the_second_rank():
    """Let its share of update 3 overflow, when it is first computed."""
    original, seen = Gradients.add, []

    def add(self, parts, step, divisor, *more):
        result = original(self, parts, step, divisor, *more)
        if os.environ["RANK"] == "1" and step == 3 and step not in seen:
            seen.append(step)
            next(self.model.parameters()).grad.view(-1)[3] = math.inf
        return result

    Gradients.add = add


def test_overflow_in_one_rank_lowers_the_scale_of_all(run, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, before in (("calm", None), ("overflow", overflow_in_the_second_rank)):
        train_in_ranks(tmp_path, run, 2, "train.precision=float16", name=name, before=before)
    states = [state_of(run, name) for name in ("calm", "overflow")]
    assert [state["overflows"] for state in states] == [0, 1]
    assert [state["scaler"]["scale"] for state in states] == [2**16, 2**15]
    assert all(state["step"] == 6 and not state["skipped"] for state in states)
    assert largest_difference(weights(run, "calm", 6), weights(run, "overflow", 6)) < 1e-5


def test_float32_has_no_loss_scale(run, monkeypatch):
    divisors = overflowing(monkeypatch, {2})
    go(run, "train.precision=float32")
    assert state_of(run)["scaler"] == {} and state_of(run)["overflows"] == 0
    assert state_of(run)["skipped"] == 1 and len(divisors[2]) == 1
    assert all(line["loss"] > 0 for line in metrics(run, "train"))


@pytest.mark.parametrize(
    ("bfloat16", "capability", "precision"),
    [
        (True, (9, 0), "bfloat16"),
        (False, (7, 5), "float16"),
        (False, (7, 0), "float16"),
        (False, (6, 1), "float32"),
    ],
)
def test_precision_auto_follows_the_gpu(bfloat16, capability, precision, monkeypatch):
    answers = {
        "is_available": lambda: True,
        "get_device_name": lambda device: "a GPU",
        "is_bf16_supported": lambda including_emulation=True: bfloat16 or including_emulation,
        "get_device_capability": lambda device: capability,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    before = torch.get_float32_matmul_precision()
    try:
        chosen = hardware.choose("cuda", width=64)
        assert hardware.choose("cuda", "float32").precision == "float32"
    finally:
        torch.set_float32_matmul_precision(before)
    assert chosen.precision == precision
    arguments = autocast_arguments(chosen)
    assert arguments["enabled"] == (precision != "float32")
    assert not arguments["enabled"] or arguments["dtype"] == getattr(torch, precision)
