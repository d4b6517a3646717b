"""A thread prepares the batches of the next updates: the same training as without it, also if it is
resumed.
"""

import threading

import pytest
import torch

from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.train import gradients, prefetch
from nmtkit.train.loop import Trainer
from tests.train.test_resume import SETTINGS, outcome, press_ctrl_c_twice, short_of_memory, stop
from tests.train.tiny import make_run, trainer

go = trainer(SETTINGS)


@pytest.fixture(autouse=True)
def three_updates_ahead(monkeypatch):
    monkeypatch.setattr(prefetch, "updates_ahead", lambda device, pairs: 3)


@pytest.fixture
def expected_outcome(tmp_path, monkeypatch):
    """A function: the outcome of a training that prepares nothing ahead."""

    def train_without(calls_short_of_memory=0):
        other = make_run(tmp_path / "without")
        with monkeypatch.context() as patch:
            patch.setattr(prefetch, "updates_ahead", lambda device, pairs: 0)
            short_of_memory(patch, calls_short_of_memory)
            go(other)
        return outcome(other)

    return train_without


def test_training_stopped_after_every_update_prepares_the_same_batches(
    run, expected_outcome, monkeypatch
):
    """Batches that were prepared beyond the last update are prepared again."""
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
    assert outcome(run) == expected_outcome()


def test_prepared_batches_are_cut_if_memory_is_short(run, expected_outcome, monkeypatch):
    expected = expected_outcome(calls_short_of_memory=12)
    short_of_memory(monkeypatch, calls=12)
    go(run)
    assert outcome(run) == expected and expected["state"]["split_from"]


def test_main_thread_makes_a_batch_that_could_not_be_prepared(run, expected_outcome, monkeypatch):
    """The preparing thread is short of memory from its second batch on, three times."""
    expected, collate, fails = expected_outcome(), gradients.collate, [2, 3]

    def failing_collate(*args, **named):
        if threading.current_thread().name.startswith("batches"):
            fails[0] -= 1
            if fails[0] <= 0 < fails[1]:
                fails[1] -= 1
                raise torch.OutOfMemoryError("CUDA out of memory")
        return collate(*args, **named)

    monkeypatch.setattr(gradients, "collate", failing_collate)
    go(run)
    assert outcome(run) == expected and fails[1] == 0


def test_thread_prepares_three_updates_ahead(run, monkeypatch):
    queued, make_update = [], Trainer.make_update

    def counted(self):
        make_update(self)
        queued.append(len(self.prefetcher._queue))

    monkeypatch.setattr(Trainer, "make_update", counted)
    go(run)
    assert queued == [3] * 12


def preparing_threads():
    return [t for t in threading.enumerate() if t.name.startswith("batches")]


def test_error_in_the_thread_ends_the_training(run, monkeypatch):
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
    assert not preparing_threads()


def test_second_ctrl_c_ends_the_thread(run, monkeypatch):
    press_ctrl_c_twice(run, monkeypatch)
    assert not preparing_threads()


def test_updates_are_prepared_for_a_gpu_only(monkeypatch):
    monkeypatch.undo()
    assert prefetch.updates_ahead(torch.device("cuda:1"), None) == 3
    drawn_anew = Resegmented.__new__(Resegmented)
    assert prefetch.updates_ahead(torch.device("cuda:1"), drawn_anew) == 0
    assert prefetch.updates_ahead(torch.device("cpu"), None) == 0
