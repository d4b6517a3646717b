"""What a training writes down of itself, TensorBoard there and not there."""

import json
import sys
from types import SimpleNamespace

from nmtkit.run import System
from nmtkit.train.reporting import Reporter
from nmtkit.train.state import Window

MEASURED = {
    "dev_loss": 1.5,
    "dev_bleu": None,
    "dev_perplexity": float("inf"),
    "signature": "nrefs:1",
}


def test_tensorboard_gets_every_finite_number_where_it_is_installed(tmp_path, monkeypatch):
    told = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            told.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter)
    )
    system = System(tmp_path / "a")
    reporter = Reporter(system, 4)
    reporter.record("dev", 5, MEASURED)
    reporter.close()
    assert told == [(str(system.path / "tensorboard"), 5), ("dev/dev_loss", 1.5, 5), "closed"]


def test_metrics_are_written_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # an import of it fails
    system = System(tmp_path / "a")
    reporter = Reporter(system, 0)
    reporter.record("dev", 5, MEASURED)
    reporter.close()
    wanted = {"step": 5, "kind": "dev", **MEASURED, "dev_perplexity": None}
    assert [json.loads(line) for line in system.metrics.read_text().splitlines()] == [wanted]
    assert not (system.path / "tensorboard").exists()


def test_the_perplexity_stands_beside_the_loss_that_it_is_of(tmp_path, capsys):
    reporter = Reporter(System(tmp_path / "a"), 0)
    sizes = {"tokens": 10, "positions": 40, "padding": 10, "seconds": 1.0}
    for step, smoothed, nll in ((2, 77.42, 75.39), (4, 10.0, 10.0)):
        window = Window(steps=2, smoothed=smoothed, nll=nll, **sizes)
        reporter.progress(step, 9, 0.5, window, 0.1, None)
    reporter.close()
    first, second = capsys.readouterr().err.splitlines()
    assert "loss 7.539 (7.742 label-smoothed), perplexity 1,880, " in first  # exp(7.539) = 1,880
    assert "loss 1.000, perplexity 2.718, " in second and " 25.0% padding, " in second
