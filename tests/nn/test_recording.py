"""Recordings of CUDA graphs that fail; tests/gpu records on a GPU."""

import gc
import weakref

import pytest
import torch

from nmtkit.nn import recording
from nmtkit.nn.recording import OutOfMemory, Pool, try_to_record
from nmtkit.parallel import without_collector


class Tensors:
    """The memory that a failed forward pass holds."""


def fails(cause):
    """Fail as the end of a recording does, which hides the cause."""
    try:
        raise cause
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def recordings(monkeypatch):
    """Set the results of the next recordings, in order; errors are raised."""
    results = []

    def record_once(compute, memory):
        result = results.pop(0)
        if isinstance(result, Exception):
            fails(result)
        return result() if callable(result) else result

    monkeypatch.setattr(recording, "_record_once", record_once)
    monkeypatch.setattr(recording.private, "end_allocations", lambda pool: None)
    return results


def test_warning_gives_the_reason_of_the_first_recording(recordings, capsys):
    """The second one only resets the generator."""
    recordings += [RuntimeError("waits for the GPU"), torch.OutOfMemoryError("out of memory")]
    assert try_to_record(lambda: torch.zeros(1), Pool(), "no graph") is None
    assert capsys.readouterr().err == "nmtkit: warning: no graph: waits for the GPU\n"
    assert not recordings


@pytest.mark.parametrize("earlier", [True, False])
def test_second_recording_has_the_memory_of_the_first(recordings, earlier):
    """Memory without a graph is no longer usable after a recording that failed."""
    held, pool = [], Pool()
    pool.has_graphs, pool.id = earlier, "memory"

    def first():
        tensors = Tensors()
        held.append(weakref.ref(tensors))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def second():
        assert held[0]() is None
        assert (pool.id == "memory") == earlier
        return "a graph"

    recordings += [first, "reset", second]
    assert try_to_record(lambda: torch.zeros(1), pool, "no graph") == "a graph"
    assert pool.has_graphs


def test_recording_out_of_memory_twice_raises(recordings):
    lacks = torch.OutOfMemoryError("CUDA out of memory")
    recordings += [lacks, "reset", lacks, "reset"]
    with pytest.raises(OutOfMemory):
        try_to_record(lambda: torch.zeros(1), Pool(), "no graph")


@pytest.mark.parametrize("before", [True, False])
def test_garbage_collector_is_off_only_during_a_recording(before):
    enabled = gc.isenabled()
    try:
        gc.enable() if before else gc.disable()
        with pytest.raises(ValueError), without_collector():
            assert not gc.isenabled()
            raise ValueError
        assert gc.isenabled() == before
    finally:
        gc.enable() if enabled else gc.disable()
