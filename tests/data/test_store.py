"""Prepared sets on disk: what goes in comes out, in constant memory, and a damaged file is an
error, never wrong numbers.
"""

import itertools
import os
import random
import shutil
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from nmtkit.data import ragged
from nmtkit.data.batches import collate, source_batch
from nmtkit.data.ragged import ragged_writer
from nmtkit.data.store import (
    MAGIC,
    Store,
    id_type,
    load_spans,
    shard_path,
    spans_files,
    spans_writer,
    store_writer,
)
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.prep.shards import shard_rows
from tests.refused import refused
from tests.stored import pair_writer

HEADER = 24
CUTS = [[2, 1], [], [3, 3, 1], [1], [255, 7]]


def pairs(count, top, seed=0):
    draw = random.Random(seed)

    def sentence():
        return [draw.randrange(3, top) for _ in range(draw.randrange(0, 9))] + [2]

    return [(sentence(), sentence()) for _ in range(count)]


def shards_of(items, sizes):
    """The items of each shard; without sizes one shard has all."""
    items = iter(items)
    return [items] if sizes is None else [itertools.islice(items, size) for size in sizes]


def write(path, items, vocab_size=10, sizes=None):
    for shard, part in enumerate(shards_of(items, sizes)):
        with pair_writer(path, shard, vocab_size) as add:
            for src, tgt in part:
                add(src, tgt)
    return path


def write_spans(path, cuts=CUTS, block=2, sizes=None):
    for shard, part in enumerate(shards_of(cuts, sizes)):
        with spans_writer(path, shard) as add_block:
            while block_of := list(itertools.islice(part, block)):
                add_block(
                    bytes(length for cut in block_of for length in cut),
                    [len(cut) for cut in block_of],
                )
    return path


@pytest.mark.parametrize("sizes", [None, [501], [200, 1, 300], [0, 400, 0, 0, 101, 0]])
@pytest.mark.parametrize(
    ("vocab_size", "kind"), [(100, "<u2"), (65535, "<u2"), (65536, "<u4"), (1_000_000, "<u4")]
)
def test_round_trip(tmp_path, vocab_size, kind, sizes):
    items = [*pairs(500, vocab_size), ([vocab_size - 1, 2], [2])]
    store = Store(write(tmp_path / "news.2014", items, vocab_size, sizes))
    assert len(store) == len(items)
    assert store.shard_sizes == (sizes or [501])
    assert store.src(0).dtype == np.dtype(kind) == id_type(vocab_size)
    for i, pair in enumerate(items):
        assert (store.src(i).tolist(), store.tgt(i).tolist()) == pair
    assert store.src_lengths.tolist() == [len(src) for src, _ in items]
    assert store.tgt_lengths.tolist() == [len(tgt) for _, tgt in items]
    assert store.src_lengths.dtype == np.int64
    drawn = np.random.default_rng(1).integers(0, 501, 70)
    for found, side in zip(store.lengths(drawn), (0, 1), strict=True):
        assert found.tolist() == [len(items[i][side]) for i in drawn]
        of_shards = [store.shard_lengths(shard)[side] for shard in range(len(store.shard_sizes))]
        assert [n for lengths in of_shards for n in lengths] == [len(pair[side]) for pair in items]
        assert {lengths.dtype for lengths in of_shards} == {np.dtype("u1")}
    names = [f"{n:05d}{s}" for n in range(len(sizes or [501])) for s in (".bin", ".idx")]
    assert sorted(p.name for p in (tmp_path / "news.2014").iterdir()) == names
    for outside in (-1, len(items)):
        with pytest.raises(IndexError):
            store.src(outside)


@pytest.mark.parametrize("vocab_size", [100, 70_000])
def test_blocks_equal_pairs(tmp_path, vocab_size):
    items = pairs(300, vocab_size)
    write(tmp_path / "a", items, vocab_size)
    with store_writer(tmp_path / "b", 0, vocab_size) as add_block:
        for start in range(0, 300, 70):
            sentences = [s for pair in items[start : start + 70] for s in pair]
            flat = np.array([i for s in sentences for i in s], id_type(vocab_size))
            add_block(flat.tobytes(), [len(s) for s in sentences])
    for suffix in (".bin", ".idx"):
        one, other = (tmp_path / name / f"00000{suffix}" for name in "ab")
        assert one.read_bytes() == other.read_bytes()


def test_the_bytes_of_the_files(tmp_path):
    """Sets that an earlier version has prepared can be read."""
    write(tmp_path, [([4, 5, 2], [2]), ([2], [7, 2])], 300, [1, 1])
    write_spans(tmp_path, [[2, 1], []], sizes=[1, 1])
    numbers = {
        "00000.bin": np.array([4, 5, 2, 2], "<u2").tobytes(),
        "00000.idx": b"nmtstor\x01" + np.array([2, 300, 0, 3, 4], "<i8").tobytes(),
        "00000.spans.bin": b"\x02\x01",
        "00000.spans.idx": b"nmtspan\x01" + np.array([0, 2], "<i8").tobytes(),
        "00001.bin": np.array([2, 7, 2], "<u2").tobytes(),
        "00001.idx": b"nmtstor\x01" + np.array([2, 300, 0, 1, 3], "<i8").tobytes(),
        "00001.spans.bin": b"",
        "00001.spans.idx": b"nmtspan\x01" + np.array([0, 0], "<i8").tobytes(),
    }
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == numbers


def test_an_empty_store(tmp_path):
    for sizes in (None, [0, 0]):
        store = Store(write(tmp_path / f"none{sizes}", [], sizes=sizes))
        assert len(store) == 0 == len(store.src_lengths) and len(store.documents) == 0


@pytest.mark.parametrize("error", [RuntimeError, OverflowError])
def test_an_error_leaves_no_files(tmp_path, error):
    with pytest.raises(error), pair_writer(tmp_path, 0, 10) as add:
        add([5, 2], [2])
        assert not (tmp_path / "00000.bin").exists()
        if error is OverflowError:
            add([70_000, 2], [2])
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_an_environment_problem(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem), store_writer(tmp_path / "file" / "x", 0, 10):
        pass


def cut(name, size):
    """Take bytes off the end of a file, or cut it to a size."""
    return lambda folder: os.truncate(
        folder / name, size if size >= 0 else (folder / name).stat().st_size + size
    )


def changed(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


DAMAGES = {
    "no ids": lambda folder: (folder / "00001.bin").unlink(),
    "no index": lambda folder: (folder / "00001.idx").unlink(),
    "no shard": lambda folder: [path.unlink() for path in folder.glob("00001.*")],
    "no first shard": lambda folder: [path.unlink() for path in folder.glob("00000.*")],
    "nothing": lambda folder: [path.unlink() for path in folder.iterdir()],
    "no folder": shutil.rmtree,
    "ids cut": cut("00001.bin", -1),
    "more ids": changed("00001.bin", lambda data: data + b"\0\0"),
    "half a pair": cut("00001.idx", -8),
    "a pair fewer": cut("00001.idx", -16),
    "half an offset": cut("00001.idx", -3),
    "more than offsets": changed("00001.idx", lambda data: data + bytes(3)),
    "no offsets": cut("00001.idx", HEADER),
    "not from the start": changed(
        "00001.idx", lambda data: data[:HEADER] + bytes([1]) + data[HEADER + 1 :]
    ),
    "half a header": cut("00001.idx", 13),
    "half a magic": cut("00001.idx", 5),
    "empty": cut("00001.idx", 0),
    "another kind": changed("00001.idx", lambda data: b"PK\x03\x04" * 30),
    "another version": changed("00001.idx", lambda data: data.replace(b"stor\x01", b"stor\x02")),
    "not rising": changed(
        "00001.idx", lambda data: data[: HEADER + 8] + bytes([40]) + data[HEADER + 9 :]
    ),
    "spans cut": cut("00001.spans.bin", -1),
    "spans' index cut": cut("00001.spans.idx", -8),
    "spans of another kind": changed("00001.spans.idx", lambda data: b"x" + data[1:]),
    "no numbers of spans": lambda folder: (folder / "00001.spans.bin").unlink(),
    "no spans": lambda folder: [path.unlink() for path in folder.glob("00001.spans.*")],
    "spans of fewer": lambda folder: write_spans(folder, CUTS[:4], sizes=[2, 2, 0]),
}
NAMED = {
    "no first shard": "00000",
    "nothing": "00000",
    "no folder": "news",
    "spans of fewer": "news",
}
"""What is named instead of the shard 00001."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(tmp_path, damage):
    folder = tmp_path / "news"
    write(folder, pairs(5, 10), sizes=[2, 3, 0])
    write_spans(folder, sizes=[2, 3, 0])
    assert len(Store(folder).src_lengths) == 5
    DAMAGES[damage](folder)
    with pytest.raises(DataError) as caught:
        store = Store(folder)
        assert damage == "not rising"  # opening reads only the ends of the files
        store.shard_lengths(1)
    assert NAMED.get(damage, "00001") in str(caught.value)
    assert "--force" in caught.value.hint


def test_an_id_outside_the_vocabulary_is_named(tmp_path):
    store = Store(write(tmp_path, [([4, 9, 2], [2]), ([4, 10, 2], [2])]))
    assert store.src(0).tolist() == [4, 9, 2]
    for read in (store.src, lambda i: store.sides(np.array([i]))):
        caught = refused(DataError, "an id is outside a vocabulary of 10 tokens", read, 1)
        assert caught.where == str(tmp_path / "00000.bin")


def test_a_source_without_a_target_is_damage(tmp_path):
    write(tmp_path, pairs(2, 10))
    with ragged_writer(shard_path(tmp_path, 1), MAGIC, 2, 10) as add_block:
        add_block(np.array([2, 2, 2], "<u2").tobytes(), [1, 1, 1])
    assert refused(DataError, "a sentence of a pair", Store, tmp_path).where.endswith("00001.idx")


def test_every_way_to_lengths_finds_those_that_are_damaged(tmp_path):
    write(tmp_path, pairs(5, 10), sizes=[2, 3, 0])
    DAMAGES["not rising"](tmp_path)
    ways = [
        lambda store: store.src_lengths,
        lambda store: store.tgt_lengths,
        lambda store: store.shard_lengths(1),
        lambda store: store.documents,
    ]
    for way in ways:
        refused(DataError, "damaged", way, Store(tmp_path))
    assert len(Store(tmp_path).shard_lengths(0)[0]) == 2
    with ragged_writer(shard_path(tmp_path, 2), MAGIC, 2, 10) as add_block:
        add_block(np.array([2], "<u2").tobytes(), [1, 0])
    refused(DataError, "or its </s>, is missing", Store(tmp_path).shard_lengths, 2)


def test_many_shards_need_few_files_open(tmp_path, monkeypatch):
    """A process may open about a thousand files."""
    monkeypatch.setattr(ragged, "MAPPED", 40)
    count = 80
    items = pairs(2 * count, 10)
    write(tmp_path, items, sizes=[2] * count)
    write_spans(tmp_path, [[1]] * (2 * count), sizes=[2] * count)
    store, before = Store(tmp_path), len(os.listdir("/dev/fd"))
    views = [store.src(i)[:1] for i in range(0, 6)]
    for row in (*range(2 * count), *range(0, 2 * count, 5)):
        assert (store.src(row).tolist(), store.tgt(row).tolist()) == items[row]
        assert store.spans[row].tolist() == [1]
    assert len(os.listdir("/dev/fd")) <= before + 4 * ragged.MAPPED + 6
    assert [view.tolist() for view in views] == [src[:1] for src, _ in items[:6]]


@pytest.mark.skipif(sys.platform == "darwin", reason="allows fewer open files")
def test_a_set_that_prep_cuts_stays_mapped(tmp_path):
    total = 1_999_999
    count = -(-total // shard_rows(total, 0))
    write(tmp_path, pairs(count, 10), sizes=[1] * count)
    store = Store(tmp_path)
    for row in 2 * [*range(count)]:
        store.src(row)
    assert store._sentences.shard.cache_info().misses == count == 65


def test_opening_reads_no_lengths(tmp_path, monkeypatch):
    write(tmp_path, pairs(60, 10), sizes=[20] * 3)
    store = Store(tmp_path)
    mapped = []
    original = ragged.map_ragged
    monkeypatch.setattr(
        ragged,
        "map_ragged",
        lambda path, *rest: (mapped.append(path.name), original(path, *rest))[1],
    )
    assert len(Store(tmp_path)) == 60 and not mapped
    store.shard_lengths(1)
    store.lengths(np.arange(20, 40))
    assert mapped == ["00001"]


def test_writing_takes_constant_memory(tmp_path):
    def peak(count):
        tracemalloc.start()
        write(tmp_path / f"m{count}", (([5] * 30, [6] * 30) for _ in range(count)))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    small, large = peak(2_000), peak(8_000)
    assert large < 1.1 * small + 10_000


@pytest.mark.parametrize("block", [1, 2, 9])
def test_spans_that_are_written_are_read(tmp_path, block):
    for name, sizes in (("news.2014", None), ("shards", [1, 0, 3, 1])):
        folder = write(tmp_path / name, pairs(5, 10), sizes=sizes)
        assert load_spans(folder, 5) is None and spans_files(folder) == []
        spans = load_spans(write_spans(folder, block=block, sizes=sizes), 5)
        assert [spans[i].tolist() for i in range(5)] == CUTS
        assert len(spans_files(folder)) == 2 * len(sizes or [5])
        refused(DataError, "not the spans of 4 sentences", load_spans, folder, 4)
    assert load_spans(tmp_path / "y", 2) is None


def test_batches_bring_spans_padded(tmp_path):
    lengths = (3, 3, 7)
    path = write(tmp_path / "train", [([5] * (n - 1) + [2], [2]) for n in lengths])
    assert collate(Store(path), np.arange(3)).spans is None
    write_spans(path, [[2, 1], [], [3, 3, 1]])
    store = Store(path)
    assert collate(store, np.array([2, 1, 0])).spans.tolist() == [[3, 3, 1], [0, 0, 0], [2, 1, 0]]
    assert collate(store, np.array([1])).spans is None
    batch = source_batch([[5, 5, 2], [2]], spans=[[2, 1], []])
    assert torch.equal(batch.spans, torch.tensor([[2, 1], [0, 0]]))
    assert source_batch([[5, 2]]).spans is None
