"""Map over chunks of lines with worker processes, in order, with bounded memory."""

from __future__ import annotations

import collections
import contextlib
import gc
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Generic, TypeVar

from nmtkit.errors import EnvironmentProblem

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

CGROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_worker: Callable[[Any], Any] | None = None
_failure: BaseException | None = None


def cores() -> int:
    """Return the number of cores that this process may use, within the limits of its container."""
    on_linux = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1
    return min([count, *(math.ceil(quota / period) for quota, period in _limits("cpu.max"))])


def memory_bytes() -> int:
    """Return the memory of the machine, or of its container if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([memory, *(limit for (limit,) in _limits("memory.max"))])


def _limits(name: str) -> Iterator[list[int]]:
    """Yield a limit from each cgroup (version 2) of this process that has one."""
    with contextlib.suppress(OSError):
        group = OWN_GROUP.read_text("utf-8").partition("0::/")[2].partition("\n")[0]
        folder = CGROUPS / group
        for parent in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):  # no such file, or no limit: "max"
                yield [int(word) for word in (parent / name).read_text("utf-8").split()]


def ordered_map(
    make: Callable[[], Callable[[Chunk], Result]],
    chunks: Iterable[Chunk],
    jobs: int,
) -> Iterator[Result]:
    """Apply a function to each chunk in worker processes; yield the results in the order of chunks.

    Args:
        make: builds the function, once per process (in this process if jobs is 1). Where processes
            can't be forked `make` must be picklable: a function of a module, or a functools.partial
            of one.
        chunks: the work, in order; the parent reads chunks as needed.
        jobs: number of worker processes; with 1 this process does the work.
    Yields: the results; closing the iterator early stops the workers.
    Raises: the error of the function; EnvironmentProblem if a worker was killed.
    """
    if jobs <= 1:
        yield from map(make(), chunks)
        return
    with contextlib.closing(Workers(make, jobs)) as workers:
        yield from workers.map(chunks)


class Workers(Generic[Chunk, Result]):
    """Worker processes that apply a function to chunks until they are closed or collected.

    Args:
        make: builds the function, once per process.
        jobs: number of processes.
    """

    def __init__(self, make: Callable[[], Callable[[Chunk], Result]], jobs: int) -> None:
        self._jobs, self._executor = jobs, processes(jobs, make)

    def map(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Yield the results in the order of the chunks, the same for any number of jobs.

        At most 2·jobs + 2 chunks are in flight, so memory doesn't grow with the input.

        Raises: the error of the function; EnvironmentProblem if a worker was killed.
        """
        waiting: collections.deque[Future[Result]] = collections.deque()
        with _killed_worker_reported():
            for chunk in chunks:
                waiting.append(self._executor.submit(_work, chunk))
                if len(waiting) > 2 * self._jobs + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def begin(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Submit all chunks now; return an iterator over the results, in order. All chunks and
        results are in memory.

        Raises: EnvironmentProblem if a worker was killed; the iterator raises as `map` does.
        """
        with _killed_worker_reported():
            results = self._executor.map(_work, chunks)
        return _reported(results)

    def close(self) -> None:
        """End the processes; work that has not begun is left undone."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _reported(results: Iterator[Result]) -> Iterator[Result]:
    with _killed_worker_reported():
        yield from results


@contextlib.contextmanager
def _killed_worker_reported() -> Iterator[None]:
    """Turn the error of a broken pool into an EnvironmentProblem."""
    try:
        yield
    except BrokenProcessPool as error:
        raise EnvironmentProblem(
            "a worker process was killed", hint="memory may have run out: try fewer --jobs"
        ) from error


def one_ahead(items: Iterable[Result]) -> Iterator[Result]:
    """Yield each item after taking the next one, so that background work for the next item has
    begun. If taking the next item fails, or at Ctrl-C, the item comes before the error.
    """
    waiting: list[Result] = []
    try:
        for item in items:
            yield from waiting
            waiting = [item]
    except (Exception, KeyboardInterrupt):
        yield from waiting
        raise
    yield from waiting


def processes(jobs: int, make: Callable[[], Any] = object) -> ProcessPoolExecutor:
    """Return worker processes that end with this process and ignore Ctrl-C.

    Args:
        jobs: number of processes.
        make: is called first in each process.
    Raises: EnvironmentProblem if the system has no shared memory for their locks.
    """
    kind = "fork" if sys.platform.startswith("linux") else "spawn"
    context = multiprocessing.get_context(kind)
    try:
        return ProcessPoolExecutor(jobs, context, _start, (make, os.getpid()))
    except OSError as error:
        message = f"cannot start worker processes: {error.strerror}"
        hint = "is /dev/shm there and writable? --jobs 1 starts no processes"
        raise EnvironmentProblem(message, hint=hint) from error


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Turn the garbage collector off for a while."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _start(make: Callable[[], Any], parent: int) -> None:
    global _worker, _failure
    # These signals reach the whole process group or job; only the parent reacts to them.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    try:
        _worker = make()
    # An error here would break the pool without a message, so the first chunk raises it.
    except Exception as error:
        _failure = error


def _end_with_parent(parent: int) -> None:
    """End this worker if its parent was killed; else it would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def _work(chunk: Any) -> Any:
    if _failure is not None:
        raise _failure
    assert _worker is not None
    return _worker(chunk)
