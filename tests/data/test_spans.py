"""Spans beside a prepared set: what is written is read, whole or not at all, and batches bring
it padded.
"""

import numpy as np
import pytest
import torch

from nmtkit.data.batches import collate, source_batch
from nmtkit.data.spans import Spans, SpansWriter
from nmtkit.data.store import Store, StoreWriter
from nmtkit.errors import DataError, EnvironmentProblem

CUTS = [[2, 1], [], [3, 3, 1], [1], [255, 7]]


def written(path, cuts=CUTS, block=2):
    with SpansWriter(path) as writer:
        for start in range(0, len(cuts), block):
            part = cuts[start : start + block]
            writer.add_block(
                bytes(length for cut in part for length in cut),
                np.array([len(cut) for cut in part]),
            )
    return path


@pytest.mark.parametrize("block", [1, 2, 9])
def test_what_is_written_is_read(tmp_path, block):
    spans = Spans(written(tmp_path / "news.2014", block=block), 5)
    assert [spans[i].tolist() for i in range(5)] == CUTS
    assert [p.name for p in sorted(tmp_path.iterdir())] == [
        "news.2014.spans.bin",
        "news.2014.spans.idx",
    ]


def test_a_set_without_known_spans(tmp_path):
    spans = Spans(written(tmp_path / "x", [[], []]), 2)
    assert [spans[i].tolist() for i in range(2)] == [[], []]
    assert Spans.beside(tmp_path / "y", 2) is None


@pytest.mark.parametrize("damage", ["bin", "idx", "magic", "missing", "count"])
def test_files_that_are_not_whole_are_refused(tmp_path, damage):
    path = written(tmp_path / "x")
    lengths, index = tmp_path / "x.spans.bin", tmp_path / "x.spans.idx"
    if damage == "bin":
        lengths.write_bytes(lengths.read_bytes()[:-1])
    elif damage == "idx":
        index.write_bytes(index.read_bytes()[:-8])
    elif damage == "magic":
        index.write_bytes(b"x" + index.read_bytes()[1:])
    elif damage == "missing":
        lengths.unlink()
    with pytest.raises(DataError):
        Spans.beside(path, 4 if damage == "count" else 5)


def test_an_error_leaves_no_files(tmp_path):
    with pytest.raises(KeyError), SpansWriter(tmp_path / "x") as writer:
        writer.add_block(b"\x01", np.array([1]))
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EnvironmentProblem):
        SpansWriter(tmp_path / "no" / "x")


def test_batches_bring_them_padded(tmp_path):
    with StoreWriter(tmp_path / "train", 30) as writer:
        for cut in ([2, 1], [3], [3, 3, 1]):
            writer.add([5] * (sum(cut) - 1) + [2], [2])
    assert collate(Store(tmp_path / "train"), np.arange(3)).spans is None
    written(tmp_path / "train", [[2, 1], [], [3, 3, 1]])
    store = Store(tmp_path / "train")
    assert collate(store, np.array([2, 1, 0])).spans.tolist() == [[3, 3, 1], [0, 0, 0], [2, 1, 0]]
    assert collate(store, np.array([1])).spans is None
    batch = source_batch([[5, 5, 2], [2]], spans=[[2, 1], []])
    assert torch.equal(batch.spans, torch.tensor([[2, 1], [0, 0]]))
    assert source_batch([[5, 2]]).spans is None
