"""Worker processes for a CPU: one process a core with one thread each, because small products are
not faster on several threads.

Workers are forked, so they share the loaded model and cost some milliseconds. A forked process must
not enter a parallel region of its parent's OpenMP; with one thread it never enters one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from nmtkit.parallel import ordered_map

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute with one thread in this process too if it is on a CPU, so that results are the
    same to the bit for any number of workers.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_jobs(device: torch.device, jobs: int) -> int:
    """Return how many of some worker processes a search on a device uses: all, or one.

    Outside Linux a fork is not safe, and starting processes anew costs more than it gains. A worker
    of a multiprocessing pool may not have workers.
    """
    forks = sys.platform.startswith("linux") and not multiprocessing.current_process().daemon
    return jobs if device.type == "cpu" and forks else 1


def mapped(function: Callable[[Chunk], Result], chunks: list[Chunk], jobs: int) -> Iterator[Result]:
    """Apply a function to each chunk, in order, in worker processes where there are several jobs
    and several chunks.

    Args:
        function: any callable; it is not pickled.
        chunks: picklable.
        jobs: the most worker processes; 1 works in this process.
    Returns: the results in the order of the chunks.
    Raises: what the function raised; EnvironmentProblem if a worker was killed.
    """
    jobs = min(len(chunks), usable_jobs(torch.device("cpu"), jobs))
    if jobs <= 1:
        yield from map(function, chunks)
        return

    def make() -> Callable[[Chunk], Result]:
        torch.set_num_threads(1)
        return function

    yield from ordered_map(make, chunks, jobs)
