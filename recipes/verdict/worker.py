"""The work on one system: choose its learning rate, train, translate, analyze and score it.

Every step is a command that a person could type. A command continues where it stopped, so another
worker repeats the commands of a worker that was killed.
"""

from __future__ import annotations

import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from recipes.verdict import leavings
from recipes.verdict.folders import Folders, held, read_json
from recipes.verdict.listing import Item
from recipes.verdict.measured import measured
from recipes.workers import STOPPED, on_stop

REFUSED, ENVIRONMENT, DIVERGED = 2, 3, 4
"""Exit codes of nmtkit."""
INTERRUPTED = {STOPPED, 130}


class Failed(Exception):
    """A command has refused a system; the message is the reason."""


class Stopped(Exception):
    """The worker was asked to stop, or a command was killed: the same command continues."""


class NoRoom(Exception):
    """A command has failed because of the machine, for example because the disk is full."""


@dataclass
class Commands:
    """Runs commands in the folder of the state, and passes SIGTERM on to them.

    Args:
        folders: of the queue.
        log: receives everything that the commands print.
        lock: descriptor of the lock; a command still holds the lock if this process is killed.
    """

    folders: Folders
    log: Path
    lock: int
    stopping: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def listen(self) -> None:
        """Stop after a signal."""
        on_stop(self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def run(self, *command: str, allowed: int = 0) -> int:
        """Run a command and return its exit code.

        Args:
            command: the program and its arguments.
            allowed: an exit code beside 0 that is no failure.
        Raises: Failed, Stopped, NoRoom.
        """
        if self.stopping:
            raise Stopped
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            begin = log.tell()
            self.process = subprocess.Popen(
                command, cwd=self.folders.state, stdout=log, stderr=log, pass_fds=[self.lock]
            )
            if self.stopping:  # the signal came between the first check and the start
                self.process.send_signal(signal.SIGTERM)
            code = self.process.wait()
        self.process = None
        if code in {0, allowed}:
            return code
        if self.stopping or code < 0 or code in INTERRUPTED:
            raise Stopped
        reason = last_message(self.log, begin)
        raise NoRoom(reason) if code == ENVIRONMENT else Failed(reason)


def last_message(log: Path, begin: int) -> str:
    """Return the last message in a log from a position on: its last line that is not indented."""
    text = log.read_bytes()[begin:].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    return re.sub("^(nmtkit|verdict): ", "", lines[-1]) if lines else "no message"


@dataclass
class Worker:
    """The work on one training of the list."""

    item: Item
    folders: Folders
    commands: Commands
    device: list[str]

    def work(self) -> None:
        """Do all steps that are left, and keep the results.

        Raises: Failed, Stopped, NoRoom.
        """
        item, run = self.item, ["--run", self.item.run]
        if item.after:
            self.folders.restore_settings(item)
        rate = self.rate()
        self._continue_trial(rate)
        self._train(item.name, rate)
        one = ["--system", item.name]
        self.commands.run("nmtkit", "translate", *run, *one, "--jobs", "1", *self.device)
        findings = self._findings(*run, *one)
        with held(self.folders.lock(f"{item.row.dataset}/score"), wait=True):
            self.commands.run("nmtkit", "score", *run, *one, "--against", item.name)
            leavings.keep(item, rate, self.folders, findings)
        leavings.remove_training_state(self.folders.system(item))

    def _findings(self, *system: str) -> dict[str, bytes]:
        """Analyze the system; return the content of each finding by its label.

        There is no finding if nmtkit refuses an analysis: the model may lack the analyzed part.
        """
        findings = {}
        for label, name, *options in self.item.row.analyses:
            with held(self.folders.lock(f"{self.item.row.dataset}/analyze"), wait=True):
                command = ["nmtkit", "analyze", name, *system, *options]
                if self.commands.run(*command, allowed=REFUSED) == 0:
                    run = self.folders.run(self.item.row.dataset)
                    findings[label] = (run / "analyze" / name / "finding.json").read_bytes()
        return findings

    def _train(self, name: str, rate: str, *more: str, allowed: int = 0) -> int:
        seed = str(self.item.seed)
        command = ["nmtkit", "train", "--run", self.item.run, "--system", name, "--seed", seed]
        options = [*self.item.options, "--set", f"train.lr={rate}", *more, *self.device]
        return self.commands.run(*command, *options, allowed=allowed)

    def rate(self) -> str:
        """Return the learning rate of the row; choose it if no seed has done so yet.

        Raises: as `work`.
        """
        row = self.item.row
        if len(row.rates) == 1:
            return row.rates[0]
        if path := self.folders.rates(row):
            return str(read_json(path)["chosen"])
        trials = [self._trial(rate) for rate in row.rates]
        chosen = best_rate(trials)
        leavings.keep_rates(self.item, trials, chosen, self.folders)
        return chosen

    def _trial(self, rate: str) -> dict[str, Any]:
        """Train for the first updates with a learning rate; return rate, dev scores and cost."""
        system = self.folders.system(self.item, rate)
        limit = ["--set", f"train.max_steps={self.item.row.updates}"]
        code = self._train(system.name, rate, *limit, allowed=DIVERGED)
        found = measured(system)
        last = {} if code == DIVERGED else found.last or {}
        return {
            "rate": rate,
            "updates": found.updates,
            "diverged": not last,
            "dev_loss": last.get("dev_loss"),
            "dev_bleu": last.get("dev_bleu"),
            "training_seconds": round(found.training, 1),
            "validation_seconds": round(found.validation, 1),
        }

    def _continue_trial(self, rate: str) -> None:
        """Rename the trial with the chosen rate, so that the training continues it."""
        trial, system = self.folders.system(self.item, rate), self.folders.system(self.item)
        if self.item.chooses_rate and trial.is_dir() and not system.exists():
            trial.rename(system)


def best_rate(trials: list[dict[str, Any]]) -> str:
    """Return the learning rate with the lowest dev loss.

    Raises: Failed if the trainings of all rates diverged.
    """
    learning = [trial for trial in trials if not trial["diverged"]]
    if not learning:
        raise Failed("diverges with every learning rate")
    return str(min(learning, key=lambda trial: trial["dev_loss"])["rate"])
