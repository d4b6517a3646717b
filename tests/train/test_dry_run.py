"""`train --dry-run`: what it prints, that it writes nothing, and that it refuses wrong input as a
training does.
"""

import re
from types import SimpleNamespace

import pytest

from nmtkit.errors import ConfigError, DataError
from nmtkit.models.variants import count_parameters
from nmtkit.train import dry_run
from nmtkit.train.loop import Trainer
from nmtkit.train.updates import Updates
from tests.train.tiny import options, state_of, trainer

SETTINGS = options("train.max_steps=40", "train.update_size=180", "train.validate_every=100")
go = trainer(SETTINGS)


def contents(run):
    """Every file and folder of a run, and when it was changed."""
    return {path: path.stat().st_mtime_ns for path in [run.path, *run.path.rglob("*")]}


def passes(trainer, updates):
    """Passes over the training set of the first updates, one update after the other."""
    rows = Updates(trainer.store, trainer.settings)
    for _ in range(updates):
        rows.next()
    return rows.epoch + rows.index / len(rows.batches)


@pytest.fixture
def rehearsals(monkeypatch):
    """Trainer and estimate of every dry run, in which an update takes a second."""
    recorded, seconds, make_update = [], [0.0], Trainer.make_update
    rehearse = dry_run.rehearse

    def slow_update(self):
        make_update(self)
        seconds[0] += 1

    def recording(trainer):
        estimate = rehearse(trainer)
        recorded.append((trainer, estimate))
        return estimate

    monkeypatch.setattr(Trainer, "make_update", slow_update)
    monkeypatch.setattr(dry_run, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    monkeypatch.setattr(dry_run, "rehearse", recording)
    return recorded


def test_dry_run_prints_the_training_and_writes_nothing(run, rehearsals, stdout):
    before = contents(run)
    go(run, dry_run=True)
    assert contents(run) == before
    ((trainer, estimate),) = rehearsals
    printed = stdout()
    rows = dict(line.split(maxsplit=1) for line in printed.splitlines() if "  " in line)
    assert rows["parameters"] == f"{count_parameters(trainer.model):,}"
    assert rows["train.update_size"].split() == ["180", "0"]
    assert rows["model.d_model"].split() == ["16", "512"]
    assert "train.epsilon" not in rows and "train.seed" not in rows
    assert re.search(r"memory +\d+\.\d\d GiB this process, measured", printed)
    assert rows["updates"] == f"40 to make: {passes(trainer, 40):.1f} epochs"
    assert estimate.timed == 5  # a second each, until five have passed
    assert estimate.epochs == pytest.approx(passes(trainer, 4000) / 100, rel=0.01)
    total = trainer.store.tgt_lengths.sum() * estimate.epochs
    assert estimate.tokens == pytest.approx(total)
    assert estimate.seconds == pytest.approx(40, rel=0.15)


def test_dry_run_of_a_resumed_training_estimates_the_rest(run, rehearsals, stdout):
    go(run, "train.max_steps=10", dry_run=True)
    go(run, "train.max_steps=10")
    before = contents(run)
    go(run, "train.max_steps=30", "train.max_minutes=0.1", dry_run=True)
    assert contents(run) == before
    (_, first), (trainer, rest) = rehearsals[0], rehearsals[-1]
    assert first.updates == 10 and trainer.state.step == 10 + 2 + rest.timed
    # Six seconds, less those of the training, at about a second an update.
    assert rest.seconds == pytest.approx(6 - state_of(run)["seconds"])
    assert abs(rest.updates - rest.seconds) < 1.3
    assert "parameters" in stdout()


@pytest.mark.parametrize("dry", [True, False])
def test_wrong_input_is_refused_as_in_a_training(run, dry):
    go(run, "train.max_steps=1")
    wrong = [
        ("unknown setting 'train.lrr'", ["train.lrr=1"], {}),
        ("have changed since it was started", ["train.lr=2.0"], {}),
        ("no system or folder 'nowhere'", [], {"init_from": "nowhere", "name": "b"}),
        ("cannot name a system", [], {"name": "a+b"}),
    ]
    for message, extra, values in wrong:
        with pytest.raises(ConfigError, match=re.escape(message)):
            go(run, "train.max_steps=1", *extra, dry_run=dry, **values)
    (run.prep / "train" / "00000.bin").write_bytes(b"")
    with pytest.raises(DataError, match="has changed since it was prepared|is missing"):
        go(run, "train.max_steps=1", dry_run=dry)
    assert {system.name for system in run.systems()} == {"transformer"}
