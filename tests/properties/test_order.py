"""The order of training: every pair once an epoch, and from any place on the same as if never
stopped.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nmtkit import settings
from nmtkit.data.batches import batch_list
from nmtkit.settings import TrainSettings
from nmtkit.train.gradients import Updates

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60).map(
    lambda pairs: np.array(pairs, dtype=np.int64).T
)
SETTINGS = st.builds(
    lambda **values: settings.build(TrainSettings, values, "train"),
    batch_size=st.integers(1, 120),
    batch_unit=st.sampled_from(["tgt_tokens", "src_tokens", "sentences"]),
    update_size=st.integers(0, 200),
    seed=st.integers(0, 5),
)


def walk(order, updates):
    """So many updates as lists of rows, and where the order stands before each."""
    places, found = [], []
    for _ in range(updates):
        places.append((order.epoch, order.index))
        found.append([rows.tolist() for rows in order.next()])
    return found, places


@given(LENGTHS, SETTINGS, st.integers(1, 6))
def test_updates_are_the_epochs_batches_one_after_the_other(lengths, chosen, updates):
    src, tgt = lengths
    found, _ = walk(order := Updates(src, tgt, chosen), updates)
    flat = [rows for update in found for rows in update]
    expected = []
    for epoch in range(order.epoch + 1):
        batches = batch_list(src, tgt, chosen.batch_size, chosen.batch_unit, chosen.seed, epoch)
        expected += [rows.tolist() for rows in batches]
    assert flat == expected[: len(flat)]
    assert len(flat) > len(expected) - len(order.batches)  # the epoch that it says has begun, has


@given(LENGTHS, SETTINGS, st.integers(1, 6))
def test_an_update_holds_what_is_asked_for_and_no_batch_more(lengths, chosen, updates):
    src, tgt = lengths
    counted = {"src_tokens": src, "tgt_tokens": tgt, "sentences": np.ones_like(src)}[
        chosen.batch_unit
    ]
    for update in walk(Updates(src, tgt, chosen), updates)[0]:
        sizes = [int(counted[rows].sum()) for rows in update]
        assert sum(sizes) >= chosen.update_size
        assert sum(sizes[:-1]) < max(1, chosen.update_size)


@given(LENGTHS, SETTINGS, st.integers(1, 6), st.data())
def test_from_any_place_on_the_rest_is_the_same(lengths, chosen, updates, data):
    src, tgt = lengths
    found, places = walk(Updates(src, tgt, chosen), updates)
    stop = data.draw(st.integers(0, updates - 1))
    again, _ = walk(Updates(src, tgt, chosen, *places[stop]), updates - stop)
    assert again == found[stop:]
