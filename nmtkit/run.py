"""A run directory: its paths, who may write to it, and the history of what was done in it (the
tree is in the README).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nmtkit
from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem, NmtkitError, nearest
from nmtkit.records import Manifest, TextSet, load
from nmtkit.settings import SECTIONS, to_toml

UNWRITABLE = files.UNWRITABLE | {errno.EACCES, errno.EPERM}
"""What says that a folder is not to be written in."""

NAMES = "use letters, digits, '-', '_' and '.', a letter or a digit first"


@dataclass(frozen=True)
class System:
    """One trained model of a run: the folder `systems/<name>`."""

    path: Path

    @property
    def name(self) -> str:
        """The name the person gave it, by default the variant's."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The resolved settings (config.toml)."""
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: training and validation measurements keyed by step."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints (step-00012000, …)."""
        return self.path / "checkpoints"

    def translation(self, set_name: str) -> Path:
        """The folder of this system's translation of a set (hyp.txt, hyp.subwords.txt,
        nbest.jsonl, meta.json).
        """
        return self.path / "translate" / set_name

    def read_config(self) -> dict[str, Any]:
        """The resolved settings as plain values: variant, preset, seed and the sections model,
        train, search.

        Raises: DataError if the system was never trained, or the file is damaged.
        """
        try:
            values = tomllib.loads(self.config.read_text("utf-8"))
            if not isinstance(values.get("variant"), str) or not all(
                isinstance(values.get(part, {}), dict) for part in SECTIONS
            ):
                raise ValueError("it has no variant, or a value for a section")
            return values
        except ValueError as error:  # not TOML and not UTF-8 among them
            hint = (
                "bring the file back from a copy, or train the system anew: nmtkit train --name"
                f" {self.name} --force"
            )
            raise DataError(
                f"the settings of '{self.name}' are damaged: {error}", where=self.config, hint=hint
            ) from error
        except FileNotFoundError:
            raise DataError(
                f"system '{self.name}' has not been trained",
                where=self.path,
                hint="nmtkit train --name " + self.name,
            ) from None


@dataclass(frozen=True)
class Run:
    """A run directory: one prepared corpus, many systems, their scores and analyses."""

    path: Path

    @property
    def prep(self) -> Path:
        """The prepared corpus."""
        return self.path / "prep"

    def manifest(self) -> Manifest:
        """Return what was prepared, how, and its fingerprint (prep/manifest.json).

        Raises: DataError if the run was never prepared, or the file is damaged.
        """
        path = self.prep / "manifest.json"
        if not path.is_file():
            raise DataError(
                "this run is not prepared",
                where=self.path,
                hint="nmtkit prep DATASET" + f" --run {self.path}",
            )
        return load(Manifest, path)

    def sets(self, split: str | None = None) -> list[TextSet]:
        """The prepared sets, of one split or all, in the order of the manifest."""
        return [s for s in self.manifest().sets if split in (None, s.split)]

    def text_set(self, name: str) -> TextSet:
        """A prepared set by name ("test" also finds the only test set).

        Raises: ConfigError naming the nearest set.
        """
        sets = {s.name: s for s in self.sets()}
        tests = self.sets("test")
        if name == "test" and name not in sets and len(tests) == 1:
            return tests[0]
        if name not in sets:
            raise ConfigError(
                f"this run has no set '{name}'", where=self.prep, hint=nearest(name, sets)
            )
        return sets[name]

    def source(self, set_name: str) -> Path:
        """The raw source text of a set."""
        return self.prep / "text" / f"{set_name}.src"

    def references(self, set_name: str) -> list[Path]:
        """The raw reference texts of a set: .ref, .ref1, …"""
        count = self.text_set(set_name).references
        return [self.prep / "text" / f"{set_name}.ref{i or ''}" for i in range(count)]

    def system(self, name: str) -> System:
        """The folder of one system, whether or not it exists.

        Raises: ConfigError for a name that is not a plain folder name.
        """
        if not name or name in {".", ".."} or "/" in name or "\\" in name or name.startswith("."):
            raise ConfigError(f"'{name}' cannot name a system", where="--name", hint=NAMES)
        return System(self.path / "systems" / name)

    def new_system(self, name: str) -> System:
        """The folder of a system that is to be trained; '+' joins the names of an ensemble
        (`ensemble-a+b`), so no system has it in its own.

        Raises: ConfigError for a name with anything but letters, digits, '-', '_' and '.', or that
            does not begin with a letter or a digit.
        """
        if not re.fullmatch(r"[^\W_][\w.-]*", name):
            raise ConfigError(f"'{name}' cannot name a system", where="--name", hint=NAMES)
        return self.system(name)

    def systems(self) -> list[System]:
        """The systems with at least a config, oldest first (so that the baseline trained first
        leads).
        """
        found = [System(p.parent) for p in (self.path / "systems").glob("*/config.toml")]
        return sorted(found, key=lambda s: (s.config.stat().st_mtime_ns, s.name))

    def find_system(self, name: str) -> System:
        """A trained system by name.

        Raises: ConfigError naming the nearest one.
        """
        names = [s.name for s in self.systems()]
        if name not in names:
            raise ConfigError(
                f"this run has no system '{name}'",
                where=self.path / "systems",
                hint=nearest(name, names) if names else "first: nmtkit train",
            )
        return self.system(name)

    @contextlib.contextmanager
    def recorded(
        self, stage: str, device: str | None = None, seed: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Write one line to history.jsonl when the stage call ends, however it ends.

        Yields: the record; a stage may add keys to it.
        """
        record: dict[str, Any] = {
            "stage": stage,
            "argv": sys.argv[1:],
            "version": nmtkit.__version__,
            "commit": code_commit(),
            "python": platform.python_version(),
        }
        record |= {"device": device, "seed": seed, "start": _now(), "end": None, "exit": 0}
        try:
            yield record
        except NmtkitError as error:
            record |= {"exit": error.exit_code, "error": error.message}
            raise
        except BaseException as error:
            record |= {
                "exit": 130 if isinstance(error, KeyboardInterrupt) else 1,
                "error": repr(error),
            }
            raise
        finally:
            record["end"] = _now()
            if self.path.is_dir():
                with (
                    contextlib.suppress(OSError),
                    open(self.path / "history.jsonl", "a", encoding="utf-8") as stream,
                ):
                    stream.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")


def choose(folder: Path | None) -> Run:
    """Return the run in a folder, else the one prepared last under ./runs; tell the user which.

    Raises: DataError if there is none.
    """
    run = Run(folder) if folder else _prepared_last(Path("runs"))
    if not run.path.is_dir():
        raise DataError(f"no run at {run.path}", hint=f"nmtkit prep DATASET --run {run.path}")
    console.say(f"run {run.path}")
    return run


def _prepared_last(root: Path) -> Run:
    prepared = sorted(root.glob("*/prep/manifest.json"), key=lambda p: p.stat().st_mtime_ns)
    if not prepared:
        raise DataError(
            "no prepared run under ./runs",
            hint="nmtkit prep DATASET (nmtkit datasets lists them), or name one with --run",
        )
    return Run(prepared[-1].parent.parent)


@contextlib.contextmanager
def locked(folder: Path, what: str, shared: bool = False) -> Iterator[None]:
    """Hold a folder for writing; a second writer is refused with the name of the first.

    The lock is the kernel's (flock), so it ends with its process even after kill -9; the file only
    says who holds it, a line each. Who shares a folder need not write in it: on a disk that is
    read-only or full the lock is held without a name in its file, or not at all if there is none.

    Args:
        folder: the folder to hold; it is made. Prep holds the run, training and translation hold
            their system and share the run.
        what: the stage, for the message of whoever comes second.
        shared: several holders of this kind may be in at once (but none that holds it alone).
    Raises: DataError naming host, process and age of each holder; EnvironmentProblem if the folder
        cannot be made, or held alone.
    """
    path = folder / ".lock"
    new = not folder.exists()
    stream = _opened(path, shared and not new)
    if stream is None:
        yield
        return
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "stage": what, "since": time.time()}
    held = False
    try:
        if not _taken(stream, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            raise DataError(
                f"{folder} is in use by {_holders(stream)}",
                where=path,
                hint="wait for it to end, or stop it",
            )
        held = True
        if not shared:
            stream.truncate(0)
        with contextlib.suppress(OSError) if shared else contextlib.nullcontext():
            _note(stream, holder)
        yield
    except BaseException:
        if (
            new and folder.is_dir() and [p.name for p in folder.iterdir()] == [path.name]
        ):  # nothing was begun: leave no trace
            path.unlink()
            folder.rmdir()
        raise
    finally:
        with contextlib.suppress(OSError):
            if held:
                _leave(stream, holder)
        stream.close()


def _opened(path: Path, shared: bool) -> IO[str] | None:
    """The file of a lock; for a sharer where nothing can be written, as it is, or None if it is
    not there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "a+", encoding="utf-8")
    except OSError as error:
        if not shared or error.errno not in UNWRITABLE:
            raise EnvironmentProblem(
                f"cannot write in {path.parent}: {error.strerror}",
                hint="choose a run folder that is writable",
            ) from error
    with contextlib.suppress(OSError):
        return open(path, encoding="utf-8")
    return None


def _taken(stream: IO[str], kind: int) -> bool:
    """Take a lock, if others leave it within a moment: the last one that goes holds it alone
    while it wipes its name.
    """
    for pause in (0.02, 0.05, 0.1, 0.0):
        with contextlib.suppress(OSError):
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
            return True
        time.sleep(pause)
    return False


def _note(stream: IO[str], holder: dict[str, Any]) -> None:
    """Add a line to a lock's file, which several sharers may do at once."""
    os.write(
        stream.fileno(), f"\n{json.dumps(holder)}".encode()
    )  # no buffer, which would fail again when it is closed


def _leave(stream: IO[str], holder: dict[str, Any]) -> None:
    """Take a holder's name out of a lock's file: by another line while others share it, by
    wiping it when this is the last.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stream.truncate(0)
    except OSError:
        _note(stream, {**holder, "left": True})


def _holders(stream: IO[str]) -> str:
    """Who holds a lock, by its file."""
    found: dict[tuple[Any, ...], str] = {}
    stream.seek(0)
    for line in stream:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            holder = json.loads(line)
            key = holder["host"], holder["pid"], holder["stage"], holder["since"]
            age = max(0.0, time.time() - holder["since"])  # clocks are set back now and then
            if holder.get("left") or (
                holder["host"] == socket.gethostname() and not _alive(holder["pid"])
            ):
                found.pop(key, None)
            else:
                found[key] = (
                    f"'{holder['stage']}' (process {holder['pid']} on {holder['host']}, for"
                    f" {age / 60:.0f} min)"
                )
    return ", ".join(found.values()) or "another process"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_toml(path: Path, values: dict[str, Any]) -> None:
    """Write plain values and sections as TOML, atomically."""
    files.write_text(path, to_toml(values))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def code_commit() -> str | None:
    """The commit of nmtkit's own checkout, where it runs from one."""
    folder = Path(nmtkit.__file__).parent
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
