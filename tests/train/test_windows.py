"""A training set in several shards and windows: one window trains as one shard does, and a training
resumes exactly in the middle of a window.
"""

from functools import partial

import numpy as np
import pytest

from nmtkit.data import order, resegmented
from nmtkit.data.order import epoch_windows
from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store
from nmtkit.settings import TrainSettings
from nmtkit.text.splitter import Splitter
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.train import dry_run
from nmtkit.train.stage import _Training
from nmtkit.train.updates import Updates
from tests.train.test_ranks import largest_difference, train_in_ranks, weights
from tests.train.test_resume import SETTINGS, outcome, stop
from tests.train.tiny import (
    equal_tensors,
    make_run,
    mark_documents,
    metrics,
    saved_weights,
    state_of,
    trainer,
)

go = trainer(SETTINGS)


def small_windows():
    """60 pairs are three windows, and a batch is a sixth to a third of a window."""
    order.WINDOW_PAIRS = 20


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_PAIRS", 20)


def in_shards(path, shard=4):
    return make_run(path, shard=shard)


def test_shards_of_one_window_do_not_change_the_training(tmp_path):
    runs = [in_shards(tmp_path / str(shard), shard) for shard in (0, 7, 1)]
    for run in runs:
        go(run)
    whole, *cut = map(saved_weights, runs)
    assert all(equal_tensors(whole, weights) for weights in cut)


def test_training_stopped_in_the_middle_of_windows_resumes_exactly(tmp_path, monkeypatch, windows):
    whole, stopped, cut = (in_shards(tmp_path / name) for name in ("whole", "stopped", "cut"))
    go(whole)
    places = []
    for _ in range(12):
        stop(monkeypatch, 1, go, stopped)
        state = state_of(stopped)
        places.append((state["epoch"], state["window"], state["index"]))
    go(stopped)
    assert outcome(stopped) == outcome(whole)
    assert places == sorted(places) and {window for _, window, _ in places} == {0, 1, 2}
    assert max(places)[0] > 0
    epochs = [line["epoch"] for line in metrics(whole, "train")]
    assert epochs == sorted(epochs) and max(epochs) > 1
    monkeypatch.setattr(order, "WINDOW_PAIRS", 60)
    go(cut)
    assert not equal_tensors(saved_weights(cut), saved_weights(whole))  # another order


def test_resumed_training_reads_its_window_only(tmp_path, monkeypatch, windows):
    run, read, shard_lengths = in_shards(tmp_path / "run"), [], Store.shard_lengths
    go(run, "train.max_steps=1", "train.checkpoint_every=1")
    state = state_of(run)

    def recorded(store, shard):
        if store.path.name == "train":
            read.append(shard)
        return shard_lengths(store, shard)

    monkeypatch.setattr(Store, "shard_lengths", recorded)
    go(run, "train.max_steps=1", "train.checkpoint_every=1")
    seed = run.system("transformer").training().seed
    assert read == epoch_windows([4] * 15, seed, state["epoch"])[state["window"]]


def test_passes_over_the_training_set_grow_with_every_update(tmp_path, windows):
    store = Store(in_shards(tmp_path / "run", 7).prep / "train")  # windows differ in size
    updates, passes, seen = Updates(store, TrainSettings(batch_size=64)), [], 0
    for _ in range(20):
        seen += sum(map(len, updates.next()))
        passes.append(updates.passes)
        if updates.index == len(updates.batches):
            assert passes[-1] == pytest.approx(seen / 60)
    assert passes == sorted(set(passes)) and passes[-1] > 1


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_train_the_weights_of_one_process_over_windows(tmp_path, monkeypatch, world):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = in_shards(tmp_path / "run")
    for ranks in (1, world):
        train_in_ranks(tmp_path, run, ranks, name=f"of{ranks}", before=small_windows)
    assert largest_difference(weights(run, "of1", 6), weights(run, f"of{world}", 6)) < 1e-5


def test_dry_run_estimates_an_epoch_from_its_first_window(tmp_path, windows):
    run, found = in_shards(tmp_path / "run"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dry_run, "show", lambda plan, trainer, estimate: found.append(trainer))
        go(run, dry_run=True)
    updates, tokens = dry_run.of_an_epoch(found[0])
    walked, count = Updates(found[0].store, found[0].settings), 0
    while not walked.epoch:
        walked.next()
        count += 1
    assert updates == pytest.approx(count, rel=0.25)
    assert tokens == pytest.approx(found[0].store.tgt_lengths.sum(), rel=0.2)


# Subwords drawn in each window


class Doubling(Splitter):
    """Doubles words at random."""

    def sampler(self, strength, vocabulary):
        return lambda word, random: [word] * (1 + (random.random() < strength))


def doubled(run, store):
    """A store whose words are doubled at random."""
    return Resegmented(store, [Doubling()] * 2, load_vocabularies(run.prep), 0.5, seed=1)


def sentences(pairs, rows):
    return [ids.tolist() for row in rows for ids in (pairs.src(row), pairs.tgt(row))]


# Two shards, and their rows.
SHARDS, FIRST, SECOND = [2, 5], [*range(8, 12)], [*range(20, 24)]
WINDOW = FIRST + SECOND


@pytest.fixture
def drawn(tmp_path):
    """A run, its store, and the store with words doubled in a window of two shards."""
    run = in_shards(tmp_path / "run")
    store = Store(run.prep / "train")
    pairs = doubled(run, store)
    assert sentences(pairs, range(60)) == sentences(store, range(60))
    pairs.begin(3, 1, SHARDS)
    return run, store, pairs


def test_subwords_are_drawn_in_the_window_only(drawn):
    _, store, pairs = drawn
    found = sentences(pairs, WINDOW)
    assert found != sentences(store, WINDOW)
    others = [row for row in range(60) if row not in WINDOW]
    assert sentences(pairs, others) == sentences(store, others)
    for side in (0, 1):
        sizes = [len(ids) for ids in found[side::2]]
        of_shards = [pairs.shard_lengths(shard)[side].tolist() for shard in SHARDS]
        assert sum(of_shards, []) == pairs.lengths(np.array(WINDOW))[side].tolist() == sizes


def test_later_window_is_held_beside_the_earlier_one_until_that_is_forgotten(drawn):
    """An update may have pairs of both windows. A shard of both has the later draw."""
    _, store, pairs = drawn
    first = sentences(pairs, FIRST)
    of_second = sentences(pairs, SECOND)
    pairs.begin(4, 0, [5, 7])
    again = sentences(pairs, SECOND)
    assert sentences(pairs, FIRST) == first and again != of_second
    pairs.forget_earlier_windows()
    assert sentences(pairs, FIRST) == sentences(store, FIRST)
    assert sentences(pairs, SECOND) == again


def test_draw_depends_on_epoch_window_and_shards_alone(drawn, monkeypatch):
    run, store, pairs = drawn
    monkeypatch.setattr(resegmented, "ROWS", 3)
    other = doubled(run, store)
    other.begin(3, 1, SHARDS)
    assert sentences(other, WINDOW) == sentences(pairs, WINDOW)
    for place in ((3, 0, [2, 5]), (2, 1, [2, 5]), (3, 1, [2, 6])):
        other.begin(*place)
        assert sentences(other, FIRST) != sentences(pairs, FIRST)


def test_updates_hold_the_subwords_of_two_windows_at_most(drawn, windows):
    """There are three windows of five shards."""
    _, _, pairs = drawn
    updates = Updates(pairs, TrainSettings(batch_size=64))
    for _ in range(20):
        updates.next()
        assert len(pairs._drawn) <= 10
    assert updates.epoch > 0


@pytest.mark.parametrize(
    ("variant", "more"), [("transformer", []), ("concat", ["train.dev_bleu=false"])]
)
def test_training_with_drawn_subwords_resumes_exactly_in_a_window(
    tmp_path, monkeypatch, windows, variant, more
):
    """With documents: `concat` reads contexts of other windows too."""
    monkeypatch.setattr(_Training, "resegmented", lambda self, store, _: doubled(self.run, store))
    whole, stopped, without = (in_shards(tmp_path / name) for name in ("a", "b", "c"))
    for run in (whole, stopped, without):
        mark_documents(run, "train", range(0, 60, 6))
    fit = partial(go, variant=variant)
    drawing = ["train.subword_dropout=0.5", *more]
    fit(whole, *drawing)
    for _ in range(6):
        stop(monkeypatch, 2, fit, stopped, *drawing)
    fit(stopped, *drawing)
    fit(without, *more)
    found, expected, others = (saved_weights(run, variant) for run in (stopped, whole, without))
    assert equal_tensors(found, expected) and not equal_tensors(expected, others)
