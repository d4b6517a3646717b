"""`train.ema`: the average of the weights, beside a slow version that computes it from the weights
after every update.
"""

import pytest
import torch
from safetensors.torch import load_file

from nmtkit.errors import ConfigError
from nmtkit.models import checkpoints, loading
from nmtkit.train import loop
from nmtkit.train.ema import RAW, Averages
from tests.faults.trainings import fail
from tests.train.test_resume import outcome, stop
from tests.train.tiny import (
    equal_tensors,
    last,
    make_run,
    metrics,
    options,
    saved_weights,
    trainer,
)

SETTINGS = options(
    "train.max_steps=12",
    "train.validate_every=4",
    "train.checkpoint_every=4",
    "train.clip_norm=1.0",
    "train.dev_bleu=false",
)
EMA = "train.ema=0.6"
go = trainer(SETTINGS)


def raw_weights(run):
    """The weights that are trained, which a checkpoint has beside their averages."""
    tensors = load_file(last(run) / "optimizer.safetensors")
    return {key.removeprefix(RAW): t for key, t in tensors.items() if key.startswith(RAW)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run trained without averages."""
    torch.set_num_threads(1)
    run = make_run(tmp_path_factory.mktemp("plain"))
    go(run)
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run trained with averages; the weights before the first update and after each update."""
    torch.set_num_threads(1)
    run, weights = make_run(tmp_path_factory.mktemp("ema")), []
    make_update = loop.Trainer.make_update

    def record(model):
        weights.append({n: p.detach().clone() for n, p in model.named_parameters()})

    def recorded(self, *args):
        if not weights:
            record(self.model)
        make_update(self, *args)
        record(self.model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Trainer, "make_update", recorded)
        go(run, EMA)
    return run, weights


@pytest.fixture
def averaged(trained):
    return trained[0]


def test_average_follows_the_formula(trained):
    """w̄ₜ = d·w̄ₜ₋₁ + (1-d)·wₜ with d = min(ema, (1+t)/(10+t)), from the initial weights on."""
    run, weights = trained
    expected = {name: tensor.double() for name, tensor in weights[0].items()}
    for t, now in enumerate(weights[1:], start=1):
        d = min(0.6, (1 + t) / (10 + t))
        expected = {name: d * expected[name] + (1 - d) * now[name].double() for name in now}
    found = saved_weights(run)
    for name, tensor in found.items():
        assert float((tensor - expected[name]).abs().max()) < 1e-6, name
    assert max(float((found[n] - weights[-1][n]).abs().max()) for n in found) > 1e-3


def test_averages_do_not_change_the_training(averaged, plain):
    assert raw_weights(plain) == {}
    assert equal_tensors(raw_weights(averaged), saved_weights(plain))
    of_ema, of_plain = ([line["loss"] for line in metrics(r, "train")] for r in (averaged, plain))
    assert of_ema == of_plain


def test_skipped_update_does_not_change_the_average():
    model = torch.nn.Linear(2, 1)
    before, averages = model.weight.detach().clone(), Averages(model, 0.6, {})
    model.weight.data += 1
    averages.update(9, torch.tensor(False))
    with averages.in_model():
        assert torch.equal(model.weight, before)


def test_averages_are_the_same_if_memory_is_short_once(averaged, run, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory.")
    calls = fail(monkeypatch, torch, "_foreach_sub", error, {5})
    go(run, EMA)
    assert calls == [13] and equal_tensors(saved_weights(averaged), saved_weights(run))


def test_validation_and_later_stages_use_the_averages(averaged, plain, run):
    losses = [[line["dev_loss"] for line in metrics(r, "dev")] for r in (averaged, plain)]
    assert all(a != b for a, b in zip(*losses, strict=True))
    system = averaged.system("transformer")
    (best,) = checkpoints.choose(system, 1)
    model = loading.load_system(averaged, system, paths=[best])
    assert equal_tensors(dict(model.named_parameters()), checkpoints.load_weights(best))
    two = checkpoints.choose(system, 2)
    for name, tensor in loading.average(two).items():
        both = [checkpoints.load_weights(path)[name].double() for path in two]
        assert torch.equal(tensor, (sum(both) / 2).to(tensor.dtype))
    # A training whose one update changes nothing measures the averages again, to the digit.
    go(run, "train.max_steps=1", "train.lr=1e-30", init_from=str(last(averaged)))
    assert metrics(run, "dev")[-1]["dev_loss"] == losses[0][-1]


@pytest.mark.parametrize("call", [1, 5, 9])
def test_stopped_training_with_averages_resumes_exactly(call, averaged, run, monkeypatch):
    stop(monkeypatch, call, go, run, EMA)
    go(run, EMA)
    assert outcome(run) == outcome(averaged)


def test_ema_may_be_switched_on_and_off_if_allowed(run):
    go(run, "train.max_steps=4")
    plain = saved_weights(run)
    with pytest.raises(ConfigError, match="have changed"):
        go(run, EMA)
    go(run, EMA, "train.max_steps=4", allow_change=["train.ema"])
    assert equal_tensors(saved_weights(run), plain)
    go(run, EMA, "train.max_steps=8", allow_change=["train.ema"])
    raw = raw_weights(run)
    assert raw.keys() == plain.keys() and not equal_tensors(raw, saved_weights(run))
    allowed = ["train.lr", "train.ema"]
    go(run, "train.max_steps=9", "train.lr=1e-30", "train.ema=0", allow_change=allowed)
    assert raw_weights(run) == {} and equal_tensors(saved_weights(run), raw)


@pytest.mark.parametrize("value", ["1.0", "-0.1", "true", "high"])
def test_decay_outside_0_to_1_is_refused(value, run):
    with pytest.raises(ConfigError, match=r"bad value for 'train\.ema'"):
        go(run, f"train.ema={value}")
