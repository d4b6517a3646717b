"""The order of training: every pair once an epoch, window after window, and from any place on the
same as if never stopped.
"""

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
from tests.sharded import Sharded

WINDOW = 20


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_PAIRS", WINDOW)


@st.composite
def sharded(draw, most_shards=8):
    """Sets of up to 8 shards of up to 12 pairs, some shards empty: up to 5 windows."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=most_shards).filter(sum))
    count = sum(sizes)
    lengths = st.lists(st.integers(1, 30), min_size=count, max_size=count)
    return Sharded(draw(lengths), draw(lengths), sizes)


SETTINGS = st.builds(
    lambda **values: settings.build(TrainSettings, values, "train"),
    batch_size=st.integers(1, 120),
    batch_unit=st.sampled_from(["tgt_tokens", "src_tokens", "sentences"]),
    update_size=st.integers(0, 200),
    seed=st.integers(0, 5),
)


def slow_windows(sizes, seed, epoch):
    """The oracle: permute the shards that have pairs, and put each where its middle is."""
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


def expected_epoch(pairs, chosen, epoch):
    """The oracle: for each window its shards and its batches, put together pair by pair."""
    found = []
    for window, shards in enumerate(slow_windows(pairs.shard_sizes, chosen.seed, epoch)):
        rows = [row for row in range(sum(pairs.shard_sizes)) if pairs.shard_of(row) in shards]
        src, tgt = pairs.lengths(np.array(rows))
        batches = batch_list(
            src, tgt, chosen.batch_size, chosen.batch_unit, chosen.seed, epoch, window
        )
        found.append((shards, [[rows[i] for i in batch] for batch in batches]))
    return found


def place_of(updates):
    return updates.epoch, updates.window, updates.index


def walk(updates, count):
    """So many updates as lists of rows, and where the order stands before each."""
    places, found = [], []
    for _ in range(count):
        places.append(place_of(updates))
        found.append([rows.tolist() for rows in updates.next()])
    return found, places


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(sum), st.integers(0, 3))
def test_windows(sizes, seed):
    """Every shard with a pair is in one window; windows are of like size; epochs differ."""
    total, filled = sum(sizes), [shard for shard, size in enumerate(sizes) if size]
    epochs = [epoch_windows(sizes, seed, epoch) for epoch in range(6)]
    for windows in epochs:
        assert sorted(shard for shards in windows for shard in shards) == filled
        for shards in windows:
            assert shards and shards == sorted(shards)
            assert sum(sizes[shard] for shard in shards) <= WINDOW + max(sizes)
        assert len(windows) <= -(-total // WINDOW)
        if len(windows) > 1:
            assert total > WINDOW
    assert epochs == [slow_windows(sizes, seed, epoch) for epoch in range(6)]
    if total <= WINDOW:
        assert epochs == [[filled]] * 6
    if len(filled) > 4 and total > WINDOW:
        assert any(epoch != epochs[0] for epoch in epochs)


def test_windows_of_equal_shards_have_as_many_each():
    windows = epoch_windows([5] * 40, 1, 0)
    assert [len(shards) for shards in windows] == [4] * 10
    assert windows != epoch_windows([5] * 40, 2, 0) != epoch_windows([5] * 40, 2, 1)
    neighbours = sum(b - a == 1 for shards in windows for a, b in itertools.pairwise(shards))
    assert neighbours < 15  # shards in the order of the corpus would have 30


@given(sharded(), SETTINGS)
def test_an_epoch_has_every_pair_once_and_one_window_after_the_other(pairs, chosen):
    updates, count = Updates(pairs, chosen), sum(pairs.shard_sizes)
    rows = []
    while len(rows) < count:
        rows += [row for batch in updates.next() for row in batch.tolist()]
    assert sorted(rows[:count]) == list(range(count))
    shards, behind = [pairs.shard_of(row) for row in rows[:count]], 0
    for window in epoch_windows(pairs.shard_sizes, chosen.seed, 0):
        size = sum(pairs.shard_sizes[shard] for shard in window)
        assert {*shards[behind : behind + size]} == {*window}
        behind += size


@given(sharded(), SETTINGS, st.integers(1, 6))
def test_updates_are_the_batches_of_the_windows_one_after_the_other(pairs, chosen, count):
    updates = Updates(pairs, chosen)
    found, _ = walk(updates, count)
    flat = [rows for update in found for rows in update]
    expected, behind = [], 0
    for epoch in range(updates.epoch + 1):
        for window, (_, batches) in enumerate(expected_epoch(pairs, chosen, epoch)):
            if (epoch, window) == (updates.epoch, updates.window):
                behind = len(expected) + updates.index
                assert len(updates.batches) == len(batches)
            expected += batches
    assert flat == expected[: len(flat)]
    assert len(flat) == behind  # the place that it says it is at
    batches = updates.batches
    sizes = [batches.positions(i) for i in range(len(batches))]
    assert batches.largest().tolist() == batches[sizes.index(max(sizes))].tolist()
    assert len([*updates.of_window()]) == len(batches) // len(found[0])


@given(sharded(), SETTINGS, st.integers(1, 6))
def test_passes_count_pairs(pairs, chosen, count):
    updates, total = Updates(pairs, chosen), sum(pairs.shard_sizes)
    before = -1.0
    for _ in range(count):
        passes = updates.passes
        assert passes > before
        windows = expected_epoch(pairs, chosen, updates.epoch)
        sizes = [sum(map(len, batches)) for _, batches in windows]
        done = sum(sizes[: updates.window]) / total
        share = updates.index / len(windows[updates.window][1])
        assert passes == pytest.approx(updates.epoch + done + share * sizes[updates.window] / total)
        before = passes
        updates.next()


@given(sharded(), SETTINGS, st.integers(1, 6))
def test_an_update_has_the_batches_that_come_nearest_to_its_size(pairs, chosen, count):
    for update in walk(Updates(pairs, chosen), count)[0]:
        lacking = chosen.update_size - len(update) * chosen.batch_size
        assert lacking <= chosen.batch_size / 2
        assert len(update) == 1 or lacking >= -chosen.batch_size / 2


@given(sharded(), SETTINGS, st.integers(1, 6), st.data())
def test_from_any_place_on_the_rest_is_the_same_and_earlier_windows_are_not_read(
    pairs, chosen, count, data
):
    found, places = walk(Updates(pairs, chosen), count)
    stop = data.draw(st.integers(0, count - 1))
    pairs.read.clear()
    resumed = Updates(pairs, chosen, *places[stop])
    epoch, window, _ = places[stop]
    assert pairs.read == epoch_windows(pairs.shard_sizes, chosen.seed, epoch)[window]
    assert walk(resumed, count - stop)[0] == found[stop:]


@given(sharded(most_shards=3), SETTINGS, st.integers(1, 6))
def test_one_window_depends_on_the_pairs_alone(pairs, chosen, count):
    """However it is cut into shards, a small set has the batches of the set in one piece."""
    src, tgt = pairs.lengths(np.arange(sum(pairs.shard_sizes)))
    whole = Sharded(src, tgt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "WINDOW_PAIRS", 36)
        assert walk(Updates(pairs, chosen), count) == walk(Updates(whole, chosen), count)
        flat = [rows for update in walk(Updates(whole, chosen), count)[0] for rows in update]
    expected = []
    for epoch in range(1 + len(flat)):
        batches = batch_list(src, tgt, chosen.batch_size, chosen.batch_unit, chosen.seed, epoch)
        expected += [rows.tolist() for rows in batches]
    assert flat == expected[: len(flat)]
