"""Record CUDA graphs: the kernels of a computation, which a replay starts all at once.

A replay computes the same numbers as the kernels one by one. Dropout does too: a graph draws from
the seed that the generator has at the replay.
"""

from __future__ import annotations

import functools
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.errors import first_line, is_out_of_memory
from nmtkit.nn import masks, private
from nmtkit.nn.dropout import forget_seeds
from nmtkit.parallel import without_collector

Recording = tuple[Callable[[], object], Tensor]
"""A function that computes again, and the tensor that then holds the result."""


def graphs_fit(device: torch.device) -> bool:
    """True if a device has CUDA graphs."""
    return device.type == "cuda"


class Pool:
    """Memory for graphs of which one runs at a time; none without a GPU."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin with no graph and new memory."""
        self.id = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        self.has_graphs = False


def record(compute: Callable[[], Tensor], pool: Pool) -> Recording:
    """Record a computation in a graph with memory of the pool."""
    try:
        recorded = _record_once(compute, pool.id)
        pool.has_graphs = True
        return recorded
    except RuntimeError:
        # torch does not undo what it did at the beginning. Its allocator and its generator still
        # count as recording, and then no earlier graph replays. A recording that ends resets the
        # generator, even if that recording lacks memory.
        private.end_allocations(pool.id)
        with suppress(RuntimeError):
            _record_once(lambda: torch.zeros(1, device="cuda"), None)
        raise


def _record_once(compute: Callable[[], Tensor], memory: Any) -> Recording:
    device = torch.device("cuda", torch.cuda.current_device())
    graph, stream = torch.cuda.CUDAGraph(), _stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    # The collector might destroy an earlier graph, which breaks a recording.
    with torch.cuda.stream(stream), without_collector():
        # A thread makes the next batches meanwhile: only this one is held to what graphs allow.
        graph.capture_begin(memory, capture_error_mode="thread_local")
        try:
            result = compute()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)  # which has written the generator's state
    return graph.replay, result


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all recordings: the memory of a pool is only reused in one stream."""
    return torch.cuda.Stream(device)


def forget() -> None:
    """Forget masks, seeds and casts of weights: a graph makes those that it reads."""
    masks.forget()
    forget_seeds()
    torch.clear_autocast_cache()


class OutOfMemory(Exception):
    """Memory does not hold a graph beside the earlier ones."""


def try_to_record(compute: Callable[[], Tensor], pool: Pool, otherwise: str) -> Recording | None:
    """Return what `record` returns; if it fails, warn and return None.

    Args:
        otherwise: the beginning of the warning.
    Raises: OutOfMemory.
    """
    forget()
    before = _host_draws()
    try:
        try:
            recorded = record(compute, pool)
        except RuntimeError as error:
            if not _lacks_memory(error):
                raise
            recorded = None  # the error, which holds memory, ends here
        if recorded is None:
            forget()
            torch.cuda.empty_cache()  # a recording cannot give back what torch keeps
            if not pool.has_graphs:
                pool.renew()  # torch ends a pool with its last graph
            recorded = record(compute, pool)
        if _host_draws() == before:
            return recorded
        reason = "random numbers are drawn on the host, and a graph would repeat them"
    except RuntimeError as error:
        if _lacks_memory(error):
            raise OutOfMemory from error
        reason = first_line(error.__context__ or error)
    finally:
        forget()
    console.warn(f"{otherwise}: {reason}")
    return None


def _lacks_memory(error: BaseException) -> bool:
    # The end of the recording hides the error in it.
    return is_out_of_memory(error.__context__ or error) or is_out_of_memory(error)


def _host_draws() -> bytes:
    """Return the states of the random numbers that are drawn on the host."""
    numbers = torch.default_generator.get_state().numpy()
    return pickle.dumps((random.getstate(), np.random.get_state(), numbers))
