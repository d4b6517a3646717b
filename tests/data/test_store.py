"""The store: what goes in comes out, in constant memory, and a damaged file is an error, never
wrong numbers.
"""

import os
import random
import tracemalloc

import numpy as np
import pytest

from nmtkit.data.store import HEADER, Store, StoreWriter, id_type
from nmtkit.errors import DataError, EnvironmentProblem


def pairs(count, top, seed=0):
    draw = random.Random(seed)

    def sentence():
        return [draw.randrange(3, top) for _ in range(draw.randrange(0, 9))] + [2]

    return [(sentence(), sentence()) for _ in range(count)]


def write(path, items, vocab_size):
    with StoreWriter(path, vocab_size) as writer:
        for src, tgt in items:
            writer.add(src, tgt)


@pytest.mark.parametrize(
    ("vocab_size", "kind"), [(100, "<u2"), (65535, "<u2"), (65536, "<u4"), (1_000_000, "<u4")]
)
def test_round_trip(tmp_path, vocab_size, kind):
    items = pairs(500, vocab_size)
    items.append(([vocab_size - 1, 2], [2]))
    write(tmp_path / "news.2014", items, vocab_size)
    store = Store(tmp_path / "news.2014")
    assert len(store) == len(items)
    assert store.vocab_size == vocab_size
    assert store.src(0).dtype == np.dtype(kind) == id_type(vocab_size)
    for i, (src, tgt) in enumerate(items):
        assert store.src(i).tolist() == src
        assert store.tgt(i).tolist() == tgt
    assert store.src_lengths.tolist() == [len(src) for src, _ in items]
    assert store.tgt_lengths.tolist() == [len(tgt) for _, tgt in items]
    assert store.src_lengths.dtype == np.int64
    assert sorted(p.name for p in tmp_path.iterdir()) == ["news.2014.bin", "news.2014.idx"]


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


def test_empty_store(tmp_path):
    write(tmp_path / "none", [], 10)
    assert len(Store(tmp_path / "none")) == 0


def test_items_outside_are_refused(tmp_path):
    write(tmp_path / "x", pairs(3, 10), 10)
    store = Store(tmp_path / "x.bin")
    for bad in (-1, 3):
        with pytest.raises(IndexError):
            store.src(bad)


def test_nothing_under_the_name_before_close(tmp_path):
    writer = StoreWriter(tmp_path / "x", 10)
    writer.add([5, 2], [2])
    assert not (tmp_path / "x.bin").exists()
    writer.abandon()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError), StoreWriter(tmp_path / "x", 10) as writer:
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_id_too_large_is_refused(tmp_path):
    with pytest.raises(OverflowError), StoreWriter(tmp_path / "x", 100) as writer:
        writer.add([70_000, 2], [2])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.with_suffix(".bin").unlink(),
        lambda p: p.with_suffix(".idx").unlink(),
        lambda p: os.truncate(p.with_suffix(".bin"), p.with_suffix(".bin").stat().st_size - 1),
        lambda p: os.truncate(p.with_suffix(".idx"), p.with_suffix(".idx").stat().st_size - 8),
        lambda p: os.truncate(p.with_suffix(".idx"), p.with_suffix(".idx").stat().st_size - 16),
        lambda p: os.truncate(p.with_suffix(".idx"), p.with_suffix(".idx").stat().st_size - 3),
        lambda p: os.truncate(p.with_suffix(".idx"), HEADER),
        lambda p: os.truncate(p.with_suffix(".idx"), 5),
        lambda p: p.with_suffix(".idx").write_bytes(b"PK\x03\x04" * 30),
        lambda p: p.with_suffix(".idx").write_bytes(
            p.with_suffix(".idx").read_bytes().replace(b"nmtstor\x01", b"nmtstor\x02")
        ),
        lambda p: p.with_suffix(".bin").write_bytes(p.with_suffix(".bin").read_bytes() + b"\0\0"),
    ],
)
def test_damaged_files(tmp_path, damage):
    write(tmp_path / "x", pairs(5, 10), 10)
    damage(tmp_path / "x")
    with pytest.raises(DataError) as caught:
        Store(tmp_path / "x")
    assert "x." in str(caught.value)


def test_an_unsorted_index_is_refused(tmp_path):
    write(tmp_path / "x", [([4, 5, 2], [2]), ([6, 2], [7, 2])], 10)
    index = bytearray((tmp_path / "x.idx").read_bytes())
    index[HEADER + 8 : HEADER + 16] = (4).to_bytes(8, "little")
    (tmp_path / "x.idx").write_bytes(index)
    with pytest.raises(DataError, match="damaged"):
        Store(tmp_path / "x")


def test_an_unwritable_folder_is_the_machine_s_problem(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem):
        StoreWriter(tmp_path / "file" / "x", 10)


def test_writing_takes_constant_memory(tmp_path):
    def peak(count):
        tracemalloc.start()
        with StoreWriter(tmp_path / f"m{count}", 100) as writer:
            for _ in range(count):
                writer.add([5] * 30, [6] * 30)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    small, large = peak(20_000), peak(80_000)
    assert large < 1.1 * small + 100_000


def test_a_store_travels_by_path(tmp_path):
    write(tmp_path / "x", pairs(5, 10), 10)
    kind, arguments = Store(tmp_path / "x").__reduce__()
    assert kind(*arguments).src_lengths.tolist() == Store(tmp_path / "x").src_lengths.tolist()
