"""Where the queue keeps its state, and the locks that keep two workers apart."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.records import parse
from recipes.verdict.listing import Item, Row

TEXTS = "texts"
"""Folder of a corpus in the repository's results, beside the systems."""


@dataclass(frozen=True)
class Folders:
    """The folder of the state (runs, locks, logs, failures, results), and that of the results that
    the repository has.
    """

    state: Path
    results: Path

    def run(self, dataset: str) -> Path:
        """Return the run directory of a corpus."""
        return self.state / "runs" / dataset

    def system(self, item: Item, rate: str | None = None) -> Path:
        """Return a system of the run; with a rate, the short training that tries this rate."""
        name = item.name if rate is None else f"{item.name}-rate-{rate}"
        return self.run(item.row.dataset) / "systems" / name

    def has_trained(self, item: Item, row: str) -> bool:
        """True if a row is finished with the seed of an item, and the item can use it here.

        Its weights may be on another machine, but its settings are in the results.
        """
        name = f"{row}-s{item.seed}"
        if self._found(f"{item.row.dataset}/{name}") is None:
            return False
        weights = (self.run(item.row.dataset) / "systems" / name / "checkpoints").is_dir()
        return weights or "--init-from" not in item.row.options

    def restore_settings(self, item: Item) -> None:
        """Copy the settings of the system that an item comes after, if it was trained elsewhere."""
        name = f"{item.row.after}-s{item.seed}"
        config = self.run(item.row.dataset) / "systems" / name / "config.toml"
        results = self._found(f"{item.row.dataset}/{name}")
        if results is not None and not config.exists():
            config.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / config.name, config)

    def lock(self, path: str) -> Path:
        """Return the file of a lock."""
        return self.state / "locks" / f"{path}.lock"

    def log(self, path: str) -> Path:
        """Return the file with the messages of all commands for a system or a corpus."""
        return self.state / "logs" / f"{path}.log"

    def result(self, item: Item) -> Path | None:
        """Return what a finished system left; None if it is not finished."""
        return self._found(item.path)

    def rates(self, row: Row) -> Path | None:
        """Return the file with the choice of a learning rate; None if there is none yet."""
        return self._found(f"{row.dataset}/rates/{row.name}.json")

    def texts(self, dataset: str, name: str) -> list[Path]:
        """Return the files of a text: of the results, else of the prepared corpus; empty if neither
        is here.

        Args:
            name: SET.src for its sources, SET.ref for its references.
        """
        kept, prepared = self.results / dataset / TEXTS, self.run(dataset) / "prep" / "text"
        of_both = (sorted(folder.glob(f"{name}*")) for folder in (kept, prepared))
        return next(filter(None, of_both), [])

    def _found(self, name: str) -> Path | None:
        paths = (folder / name for folder in (self.state / "results", self.results))
        return next((path for path in paths if path.exists()), None)

    def failure(self, path: str) -> str | None:
        """Return why a system, or the preparation of a corpus, has failed; None if it has not."""
        file = self._failure(path)
        return str(read_json(file)["reason"]) if file.is_file() else None

    def fail(self, path: str, reason: str) -> None:
        """Note a failure: no worker takes the system again."""
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        files.write_json(self._failure(path), {"reason": reason, "when": when})

    def forget_failure(self, path: str) -> bool:
        """Let workers take a system again; return True if it had failed."""
        file = self._failure(path)
        failed = file.is_file()
        file.unlink(missing_ok=True)
        return failed

    def _failure(self, path: str) -> Path:
        return self.state / "failed" / f"{path}.json"


@contextlib.contextmanager
def held(path: Path, wait: bool = False) -> Iterator[int | None]:
    """Hold a lock of the kernel: it ends with its last holder, even after kill -9.

    Args:
        path: its file.
        wait: wait for another holder to go.
    Yields: the file's descriptor, for child processes that go on holding it if this process is
        killed; None if another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as stream:
        yield stream.fileno() if _taken(stream.fileno(), wait) else None


def _taken(descriptor: int, wait: bool) -> bool:
    if wait:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    for pause in (0.02, 0.1, 0.0):  # `is_held` holds a lock for a moment
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(pause)
    return False


def is_held(path: Path) -> bool:
    """True if some process holds a lock."""
    if not path.is_file():
        return False
    with open(path, encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text("utf-8"))


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of one a line; a last line that was cut off is left out.

    Raises: DataError naming the first line that is no JSON object.
    """
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").splitlines(keepends=True)
    whole = [(n, line) for n, line in enumerate(lines, 1) if line.endswith("\n")]
    again = "take the line out of the file"
    return [parse(dict[str, Any], line, f"{path}, line {n}", again) for n, line in whole]
