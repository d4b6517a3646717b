"""A training set in several shards and windows: small sets train as in one piece, large ones are
continued in the middle of a window to the bit.
"""

import numpy as np
import pytest
import torch

from nmtkit import files
from nmtkit.data import order, resegmented
from nmtkit.data.documents import documents_file
from nmtkit.data.order import epoch_windows
from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store
from nmtkit.models.checkpoints import load_weights
from nmtkit.text.splitter import Splitter
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.train import dry_run
from nmtkit.train.stage import _Training
from nmtkit.train.updates import Updates
from tests.train.test_ranks import Together, arguments, largest_difference, weights
from tests.train.test_resume import SETTINGS, outcome, stop
from tests.train.tiny import last, make_run, metrics, state_of, trainer

go = trainer(SETTINGS)


def small_windows():
    """60 pairs are three windows, and a batch is a sixth to a third of a window."""
    order.WINDOW_PAIRS = 20


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_PAIRS", 20)


def in_shards(path, shard=4):
    return make_run(path, shard=shard)


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_one_window_trains_as_one_shard(tmp_path):
    """The same weights, however the set is cut into shards."""
    found = []
    for shard in (0, 7, 1):
        run = in_shards(tmp_path / str(shard), shard)
        go(run)
        found.append(load_weights(last(run)))
    assert same(found[0], found[1]) and same(found[0], found[2])


def test_stopped_in_the_middle_of_a_window_is_as_if_never_stopped(tmp_path, monkeypatch, windows):
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
    assert not same(load_weights(last(cut)), load_weights(last(whole)))  # another order


def test_only_the_window_is_read_where_a_training_continues(tmp_path, monkeypatch, windows):
    run, read, original = in_shards(tmp_path / "run"), [], Store.shard_lengths
    go(run, "train.max_steps=1", "train.checkpoint_every=1")
    state = state_of(run)
    monkeypatch.setattr(
        Store,
        "shard_lengths",
        lambda store, shard: (
            read.append(shard) if store.path.name == "train" else None,
            original(store, shard),
        )[1],
    )
    go(run, "train.max_steps=1", "train.checkpoint_every=1")
    seed = run.system("transformer").training().seed
    assert read == epoch_windows([4] * 15, seed, state["epoch"])[state["window"]]


@pytest.mark.parametrize("world", [2, 3])
def test_the_same_updates_for_any_number_of_ranks(tmp_path, monkeypatch, world):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = in_shards(tmp_path / "run")
    for ranks in (1, world):
        call = arguments(run, name=f"of{ranks}")
        Together(tmp_path / f"of{ranks}", ranks, call, before=small_windows).ended(*[0] * ranks)
    assert largest_difference(weights(run, "of1", 6), weights(run, f"of{world}", 6)) < 1e-5


def test_a_dry_run_counts_from_the_first_window(tmp_path, windows):
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


# Subwords drawn anew


class Doubling(Splitter):
    """Doubles words by chance."""

    def sampler(self, strength, vocabulary):
        return lambda word, random: [word] * (1 + (random.random() < strength))


@pytest.fixture
def drawn(monkeypatch):
    """Trainings whose words are doubled by chance."""

    def resegmented_set(training, store, model):
        return drawn_set(training.run, store)

    monkeypatch.setattr(_Training, "resegmented", resegmented_set)


def drawn_set(run, store):
    return Resegmented(store, [Doubling()] * 2, load_vocabularies(run.prep), 0.5, seed=1)


def sentences(pairs, rows):
    return [ids.tolist() for row in rows for ids in (pairs.src(row), pairs.tgt(row))]


def test_a_window_is_drawn_as_a_set_of_its_own(tmp_path, monkeypatch):
    run = in_shards(tmp_path / "run")
    store = Store(run.prep / "train")
    pairs = drawn_set(run, store)
    everything = range(60)
    assert sentences(pairs, everything) == sentences(store, everything)
    pairs.begin(3, 1, [2, 5])
    window = [*range(8, 12), *range(20, 24)]
    first = sentences(pairs, window)
    assert first != sentences(store, window)
    others = [row for row in everything if row not in window]
    assert sentences(pairs, others) == sentences(store, others)
    sizes = [[len(ids) for ids in sentences(pairs, window)[side::2]] for side in (0, 1)]
    for side in (0, 1):
        of_shards = [pairs.shard_lengths(shard)[side].tolist() for shard in (2, 5)]
        assert sum(of_shards, []) == sizes[side]
        assert pairs.lengths(np.array(window))[side].tolist() == sizes[side]
    # A later window of the same update is held beside it, and has what both have.
    pairs.begin(4, 0, [5, 7])
    again = sentences(pairs, window)
    assert again[:8] == first[:8] and again[8:] != first[8:]
    pairs.forget_earlier_windows()
    assert sentences(pairs, range(8, 12)) == sentences(store, range(8, 12))
    assert sentences(pairs, range(20, 24)) == again[8:]
    # The draw depends on the window alone, not on those before.
    monkeypatch.setattr(resegmented, "ROWS", 3)
    other = drawn_set(run, store)
    other.begin(3, 1, [2, 5])
    assert sentences(other, window) == first
    for place in ((3, 0, [2, 5]), (2, 1, [2, 5]), (3, 1, [2, 6])):
        other.begin(*place)
        assert sentences(other, range(8, 12)) != first[:8]


@pytest.mark.parametrize("documents", [False, True])
def test_drawn_subwords_are_continued_in_the_middle_of_a_window(
    tmp_path, monkeypatch, windows, drawn, documents
):
    """With documents, contexts are read from other windows too."""
    values = {"variant": "concat"} if documents else {}
    extra = ["train.subword_dropout=0.5", *(["train.dev_bleu=false"] * documents)]
    runs = [in_shards(tmp_path / name) for name in ("whole", "stopped", "without")]
    for run in runs:
        if documents:
            starts = map(str, range(0, 60, 6))
            files.write_lines(documents_file(run.prep, "train"), list(starts))
    name = values.get("variant", "transformer")
    go(runs[0], *extra, **values)
    for _ in range(12):
        stop(monkeypatch, 1, go, runs[1], *extra, **values)
    go(runs[1], *extra, **values)
    go(runs[2], *extra[1:], **values)
    whole, stopped, without = (load_weights(last(run, name)) for run in runs)
    assert same(whole, stopped) and not same(whole, without)
