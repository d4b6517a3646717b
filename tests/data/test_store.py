"""Prepared sets on disk: what is written is read again, and damaged files are errors."""

import itertools
import os
import random
import shutil
import sys

import numpy as np
import pytest
import torch

from nmtkit.data import ragged
from nmtkit.data.batches import collate, source_batch
from nmtkit.data.documents import ContextRule, documents_file
from nmtkit.data.store import (
    Store,
    id_type,
    load_spans,
    spans_files,
    write_store,
)
from nmtkit.data.store import write_spans as write_spans_of_shard
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.files import write_lines
from nmtkit.prep.shards import shard_rows
from tests.pair_writer import pair_writer
from tests.refused import refused

HEADER = 24
SPANS = [[2, 1], [], [3, 3, 1], [1], [255, 7]]


def random_pairs(count, vocab_size):
    draw = random.Random(0)

    def sentence():
        return [draw.randrange(3, vocab_size) for _ in range(draw.randrange(0, 9))] + [2]

    return [(sentence(), sentence()) for _ in range(count)]


def shards_of(items, sizes):
    """The items of each shard; without sizes there is one shard."""
    items = iter(items)
    return [items] if sizes is None else [itertools.islice(items, size) for size in sizes]


def write(path, pairs, vocab_size=10, sizes=None):
    for shard, of_shard in enumerate(shards_of(pairs, sizes)):
        with pair_writer(path, shard, vocab_size) as add:
            for src, tgt in of_shard:
                add(src, tgt)
    return path


def write_spans(path, spans=SPANS, sizes=None):
    for shard, of_shard in enumerate(shards_of(spans, sizes)):
        write_spans_of_shard(path, shard, list(of_shard))
    return path


@pytest.mark.parametrize("sizes", [None, [501], [200, 1, 300], [0, 400, 0, 0, 101, 0]])
@pytest.mark.parametrize(
    ("vocab_size", "kind"), [(100, "<u2"), (65535, "<u2"), (65536, "<u4"), (1_000_000, "<u4")]
)
def test_store_has_the_pairs_that_were_written(tmp_path, vocab_size, kind, sizes):
    pairs = [*random_pairs(500, vocab_size), ([vocab_size - 1, 2], [2])]
    store = Store(write(tmp_path / "news.2014", pairs, vocab_size, sizes))
    assert len(store) == len(pairs)
    assert store.shard_sizes == (sizes or [501])
    assert store.src(0).dtype == np.dtype(kind) == id_type(vocab_size)
    assert [(store.src(i).tolist(), store.tgt(i).tolist()) for i in range(501)] == pairs
    names = [f"{n:05d}{s}" for n in range(len(sizes or [501])) for s in (".bin", ".idx")]
    assert sorted(p.name for p in (tmp_path / "news.2014").iterdir()) == names
    for outside in (-1, len(pairs)):
        with pytest.raises(IndexError):
            store.src(outside)


@pytest.mark.parametrize("sizes", [None, [200, 1, 300], [0, 400, 0, 0, 101, 0]])
def test_store_has_the_lengths_of_all_of_some_and_of_a_shard(tmp_path, sizes):
    pairs = random_pairs(501, 100)
    store = Store(write(tmp_path, pairs, 100, sizes))
    rows = np.random.default_rng(1).integers(0, 501, 70)
    of_shards = list(zip(*map(store.shard_lengths, range(len(store.shard_sizes))), strict=True))
    whole = store.src_lengths, store.tgt_lengths
    for side, (of_all, of_rows) in enumerate(zip(whole, store.lengths(rows), strict=True)):
        expected = [len(pair[side]) for pair in pairs]
        assert of_all.dtype == np.int64 and of_all.tolist() == expected
        assert of_rows.tolist() == [expected[i] for i in rows]
        assert np.concatenate(of_shards[side]).tolist() == expected
        assert {lengths.dtype for lengths in of_shards[side]} == {np.dtype("u1")}


def test_blank_lines_of_every_shard_are_no_context(tmp_path):
    sources = [5, 2], [5, 2], [2], [5, 2]
    store = Store(write(tmp_path / "dev", [(source, [2]) for source in sources], sizes=[2, 2]))
    write_lines(documents_file(tmp_path, "dev"), ["0"])
    contexts = [store.documents.context(i, ContextRule()) for i in range(4)]
    assert contexts == [[], [0], [], [1]]


def test_files_have_the_bytes_of_earlier_versions(tmp_path):
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


@pytest.mark.parametrize("sizes", [None, [0, 0]])
def test_store_without_pairs_can_be_read(tmp_path, sizes):
    store = Store(write(tmp_path, [], sizes=sizes))
    assert len(store) == len(store.src_lengths) == len(store.documents) == 0


@pytest.mark.parametrize("error", [RuntimeError, OverflowError])
def test_error_while_writing_leaves_no_files(tmp_path, error):
    with pytest.raises(error), pair_writer(tmp_path, 0, 10) as add:
        add([5, 2], [2])
        assert not (tmp_path / "00000.bin").exists()
        if error is OverflowError:
            add([70_000, 2], [2])
        raise error
    assert list(tmp_path.iterdir()) == []


def test_writing_into_an_impossible_folder_is_an_environment_problem(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem):
        write_store(tmp_path / "file" / "x", 0, 10, np.array([2, 2]), [1, 1])


def removed(pattern):
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


def resized(name, size):
    """A damage: a file is cut to a size, or loses -size bytes at its end."""
    return lambda folder: os.truncate(
        folder / name, size if size >= 0 else (folder / name).stat().st_size + size
    )


def edited(name, edit):
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def with_byte(place, value):
    return edited("00001.idx", lambda data: data[:place] + bytes([value]) + data[place + 1 :])


DAMAGES = {
    "no ids": removed("00001.bin"),
    "no index": removed("00001.idx"),
    "no shard": removed("00001.*"),
    "no first shard": removed("00000.*"),
    "nothing": removed("*"),
    "no folder": shutil.rmtree,
    "ids cut": resized("00001.bin", -1),
    "more ids": edited("00001.bin", lambda data: data + b"\0\0"),
    "half a pair": resized("00001.idx", -8),
    "a pair fewer": resized("00001.idx", -16),
    "half an offset": resized("00001.idx", -3),
    "more than offsets": edited("00001.idx", lambda data: data + bytes(3)),
    "no offsets": resized("00001.idx", HEADER),
    "not from the start": with_byte(HEADER, 1),
    "half a header": resized("00001.idx", 13),
    "half a magic": resized("00001.idx", 5),
    "empty": resized("00001.idx", 0),
    "another kind": edited("00001.idx", lambda data: b"PK\x03\x04" * 30),
    "another version": edited("00001.idx", lambda data: data.replace(b"stor\x01", b"stor\x02")),
    "not rising": with_byte(HEADER + 8, 40),
    "spans cut": resized("00001.spans.bin", -1),
    "spans' index cut": resized("00001.spans.idx", -8),
    "spans of another kind": edited("00001.spans.idx", lambda data: b"x" + data[1:]),
    "no numbers of spans": removed("00001.spans.bin"),
    "no spans": removed("00001.spans.*"),
    "spans of fewer": lambda folder: write_spans(folder, SPANS[:4], sizes=[2, 2, 0]),
}
# The errors name the shard 00001, but:
NAMED = {
    "no first shard": "00000",
    "nothing": "00000",
    "no folder": "news",
    "spans of fewer": "news",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_raise_data_error_that_names_the_file(tmp_path, damage):
    folder = tmp_path / "news"
    write(folder, random_pairs(5, 10), sizes=[2, 3, 0])
    write_spans(folder, sizes=[2, 3, 0])
    assert len(Store(folder).src_lengths) == 5
    DAMAGES[damage](folder)
    with pytest.raises(DataError) as error:
        store = Store(folder)
        assert damage == "not rising"  # opening reads only the ends of the files
        store.shard_lengths(1)
    assert NAMED.get(damage, "00001") in str(error.value)
    assert "--force" in error.value.hint


def test_id_outside_the_vocabulary_raises_data_error(tmp_path):
    store = Store(write(tmp_path, [([4, 9, 2], [2]), ([4, 10, 2], [2])]))
    assert store.src(0).tolist() == [4, 9, 2]
    for read in (store.src, lambda i: store.sides(np.array([i]))):
        error = refused(DataError, "an id is outside a vocabulary of 10 tokens", read, 1)
        assert error.where == str(tmp_path / "00000.bin")


def test_source_without_a_target_raises_data_error(tmp_path):
    write(tmp_path, random_pairs(2, 10))
    write_store(tmp_path, 1, 10, np.array([2, 2, 2]), [1, 1, 1])
    assert refused(DataError, "a sentence of a pair", Store, tmp_path).where.endswith("00001.idx")


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.src_lengths,
        lambda store: store.tgt_lengths,
        lambda store: store.shard_lengths(1),
        lambda store: store.documents,
    ],
)
def test_damaged_lengths_raise_data_error_wherever_they_are_read(tmp_path, read):
    write(tmp_path, random_pairs(5, 10), sizes=[2, 3, 0])
    DAMAGES["not rising"](tmp_path)
    refused(DataError, "damaged", read, Store(tmp_path))
    assert len(Store(tmp_path).shard_lengths(0)[0]) == 2


def test_sentence_without_tokens_raises_data_error(tmp_path):
    write_store(tmp_path, 0, 10, np.array([2]), [1, 0])
    refused(DataError, "or its </s>, is missing", Store(tmp_path).shard_lengths, 0)


def test_store_of_many_shards_opens_few_files(tmp_path, monkeypatch):
    """A process may open about a thousand files."""
    monkeypatch.setattr(ragged, "MAPPED", 40)
    count = 80
    pairs = random_pairs(2 * count, 10)
    write(tmp_path, pairs, sizes=[2] * count)
    write_spans(tmp_path, [[1]] * (2 * count), sizes=[2] * count)
    store, before = Store(tmp_path), len(os.listdir("/dev/fd"))
    views = [store.src(i)[:1] for i in range(6)]
    for row in (*range(2 * count), *range(0, 2 * count, 5)):
        assert (store.src(row).tolist(), store.tgt(row).tolist()) == pairs[row]
        assert store.spans[row].tolist() == [1]
    assert len(os.listdir("/dev/fd")) <= before + 4 * ragged.MAPPED + 6
    # Views of shards that are no longer mapped stay valid.
    assert [view.tolist() for view in views] == [src[:1] for src, _ in pairs[:6]]


@pytest.mark.skipif(sys.platform == "darwin", reason="allows fewer open files")
def test_shards_of_a_window_stay_mapped(tmp_path):
    total = 1_999_999
    count = -(-total // shard_rows(total, 0))
    store = Store(write(tmp_path, random_pairs(count, 10), sizes=[1] * count))
    for row in 2 * [*range(count)]:
        store.src(row)
    assert store._sentences.shard.cache_info().misses == count == 65


def test_store_maps_only_the_shards_whose_lengths_are_read(tmp_path, monkeypatch):
    write(tmp_path, random_pairs(60, 10), sizes=[20] * 3)
    mapped, map_ragged = [], ragged.map_ragged
    monkeypatch.setattr(
        ragged,
        "map_ragged",
        lambda path, *rest: mapped.append(path.name) or map_ragged(path, *rest),
    )
    store = Store(tmp_path)
    assert len(store) == 60 and not mapped
    store.shard_lengths(1)
    store.lengths(np.arange(20, 40))
    assert mapped == ["00001"]


@pytest.mark.parametrize("sizes", [None, [1, 0, 3, 1]])
def test_spans_that_were_written_are_read(tmp_path, sizes):
    folder = write(tmp_path / "news.2014", random_pairs(5, 10), sizes=sizes)
    assert load_spans(tmp_path / "missing", 5) is None
    assert load_spans(folder, 5) is None and spans_files(folder) == []
    spans = load_spans(write_spans(folder, sizes=sizes), 5)
    assert [spans[i].tolist() for i in range(5)] == SPANS
    assert len(spans_files(folder)) == 2 * len(sizes or [5])
    refused(DataError, "not the spans of 4 sentences", load_spans, folder, 4)


def test_batches_have_padded_spans(tmp_path):
    lengths = (3, 3, 7)
    path = write(tmp_path / "train", [([5] * (n - 1) + [2], [2]) for n in lengths])
    assert collate(Store(path), np.arange(3)).spans is None
    store = Store(write_spans(path, [[2, 1], [], [3, 3, 1]]))
    assert collate(store, np.array([2, 1, 0])).spans.tolist() == [[3, 3, 1], [0, 0, 0], [2, 1, 0]]
    assert collate(store, np.array([1])).spans is None
    few = collate(store, np.array([2, 0]), few_shapes=True)
    assert few.spans.shape == (len(few.src), 8) and few.spans.sum() == 7 + 3
    assert few.spans[:2, :3].tolist() == [[3, 3, 1], [2, 1, 0]]
    batch = source_batch([[5, 5, 2], [2]], spans=[[2, 1], []])
    assert torch.equal(batch.spans, torch.tensor([[2, 1], [0, 0]]))
    assert source_batch([[5, 2]]).spans is None
