"""The files and folders of the queue, and the locks that keep two workers apart."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nmtkit import files
from nmtkit.errors import DataError
from nmtkit.records import parse
from recipes.verdict.listing import Item, Row

REPEAT = "delete the system's folder in the results: the queue trains the system again"
"""The hint of the error for damaged results."""
TEXTS = "texts"
"""Folder of a corpus in the repository's results, beside the systems."""


@dataclass(frozen=True)
class Folders:
    """Paths of the queue.

    Attributes:
        state: folder of runs, locks, logs, failures and new results.
        results: folder of the results that the repository has.
    """

    state: Path
    results: Path

    def run(self, dataset: str) -> Path:
        """Return the run directory of a corpus."""
        return self.state / "runs" / dataset

    def systems(self, item: Item) -> Path:
        """Return the folder of all systems of an item's corpus."""
        return self.run(item.row.dataset) / "systems"

    def system(self, item: Item, rate: str | None = None) -> Path:
        """Return the folder of a system, or of the short training that tries a learning rate."""
        name = item.name if rate is None else f"{item.name}-rate-{rate}"
        return self.systems(item) / name

    def has_trained_first(self, item: Item) -> bool:
        """True if the system that an item comes after is finished, and the item can use it here.

        Its weights may be on another machine, but its settings are in the results.
        """
        if self._found(f"{item.row.dataset}/{item.after}") is None:
            return False
        weights = (self.systems(item) / item.after / "checkpoints").is_dir()
        return weights or "--init-from" not in item.row.options

    def restore_settings(self, item: Item) -> None:
        """Copy the settings of the system that an item comes after, if it was trained elsewhere."""
        config = self.systems(item) / item.after / "config.toml"
        results = self._found(f"{item.row.dataset}/{item.after}")
        if results is not None and not config.exists():
            copy(results / config.name, config)

    def lock(self, path: str) -> Path:
        """Return the file of a lock."""
        return self.state / "locks" / f"{path}.lock"

    def log(self, path: str) -> Path:
        """Return the file with the messages of all commands for a system or a corpus."""
        return self.state / "logs" / f"{path}.log"

    def result(self, item: Item) -> Path | None:
        """Return the folder with the results of a system; None if it is not finished."""
        return self._found(item.path)

    def rates(self, row: Row) -> Path | None:
        """Return the file with the choice of a learning rate; None if there is none yet."""
        return self._found(f"{row.dataset}/rates/{row.name}.json")

    def texts(self, dataset: str, name: str) -> list[Path]:
        """Return the files of a text, from the results if they are there, else from the prepared
        corpus; empty if neither has them.

        Args:
            name: SET.src for its sources, SET.ref for its references.
        """
        kept, prepared = self.results / dataset / TEXTS, self.run(dataset) / "prep" / "text"
        return sorted(kept.glob(f"{name}*")) or sorted(prepared.glob(f"{name}*"))

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
        wait: wait until no other process holds the lock.
    Yields: the file's descriptor; a child process that inherits it still holds the lock if this
        process is killed. None if another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as stream:
        if wait:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield stream.fileno()
        else:
            yield stream.fileno() if _take(stream) else None


def _take(stream: IO[str]) -> bool:
    """Take a lock; return False if another process holds it."""
    for pause in (0.02, 0.1, 0.0):  # `is_held` holds a lock for a moment
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def copy(source: Path, target: Path, hint: str = REPEAT) -> None:
    """Copy a file or a folder, and make the folder that it is in.

    Raises: DataError with the hint if it is missing.
    """
    if not source.exists():
        raise DataError(f"no {source.name}", where=source.parent, hint=hint)
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text("utf-8"))


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object a line; none if there is no file. A last
    line without its end is left out.

    Raises: DataError naming the first line that is no JSON object.
    """
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").splitlines(keepends=True)
    whole = [(n, line) for n, line in enumerate(lines, 1) if line.endswith("\n")]
    again = "take the line out of the file"
    return [parse(dict[str, Any], line, f"{path}, line {n}", again) for n, line in whole]
