"""Updates that a thread prepares ahead are those of a training without it, also continued."""

import threading

import pytest
import torch

from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.train import gradients, prefetch
from nmtkit.train.loop import Trainer
from tests.train.test_resume import SETTINGS, outcome, short_of_memory, stop, two_ctrl_c
from tests.train.tiny import make_run, trainer

go = trainer(SETTINGS)


@pytest.fixture(autouse=True)
def one_thread_each(monkeypatch):
    monkeypatch.setattr(prefetch, "updates_ahead", lambda device, pairs: 3)


@pytest.fixture
def without(tmp_path, monkeypatch):
    """What a training comes to that prepares nothing ahead."""
    other = make_run(tmp_path / "without")

    def outcome_of(*settings, patch=None):
        with monkeypatch.context() as context:
            context.setattr(prefetch, "updates_ahead", lambda device, pairs: 0)
            if patch:
                patch(context)
            go(other, *settings)
        return outcome(other)

    return outcome_of


def test_stopped_after_every_step_it_is_as_if_nothing_was_prepared(run, without, monkeypatch):
    """What was prepared beyond the last step is prepared again."""
    makers, collate = set(), gradients.collate
    monkeypatch.setattr(
        gradients,
        "collate",
        lambda *a, **k: makers.add(threading.current_thread().name[:7]) or collate(*a, **k),
    )
    for _ in range(11):
        stop(monkeypatch, 1, go, run)
    go(run)
    assert makers == {"batches", "MainThr"}  # the largest batch is tried by the main thread
    assert outcome(run) == without()


def test_batches_are_made_anew_where_memory_is_short(run, without, monkeypatch):
    """What was prepared as a whole is computed in parts."""

    def short(patch):
        short_of_memory(patch, calls=12)

    wanted = without(patch=short)
    with monkeypatch.context() as patch:
        short(patch)
        go(run)
    assert outcome(run) == wanted and wanted["state"]["split_from"]


def test_memory_that_does_not_hold_a_batch_ahead_ends_nothing(run, without, monkeypatch):
    """The main thread makes the batch, when it is needed."""
    wanted, collate, fails = without(), gradients.collate, [2, 3]

    def short(*args, **named):
        if threading.current_thread().name.startswith("batches"):
            fails[0] -= 1
            if fails[0] <= 0 < fails[1]:
                fails[1] -= 1
                raise torch.OutOfMemoryError("CUDA out of memory")
        return collate(*args, **named)

    monkeypatch.setattr(gradients, "collate", short)
    go(run)
    assert outcome(run) == wanted and fails[1] == 0


def test_the_thread_is_ahead(run, monkeypatch):
    """When an update is computed, three further ones are prepared or being prepared."""
    waiting, make_update = [], Trainer.make_update

    def noted(self):
        make_update(self)
        waiting.append(len(self.prefetcher._queue))

    monkeypatch.setattr(Trainer, "make_update", noted)
    go(run)
    assert waiting == [3] * 12


def test_an_error_of_the_thread_is_an_error_of_the_training(run, monkeypatch):
    sides, calls = Store.sides, []

    def damaged(self, pairs):
        calls.append(threading.current_thread().name)
        if len(calls) == 10:
            raise DataError("damaged: a sentence is missing", where=self.path)
        return sides(self, pairs)

    monkeypatch.setattr(Store, "sides", damaged)
    with pytest.raises(DataError, match="a sentence is missing"):
        go(run)
    assert calls[-1].startswith("batches")
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]


def test_a_second_ctrl_c_ends_at_once(run, monkeypatch):
    two_ctrl_c(run, monkeypatch)
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]


def test_only_a_gpu_has_updates_prepared(monkeypatch):
    monkeypatch.undo()
    assert prefetch.updates_ahead(torch.device("cuda:1"), None) == 3
    assert prefetch.updates_ahead(torch.device("cpu"), None) == 0
