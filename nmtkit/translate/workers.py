"""Worker processes on a CPU: one process per core with one thread each, because several threads do
not make small products faster.

Workers are forked, so they share the loaded model and start in milliseconds. A forked process must
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
    """Use one thread in this process, too, if the device is a CPU, so that results are identical to
    the bit for any number of workers.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_jobs(device: torch.device, jobs: int) -> int:
    """Return `jobs` if a search on a device can use several worker processes, else 1.

    Outside Linux a fork is not safe, and a new process costs more than it gains. A worker of a
    multiprocessing pool may not have workers.
    """
    forks = sys.platform.startswith("linux") and not multiprocessing.current_process().daemon
    return jobs if device.type == "cpu" and forks else 1


def mapped(function: Callable[[Chunk], Result], chunks: list[Chunk], jobs: int) -> Iterator[Result]:
    """Apply a function to each chunk, in worker processes if there are several jobs and chunks.

    Args:
        function: any callable; it is not pickled.
        chunks: picklable.
        jobs: the most worker processes; with 1 this process does the work.
    Returns: the results in the order of the chunks.
    Raises: the function's error; EnvironmentProblem if a worker was killed.
    """
    jobs = min(len(chunks), usable_jobs(torch.device("cpu"), jobs))
    if jobs <= 1:
        yield from map(function, chunks)
        return

    def make() -> Callable[[Chunk], Result]:
        torch.set_num_threads(1)
        return function

    yield from ordered_map(make, chunks, jobs)
