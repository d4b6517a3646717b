"""`train.log_to`: curves and sample translations in TensorBoard or Weights & Biases."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from nmtkit import console, files
from nmtkit.errors import EnvironmentProblem, first_line
from nmtkit.names import Name
from nmtkit.records import Record, load
from nmtkit.run import System

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}
SETTING = "train.log_to"
Samples = Sequence[tuple[str, str, str]]
"""Source, reference and translation of some sentences."""


class WandbRun(Record):
    """The run of Weights & Biases of a system; logged: the last step of each kind."""

    again: ClassVar[str] = "without the file the next training logs to a new run"
    id: Name
    logged: dict[str, int] = {}


class Logger:
    """Logs nothing: train.log_to=none."""

    def numbers(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log measurements of a step; kind: train or dev."""

    def samples(self, step: int, samples: Samples) -> None:
        """Log sample translations."""

    def close(self) -> None:
        """Write the remaining values."""


class TensorBoard(Logger):
    """Logs to the folder `tensorboard` of a system.

    Args:
        system: the system.
        step: where the training begins; TensorBoard hides later steps of an earlier training.
    """

    def __init__(self, system: System, step: int) -> None:
        board = importlib.import_module(MODULES["tensorboard"])
        folder = system.path / "tensorboard"
        files.check_place(folder)
        self._board: Any = None
        # An error of TensorBoard's thread is raised here too, and becomes a warning.
        self._excepthook, threading.excepthook = threading.excepthook, self._of_a_thread
        with self._ends_with_the_disk():
            self._board = board.SummaryWriter(str(folder), purge_step=step + 1)

    def numbers(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._write("add_scalar", f"{kind}/{key}", value, step)

    def samples(self, step: int, samples: Samples) -> None:
        for number, texts in enumerate(samples):
            self._write("add_text", f"samples/{number}", "  \n".join(texts), step)

    def close(self) -> None:
        self._write("close")
        threading.excepthook = self._excepthook

    def _write(self, method: str, *values: Any) -> None:
        if self._board is None:
            return
        with self._ends_with_the_disk():
            getattr(self._board, method)(*values)

    @contextlib.contextmanager
    def _ends_with_the_disk(self) -> Iterator[None]:
        """If the disk fails, end the curves of TensorBoard, not the training."""
        try:
            yield
        except OSError as error:
            console.warn(f"TensorBoard gets no further curves: {error}")
            self._board = None

    def _of_a_thread(self, error: Any) -> None:
        """Print the traceback of a thread, unless it is one of TensorBoard's."""
        if not type(error.thread).__module__.startswith("tensorboard."):
            self._excepthook(error)


class WeightsAndBiases(Logger):
    """Logs to a run of Weights & Biases; WANDB_MODE=offline needs no network.

    The file `wandb.json` of the system has the id of the run and the last step of each kind that
    was logged. A resumed training logs only later steps, because the service cannot go back.

    Args:
        system: its settings become the configuration.
    Raises: EnvironmentProblem if wandb does not start; DataError if `wandb.json` is damaged.
    """

    def __init__(self, system: System) -> None:
        self._wandb: Any = importlib.import_module(MODULES["wandb"])
        self._path = system.path / "wandb.json"
        files.check_place(system.path / "wandb")
        self._kept = _read_or_new(self._path)
        self._kept.write(self._path)
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "nmtkit",
                name=f"{system.path.parent.parent.name}/{system.name}",
                id=self._kept.id,
                resume="allow",
                dir=str(system.path),
                config=system.read_config().model_dump(),
                settings={"console": "off"},
            )
        except Exception as error:  # its errors have no common class
            raise EnvironmentProblem(
                f"wandb does not start: {first_line(error)}",
                where=SETTING,
                hint="wandb login, or WANDB_MODE=offline in the environment",
            ) from error
        self._run.define_metric("updates")
        self._run.define_metric("*", step_metric="updates")

    def numbers(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        self._log(kind, step, {f"{kind}/{key}": value for key, value in values.items()})

    def samples(self, step: int, samples: Samples) -> None:
        if samples:
            columns = ["source", "reference", "translation"]
            table = self._wandb.Table(columns=columns, data=[list(texts) for texts in samples])
            self._log("samples", step, {"samples": table})

    def _log(self, kind: str, step: int, values: files.JsonObject) -> None:
        if step > self._kept.logged.get(kind, 0):
            self._run.log({"updates": step, **values})
            self._kept.logged[kind] = step
            self._kept.write(self._path)

    def close(self) -> None:
        self._run.finish()


def _read_or_new(path: Path) -> WandbRun:
    """Return the run in a file, or a new run if there is no file."""
    if path.is_file():
        return load(WandbRun, path)
    return WandbRun(id=os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4))


def check_installed(log_to: str) -> None:
    """Raise EnvironmentProblem if the package of a logger is missing."""
    if log_to in MODULES and not _installed(log_to):
        raise EnvironmentProblem(
            f"{SETTING}={log_to} needs the package {log_to}, which is not installed",
            where=SETTING,
            hint=f"in nmtkit's checkout: pip install -e '.[{log_to}]'; or --set {SETTING}=none",
        )


def _installed(name: str) -> bool:
    try:
        importlib.import_module(MODULES[name])
    except ImportError:
        return False
    return True


def make_logger(log_to: str, system: System, step: int) -> Logger:
    """Return the logger of train.log_to, after `check_installed`; auto: TensorBoard if installed.

    Args:
        system, step: as of the loggers.
    """
    if log_to == "wandb":
        return WeightsAndBiases(system)
    if log_to == "tensorboard" or (log_to == "auto" and _installed("tensorboard")):
        return TensorBoard(system, step)
    return Logger()
