"""The order of training: every pair once an epoch, window after window, the same after a resume."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit import settings
from nmtkit.data import order
from nmtkit.data.batch_lists import batch_list
from nmtkit.data.order import epoch_windows
from nmtkit.settings import TrainSettings
from nmtkit.train.updates import Updates
from tests.properties.sharded_lengths import ShardedLengths

WINDOW = 20


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_PAIRS", WINDOW)


@st.composite
def sharded(draw, most_shards=8):
    """Sets of up to 8 shards of up to 12 pairs, some empty, which make up to 5 windows."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=most_shards).filter(sum))
    count = sum(sizes)
    lengths = st.lists(st.integers(1, 30), min_size=count, max_size=count)
    return ShardedLengths(draw(lengths), draw(lengths), sizes)


SETTINGS = st.builds(
    lambda **values: settings.build(TrainSettings, values, "train"),
    batch_size=st.integers(1, 120),
    batch_unit=st.sampled_from(["tgt_tokens", "src_tokens", "sentences"]),
    update_size=st.integers(0, 200),
    seed=st.integers(0, 5),
)


def slow_windows(sizes, seed, epoch):
    """The windows of an epoch: shards with pairs are permuted, and each is in the window that its
    middle is in.
    """
    filled, total = [shard for shard, size in enumerate(sizes) if size], sum(sizes)
    count = -(-total // WINDOW)
    if count == 1:
        return [filled]
    permuted = np.random.default_rng([seed, epoch, 3]).permutation(filled).tolist()
    windows, before = [[] for _ in range(count)], 0
    for shard in permuted:
        middle = before + Fraction(sizes[shard], 2)
        windows[int(middle * count / total)].append(shard)
        before += sizes[shard]
    return [sorted(window) for window in windows if window]


def expected_epoch(pairs, train, epoch):
    """The batches of each window of an epoch, as lists of rows."""
    of_windows = []
    windows = slow_windows(pairs.shard_sizes, train.seed, epoch)
    for window, shards in enumerate(windows):
        rows = [row for row in range(sum(pairs.shard_sizes)) if pairs.shard_of(row) in shards]
        src, tgt = pairs.lengths(np.array(rows))
        batches = batch_list(
            src, tgt, train.batch_size, train.batch_unit, train.seed, epoch, window
        )
        of_windows.append([[rows[i] for i in batch] for batch in batches])
    return of_windows


def walk(updates, count):
    """The rows of the batches of some updates, and the place of the order before each update."""
    places, of_updates = [], []
    for _ in range(count):
        places.append((updates.epoch, updates.window, updates.index))
        of_updates.append([rows.tolist() for rows in updates.next()])
    return of_updates, places


def batches_in(of_updates):
    return list(itertools.chain(*of_updates))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(sum), st.integers(0, 3))
def test_windows_have_every_shard_once_and_differ_by_epoch(sizes, seed):
    total, with_pairs = sum(sizes), [shard for shard, size in enumerate(sizes) if size]
    epochs = [epoch_windows(sizes, seed, epoch) for epoch in range(6)]
    assert epochs == [slow_windows(sizes, seed, epoch) for epoch in range(6)]
    for windows in epochs:
        assert sorted(itertools.chain(*windows)) == with_pairs
        assert len(windows) <= -(-total // WINDOW)
        for shards in windows:
            assert shards and shards == sorted(shards)
            assert sum(sizes[shard] for shard in shards) <= WINDOW + max(sizes)
    if total <= WINDOW:
        assert epochs == [[with_pairs]] * 6
    elif len(with_pairs) > 4:
        assert any(epoch != epochs[0] for epoch in epochs)


def test_windows_of_equal_shards_have_equal_numbers_of_shards():
    windows = epoch_windows([5] * 40, 1, 0)
    assert [len(shards) for shards in windows] == [4] * 10
    assert windows != epoch_windows([5] * 40, 2, 0) != epoch_windows([5] * 40, 2, 1)
    neighbours = sum(b - a == 1 for shards in windows for a, b in itertools.pairwise(shards))
    assert neighbours < 15  # shards in the order of the corpus would have 30


@given(sharded(), SETTINGS)
def test_epoch_has_every_pair_once_and_its_windows_in_order(pairs, train):
    updates, count = Updates(pairs, train), sum(pairs.shard_sizes)
    rows = []
    while len(rows) < count:
        rows += np.concatenate(updates.next()).tolist()
    assert sorted(rows[:count]) == list(range(count))
    shards, start = [pairs.shard_of(row) for row in rows[:count]], 0
    for window in epoch_windows(pairs.shard_sizes, train.seed, 0):
        size = sum(pairs.shard_sizes[shard] for shard in window)
        assert {*shards[start : start + size]} == {*window}
        start += size


@given(sharded(), SETTINGS, st.integers(1, 6))
def test_updates_take_the_batches_of_the_windows_in_order(pairs, train, count):
    updates = Updates(pairs, train)
    of_updates, _ = walk(updates, count)
    taken, expected = batches_in(of_updates), []
    for epoch in range(updates.epoch + 1):
        for window, batches in enumerate(expected_epoch(pairs, train, epoch)):
            if (epoch, window) == (updates.epoch, updates.window):
                assert len(taken) == len(expected) + updates.index
                assert len(updates.batches) == len(batches)
            expected += batches
    assert taken == expected[: len(taken)]
    batches = updates.batches
    sizes = [batches.positions(i) for i in range(len(batches))]
    assert batches.largest().tolist() == batches[sizes.index(max(sizes))].tolist()
    assert len([*updates.of_window()]) == len(batches) // len(of_updates[0])


@given(sharded(), SETTINGS, st.integers(1, 6))
def test_passes_are_the_share_of_pairs_that_have_been_read(pairs, train, count):
    updates, total = Updates(pairs, train), sum(pairs.shard_sizes)
    before = -1.0
    for _ in range(count):
        windows = expected_epoch(pairs, train, updates.epoch)
        sizes = [sum(map(len, batches)) for batches in windows]
        share = updates.index / len(windows[updates.window])
        read = sum(sizes[: updates.window]) + share * sizes[updates.window]
        assert updates.passes == pytest.approx(updates.epoch + read / total)
        assert updates.passes > before
        before = updates.passes
        updates.next()


@given(sharded(), SETTINGS, st.integers(1, 6))
def test_updates_have_the_number_of_batches_that_is_nearest_to_their_size(pairs, train, count):
    for update in walk(Updates(pairs, train), count)[0]:
        lacking = train.update_size - len(update) * train.batch_size
        assert lacking <= train.batch_size / 2
        assert len(update) == 1 or lacking >= -train.batch_size / 2


@given(sharded(), SETTINGS, st.integers(1, 6), st.data())
def test_resumed_order_is_the_same_and_reads_no_earlier_window(pairs, train, count, data):
    of_updates, places = walk(Updates(pairs, train), count)
    stop = data.draw(st.integers(0, count - 1))
    pairs.read.clear()
    resumed = Updates(pairs, train, *places[stop])
    epoch, window, _ = places[stop]
    assert pairs.read == epoch_windows(pairs.shard_sizes, train.seed, epoch)[window]
    assert walk(resumed, count - stop)[0] == of_updates[stop:]


@given(sharded(most_shards=3), SETTINGS, st.integers(1, 6))
def test_order_within_one_window_does_not_depend_on_shards(pairs, train, count):
    src, tgt = pairs.lengths(np.arange(sum(pairs.shard_sizes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "WINDOW_PAIRS", 36)
        in_one_shard = walk(Updates(ShardedLengths(src, tgt), train), count)
        assert walk(Updates(pairs, train), count) == in_one_shard
    taken, expected = batches_in(in_one_shard[0]), []
    for epoch in itertools.count():
        batches = batch_list(src, tgt, train.batch_size, train.batch_unit, train.seed, epoch)
        expected += [rows.tolist() for rows in batches]
        if len(expected) >= len(taken):
            break
    assert taken == expected[: len(taken)]
