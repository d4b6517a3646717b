"""`train.log_to`: what Weights & Biases and TensorBoard get, over a stop and a resumed training."""

import re
import sys
from types import SimpleNamespace

import pytest

from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.train import loop
from tests.refused import refused
from tests.train.test_resume import stop
from tests.train.tiny import metrics, options, trainer

SETTINGS = options("train.max_steps=12", "train.validate_every=4", "train.checkpoint_every=5")
go = trainer(SETTINGS)


class FakeRun:
    def __init__(self, **values):
        self.values, self.rows, self.axes, self.finished = values, [], [], False

    def define_metric(self, name, step_metric=None):
        self.axes.append((name, step_metric))

    def log(self, row):
        assert not self.finished
        self.rows.append(row)

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package; a list of its runs."""
    begun = []

    def init(**values):
        begun.append(FakeRun(**values))
        return begun[-1]

    module = SimpleNamespace(init=init, Table=lambda columns, data: ("table", columns, data))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return begun


def logged(runs, kind):
    return [
        (row["updates"], {k.partition("/")[2]: v for k, v in row.items() if k != "updates"})
        for one in runs
        for row in one.rows
        if any(key.startswith(f"{kind}/") for key in row)
    ]


def killed(monkeypatch, run, call):
    """A training that ends without saving, at an update."""
    original, calls = loop.Trainer.update, [0]

    def update(self):
        calls[0] += 1
        if calls[0] == call:
            raise KeyboardInterrupt
        original(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Trainer, "update", update)
        go(run, "train.log_to=wandb")


def test_wandb_gets_every_number_once_over_stops(run, wandb, monkeypatch):
    killed(monkeypatch, run, call=10)  # the last checkpoint is at step 8 or before
    stop(monkeypatch, 2, go, run, "train.log_to=wandb")
    go(run, "train.log_to=wandb")
    assert len(wandb) == 3 and all(one.finished for one in wandb)
    assert len({one.values["id"] for one in wandb}) == 1
    assert {one.values["resume"] for one in wandb} == {"allow"}
    assert wandb[0].values["name"] == "run/transformer"
    assert wandb[0].values["config"]["train"]["log_to"] == "wandb"
    assert wandb[0].axes == [("updates", None), ("*", "updates")]
    for kind, keys in (
        ("train", {"loss", "lr", "grad_norm", "tgt_tokens_per_s"}),
        ("dev", {"dev_loss", "dev_bleu"}),
    ):
        found = logged(wandb, kind)
        assert [step for step, _ in found] == [4, 8, 12]
        for (_, values), line in zip(found, metrics(run, kind), strict=True):
            assert keys <= values.keys()
            assert {key: values[key] for key in keys - {"tgt_tokens_per_s"}} == {
                key: line[key] for key in keys - {"tgt_tokens_per_s"}
            }
    tables = [row for one in wandb for row in one.rows if "samples" in row]
    assert [row["updates"] for row in tables] == [4, 8, 12]
    assert tables[0]["samples"][1] == ["source", "reference", "translation"]
    go(run, "train.log_to=wandb", force=True)
    assert wandb[3].values["id"] != wandb[0].values["id"]


def test_a_package_that_is_missing_is_named_before_anything_is_done(run, monkeypatch):
    for name, module in (("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        for dry in (True, False):
            caught = refused(EnvironmentProblem, None, go, run, f"train.log_to={name}", dry_run=dry)
            assert f"needs the package {name}, which is not installed" in caught.message
            assert f"pip install -e '.[{name}]'; or --set" in caught.hint
    assert not (run.path / "systems").exists()


def test_wandb_that_does_not_start_is_one_error_before_any_update(run, wandb, monkeypatch):
    def init(**values):
        raise RuntimeError("api_key not configured\nmore lines")

    monkeypatch.setattr(sys.modules["wandb"], "init", init)
    with pytest.raises(EnvironmentProblem, match=r"wandb does not start: api_key not configured\n"):
        go(run, "train.log_to=wandb")
    assert not run.system("transformer").metrics.exists()


def test_an_unknown_logger_is_refused(run):
    refused(ConfigError, re.escape("bad value for 'train.log_to'"), go, run, "train.log_to=mlflow")


def test_none_logs_nowhere_and_auto_takes_tensorboard(run):
    pytest.importorskip("tensorboard")
    folder = run.system("transformer").path / "tensorboard"
    go(run, "train.log_to=none", "train.max_steps=1")
    assert not folder.exists()
    go(run, "train.log_to=auto", "train.max_steps=2")
    assert folder.is_dir()


def test_tensorboard_reads_one_curve_over_a_stop(run, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    stop(monkeypatch, 7, go, run, "train.log_to=tensorboard")
    go(run, "train.log_to=tensorboard")
    board = accumulator.EventAccumulator(str(run.system("transformer").path / "tensorboard"))
    board.Reload()
    for kind, key in (
        ("train", "loss"),
        ("train", "grad_norm"),
        ("train", "lr"),
        ("dev", "dev_loss"),
    ):
        found = [(event.step, event.value) for event in board.Scalars(f"{kind}/{key}")]
        wanted = [(line["step"], pytest.approx(line[key])) for line in metrics(run, kind)]
        assert found == wanted
    assert [event.step for event in board.Tensors("samples/0/text_summary")] == [4, 8, 12]
