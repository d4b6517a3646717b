"""CUDA graphs of batches, with a stand-in on a CPU that computes again what was recorded."""

import random
import weakref

import numpy as np
import pytest
import torch

from nmtkit.data import packing
from nmtkit.data.batches import collate, with_tensors
from nmtkit.nn import recording
from nmtkit.train import gradients, graphs, updates
from nmtkit.train import loss as losses
from nmtkit.train.stage import train
from tests.faults.trainings import fail
from tests.models.cases import CASES
from tests.models.contract import (
    Case,
    batch_for,
    close,
    full,
    packed_for,
    pairs,
    store_of,
)
from tests.train.graph_stand_in import replace_graphs
from tests.train.test_packed import PACKED
from tests.train.tiny import make_run, metrics, options

SETTINGS = options(
    "train.max_steps=12",
    "train.log_every=3",
    "train.precision=float32",
    "train.update_size=150",
    "model.dropout=0",
)
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
ONE = torch.ones(1)


@pytest.fixture
def replays(monkeypatch):
    """The replays of a training in which most batches have one of few shapes."""
    monkeypatch.setattr(gradients, "graphs_fit", lambda *_: True)
    multiple = gradients.packed_multiple
    monkeypatch.setattr(gradients, "packed_multiple", lambda *of: 64 if multiple(*of) else 0)
    return replace_graphs(monkeypatch)


def curves(path, packed):
    """Losses and gradient norms of a training in a new run."""
    run = make_run(path, pairs=60, dev=0)
    train(run, variant="transformer", assignments=[*SETTINGS, f"train.packed={packed}"])
    lines = metrics(run, "train")
    return [[line[key] for line in lines] for key in ("loss", "nll", "grad_norm")]


@pytest.mark.parametrize("packed", ["yes", "no"])
def test_replayed_batches_make_the_same_updates(tmp_path, replays, monkeypatch, packed):
    replayed = curves(tmp_path / "graphs", packed)
    assert len(replays) > 10
    monkeypatch.setattr(gradients, "graphs_fit", lambda *_: False)
    np.testing.assert_allclose(replayed, curves(tmp_path / "kernels", packed), rtol=1e-5)


def test_batches_that_cannot_be_recorded_are_computed_kernel_by_kernel(
    tmp_path, replays, monkeypatch, stderr
):
    expected = curves(tmp_path / "graphs", "yes")
    error = RuntimeError("operation not permitted when stream is capturing\nmore")
    fail(monkeypatch, recording, "record", error, range(100))
    stderr()
    np.testing.assert_allclose(curves(tmp_path / "kernels", "yes"), expected, rtol=1e-6)
    # One warning of the batches, one of the optimiser's step.
    assert stderr().count("not permitted when stream is capturing\n") == 2


def test_position_tables_are_kept_for_the_graphs_that_read_them():
    embedder = Case("transformer").build().src_embedder
    like = torch.zeros(1)
    first = weakref.ref(embedder.positions(0, 10, like)._base)
    embedder.positions(0, 1000, like)
    assert first() is not None


@pytest.mark.parametrize("ranks", [1, 4])
def test_packed_update_is_one_part_per_rank(ranks):
    lengths = np.random.default_rng(1).integers(5, 60, 3000)
    rows, positions = np.arange(3000), lambda *sides: np.sum(sides)
    parts = updates.equal_parts(rows, lengths, lengths, ranks, gradients.ALL_FIT, positions)
    assert len(parts) == ranks


@pytest.fixture
def batches():
    """Batches of three shapes, by their number of pairs."""
    model = Case("transformer").build()
    return {n: batch_for(model, pairs(n, longest=n)) for n in (3, 5, 7)}


def test_second_batch_of_a_shape_is_recorded(monkeypatch, batches):
    """The first one allocates memory that stays, unless memory did not suffice for it."""
    replays, computed, failing = replace_graphs(monkeypatch), [], [True]

    def compute(batch, scale):
        computed.append(len(batch.src))
        if failing:
            raise OUT_OF_MEMORY
        return scale

    computer = graphs.Graphs(compute, "batches")
    with pytest.raises(torch.OutOfMemoryError):
        computer(batches[5], ONE)
    failing.clear()
    for n in (5, 3, 5, 7, 5):
        computer(batches[n], ONE)
    assert computed == [5, 5, 3, 5, 7, 5] and len(replays) == 2  # the second and third of 5


def test_recording_that_lacks_memory_is_tried_again(monkeypatch, batches, stderr):
    """Once at once, after torch has given back what it keeps; then with the next batch, after the
    graphs are forgotten.
    """
    replays = replace_graphs(monkeypatch)
    calls = fail(monkeypatch, recording, "record", OUT_OF_MEMORY, {1, 2, 3})
    computer = graphs.Graphs(lambda batch, scale: scale, "batches")
    pool = computer._pool
    for _ in range(2):
        computer(batches[5], ONE)
    assert calls == [2] and not replays
    assert not computer._inputs and computer._pool is not pool  # their memory is given back
    computer(batches[5], ONE)
    assert calls == [4] and len(replays) == 1 and not stderr()


@pytest.mark.parametrize("sometimes", [False, True])
def test_recording_ends_if_memory_never_suffices(sometimes, monkeypatch, batches, stderr):
    """Two shapes; if `sometimes`, memory holds one graph at a time."""
    replays, tries = replace_graphs(monkeypatch), []
    replacement = recording.record

    def short_of_memory(*arguments):
        tries.append(1)
        if sometimes and not computer._recorded:
            return replacement(*arguments)
        raise OUT_OF_MEMORY

    monkeypatch.setattr(recording, "record", short_of_memory)
    computer = graphs.Graphs(lambda batch, scale: scale, "batches")
    for n in 50 * (3, 5):
        computer(batches[n], ONE)
    warnings = stderr().count("too little memory for CUDA graphs of batches")
    assert (len(tries) == 2 * graphs.FAILURES) == (warnings == 1) == (not sometimes)
    assert (len(replays) > 20) == sometimes


def test_graphs_give_their_memory_back_for_a_single_pair(tmp_path, replays, monkeypatch):
    calls = fail(monkeypatch, losses, "backward", OUT_OF_MEMORY, {3})
    run = make_run(tmp_path / "run", pairs=1, dev=0)
    train(run, variant="transformer", assignments=[*SETTINGS, "train.max_steps=5"])
    assert metrics(run, "train")[-1]["step"] == 5 and calls[0] > 5


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.rand(1)], ids=["random", "numpy", "torch"]
)
def test_computation_that_draws_on_the_host_is_not_recorded(draw, monkeypatch, stderr):
    monkeypatch.setattr(recording, "record", lambda compute, pool: (compute, compute()))
    assert recording.try_to_record(lambda: draw() and 1, recording.Pool(), "no graph") is None
    assert "no graph: random numbers are drawn on the host" in stderr()
    assert recording.try_to_record(lambda: 1, recording.Pool(), "no graph") is not None


def as_read_by_a_graph(batch):
    """Return the batch with the tensors that a graph copies, and without the others."""
    batch = graphs.copied_fields(batch)
    copies = iter([tensor.clone() for tensor in graphs.tensors_of(batch)])
    return with_tensors(batch, lambda _: next(copies))


FEW_SHAPES = [
    *(Case(variant) for variant in sorted(PACKED)),
    Case("pr", (("segmentation", "parse"),)),
    Case("han", (("side", "joint"),)),
    Case("amn", (("context_size", 2), ("context_join", "parallel"))),
    Case("context-aware", (("context_size", 2),)),
]


@pytest.mark.parametrize("case", FEW_SHAPES, ids=str)
def test_packed_batch_of_few_shapes_has_the_logits_of_any_other(case):
    model, sentences = case.build(dropout=0.0).train(), pairs()
    expected = full(model, packed_for(model, sentences))
    few = packed_for(model, sentences, 1, few_shapes=True)
    least = (packing.LEAST_ROWS, packing.LEAST_LENGTH)
    assert [of_side.positions.shape for of_side in few.segments] == [least, least]
    close(full(model, as_read_by_a_graph(few)), expected)
    if few.context is not None:
        count, size = len(few.context.copies.has), few.context.ids.size(1)
        assert count == (model.context_rule.size if model.join == "parallel" else 1)
        assert size % (2 * count) == 0
        assert few.context.tgt_in is None or few.context.tgt_in.size(1) == size


@pytest.mark.parametrize("case", CASES, ids=str)
def test_padded_batch_of_few_shapes_has_the_logits_of_any_other(case):
    """Rows are added, too."""
    model, sentences = case.build(dropout=0.0).train(), pairs(9)
    if model.reads_batch_length or model.context_rule:
        pytest.skip("it has no graphs of padded batches")
    few = collate(store_of(sentences, model), np.arange(9), few_shapes=True)
    assert few.src.shape[0] == 16 and not few.src.shape[1] % 8 and not few.tgt_in.shape[1] % 8
    expected = full(model, batch_for(model, sentences))
    found = full(model, as_read_by_a_graph(few))
    for row, (_, target) in enumerate(sentences):
        close(found[row, : len(target)], expected[row, : len(target)])
