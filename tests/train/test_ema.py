"""`train.ema` beside a slow version: the average is computed again from the weights after every
update.
"""

import pytest
import torch
from safetensors.torch import load_file

from nmtkit.errors import ConfigError
from nmtkit.models import checkpoints, loading
from nmtkit.train import loop
from nmtkit.train.ema import RAW, Averages
from tests.train.test_resume import outcome, stop
from tests.train.tiny import last, make_run, metrics, options, trainer

SETTINGS = options(
    "train.max_steps=12",
    "train.validate_every=4",
    "train.checkpoint_every=4",
    "train.clip_norm=1.0",
    "train.dev_bleu=false",
)
EMA = "train.ema=0.6"
go = trainer(SETTINGS)


def averages(path):
    return load_file(path / "model.safetensors")


def raw(path):
    tensors = load_file(path / "optimizer.safetensors")
    return {key.removeprefix(RAW): t for key, t in tensors.items() if key.startswith(RAW)}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def weights(monkeypatch):
    """The weights of every training before its first update and after each one."""
    seen, step = [], loop.Trainer.make_update

    def noted(self, *args):
        def now():
            return {n: p.detach().clone() for n, p in self.model.named_parameters()}

        if not seen:
            seen.append(now())
        step(self, *args)
        seen.append(now())

    monkeypatch.setattr(loop.Trainer, "make_update", noted)
    return seen


def test_the_average_is_that_of_the_formula_and_training_goes_on_without_it(run, weights, tmp_path):
    go(run, EMA)
    wanted = {name: tensor.double() for name, tensor in weights[0].items()}
    for t, now in enumerate(weights[1:], start=1):
        d = min(0.6, (1 + t) / (10 + t))
        wanted = {name: d * wanted[name] + (1 - d) * now[name].double() for name in now}
    found = averages(last(run))
    for name, tensor in found.items():
        assert float((tensor - wanted[name]).abs().max()) < 1e-6, name
    assert max(float((found[n] - weights[-1][n]).abs().max()) for n in found) > 1e-3
    plain = make_run(tmp_path / "plain")
    go(plain)
    assert raw(last(plain)) == {}
    assert same(raw(last(run)), averages(last(plain)))
    assert [line["loss"] for line in metrics(run, "train")] == [
        line["loss"] for line in metrics(plain, "train")
    ]


def test_weights_after_an_update_that_is_not_made_are_in_no_average():
    model = torch.nn.Linear(2, 1)
    before, averages = model.weight.detach().clone(), Averages(model, 0.6, {})
    model.weight.data += 1
    averages.update(9, torch.tensor(False))
    with averages.in_model():
        assert torch.equal(model.weight, before)


def test_averages_that_lack_memory_once_are_the_same(run, tmp_path, monkeypatch):
    go(run, EMA)
    original, calls = torch._foreach_sub, []

    def lacking(*arguments):
        calls.append(None)
        if len(calls) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(*arguments)

    monkeypatch.setattr(torch, "_foreach_sub", lacking)
    other = make_run(tmp_path / "other")
    go(other, EMA)
    assert len(calls) == 13 and same(averages(last(run)), averages(last(other)))


def test_validation_and_every_stage_take_the_averages(run, tmp_path):
    go(run, EMA)
    plain = make_run(tmp_path / "plain")
    go(plain)
    losses = [[line["dev_loss"] for line in metrics(one, "dev")] for one in (run, plain)]
    assert all(a != b for a, b in zip(*losses, strict=True))
    system = run.system("transformer")
    (path,) = checkpoints.choose(system, 1)
    model = loading.load_system(run, system, paths=[path])
    assert same(dict(model.named_parameters()), averages(path))
    two = checkpoints.choose(system, 2)
    mean = loading.average(two)
    for name, tensor in mean.items():
        both = [averages(path)[name].double() for path in two]
        assert torch.equal(tensor, (sum(both) / 2).to(tensor.dtype))
    # A training that continues for no update measures the averages again, to the digit.
    (run.system("transformer").path / "metrics.jsonl").unlink()
    fresh = make_run(tmp_path / "fresh")
    go(fresh, "train.max_steps=1", "train.lr=1e-30", init_from=str(last(run)))
    assert metrics(fresh, "dev")[-1]["dev_loss"] == losses[0][-1]


@pytest.mark.parametrize("call", [1, 5, 9])
def test_stopped_and_continued_is_as_if_never_stopped(call, tmp_path, monkeypatch):
    runs = [make_run(tmp_path / name) for name in ("whole", "stopped")]
    go(runs[0], EMA)
    stop(monkeypatch, call, go, runs[1], EMA)
    go(runs[1], EMA)
    assert outcome(runs[1]) == outcome(runs[0])


def test_a_change_is_refused_or_begins_with_the_weights(run):
    go(run, "train.max_steps=4")
    plain = averages(last(run))
    with pytest.raises(ConfigError, match="have changed"):
        go(run, EMA)
    go(run, EMA, "train.max_steps=4", allow_change=["train.ema"])
    assert same(averages(last(run)), plain)
    go(run, EMA, "train.max_steps=8", allow_change=["train.ema"])
    own = raw(last(run))
    assert own.keys() == plain.keys() and not same(own, averages(last(run)))
    allowed = ["train.lr", "train.ema"]
    go(run, "train.max_steps=9", "train.lr=1e-30", "train.ema=0", allow_change=allowed)
    assert raw(last(run)) == {} and same(averages(last(run)), own)


@pytest.mark.parametrize("value", ["1.0", "-0.1", "true", "high"])
def test_a_decay_is_below_one(value, run):
    with pytest.raises(ConfigError, match=r"bad value for 'train\.ema'"):
        go(run, f"train.ema={value}")
