"""`train.log_to`: what Weights & Biases and TensorBoard get, over stopped and resumed trainings."""

import re
import sys
from types import SimpleNamespace

import pytest

from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.train import loop
from tests.faults.trainings import fail
from tests.refused import refused
from tests.train.test_resume import stop
from tests.train.tiny import metrics, options, trainer

SETTINGS = options("train.max_steps=12", "train.validate_every=4", "train.checkpoint_every=5")
go = trainer(SETTINGS)


class WandbRun:
    """A stand-in for a run of the package."""

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
    """Replace the package by a stand-in; return the list of its runs."""
    runs = []

    def init(**values):
        runs.append(WandbRun(**values))
        return runs[-1]

    module = SimpleNamespace(init=init, Table=lambda columns, data: ("table", columns, data))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


@pytest.fixture
def stopped_twice(run, wandb, monkeypatch):
    """Runs of the package of one training: killed after a checkpoint, stopped, and finished."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        fail(patch, loop.Trainer, "update", KeyboardInterrupt, {10})
        go(run, "train.log_to=wandb")
    stop(monkeypatch, 2, go, run, "train.log_to=wandb")
    go(run, "train.log_to=wandb")
    return wandb


def rows_with(runs, key):
    return [row for run in runs for row in run.rows if key in row]


def test_wandb_continues_its_run_when_a_training_is_resumed(run, stopped_twice):
    first, *_ = stopped_twice
    assert len(stopped_twice) == 3 and all(one.finished for one in stopped_twice)
    assert len({one.values["id"] for one in stopped_twice}) == 1
    assert {one.values["resume"] for one in stopped_twice} == {"allow"}
    assert first.values["name"] == "run/transformer"
    assert first.values["config"]["train"]["log_to"] == "wandb"
    assert first.axes == [("updates", None), ("*", "updates")]
    go(run, "train.log_to=wandb", force=True)
    assert stopped_twice[3].values["id"] != first.values["id"]


@pytest.mark.parametrize(
    ("kind", "keys"), [("train", ["loss", "lr", "grad_norm"]), ("dev", ["dev_loss", "dev_bleu"])]
)
def test_wandb_gets_every_number_once_over_stops(run, stopped_twice, kind, keys):
    rows = rows_with(stopped_twice, f"{kind}/{keys[0]}")
    assert [row["updates"] for row in rows] == [4, 8, 12]
    for row, line in zip(rows, metrics(run, kind), strict=True):
        assert [row[f"{kind}/{key}"] for key in keys] == [line[key] for key in keys]
    assert all(("train/tgt_tokens_per_s" in row) == (kind == "train") for row in rows)
    tables = rows_with(stopped_twice, "samples")
    assert [row["updates"] for row in tables] == [4, 8, 12]
    assert tables[0]["samples"][1] == ["source", "reference", "translation"]


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("name", "module"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_missing_package_is_an_error_before_the_training(run, monkeypatch, name, module, dry):
    monkeypatch.setitem(sys.modules, module, None)
    caught = refused(EnvironmentProblem, None, go, run, f"train.log_to={name}", dry_run=dry)
    assert f"needs the package {name}, which is not installed" in caught.message
    assert f"pip install -e '.[{name}]'; or --set" in caught.hint
    assert not (run.path / "systems").exists()


def test_wandb_that_does_not_start_is_an_error_before_the_training(run, wandb, monkeypatch):
    def init(**values):
        raise RuntimeError("api_key not configured\nmore lines")

    monkeypatch.setattr(sys.modules["wandb"], "init", init)
    with pytest.raises(EnvironmentProblem, match=r"wandb does not start: api_key not configured\n"):
        go(run, "train.log_to=wandb")
    assert not run.system("transformer").metrics.exists()


def test_unknown_logger_is_refused(run):
    refused(ConfigError, re.escape("bad value for 'train.log_to'"), go, run, "train.log_to=mlflow")


def test_log_to_none_writes_no_tensorboard_and_auto_does(run):
    pytest.importorskip("tensorboard")
    folder = run.system("transformer").path / "tensorboard"
    go(run, "train.log_to=none", "train.max_steps=1")
    assert not folder.exists()
    go(run, "train.log_to=auto", "train.max_steps=2")
    assert folder.is_dir()


def test_tensorboard_has_one_curve_over_a_stop(run, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    stop(monkeypatch, 7, go, run, "train.log_to=tensorboard")
    go(run, "train.log_to=tensorboard")
    board = accumulator.EventAccumulator(str(run.system("transformer").path / "tensorboard"))
    board.Reload()
    for name in ("train/loss", "train/grad_norm", "train/lr", "dev/dev_loss"):
        kind, key = name.split("/")
        found = [(event.step, event.value) for event in board.Scalars(name)]
        assert found == [(line["step"], pytest.approx(line[key])) for line in metrics(run, kind)]
    assert [event.step for event in board.Tensors("samples/0/text_summary")] == [4, 8, 12]
