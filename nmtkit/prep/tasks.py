"""Tasks of prep: pure functions of files, which any Executor runs.

Each task writes its files into the work folder. Last it writes a fact: its result and the checksums
of its files. A task with a fact is done.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import nmtkit
from nmtkit import console, files
from nmtkit.errors import DataError, EnvironmentProblem, counted
from nmtkit.parallel import without_collector
from nmtkit.prep.engines import Engine, other_version
from nmtkit.records import Record, load

Cached = TypeVar("Cached")
WORK_RECORD = "work.json"
"""The file by which a worker knows that it sees the work folder."""
ATTEMPTS = 3
"""The number of times that a task is begun before the loss of its worker is an error."""


class Fact(Record):
    """The result of a task."""

    again: ClassVar[str] = "give the same command again"
    value: files.JsonObject
    files: dict[str, str]
    """The checksums of the task's files, by their paths in the work folder."""
    models: str = ""
    """The checksum of the models that the task read."""

    def write(self, path: Path) -> None:
        """Write the fact. It may be lost in a power cut: then the task is done again."""
        with files.writing(path, durable=False) as stream:
            stream.write(self.model_dump_json())


def total(values: Iterable[Any]) -> Any:
    """Return the sum of numbers, or of JSON objects of numbers, key by key."""
    values = list(values)
    if not isinstance(values[0], dict):
        return sum(values)
    keys = dict.fromkeys(itertools.chain.from_iterable(values))
    return {key: total(value[key] for value in values if key in value) for key in keys}


class Damaged(DataError):
    """A file of a finished task has changed; the task must run again."""

    def __init__(self, path: str, step: str, index: int) -> None:
        super().__init__(f"{path} is damaged", where=f"shard {index} of step {step}")
        self.path, self.step, self.index = path, step, index

    def __reduce__(self) -> tuple[type[Damaged], tuple[str, str, int]]:
        return Damaged, (self.path, self.step, self.index)


Outcome = tuple[files.JsonObject, list[Path]]
"""The value of a task's fact, and the files that the task wrote."""

_cached: list[Any] = []
_current = ["", ""]
"""The step that the object in `_cached` is for, and the key of its work."""


def step_cache(make: Callable[[], Cached]) -> Cached:
    """Return the object that this process makes only once for all its tasks of a step."""
    if not _cached:
        _cached.append(make())
    result: Cached = _cached[0]
    return result


@dataclass(frozen=True)
class Task:
    """A part of the work.

    Attributes:
        step: the name of the step, and the folder of the fact.
        index: the number of the task in the step.
        lines: the lines that the task reads, for the progress.
        function: called with the work folder, the index and the arguments. It may run again in
            another process, and then writes the same files.
        key: of the work (`stage._key`), for `step_cache`.
        models: checksum of the models that the task reads; empty before they are learnt.
        version: of the nmtkit that submits the task.
    """

    step: str
    index: int
    lines: int
    function: Callable[..., Outcome]
    arguments: tuple[Any, ...] = ()
    key: str = ""
    models: str = ""
    version: str = nmtkit.__version__

    def path(self, work: Path) -> Path:
        """Return the file of the fact."""
        return fact_path(work, self.step, self.index)


def fact_path(work: Path, step: str, index: int) -> Path:
    """Return the file with the fact of a task."""
    return work / step / f"{index:05}.json"


def read_fact(work: Path, step: str, index: int) -> Fact:
    """Return the fact of a finished task.

    Raises: Damaged if the fact or a file of the task has changed or is missing.
    """
    path = fact_path(work, step, index)
    try:
        fact = load(Fact, path)
    except DataError as error:
        raise Damaged(path.relative_to(work).as_posix(), step, index) from error
    for name in files.changed(work, fact.files)[:1]:
        raise Damaged(name, step, index)
    return fact


def finished(work: Path, task: Task) -> Fact | None:
    """Return the fact of a task; None if it is not done, is damaged, or read other models."""
    if not task.path(work).is_file():
        return None
    try:
        fact = read_fact(work, task.step, task.index)
        return fact if fact.models == task.models else None
    except Damaged as damage:
        console.warn(f"{damage.path} is damaged; {damage.where} is made again")
    return None


def perform(work: Path, task: Task) -> Fact:
    """Do a task, in any process on any machine.

    Raises: EnvironmentProblem if the machine does not see the work folder or the texts, or has
        another version of nmtkit.
    """
    if task.version != nmtkit.__version__:
        raise other_version(socket.gethostname(), nmtkit.__version__)
    if not (work / WORK_RECORD).is_file():
        raise EnvironmentProblem(
            f"a worker on {socket.gethostname()} does not see the work folder {work}",
            where="--work",
            hint="name a folder with --work that all nodes share",
        )
    if _current != [task.step, task.key]:
        _cached.clear()
    _current[:] = [task.step, task.key]
    try:
        with without_collector():  # there are millions of objects, but no cycles to find
            value, paths = task.function(work, task.index, *task.arguments)
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            f"a worker on {socket.gethostname()} does not see {error.filename}",
            hint="name texts in a folder that all nodes share",
        ) from error
    checksums = {path.relative_to(work).as_posix(): files.sha256(path) for path in paths}
    fact = Fact(value=value, files=checksums, models=task.models)
    fact.write(task.path(work))
    return fact


@dataclass
class Runner:
    """Runs tasks on an engine, except those that are done.

    Attributes:
        work: the work folder.
        key: of the work.
        engine: the processes that do the tasks.
        steps: the tasks of every step so far, so that a damaged file can be made again.
        facts: of all tasks of these steps.
        share: the tasks of a step that this process does.
        models: checksum of the models that later tasks read.
        reused: the number of tasks that an earlier call has done.
        speed: of the steps, for the manifest.
    """

    work: Path
    key: str
    engine: Engine
    steps: dict[str, Sequence[Task]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    share: slice = field(default_factory=lambda: slice(None))
    models: str = ""
    reused: int = 0
    speed: list[files.JsonObject] = field(default_factory=list)

    def run(self, label: str, tasks: Sequence[Task]) -> list[Fact]:
        """Do the tasks of a step.

        Args:
            label: of the progress.
            tasks: numbered from 0.
        Returns: the fact of each task that is done: of all tasks, or of this process's share and
            what other processes have done.
        Raises: the error of a task; EnvironmentProblem if workers are lost again and again.
        """
        tasks = [replace(task, key=self.key, models=self.models) for task in tasks]
        if tasks:
            self.steps[tasks[0].step] = tasks
        facts = {}
        with console.progress(label, sum(task.lines for task in tasks)) as advance:
            for task in tasks:
                if fact := finished(self.work, task):
                    facts[task.index] = fact
                    advance(task.lines)
            self.reused += len(facts)
            if facts and len(facts) < len(tasks):
                console.say(f"{label}: {len(facts):,} of {len(tasks):,} shards are done already")
            left = (task for task in tasks[self.share] if task.index not in facts)
            facts |= self._complete(left, advance)
        result = [facts[task.index] for task in tasks if task.index in facts]
        self.facts += result
        return result

    def run_timed(
        self, stage: str, label: str, tasks: Sequence[Task], sides: int = 2
    ) -> list[Fact]:
        """Do the tasks of a step as `run` does; print and record its speed.

        Args:
            stage: the name of the step in the manifest.
            label, tasks: as for `run`.
            sides: the number of sides of the text that the step reads.
        """
        with self.timed(stage, sides * sum(task.lines for task in tasks)):
            return self.run(label, tasks)

    @contextlib.contextmanager
    def timed(self, stage: str, lines: int) -> Iterator[None]:
        """Print and record the speed of a step that reads this many lines, of all sides."""
        start, reused = time.perf_counter(), self.reused
        yield
        if self.reused > reused:
            console.say(f"{stage}: {counted(lines, 'line')}, some of them by an earlier call")
            return
        seconds = max(time.perf_counter() - start, 1e-6)
        speed = lines / seconds
        facts = {"stage": stage, "lines": lines, "seconds": round(seconds, 3)}
        self.speed.append(facts | {"lines_per_second": round(speed)})
        console.say(f"{stage}: {counted(lines, 'line')} in {seconds:.1f}s ({speed:,.0f} lines/s)")

    def run_here(self, task: Task) -> Fact:
        """Do a step of one task in this process, unless the task is done."""
        self.steps[task.step] = [task]
        fact = finished(self.work, task) or perform(self.work, task)
        self.facts.append(fact)
        return fact

    def _complete(self, tasks: Iterable[Task], advance: console.Advance) -> dict[int, Fact]:
        """Do tasks of one step on the engine, and return their facts by index."""
        facts = {}
        attempts = Counter[int]()
        later = deque(tasks)
        waiting: dict[Future[Fact], Task] = {}
        while later or waiting:
            while later and len(waiting) < self.engine.ahead:
                self._submit(later.popleft(), waiting, attempts)
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: f.cancelled() or f.exception() is not None):
                task = waiting.pop(future)
                try:
                    facts[task.index] = future.result()
                    advance(task.lines)
                except Damaged as damage:
                    console.warn(f"{damage.path} is damaged; {damage.where} is made again")
                    damaged = self.steps[damage.step][damage.index]
                    damaged.path(self.work).unlink(missing_ok=True)
                    perform(self.work, damaged)
                    later.appendleft(task)
                except CancelledError as error:
                    raise EnvironmentProblem(
                        "the cluster has dropped a task: its scheduler no longer answers",
                        where="--engine",
                        hint="what is done is kept: when the cluster is back, the same command goes"
                        " on",
                    ) from error
                except self.engine.lost:
                    later.appendleft(task)
                    if self.engine.renew():  # every other task that waits is lost too
                        later.extendleft(waiting.values())
                        waiting.clear()
                        break
        return facts

    def _submit(
        self, task: Task, waiting: dict[Future[Fact], Task], attempts: Counter[int]
    ) -> None:
        attempts[task.index] += 1
        if attempts[task.index] > ATTEMPTS:
            raise EnvironmentProblem(
                f"a worker process was killed {ATTEMPTS} times in step {task.step}",
                where=f"shard {task.index}",
                hint="memory may have run out: try fewer --jobs; what is done is kept, and the same"
                " command goes on",
            )
        try:
            future = self.engine.executor.submit(perform, self.work, task)
        except self.engine.lost as error:  # a worker was lost since the last task
            future = Future()
            future.set_exception(error)
        waiting[future] = task
