"""Reports of a training: lines on stderr and in train.log, a bar on a terminal, metrics.jsonl, and
curves elsewhere (`train.log_to`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
from pathlib import Path

import torch

from nmtkit import console, files
from nmtkit.errors import DataError, counted
from nmtkit.records import MetricsLine, parse
from nmtkit.run import System
from nmtkit.settings import TrainSettings
from nmtkit.train.loggers import Logger, Samples, make_logger
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState, Window
from nmtkit.train.stop import seconds_left


class Reporter:
    """Reports the measurements of a training. Lines of repeated updates replace the old lines.

    Args:
        system: whose files these are.
        state: with which the training begins: later lines of metrics.jsonl are removed.
        ranks: the processes that train together; only rank 0 writes.
        settings: max_steps, log_to.
    """

    def __init__(
        self, system: System, state: TrainState, ranks: Ranks, settings: TrainSettings
    ) -> None:
        self._system, self._ranks, self._settings = system, ranks, settings
        self._logged = Window()  # the updates of the last line of the log
        paths = [system.path / "train.log", system.metrics]
        self._logger = Logger()
        if ranks.first:
            system.path.mkdir(parents=True, exist_ok=True)
            cut_metrics(system, state)
            self._logger = make_logger(settings.log_to, system, state.step)
        else:
            paths = [Path(os.devnull)] * 2
        self._log, self._metrics = map(files.appending, paths)
        self._bar = console.Bar(state.step, settings.max_steps)

    def close(self) -> None:
        """Remove the bar and close the files."""
        self._bar.close()
        for stream in (self._log, self._metrics):
            with contextlib.suppress(OSError):  # a full disk was reported when it mattered
                stream.close()
        self._logger.close()

    def say(self, message: str, brief: str | None = None) -> None:
        """Print a line on stderr and, with the time, in train.log; above a bar print `brief`."""
        console.say(brief if brief and self._bar.shown else message)
        self.note(message)

    def detail(self, message: str) -> None:
        """Write a line to train.log; print the line too, unless a bar shows how far training is."""
        if not self._bar.shown:
            console.say(message)
        self.note(message)

    def note(self, message: str) -> None:
        """Write a line to train.log; on a full disk it is written later."""
        with contextlib.suppress(OSError):  # only checkpoints and metrics end the training
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
            self._log.flush()

    def record(self, kind: str, step: int, values: files.JsonObject) -> None:
        """Write a line of metrics.jsonl, null for what is not finite, and log the numbers.

        Raises: EnvironmentProblem if the disk is full, because nobody would notice a missing line.
        """
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        }
        line = json.dumps({"step": step, "kind": kind, **clean}, ensure_ascii=False)
        try:
            self._metrics.write(line + "\n")
            self._metrics.flush()
        except OSError as error:
            hint = "free some space; the same command continues from the last checkpoint"
            raise files.unwritable(self._system.metrics, error, hint) from error
        numbers = {key: value for key, value in clean.items() if isinstance(value, (int, float))}
        self._logger.numbers(kind, step, numbers)

    def samples(self, step: int, samples: Samples) -> None:
        """Report sample translations."""
        self._logger.samples(step, samples)
        for sample in samples:
            for label, text in zip(("source", "reference", "translation"), sample, strict=True):
                self.detail(f"  {label:11} {text}")

    def progress(
        self, state: TrainState, epoch: float, rate: float, at_the_end: bool = False
    ) -> None:
        """Report the updates since the last line of the log.

        Args:
            epoch: passes over the data, with fraction.
            rate: the learning rate now.
            at_the_end: True if the training ends here.
        """
        values = _values(epoch, state.log, rate, self._ranks.world)
        self.record("train", state.step, values)
        line = _describe(values)
        if self._ranks.world > 1:
            line += f" in the first of {self._ranks.world} processes"
        if not at_the_end:
            self._logged = state.log
            line += self._time_left(state)
        last = self._settings.max_steps
        self.detail(f"step {state.step:,}/{last:,}, epoch {epoch:.2f}: {line}")

    def _time_left(self, state: TrainState) -> str:
        return f", {console.duration(seconds_left(state, self._settings, self._logged))} left"

    def move_bar(self, state: TrainState) -> None:
        """Show the step and, beside the bar, loss and speed of the last line and the time left."""
        window, text = self._logged, ""
        if window.tokens and self._bar.shown:  # all updates may have been skipped
            loss, speed = window.nll / window.tokens, window.tokens / max(1e-9, window.seconds)
            text = f"loss {loss:.3f}, {speed:,.0f} target tokens/s{self._time_left(state)}"
        self._bar.move(state.step, text)

    def validating(self, step: int) -> None:
        """Show beside the bar that a validation runs."""
        self._bar.move(step, "validating")


def _values(epoch: float, window: Window, rate: float, world: int) -> files.JsonObject:
    """Return a line of metrics.jsonl about some updates."""
    tokens = max(1, window.tokens)
    return {
        "epoch": round(epoch, 4),
        "updates": window.steps,
        "loss": window.smoothed / tokens,
        "nll": window.nll / tokens,
        "lr": rate,
        "grad_norm": window.norm / max(1, window.steps),
        "tgt_tokens": window.tokens,
        "tgt_tokens_per_s": round(window.tokens / max(1e-9, window.seconds), 1),
        "padding": round(window.padding / max(1, window.positions), 5),
        "memory_gib": round(memory() / 2**30, 3),
        "processes": world,
        "seconds": round(window.seconds, 3),
        "cpu_seconds": round(window.cpu, 3),
    }


def _describe(values: files.JsonObject) -> str:
    """Return the values of a line of metrics.jsonl as a line of the log."""
    loss, nll = values["loss"], values["nll"]
    smoothed = f" ({loss:.3f} label-smoothed)" if f"{loss:.3f}" != f"{nll:.3f}" else ""
    ppl = perplexity(nll)
    shown = f"{ppl:,.0f}" if 1000 <= ppl < 1e9 else f"{ppl:.4g}"
    return (
        f"loss {nll:.3f}{smoothed}, perplexity {shown}, lr {values['lr']:.3g},"
        f" {values['tgt_tokens_per_s']:,.0f} target tokens/s, {values['padding']:.1%} padding,"
        f" {values['memory_gib']:.2f} GiB"
    )


def perplexity(nll: float) -> float:
    """Return the perplexity of a loss per token."""
    return math.exp(min(nll, 700.0))


def memory() -> int:
    """Return the peak memory of this process in bytes: on a GPU if it uses one, else resident."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def cut_metrics(system: System, state: TrainState) -> None:
    """Remove the lines of metrics.jsonl that are later than a state, and a line that is cut off.

    The last step may have a checkpoint from before its validation, which is then repeated.
    """
    if not system.metrics.is_file():
        return
    lines, damaged = [], 0
    for line in system.metrics.read_text("utf-8", errors="replace").splitlines():
        try:
            of_line = parse(MetricsLine, line, system.metrics)
            if of_line.step <= (state.validated if of_line.kind == "dev" else state.step):
                lines.append(line)
        except DataError:
            damaged += 1
    if damaged:
        console.warn(f"{system.metrics}: {counted(damaged, 'damaged line')} removed")
    files.write_lines(system.metrics, lines)
