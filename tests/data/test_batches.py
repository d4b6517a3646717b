"""Batches: every pair once, within the budget, little padding; padded tensors as a slow
collation makes them.
"""

import hashlib
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.data import batches, context
from nmtkit.data.batch_lists import batch_list, padded_positions
from nmtkit.data.batches import (
    Batch,
    collate,
    collate_packed,
    short_rows,
    source_batch,
    with_targets,
)
from nmtkit.data.context import Context, contexts
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.packing import one_after_another, segments
from nmtkit.data.store import Store
from nmtkit.text.vocabulary import BOS, PAD
from tests.stored import pair_writer

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)
UNITS = st.sampled_from(["tgt_tokens", "src_tokens", "sentences"])


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 100), UNITS, st.integers(0, 3), st.integers(0, 3))
def test_every_pair_once_and_within_the_budget(pairs, size, unit, seed, epoch):
    src, tgt = np.array(pairs, dtype=np.int64).T
    batches = batch_list(src, tgt, size, unit, seed, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(pairs)))
    for rows in batches:
        counted, other = (src, tgt) if unit == "src_tokens" else (tgt, src)
        if unit == "sentences":
            assert len(rows) <= size
        elif len(rows) > 1:  # a pair above the budget is alone
            assert len(rows) * counted[rows].max() <= size
            assert len(rows) * other[rows].max() <= 2 * size
    again = batch_list(src, tgt, size, unit, seed, epoch)
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in batches]


def test_the_first_window_is_drawn_as_in_earlier_versions():
    """A small corpus trains on the batches that it always had, whatever the type of the lengths."""
    lengths = np.arange(40) * 7 % 23 + 2
    for kind in (np.int64, np.uint8, np.uint16):
        sides = lengths.astype(kind), lengths[::-1].astype(kind)
        batches = batch_list(*sides, 100, "tgt_tokens", 1, 2)
        rows = repr([rows.tolist() for rows in batches]).encode()
        assert hashlib.sha256(rows).hexdigest().startswith("7fa14fc6a2905299")
        windows = [batch_list(*sides, 100, "tgt_tokens", 1, 2, window) for window in range(3)]
        assert len({repr(window) for window in windows}) == 3


def multi30k_like(count=29_000):
    draw = np.random.default_rng(1)
    tgt = np.clip(draw.gamma(7.5, 2.1, count), 3, 60).astype(np.int64)
    src = np.clip(tgt * draw.normal(0.97, 0.2, count), 3, 60).astype(np.int64)
    return src, tgt


def padding_share(src, tgt, batches):
    """Share of padded positions among all positions of both sides."""
    held = sum(padded_positions(src[rows], tgt[rows]) for rows in batches)
    return 1 - (src.sum() + tgt.sum()) / held


def test_epochs_and_seeds_differ_in_batches_and_in_their_order():
    src, tgt = multi30k_like(2000)
    one, two, three = (
        batch_list(src, tgt, 512, "tgt_tokens", seed, epoch)
        for seed, epoch in [(1, 0), (1, 1), (2, 0)]
    )
    for other in (two, three):
        assert {frozenset(rows.tolist()) for rows in one} != {
            frozenset(rows.tolist()) for rows in other
        }
        assert [int(tgt[rows].max()) for rows in one] != [int(tgt[rows].max()) for rows in other]
    longest = [int(tgt[rows].max()) for rows in one]
    assert longest != sorted(longest, reverse=True)


def test_padding_is_small_on_lengths_as_of_multi30k():
    src, tgt = multi30k_like()
    assert padding_share(src, tgt, batch_list(src, tgt, 2048, "tgt_tokens", 1, 0)) < 0.05
    shuffled = np.array_split(np.random.default_rng(1).permutation(len(src)), 240)
    assert padding_share(src, tgt, shuffled) > 0.4  # what it would be: the measure can see padding


def test_a_million_pairs_take_little_time():
    src, tgt = multi30k_like(1_000_000)
    start = time.process_time()
    batches = batch_list(src, tgt, 4096, "tgt_tokens", 1, 0)
    assert time.process_time() - start < 3
    assert sum(map(len, batches)) == 1_000_000


@pytest.fixture
def store(tmp_path):
    draw = np.random.default_rng(1)
    for shard, pairs in enumerate((25, 0, 15)):
        with pair_writer(tmp_path / "train", shard, 100) as add:
            for _ in range(pairs):
                add(*([*draw.integers(4, 100, draw.integers(0, 12)).tolist(), 2] for _ in range(2)))
    return Store(tmp_path / "train")


def test_collate_equals_a_slow_one(store):
    for rows in batch_list(store.src_lengths, store.tgt_lengths, 30, "tgt_tokens", 1, 0):
        batch = collate(store, rows)
        assert batch.rows.tolist() == rows.tolist()
        assert batch.src_lengths.tolist() == [len(store.src(i)) for i in rows]
        assert batch.tgt_lengths.tolist() == [len(store.tgt(i)) for i in rows]
        for k, i in enumerate(rows):
            source, target = store.src(i).tolist(), store.tgt(i).tolist()
            padding = [PAD] * (batch.tgt_out.size(1) - len(target))
            assert batch.src[k].tolist() == source + [PAD] * (batch.src.size(1) - len(source))
            assert batch.tgt_out[k].tolist() == target + padding
            assert batch.tgt_in[k].tolist() == [BOS, *target[:-1], *padding]
        assert batch.src_padded == bool((batch.src == PAD).any())
        assert batch.tgt_padded == bool((batch.tgt_out == PAD).any())
        real = torch.arange(batch.tgt_out.numel()) if batch.real is None else batch.real
        assert real.tolist() == [
            i for i, token in enumerate(batch.tgt_out.flatten().tolist()) if token != PAD
        ]
        assert (batch.real is None) == (not batch.tgt_padded)
        assert batch.src.size(1) == max(batch.src_lengths)
        assert {batch.src.dtype, batch.tgt_in.dtype, batch.src_lengths.dtype} == {torch.int64}


@pytest.mark.parametrize("multiple", [1, 8, 100])
def test_a_packed_batch_equals_a_slow_one(store, multiple):
    for rows in batch_list(store.src_lengths, store.tgt_lengths, 30, "tgt_tokens", 1, 0):
        batch = collate_packed(store, rows, multiple=multiple)
        assert batch.rows.tolist() == rows.tolist()
        assert batch.src_lengths.tolist() == [len(store.src(i)) for i in rows]
        assert batch.tgt_lengths.tolist() == [len(store.tgt(i)) for i in rows]
        real = int(batch.tgt_lengths.sum())
        assert batch.real.tolist() == [*range(real)]
        sides = zip((batch.tgt_out, batch.src), (store.tgt, store.src), batch.segments, strict=True)
        for ids, read, packing in sides:
            length = sum(len(read(i)) for i in rows)
            assert ids.shape == (1, -(-length // multiple) * multiple)
            real = [token for i in rows for token in read(i).tolist()]
            assert ids[0].tolist() == real + [PAD] * (ids.size(1) - length)
            starts = packing.offsets.tolist()
            assert starts[: len(rows)] == [
                sum(len(read(i)) for i in rows[:k]) for k in range(len(rows))
            ]
            assert starts[-1] == ids.size(1)
            assert packing.steps.tolist() == [
                step for length in np.diff(starts) for step in range(length)
            ]
            # No sentence of <pad> is longer than the longest sentence.
            assert packing.positions.shape == (len(starts) - 1, max(len(read(i)) for i in rows))
            row = torch.arange(ids.size(1))
            form = packing.padded(row[None])
            assert torch.equal(packing.packed(form), row[None])
            for k, i in enumerate(rows):
                assert ids[0][form[k]][: len(read(i))].tolist() == read(i).tolist()
            # Every query sees a key: a sentence of <pad> that one side lacks shows one position.
            assert packing.visible.sum((1, 2)).tolist() == np.diff(starts).clip(min=1).tolist()
        begins = batch.segments.queries.steps == 0
        assert (batch.tgt_in[0][begins] == BOS).all()
        assert torch.equal(batch.tgt_in[0, 1:][~begins[1:]], batch.tgt_out[0, :-1][~begins[1:]])


def test_source_batch():
    batch = source_batch([[5, 6, 2], [2], np.array([7, 2], dtype=np.uint16)])
    assert batch.src.tolist() == [[5, 6, 2], [2, 0, 0], [7, 2, 0]]
    assert batch.src_lengths.tolist() == [3, 1, 2]
    assert batch.rows.tolist() == [0, 1, 2]
    assert batch.src_padded
    assert not source_batch([[5, 2], [6, 2]]).src_padded
    assert batch.tgt_in is None


def test_a_batch_goes_to_a_device_in_one_copy(monkeypatch):
    """All that a batch holds, its contexts and their parts included; on a CPU by a stand-in."""
    rule, texts = ContextRule("previous", join="parallel", targets=True), [[7] * 40 + [2], [8, 2]]
    monkeypatch.setattr(context, "SAVED", 4)
    read = contexts(
        [[0], [], [0, 1]], lambda i: np.array(texts[i]), rule, targets=texts.__getitem__
    )
    batch = with_targets(
        source_batch([[5, 6, 2], [2], [7, 2]], spans=[[2, 1], [1], [2]], context=read),
        [[9, 2], [9, 9, 9, 2], [2]],
    )
    copies, to = [], torch.Tensor.to
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.Tensor, "to", lambda x, *a, **k: copies.append((x, *a)) or to(x, *a, **k)
        )
        copied = batches._in_one_copy(batch, torch.device("cpu"))
    (sent,) = [x for x, where in copies if isinstance(where, torch.device)]
    assert sent.dtype == torch.int32
    assert len(read.parts) == 2 and all(p.rows is copied.context.rows for p in copied.context.parts)

    def compare(one, other):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert one.equal(other) and one.dtype == other.dtype and one is not other
            assert other.data_ptr() % 16 == 0
        elif isinstance(one, tuple):
            for parts in zip(one, other, strict=True):
                compare(*parts)
        elif isinstance(one, (Batch, Context)):
            for name, value in vars(one).items():
                compare(value, getattr(other, name))
        else:
            assert one == other

    compare(batch, copied)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20),
    st.integers(1, 9),
    st.booleans(),
    st.sets(st.integers(0, 19)),
)
def test_sentences_that_are_too_long_or_read_such_are_left_out(lengths, most, context, starts):
    documents = Documents(sorted({0, *starts} & set(range(len(lengths)))), len(lengths))
    src, tgt = (np.array(side) for side in zip(*lengths, strict=True))
    store = SimpleNamespace(src_lengths=src, tgt_lengths=tgt, documents=documents)
    rule = ContextRule("previous", 2) if context else None
    expected = []
    for row in range(len(lengths)):
        read, before = [row], row
        while context and len(read) < 3 and before > 0 and before not in {0, *starts}:
            before -= 1
            read.append(before)
        if all(max(lengths[i]) <= most for i in read):
            expected.append(row)
    assert short_rows(store, rule, np.arange(len(lengths)), most).tolist() == expected


@pytest.mark.parametrize("lengths", [([3, 1, 4], [2, 2]), ([2], [5, 40])])
def test_a_row_after_another_is_one_row(lengths):
    first, second = (segments(np.array(x), np.array(x)).keys for x in lengths)
    # The last sentence of a row is empty.
    together = np.array([*lengths[0], 0, *lengths[1]])
    expected = segments(together, together).keys
    found = one_after_another(first, second)
    for name in ("offsets", "cells", "visible"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    x = torch.arange(len(found.cells))[None, :, None]
    assert torch.equal(found.packed(found.padded(x)), x)
