"""The trainings of a recipe with PARALLEL=K: K at once, with a table of what each is doing.

python -m recipes.trainings K RUN < QUEUE

For each training the queue has the number of arguments of `nmtkit train`, then the arguments, each
followed by a zero byte. A training that names another one (--match-parameters, --init-from) waits
until that one is done. If one fails, the others save and stop, and the recipe ends with its
exit code; the same command continues. If the recipe itself is killed, all save and stop.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table

from nmtkit.errors import NmtkitError
from nmtkit.locks import locked
from nmtkit.parallel import cores
from nmtkit.run import Run
from recipes.verdict.measured import measured
from recipes.verdict.worker import last_message
from recipes.workers import STOPPED, Workers

EVERY = 10.0
"""Seconds between two drawings of the table on a terminal; each reads all measurements."""
LOGS = "recipes/logs"
"""The folder of the run in which each training has its log."""


@dataclass
class Training:
    """A training of the queue.

    Attributes:
        arguments: of `nmtkit train`.
        state: waiting, running, done, stopped or failed.
    """

    arguments: list[str]
    state: str = "waiting"
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The name of its system."""
        return self.arguments[self.arguments.index("--system") + 1]

    def names(self, other: Training) -> bool:
        """True if this training needs another one."""
        return other is not self and other.name in self.arguments


def read(queue: bytes) -> list[Training]:
    """Return the trainings of a queue, each name once."""
    words = iter(queue.decode("utf-8").split("\0")[:-1])
    trainings = [Training([next(words) for _ in range(int(count))]) for count in words]
    return list({training.name: training for training in trainings}.values())


class Trainings:
    """Trains systems of one run side by side.

    Args:
        trainings: in the order in which they begin.
        run: the run directory.
        at_once: trainings that run at the same time.
    """

    def __init__(self, trainings: list[Training], run: Run, at_once: int) -> None:
        self._trainings, self._run, self._at_once = trainings, run, at_once
        self._workers, self._drawn = Workers(), 0.0
        self._recipe = os.getppid()
        terminal = Console(stderr=True)
        self._live = Live(console=terminal, auto_refresh=False) if terminal.is_terminal else None
        # No more threads than cores, or they wait for each other.
        threads = max(1, cores() // at_once)
        self._environment = {"OMP_NUM_THREADS": str(threads), **os.environ}

    def work(self) -> int:
        """Train all systems; return 0, or the exit code of the first training that failed."""
        self._workers.listen()
        if self._live:
            self._live.start()
        try:
            while True:
                self._start_ready()
                if not self._workers.running:
                    return self._workers.code
                self._end(*self._workers.next_ended(self._meanwhile))
        finally:
            if self._live:
                self._live.update(self.table())
                self._live.stop()
            else:
                Console(stderr=True, width=100).print(self.table())

    def _start_ready(self) -> None:
        for training in self._trainings:
            if self._workers.code or len(self._workers.running) == self._at_once:
                return
            needed = [other for other in self._trainings if training.names(other)]
            ready = all(other.state == "done" for other in needed)
            if training.state == "waiting" and ready:
                with open(self._log(training), "wb") as out:
                    command = ["nmtkit", "train", *training.arguments]
                    training.process = self._workers.start(
                        command, stdout=out, stderr=out, env=self._environment
                    )
                self._change(training, "running")

    def _meanwhile(self) -> None:
        if os.getppid() != self._recipe and not self._workers.code:
            self._workers.stop(STOPPED)
        if self._live and time.monotonic() - self._drawn > EVERY:
            self._live.update(self.table(live=True), refresh=True)
            self._drawn = time.monotonic()

    def _log(self, training: Training) -> Path:
        return self._run.path / LOGS / f"{training.name}.log"

    def _end(self, process: subprocess.Popen[bytes], code: int) -> None:
        training = next(t for t in self._trainings if t.process is process)
        stopping = self._workers.code
        self._change(training, "stopped" if stopping and code else "failed" if code else "done")
        if code and not stopping:
            log = self._log(training)
            print(f"{training.name}: {last_message(log, 0)}\n  in: {log}", file=sys.stderr)
            self._workers.stop(code)

    def _change(self, training: Training, state: str) -> None:
        training.state, self._drawn = state, 0.0
        if not self._live:
            print(f"{training.name}: {state} ({self._done()})", file=sys.stderr, flush=True)

    def _done(self) -> str:
        done = sum(training.state == "done" for training in self._trainings)
        return f"{done} of {len(self._trainings)} done"

    def table(self, live: bool = False) -> Table:
        """Return a table of the trainings.

        A live table leaves out what waits or is done, as a terminal cuts a long table at its end.
        """
        table = Table(
            Column("system", overflow="fold"),
            "state",
            "step",
            "loss",
            "tokens/s",
            "dev BLEU",
            "best at step",
            title=self._done() if live else None,
        )
        for training in self._trainings:
            if live and training.state in {"waiting", "done"}:
                continue
            system = self._run.system(training.name)
            now = measured(system.path)
            last, best = now.progress or {}, now.best or {}
            numbers = [last.get("nll"), last.get("tgt_tokens_per_s"), best.get("dev_bleu")]
            cells = [f"{now.updates:,}", *map(_text, numbers), str(best.get("step", ""))]
            table.add_row(training.name, training.state, *cells)
        return table


def _text(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.2f}"


def main() -> None:
    """Train the queue on stdin; refuse a second recipe of the same run."""
    at_once, run = int(sys.argv[1]), Run(Path(sys.argv[2]))
    trainings = Trainings(read(sys.stdin.buffer.read()), run, at_once)
    try:
        with locked(run.path / LOGS, "recipe"):
            sys.exit(trainings.work())
    except NmtkitError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
