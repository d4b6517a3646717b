"""Prepared sets on disk: what goes in comes out, in constant memory, and a damaged file is an
error, never wrong numbers.
"""

import os
import random
import tracemalloc

import numpy as np
import pytest
import torch

from nmtkit.data.batches import collate, source_batch
from nmtkit.data.store import Store, StoreWriter, id_type, load_spans, spans_writer
from nmtkit.errors import DataError, EnvironmentProblem

HEADER = 24
CUTS = [[2, 1], [], [3, 3, 1], [1], [255, 7]]


def pairs(count, top, seed=0):
    draw = random.Random(seed)

    def sentence():
        return [draw.randrange(3, top) for _ in range(draw.randrange(0, 9))] + [2]

    return [(sentence(), sentence()) for _ in range(count)]


def write(path, items, vocab_size=10):
    with StoreWriter(path, vocab_size) as writer:
        for src, tgt in items:
            writer.add(src, tgt)
    return path


def write_spans(path, cuts=CUTS, block=2):
    with spans_writer(path) as writer:
        for start in range(0, len(cuts), block):
            part = cuts[start : start + block]
            writer.add_block(
                bytes(length for cut in part for length in cut), [len(cut) for cut in part]
            )
    return path


@pytest.mark.parametrize(
    ("vocab_size", "kind"), [(100, "<u2"), (65535, "<u2"), (65536, "<u4"), (1_000_000, "<u4")]
)
def test_round_trip(tmp_path, vocab_size, kind):
    items = [*pairs(500, vocab_size), ([vocab_size - 1, 2], [2])]
    store = Store(write(tmp_path / "news.2014", items, vocab_size))
    assert len(store) == len(items)
    assert store.src(0).dtype == np.dtype(kind) == id_type(vocab_size)
    for i, pair in enumerate(items):
        assert (store.src(i).tolist(), store.tgt(i).tolist()) == pair
    assert store.src_lengths.tolist() == [len(src) for src, _ in items]
    assert store.tgt_lengths.tolist() == [len(tgt) for _, tgt in items]
    assert store.src_lengths.dtype == np.int64
    assert sorted(p.name for p in tmp_path.iterdir()) == ["news.2014.bin", "news.2014.idx"]
    for outside in (-1, len(items)):
        with pytest.raises(IndexError):
            store.src(outside)
    kind, arguments = store.__reduce__()  # as it travels to another process
    assert kind(*arguments).src_lengths.tolist() == store.src_lengths.tolist()


@pytest.mark.parametrize("vocab_size", [100, 70_000])
def test_blocks_equal_pairs(tmp_path, vocab_size):
    items = pairs(300, vocab_size)
    write(tmp_path / "a", items, vocab_size)
    with StoreWriter(tmp_path / "b", vocab_size) as writer:
        for start in range(0, 300, 70):
            sentences = [s for pair in items[start : start + 70] for s in pair]
            flat = np.array([i for s in sentences for i in s], id_type(vocab_size))
            writer.add_block(flat.tobytes(), [len(s) for s in sentences])
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_bytes_of_the_files(tmp_path):
    """Sets that an earlier version has prepared can be read."""
    write(tmp_path / "x", [([4, 5, 2], [2])], 300)
    write_spans(tmp_path / "x", [[2, 1]])
    numbers = {
        "x.bin": np.array([4, 5, 2, 2], "<u2").tobytes(),
        "x.idx": b"nmtstor\x01" + np.array([2, 300, 0, 3, 4], "<i8").tobytes(),
        "x.spans.bin": b"\x02\x01",
        "x.spans.idx": b"nmtspan\x01" + np.array([0, 2], "<i8").tobytes(),
    }
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == numbers


def test_an_empty_store(tmp_path):
    assert len(Store(write(tmp_path / "none", []))) == 0


@pytest.mark.parametrize("error", [RuntimeError, OverflowError])
def test_an_error_leaves_no_files(tmp_path, error):
    with pytest.raises(error), StoreWriter(tmp_path / "x", 10) as writer:
        writer.add([5, 2], [2])
        assert not (tmp_path / "x.bin").exists()
        if error is OverflowError:
            writer.add([70_000, 2], [2])
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_an_environment_problem(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem):
        StoreWriter(tmp_path / "file" / "x", 10)


def cut(name, size):
    """Take bytes off the end of a file, or cut it to a size."""
    return lambda folder: os.truncate(
        folder / name, size if size >= 0 else (folder / name).stat().st_size + size
    )


def changed(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


DAMAGES = {
    "no ids": lambda folder: (folder / "x.bin").unlink(),
    "no index": lambda folder: (folder / "x.idx").unlink(),
    "ids cut": cut("x.bin", -1),
    "more ids": changed("x.bin", lambda data: data + b"\0\0"),
    "half a pair": cut("x.idx", -8),
    "a pair fewer": cut("x.idx", -16),
    "half an offset": cut("x.idx", -3),
    "more than offsets": changed("x.idx", lambda data: data + bytes(3)),
    "no offsets": cut("x.idx", HEADER),
    "not from the start": changed(
        "x.idx", lambda data: data[:HEADER] + bytes([1]) + data[HEADER + 1 :]
    ),
    "half a header": cut("x.idx", 13),
    "half a magic": cut("x.idx", 5),
    "another kind": changed("x.idx", lambda data: b"PK\x03\x04" * 30),
    "another version": changed("x.idx", lambda data: data.replace(b"stor\x01", b"stor\x02")),
    "not rising": changed(
        "x.idx", lambda data: data[: HEADER + 8] + bytes([40]) + data[HEADER + 9 :]
    ),
    "spans cut": cut("x.spans.bin", -1),
    "spans' index cut": cut("x.spans.idx", -8),
    "spans of another kind": changed("x.spans.idx", lambda data: b"x" + data[1:]),
    "no spans": lambda folder: (folder / "x.spans.bin").unlink(),
    "spans of fewer": lambda folder: write_spans(folder / "x", CUTS[:4]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(tmp_path, damage):
    write(tmp_path / "x", pairs(5, 10))
    write_spans(tmp_path / "x")
    Store(tmp_path / "x")
    DAMAGES[damage](tmp_path)
    with pytest.raises(DataError) as caught:
        Store(tmp_path / "x")
    assert "x." in str(caught.value)


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
    spans = load_spans(write_spans(tmp_path / "news.2014", block=block), 5)
    assert [spans[i].tolist() for i in range(5)] == CUTS
    spans = load_spans(write_spans(tmp_path / "x", [[], []]), 2)
    assert [spans[i].tolist() for i in range(2)] == [[], []]
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
