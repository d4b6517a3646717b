"""Maps over chunks of lines with worker processes: order kept, memory bounded, errors brought
home.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Generic, TypeVar

from nmtkit.errors import EnvironmentProblem

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

_worker: Callable[[Any], Any] | None = None
_failure: BaseException | None = None
_together: Any = None  # a barrier that all workers of a pool wait at
_turn: Any = None  # a semaphore for each chunk


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    make: Callable[[], Callable[[Chunk], Result]],
    chunks: Iterable[Chunk],
    jobs: int,
    handed_over: list[Any] | None = None,
) -> Iterator[Result]:
    """Apply a function to each chunk in worker processes and yield the results in the order of the
    chunks.

    At most 2·jobs + 2 chunks are in flight, so memory doesn't grow with the input. The result is
    the same for any number of jobs.

    Args:
        make: builds the function, once per process (called in the parent when jobs is 1). Where
            processes can't be forked it must be picklable by multiprocessing: a function of a
            module, or a functools.partial of one.
        chunks: the work, in order; read as needed, in the parent.
        jobs: worker processes; 1 works in this process.
        handed_over: a list to which the result of each process's `function.hand_over()` is added
            when all chunks are done.
    Returns: an iterator over the results; closing it early stops the workers.
    Raises: what the function raised, as the error it was; EnvironmentProblem if a worker was
        killed.
    """
    if jobs <= 1:
        function = make()
        yield from map(function, chunks)
        if handed_over is not None:
            handed_over.append(function.hand_over())  # type: ignore[attr-defined]
        return
    with _pool(make, jobs) as executor:
        waiting: collections.deque[Future[Any]] = collections.deque()
        for chunk in chunks:
            waiting.append(executor.submit(_work, chunk))
            if len(waiting) > 2 * jobs + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if handed_over is not None:
            handed_over += [
                future.result() for future in [executor.submit(_hand_over) for _ in range(jobs)]
            ]


class Meanwhile(Generic[Chunk, Result]):
    """A map over few chunks that goes on in worker processes while this process does other work; a
    context manager.

    Args:
        make: as of `ordered_map`.
        chunks: the work, all of which is in flight.
        jobs: processes; with 1, the work is done when the results are asked for.
        busy: processes at work elsewhere until then; so many of the workers wait.
    """

    def __init__(
        self,
        make: Callable[[], Callable[[Chunk], Result]],
        chunks: list[Chunk],
        jobs: int,
        busy: int = 1,
    ) -> None:
        self._make = make
        self._chunks = chunks
        self._jobs = jobs
        self._busy = min(busy, jobs)
        self._turn = _context().Semaphore(jobs - self._busy)
        self._exit = contextlib.ExitStack()
        self._results: list[Future[Any]] = []

    def __enter__(self) -> Meanwhile[Chunk, Result]:
        if self._jobs > 1:
            executor = self._exit.enter_context(_pool(self._make, self._jobs, self._turn))
            self._results = [executor.submit(_work, chunk) for chunk in self._chunks]
        return self

    def results(self) -> Iterator[Result]:
        """The results in order; this process has nothing else to do now."""
        self._release()
        if self._jobs <= 1:
            yield from map(self._make(), self._chunks)
        for future in self._results:
            yield future.result()

    def __exit__(self, *error: Any) -> None:
        self._release()  # no worker ends while it waits
        self._exit.__exit__(*error)

    def _release(self) -> None:
        for _ in range(self._busy):
            self._turn.release()
        self._busy = 0


def _context() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")


@contextlib.contextmanager
def _pool(
    make: Callable[[], Callable[[Any], Any]], jobs: int, turn: Any = None
) -> Iterator[ProcessPoolExecutor]:
    context: Any = _context()
    executor = ProcessPoolExecutor(
        jobs, context, _start, (make, os.getpid(), context.Barrier(jobs), turn)
    )
    try:
        yield executor
    except BrokenProcessPool as error:
        raise _killed() from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _killed() -> EnvironmentProblem:
    return EnvironmentProblem(
        "a worker process was killed", hint="memory may have run out: try fewer --jobs"
    )


def _start(make: Callable[[], Callable[[Any], Any]], parent: int, together: Any, turn: Any) -> None:
    global _worker, _failure, _together, _turn
    _together, _turn = together, turn
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent decides; a Ctrl-C reaches the whole group
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    try:
        _worker = make()
    # an error here would break the pool without saying why; the first chunk reports it instead
    except Exception as error:
        _failure = error


def _watch(parent: int) -> None:
    """End this worker when its parent has gone (killed), or it would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(chunk: Any) -> Any:
    if _failure is not None:
        raise _failure
    assert _worker is not None
    with _turn or contextlib.nullcontext():
        return _worker(chunk)


def _hand_over() -> Any:
    """Once in each worker: those that have their turn wait until all do."""
    if _failure is not None:
        raise _failure
    _together.wait()
    return _worker.hand_over()  # type: ignore[union-attr]
