"""Batches: every pair once, within the budget, with little padding; padded and packed tensors."""

import hashlib
import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.data import batches as batches_module
from nmtkit.data import context
from nmtkit.data.batch_lists import batch_list, padded_positions
from nmtkit.data.batches import (
    Batch,
    collate,
    collate_packed,
    short_rows,
    source_batch,
    with_targets,
    without_targets,
)
from nmtkit.data.context import Context, contexts
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.packing import one_after_another, segments
from nmtkit.data.padding import next_size
from nmtkit.data.store import Store
from nmtkit.text.vocabulary import BOS, PAD
from tests.pair_writer import pair_writer

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)
UNITS = st.sampled_from(["tgt_tokens", "src_tokens", "sentences"])


def as_lists(arrays):
    return [array.tolist() for array in arrays]


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 100), UNITS, st.integers(0, 3), st.integers(0, 3))
def test_batches_have_every_pair_once_within_the_budget(pairs, size, unit, seed, epoch):
    src, tgt = np.array(pairs, dtype=np.int64).T
    batches = batch_list(src, tgt, size, unit, seed, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(pairs)))
    counted, other = (src, tgt) if unit == "src_tokens" else (tgt, src)
    for rows in batches:
        if unit == "sentences":
            assert len(rows) <= size
        elif len(rows) > 1:  # a pair above the budget is alone
            assert len(rows) * counted[rows].max() <= size
            assert len(rows) * other[rows].max() <= 2 * size
    again = batch_list(src, tgt, size, unit, seed, epoch)
    assert as_lists(again) == as_lists(batches)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.uint16])
def test_batches_are_those_of_earlier_versions_and_differ_by_window(dtype):
    lengths = (np.arange(40) * 7 % 23 + 2).astype(dtype)
    windows = [
        repr(as_lists(batch_list(lengths, lengths[::-1], 100, "tgt_tokens", 1, 2, window)))
        for window in range(3)
    ]
    assert hashlib.sha256(windows[0].encode()).hexdigest().startswith("7fa14fc6a2905299")
    assert len(set(windows)) == 3


def multi30k_like(count=29_000):
    """Lengths that are distributed like those of Multi30k."""
    draw = np.random.default_rng(1)
    tgt = np.clip(draw.gamma(7.5, 2.1, count), 3, 60).astype(np.int64)
    src = np.clip(tgt * draw.normal(0.97, 0.2, count), 3, 60).astype(np.int64)
    return src, tgt


def test_epochs_and_seeds_differ_in_batches_and_in_their_order():
    src, tgt = multi30k_like(2000)
    first, *others = (
        batch_list(src, tgt, 512, "tgt_tokens", seed, epoch)
        for seed, epoch in [(1, 0), (1, 1), (2, 0)]
    )

    def longest(batches):
        return [int(tgt[rows].max()) for rows in batches]

    for other in others:
        assert set(map(frozenset, as_lists(first))) != set(map(frozenset, as_lists(other)))
        assert longest(first) != longest(other)
    assert longest(first) != sorted(longest(first), reverse=True)


def padding_share(src, tgt, batches):
    """Share of padded positions among all positions of both sides."""
    positions = sum(padded_positions(src[rows], tgt[rows]) for rows in batches)
    return 1 - (src.sum() + tgt.sum()) / positions


def test_padding_is_under_five_percent_on_lengths_of_multi30k():
    src, tgt = multi30k_like()
    assert padding_share(src, tgt, batch_list(src, tgt, 2048, "tgt_tokens", 1, 0)) < 0.05
    shuffled = np.array_split(np.random.default_rng(1).permutation(len(src)), 240)
    assert padding_share(src, tgt, shuffled) > 0.4  # without sorting: the measure sees padding


def test_batch_list_of_a_million_pairs_takes_under_three_seconds():
    src, tgt = multi30k_like(1_000_000)
    start = time.process_time()
    batches = batch_list(src, tgt, 4096, "tgt_tokens", 1, 0)
    assert time.process_time() - start < 3
    assert sum(map(len, batches)) == 1_000_000


@pytest.fixture
def store(tmp_path):
    """40 random pairs in three shards, one of them empty."""
    draw = np.random.default_rng(1)
    for shard, pairs in enumerate((25, 0, 15)):
        with pair_writer(tmp_path / "train", shard, 100) as add:
            for _ in range(pairs):
                add(*([*draw.integers(4, 100, draw.integers(0, 12)).tolist(), 2] for _ in range(2)))
    return Store(tmp_path / "train")


def batches_of(store):
    """Yield batches: their rows, and their source and target sentences as lists of ids."""
    for rows in batch_list(store.src_lengths, store.tgt_lengths, 30, "tgt_tokens", 1, 0):
        yield rows, as_lists(map(store.src, rows)), as_lists(map(store.tgt, rows))


def test_collate_pads_sentences_to_the_longest(store):
    for rows, sources, targets in batches_of(store):
        batch = collate(store, rows)
        assert batch.rows.tolist() == rows.tolist()
        assert batch.src_lengths.tolist() == list(map(len, sources))
        assert batch.tgt_lengths.tolist() == list(map(len, targets))
        inputs = [[BOS, *target[:-1]] for target in targets]
        sides = [(batch.src, sources), (batch.tgt_out, targets), (batch.tgt_in, inputs)]
        for ids, sentences in sides:
            width = max(map(len, sentences))
            assert ids.tolist() == [s + [PAD] * (width - len(s)) for s in sentences]
        assert batch.src_padded == bool((batch.src == PAD).any())
        assert batch.tgt_padded == bool((batch.tgt_out == PAD).any())
        assert (batch.real is None) == (not batch.tgt_padded)
        if batch.real is not None:
            assert torch.equal(batch.real, batch.tgt_out.flatten().nonzero()[:, 0])
        assert {batch.src.dtype, batch.tgt_in.dtype, batch.src_lengths.dtype} == {torch.int64}


def assert_packed(row, packing, sentences, multiple):
    """Assert that a row has sentences and then <pad>, and that its packing finds them."""
    tokens, lengths = list(itertools.chain(*sentences)), list(map(len, sentences))
    size = -(-len(tokens) // multiple) * multiple
    assert row.tolist() == [tokens + [PAD] * (size - len(tokens))]
    starts = packing.offsets.tolist()
    assert starts[: len(sentences) + 1] == [0, *itertools.accumulate(lengths)]
    assert starts[-1] == size
    all_lengths = np.diff(starts)
    assert packing.steps.tolist() == [step for n in all_lengths for step in range(n)]
    # No sentence of <pad> is longer than the longest sentence.
    assert packing.positions.shape == (len(starts) - 1, max(lengths))
    positions = torch.arange(size)[None]
    padded = packing.padded(positions)
    assert torch.equal(packing.packed(padded), positions)
    for start, length, of_sentence in zip(starts, lengths, padded.tolist(), strict=False):
        assert of_sentence[:length] == list(range(start, start + length))
    # Every query sees a key: a sentence of <pad> that one side lacks shows one position.
    assert packing.visible.sum((1, 2)).tolist() == all_lengths.clip(min=1).tolist()


@pytest.mark.parametrize("multiple", [1, 8, 100])
def test_collate_packed_puts_sentences_one_after_another(store, multiple):
    for rows, sources, targets in batches_of(store):
        batch = collate_packed(store, rows, multiple=multiple)
        assert batch.rows.tolist() == rows.tolist()
        assert batch.src_lengths.tolist() == list(map(len, sources))
        assert batch.tgt_lengths.tolist() == list(map(len, targets))
        assert batch.real.tolist() == list(range(sum(map(len, targets))))
        assert_packed(batch.src, batch.segments.keys, sources, multiple)
        assert_packed(batch.tgt_out, batch.segments.queries, targets, multiple)
        begins = batch.segments.queries.steps == 0
        assert (batch.tgt_in[0][begins] == BOS).all()
        assert torch.equal(batch.tgt_in[0, 1:][~begins[1:]], batch.tgt_out[0, :-1][~begins[1:]])


def test_source_batch_has_padded_sources_without_targets():
    batch = source_batch([[5, 6, 2], [2], np.array([7, 2], dtype=np.uint16)])
    assert batch.src.tolist() == [[5, 6, 2], [2, 0, 0], [7, 2, 0]]
    assert batch.src_lengths.tolist() == [3, 1, 2]
    assert batch.rows.tolist() == [0, 1, 2]
    assert batch.src_padded and not source_batch([[5, 2], [6, 2]]).src_padded
    assert batch.tgt_in is None
    assert vars(without_targets(with_targets(batch, [[9, 2]] * 3))) == vars(batch)


def test_sources_of_few_shapes_have_multiples_of_eight_positions():
    for longest in range(1, 20):
        src = source_batch([[5] * (longest - 1) + [2], [2]], few_shapes=True).src
        assert src.shape == (2, -(-longest // 8) * 8) and (src != PAD).sum() == longest + 1


def test_row_numbers_of_few_shapes_are_four_in_each_octave():
    assert [next_size(n, 4) for n in (1, 8, 9, 64, 65, 130)] == [8, 8, 16, 64, 80, 160]


@pytest.mark.parametrize(
    ("count", "longest", "shape"),
    [(10, 20, (64, 32)), (70, 33, (128, 64)), (130, 100, (192, 128)), (300, 130, (384, 256))],
)
def test_packings_of_few_shapes_have_multiples_of_a_part_of_the_next_power_of_two(
    count, longest, shape
):
    """A quarter of it for sentences, at least 64, and half of it for lengths, at least 32."""
    lengths = np.array([longest, *[2] * (count - 1)])
    plain, few = (segments(lengths, lengths, few_shapes).keys for few_shapes in (False, True))
    assert few.positions.shape == shape
    assert few.lengths.tolist() == [*lengths, *[1] * (shape[0] - count)]
    x = torch.arange(len(few.cells))[None, :, None]
    assert torch.equal(few.padded(x)[:count, :longest], plain.padded(x)[:count])
    assert torch.equal(few.packed(few.padded(x)), x)


@pytest.mark.parametrize(("count", "rows"), [(1, 8), (9, 16), (33, 40)])
def test_collate_of_few_shapes_adds_padding_and_empty_rows(store, count, rows):
    plain = collate(store, np.arange(count))
    batch = collate(store, np.arange(count), few_shapes=True)
    for name in ("src", "tgt_in", "tgt_out"):
        ids, expected = getattr(batch, name), getattr(plain, name)
        width = expected.size(1)
        assert ids.shape == (rows, -(-width // 8) * 8)
        assert torch.equal(ids[:count, :width], expected)
        assert (ids != PAD).sum() == (expected != PAD).sum()
    new_rows = rows - count
    assert batch.src_lengths.tolist() == plain.src_lengths.tolist() + [1] * new_rows
    assert batch.tgt_lengths.tolist() == plain.tgt_lengths.tolist() + [0] * new_rows


def assert_copied(original, copy):
    """Assert that the tensors of a value, and of its parts, are equal, aligned copies."""
    assert type(original) is type(copy)
    if isinstance(original, torch.Tensor):
        assert original.equal(copy) and original.dtype == copy.dtype and original is not copy
        assert copy.data_ptr() % 16 == 0
    elif isinstance(original, tuple):
        for parts in zip(original, copy, strict=True):
            assert_copied(*parts)
    elif isinstance(original, (Batch, Context)):
        for name, value in vars(original).items():
            assert_copied(value, getattr(copy, name))
    else:
        assert original == copy


def test_batch_goes_to_a_device_as_one_tensor(monkeypatch):
    """With contexts and their parts; the device is a CPU here."""
    rule, texts = ContextRule("previous", join="parallel", targets=True), [[7] * 40 + [2], [8, 2]]
    monkeypatch.setattr(context, "SAVED", 4)
    read = contexts([[0], [], [0, 1]], texts.__getitem__, rule, targets=texts.__getitem__)
    assert len(read.parts) == 2
    sources = source_batch([[5, 6, 2], [2], [7, 2]], spans=[[2, 1], [1], [2]], context=read)
    batch = with_targets(sources, [[9, 2], [9, 9, 9, 2], [2]])
    sent, to = [], torch.Tensor.to

    def watched_to(tensor, *arguments, **options):
        if isinstance(arguments[0], torch.device):
            sent.append(tensor)
        return to(tensor, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", watched_to)
        copy = batches_module._in_one_copy(batch, torch.device("cpu"))
    assert [tensor.dtype for tensor in sent] == [torch.int32]
    assert all(part.rows is copy.context.rows for part in copy.context.parts)
    assert_copied(batch, copy)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20),
    st.integers(1, 9),
    st.booleans(),
    st.sets(st.integers(0, 19)),
)
def test_short_rows_leave_out_long_sentences_and_those_with_long_context(
    lengths, most, reads_context, starts
):
    starts = sorted({0, *starts} & set(range(len(lengths))))
    src, tgt = map(np.array, zip(*lengths, strict=True))
    documents = Documents(starts, len(lengths))
    store = SimpleNamespace(src_lengths=src, tgt_lengths=tgt, documents=documents)
    expected = []
    for row in range(len(lengths)):
        document = max(start for start in starts if start <= row)
        first = max(document, row - 2) if reads_context else row
        if all(max(pair) <= most for pair in lengths[first : row + 1]):
            expected.append(row)
    rule = ContextRule("previous", 2) if reads_context else None
    assert short_rows(store, rule, np.arange(len(lengths)), most).tolist() == expected


@pytest.mark.parametrize("lengths", [([3, 1, 4], [2, 2]), ([2], [5, 40])])
def test_packings_one_after_another_equal_the_packing_of_all_sentences(lengths):
    first, second = (segments(np.array(x), np.array(x)).keys for x in lengths)
    # The last sentence of a row is empty.
    together = np.array([*lengths[0], 0, *lengths[1]])
    expected = segments(together, together).keys
    packing = one_after_another(first, second)
    for name in ("offsets", "cells", "visible"):
        assert torch.equal(getattr(packing, name), getattr(expected, name)), name
    x = torch.arange(len(packing.cells))[None, :, None]
    assert torch.equal(packing.packed(packing.padded(x)), x)
