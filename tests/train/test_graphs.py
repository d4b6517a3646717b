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
from tests.train.graph_stand_in import standing_in
from tests.train.test_packed import PACKED
from tests.train.tiny import make_run, metrics, options

SETTINGS = options(
    "train.max_steps=12",
    "train.log_every=3",
    "train.precision=float32",
    "train.update_size=150",
    "model.dropout=0",
)
BOTH = pytest.mark.parametrize("packed", ["yes", "no"])


@pytest.fixture
def replays(monkeypatch):
    """The number of replays; most batches have one of few shapes."""
    monkeypatch.setattr(gradients, "graphs_fit", lambda *_: True)
    multiple = gradients.packed_multiple
    monkeypatch.setattr(gradients, "packed_multiple", lambda *of: 64 if multiple(*of) else 0)
    return standing_in(monkeypatch)


def losses_of(run, packed):
    train(run, variant="transformer", assignments=[*SETTINGS, f"train.packed={packed}"])
    lines = metrics(run, "train")
    return [[line[key] for line in lines] for key in ("loss", "nll", "grad_norm")]


@BOTH
def test_replayed_batches_make_the_same_updates(tmp_path, replays, monkeypatch, packed):
    replayed = losses_of(make_run(tmp_path / "graphs", pairs=60, dev=0), packed)
    assert len(replays) > 10
    monkeypatch.setattr(gradients, "graphs_fit", lambda *_: False)
    expected = losses_of(make_run(tmp_path / "kernels", pairs=60, dev=0), packed)
    np.testing.assert_allclose(replayed, expected, rtol=1e-5)


def test_tables_of_positions_that_graphs_read_stay():
    embedder = Case("transformer").build().src_embedder
    like = torch.zeros(1)
    first = weakref.ref(embedder.positions(0, 10, like)._base)
    embedder.positions(0, 1000, like)
    assert first() is not None


def test_a_packed_update_is_one_part_a_rank():
    lengths = np.random.default_rng(1).integers(5, 60, 3000)
    for ranks in (1, 4):
        parts = updates.equal_parts(
            np.arange(3000),
            lengths,
            lengths,
            ranks,
            gradients.ALL_FIT,
            lambda *sides: np.sum(sides),
        )
        assert len(parts) == ranks


def test_what_cannot_be_recorded_is_computed_kernel_by_kernel(
    tmp_path, replays, monkeypatch, capsys
):
    def record(compute, pool):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    expected = losses_of(make_run(tmp_path / "graphs", pairs=60, dev=0), "yes")
    monkeypatch.setattr(recording, "record", record)
    found = losses_of(make_run(tmp_path / "kernels", pairs=60, dev=0), "yes")
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    error = capsys.readouterr().err  # of the batches, and of the optimiser's step
    assert error.count("not permitted when stream is capturing\n") == 2


def test_the_second_batch_of_a_shape_is_recorded(monkeypatch):
    """The first one makes all that lasts, unless memory did not suffice for it."""
    recorded, model = standing_in(monkeypatch), Case("transformer").build()
    of = {n: batch_for(model, pairs(n, longest=n)) for n in (3, 5, 7)}
    computed, fails = [], [True]

    def compute(batch, scale):
        computed.append(len(batch.src))
        if fails:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return scale

    found, one = graphs.Graphs(compute, "batches"), torch.ones(1)
    with pytest.raises(torch.OutOfMemoryError):
        found(of[5], one)
    fails.clear()
    for n in (5, 3, 5, 7, 5):
        found(of[n], one)
    assert computed == [5, 5, 3, 5, 7, 5] and len(recorded) == 2  # the second and third of 5


def test_memory_of_graphs_is_given_back_if_it_does_not_suffice(monkeypatch, capsys):
    """torch gives back what it keeps, and the recording is tried once more; then graphs are forgotten
    and recorded anew.
    """
    recorded, model = standing_in(monkeypatch), Case("transformer").build()
    batch, one = batch_for(model, pairs(5)), torch.ones(1)
    record, fails = recording.record, [True, True]

    def short(compute, pool):
        if fails.pop():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return record(compute, pool)

    monkeypatch.setattr(recording, "record", short)
    found = graphs.Graphs(lambda batch, scale: scale, "batches")
    for _ in range(2):
        found(batch, one)
    assert not recorded
    fails += [False, True]
    found(batch, one)
    assert len(recorded) == 1 and not fails and not capsys.readouterr().err


@pytest.mark.parametrize("sometimes", [False, True])
def test_recordings_that_always_lack_memory_end(sometimes, monkeypatch, capsys):
    """Two shapes, of which memory may hold one graph at a time."""
    model, tries = Case("transformer").build(), []
    recorded = standing_in(monkeypatch)
    record, of = recording.record, {n: batch_for(model, pairs(n)) for n in (3, 5)}

    def short(*arguments):
        tries.append(1)
        if sometimes and not found._recorded:
            return record(*arguments)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(recording, "record", short)
    found = graphs.Graphs(lambda batch, scale: scale, "batches")
    for n in 50 * (3, 5):
        found(of[n], torch.ones(1))
    warnings = capsys.readouterr().err.count("too little memory for CUDA graphs of batches")
    assert (len(tries) == 2 * graphs.FAILURES) == (warnings == 1) == (not sometimes)
    assert (len(recorded) > 20) == sometimes


def test_memory_of_graphs_is_given_back_for_a_single_pair(tmp_path, replays, monkeypatch):
    backward, calls = losses.backward, []

    def short(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return backward(*arguments)

    monkeypatch.setattr(losses, "backward", short)
    run = make_run(tmp_path / "run", pairs=1, dev=0)
    train(run, variant="transformer", assignments=[*SETTINGS, "train.max_steps=5"])
    assert metrics(run, "train")[-1]["step"] == 5 and len(calls) > 5


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.rand(1)], ids=["random", "numpy", "torch"]
)
def test_a_computation_that_draws_on_the_host_is_not_recorded(draw, monkeypatch, capsys):
    monkeypatch.setattr(recording, "record", lambda compute, pool: (compute, compute()))
    assert recording.try_to_record(lambda: draw() and 1, recording.Pool(), "no graph") is None
    assert "no graph: random numbers are drawn on the host" in capsys.readouterr().err
    assert recording.try_to_record(lambda: 1, recording.Pool(), "no graph") is not None


FEW_SHAPES = [
    *(Case(variant) for variant in sorted(PACKED)),
    Case("pr", (("segmentation", "parse"),)),
    Case("han", (("side", "joint"),)),
    Case("amn", (("context_size", 2), ("context_join", "parallel"))),
    Case("context-aware", (("context_size", 2),)),
]


@pytest.mark.parametrize("case", FEW_SHAPES, ids=str)
def test_a_packed_batch_of_few_shapes_is_read_as_any_other(case):
    """The model reads nothing but the tensors that a graph copies."""
    model, sentences = case.build(dropout=0.0).train(), pairs()
    expected = full(model, packed_for(model, sentences))
    few = packed_for(model, sentences, 1, few_shapes=True)
    assert [of_side.positions.shape for of_side in few.segments] == 2 * [
        (packing.LEAST_ROWS, packing.LEAST_LENGTH)
    ]
    close(full(model, again(few)), expected)
    if few.context is not None:
        count, size = len(few.context.copies.has), few.context.ids.size(1)
        assert count == (model.context_rule.size if model.join == "parallel" else 1)
        assert size % (2 * count) == 0
        assert few.context.tgt_in is None or few.context.tgt_in.size(1) == size


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_padded_batch_of_few_shapes_is_read_as_any_other(case):
    """Rows are added, too. The model reads nothing but the tensors that a graph copies."""
    model, sentences = case.build(dropout=0.0).train(), pairs(9)
    if model.reads_batch_length or model.context_rule:
        pytest.skip("it has no graphs of padded batches")
    few = collate(store_of(sentences, model), np.arange(9), few_shapes=True)
    assert few.src.shape[0] == 16 and not few.src.shape[1] % 8 and not few.tgt_in.shape[1] % 8
    expected, found = full(model, batch_for(model, sentences)), full(model, again(few))
    for row, (_, target) in enumerate(sentences):
        close(found[row, : len(target)], expected[row, : len(target)])


def again(batch):
    """Return the batch as a graph reads it."""
    batch = graphs.copied_fields(batch)
    copies = iter([tensor.clone() for tensor in graphs.tensors_of(batch)])
    return with_tensors(batch, lambda _: next(copies))
