"""What a training tells: a line now and then on stderr and in train.log, metrics.jsonl,
TensorBoard where it is installed.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from typing import Any

import torch

from nmtkit import console, files
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.records import MetricsLine, parse
from nmtkit.run import System
from nmtkit.train.state import Window


class Reporter:
    """Writes a training's measurements; metrics are keyed by step, so that a repeated stretch never
    shows twice.

    Args:
        system: whose files these are.
        step: where training begins: lines of metrics.jsonl beyond it are cut.
        processes: that train together.
    """

    def __init__(self, system: System, step: int, processes: int = 1) -> None:
        self._system, self._processes = system, processes
        system.path.mkdir(parents=True, exist_ok=True)
        cut_metrics(system, step)
        self._log = open(system.path / "train.log", "a", encoding="utf-8")
        self._metrics = open(system.metrics, "a", encoding="utf-8")
        self._board = _board(system, step)

    def close(self) -> None:
        """Close the files."""
        for stream in (self._log, self._metrics):
            with contextlib.suppress(OSError):  # a full disk, which was said when it mattered
                stream.close()
        if self._board is not None:
            self._board.close()

    def say(self, message: str, warning: bool = False) -> None:
        """One line on stderr and, with the time, in train.log (later, if the disk is full now)."""
        if warning:
            console.warn(message)  # which train.log hears, as it hears all warnings
        else:
            console.say(message)
            self.note(message)

    def note(self, message: str) -> None:
        """One line in train.log alone."""
        with contextlib.suppress(
            OSError
        ):  # of itself no reason to end: checkpoints and metrics decide that
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
            self._log.flush()

    def record(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One line of metrics.jsonl, and the numbers to TensorBoard; what is not finite is written
        as null.

        Raises: EnvironmentProblem if the disk is full: a curve with a hole in it would not be
            noticed.
        """
        clean = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in values.items()
        }
        try:
            self._metrics.write(
                json.dumps(
                    {"step": step, "kind": kind, **clean}, ensure_ascii=False, allow_nan=False
                )
                + "\n"
            )
            self._metrics.flush()
        except OSError as error:
            hint = "free some space; the same command continues from the last checkpoint"
            raise EnvironmentProblem(
                f"cannot write {self._system.metrics.name}: {error.strerror}",
                where=self._system.metrics,
                hint=hint,
            ) from error
        if self._board is not None:
            for key, value in clean.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{kind}/{key}", value, step)

    def progress(
        self,
        step: int,
        last_step: int,
        epoch: float,
        window: Window,
        rate: float,
        left: float | None,
    ) -> None:
        """Report a stretch of training.

        Args:
            step, last_step: updates done, and in all.
            epoch: passes over the data, with fraction.
            window: sums over the stretch.
            rate: learning rate now.
            left: seconds to go, None if unknown.
        """
        tokens, seconds = max(1, window.tokens), max(1e-9, window.seconds)
        values = {
            "epoch": round(epoch, 4),
            "updates": window.steps,
            "loss": window.smoothed / tokens,
            "nll": window.nll / tokens,
            "lr": rate,
            "grad_norm": window.norm / max(1, window.steps),
            "tgt_tokens": window.tokens,
            "tgt_tokens_per_s": round(window.tokens / seconds, 1),
            "padding": round(window.padding / max(1, window.positions), 5),
            "memory_gib": round(memory() / 2**30, 3),
            "processes": self._processes,
            "seconds": round(window.seconds, 3),
            "cpu_seconds": round(window.cpu, 3),
        }
        self.record("train", step, values)
        self.say(
            f"step {step:,}/{last_step:,}, epoch {epoch:.2f}:"
            f" {_losses(values['loss'], values['nll'])}, lr {rate:.3g},"
            f" {values['tgt_tokens_per_s']:,.0f} target tokens/s, {100 * values['padding']:.1f}%"
            f" padding, {values['memory_gib']:.2f} GiB"
            + (f" in the first of {self._processes} processes" if self._processes > 1 else "")
            + (f", {console.duration(left)} left" if left is not None else "")
        )


class Silent(Reporter):
    """Writes and says nothing: the reporter of a process that is not the first of its training."""

    def __init__(self) -> None:
        self._processes = 1

    def close(self) -> None:
        """Nothing is open."""

    def say(self, message: str, warning: bool = False) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""

    def record(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Nothing."""


def _losses(smoothed: float, nll: float) -> str:
    """The loss that is trained on, and the perplexity with the loss that it is of."""
    perplexity = math.exp(min(nll, 700.0))
    shown = (
        f"perplexity {perplexity:,.0f}"
        if 1000 <= perplexity < 1e9
        else f"perplexity {perplexity:.4g}"
    )
    same = f"{smoothed:.3f}" == f"{nll:.3f}"
    return (
        f"loss {nll:.3f}, {shown}"
        if same
        else f"loss {nll:.3f} ({smoothed:.3f} label-smoothed), {shown}"
    )


def memory() -> int:
    """The most memory this process held so far, in bytes: on the GPU if there is one in use,
    else resident.
    """
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def cut_metrics(system: System, step: int) -> None:
    """Drop the lines of metrics.jsonl beyond a step, and a line that was cut off in the middle."""
    if not system.metrics.is_file():
        return
    kept = []
    for line in system.metrics.read_text("utf-8", errors="replace").splitlines():
        with contextlib.suppress(DataError):
            if parse(MetricsLine, line, system.metrics).step <= step:
                kept.append(line)
    files.write_lines(system.metrics, kept)


def _board(system: System, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(system.path / "tensorboard"), purge_step=step + 1)  # type: ignore[no-untyped-call]
