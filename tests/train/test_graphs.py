"""CUDA graphs of packed batches, with a stand-in on a CPU that computes again what was recorded."""

import dataclasses

import numpy as np
import pytest
import torch

from nmtkit.train import gradients, graphs
from nmtkit.train.stage import train
from tests.models.contract import Case, close, full, packed_for, pairs
from tests.train.test_packed import PACKED
from tests.train.tiny import make_run, metrics, options

SETTINGS = options(
    "train.max_steps=12",
    "train.log_every=1",
    "train.precision=float32",
    "train.update_size=150",
    "train.packed=yes",
    "model.dropout=0",
)


@pytest.fixture
def replays(monkeypatch):
    """The number of batches that were replayed; all batches of like size have one shape."""
    count = []

    def record(compute, pool):
        result = torch.zeros(2, dtype=torch.float64)

        def replay():
            count.append(1)
            graphs.forget()  # a graph makes its masks in each replay
            result.copy_(compute())

        return replay, result

    monkeypatch.setattr(gradients, "graphs_fit", lambda _: True)
    monkeypatch.setattr(gradients, "packed_multiple", lambda *_: 64)
    monkeypatch.setattr(graphs, "record", record)
    return count


def losses_of(run):
    train(run, variant="transformer", assignments=SETTINGS)
    lines = metrics(run, "train")
    return [[line[key] for line in lines] for key in ("loss", "nll", "grad_norm")]


def test_replayed_batches_make_the_same_updates(tmp_path, replays, monkeypatch):
    replayed = losses_of(make_run(tmp_path / "graphs", pairs=60, dev=0))
    assert len(replays) > 20
    monkeypatch.setattr(gradients, "graphs_fit", lambda _: False)
    expected = losses_of(make_run(tmp_path / "kernels", pairs=60, dev=0))
    np.testing.assert_allclose(replayed, expected, rtol=1e-5)


def test_what_cannot_be_recorded_is_computed_kernel_by_kernel(
    tmp_path, replays, monkeypatch, capsys
):
    def record(compute, pool):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    expected = losses_of(make_run(tmp_path / "graphs", pairs=60, dev=0))
    monkeypatch.setattr(graphs, "record", record)
    found = losses_of(make_run(tmp_path / "kernels", pairs=60, dev=0))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert capsys.readouterr().err.count("not permitted when stream is capturing\n") == 1


@pytest.mark.parametrize("variant", sorted(PACKED))
def test_a_model_reads_nothing_that_differs_in_batches_of_a_shape(variant):
    model, sentences = Case(variant).build(), pairs()
    expected = full(model, packed_for(sentences))
    few = packed_for(sentences, 8, 16, 32)
    for packing in few.segments:
        assert packing.positions.shape == (16, 32)
    close(full(model, graphs.shape_alone(few)), expected)
    again = graphs.with_tensors(few, [t.clone() for t in graphs.tensors_of(few)])
    close(full(model, dataclasses.replace(again, rows=None)), expected)
