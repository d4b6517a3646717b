"""Locks of folders: a second writer gets an error that names the first."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from nmtkit import console, files, folders
from nmtkit.errors import DataError
from nmtkit.records import parse

UNWRITABLE = files.UNWRITABLE | {errno.EACCES, errno.EPERM}
"""Errors of a folder that cannot be written."""
TRACES = {".lock", "history.jsonl"}
"""Files of a folder in which a command has failed before it wrote anything else."""


@contextlib.contextmanager
def locked(folder: Path, stage: str, shared: bool = False, reads: bool = False) -> Iterator[None]:
    """Hold a folder for writing; a second writer gets an error.

    The lock is the kernel's (flock), so it ends with its process even after kill -9. The lock file
    only lists the holders, one a line. A holder that shares the folder need not write in it: on a
    read-only or full disk it holds the lock without a line in the file, and no lock if the file
    does not exist.

    Args:
        folder: the folder to hold; it is made. Prep holds the run, training and translation hold
            their system and share the run.
        stage: the name of the holder in the error of a second writer.
        shared: True if other holders may share the folder at the same time.
        reads: True if the holder may have nothing to write, because its files may be up to date.
            Then it shares a folder that cannot be written.
    Raises: DataError naming host, process and age of each holder, or as `files.check_place`;
        EnvironmentProblem if the folder cannot be made or written.
    """
    path = folder / ".lock"
    files.protect(folder)
    files.check_place(path)
    new = not folder.exists()
    stream = _opened(path, (shared or reads) and not new)
    if stream is None:
        yield
        return
    shared = shared or not stream.writable()
    holder = Holder(socket.gethostname(), os.getpid(), stage, time.time())
    with contextlib.closing(stream):
        taken = _taken(stream, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        if taken is False:
            message = f"{folder} is in use by {_holders(stream)}"
            raise DataError(message, where=stream.name, hint="wait for it to end, or stop it")
        try:
            if taken and not shared:  # without a lock, another process may be writing
                stream.truncate(0)
                folders.remove_unfinished(folder)
            try:
                _note(stream, holder)
            except OSError as error:
                if not shared:
                    raise files.unwritable(folder, error) from error
            yield
        except BaseException:
            # Remove a new folder in which nothing was begun, unless other holders share it.
            if new and not shared and {entry.name for entry in folder.glob("*")} <= TRACES:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with contextlib.suppress(OSError):
                _leave(stream, holder)


@dataclass(frozen=True)
class Holder:
    """A process that holds a folder: one line of the lock file.

    A line with `left` means that the holder of an earlier line has gone.
    """

    host: str
    pid: int
    stage: str
    since: float
    left: bool = False

    @property
    def alive(self) -> bool:
        """True unless the process is known to be gone."""
        return self.host != socket.gethostname() or folders.is_running(self.pid)

    def __str__(self) -> str:
        age = max(0.0, time.time() - self.since)  # clocks are set back now and then
        return f"'{self.stage}' (process {self.pid} on {self.host}, for {age / 60:.0f} min)"


def _opened(path: Path, shared: bool) -> IO[str] | None:
    """Open a lock file, for reading if it is shared and cannot be written.

    Returns: None if it cannot be written and does not exist.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return files.appending(path, "a+")
    except OSError as error:
        if not shared or error.errno not in UNWRITABLE:
            raise files.unwritable(path.parent, error) from error
    with contextlib.suppress(OSError):
        return open(path, encoding="utf-8")
    return None


def check_writable(folder: Path) -> None:
    """Raise EnvironmentProblem if this process may not write in a folder."""
    if not os.access(folder, os.W_OK):
        raise files.unwritable(folder, OSError(errno.EACCES, os.strerror(errno.EACCES)))


def _taken(stream: IO[str], kind: int) -> bool | None:
    """Return what `take_lock` returns, after a few attempts: the last holder takes the lock alone
    for a moment when it leaves, to empty the file.
    """
    for pause in (0.02, 0.05, 0.1, 0.0):
        if (taken := take_lock(stream, kind)) is not False:
            return taken
        time.sleep(pause)
    return False


def take_lock(stream: IO[Any], kind: int) -> bool | None:
    """Take a lock of fcntl if nobody holds it.

    Returns: True if the lock is taken, False if somebody holds it; None, after a warning, if the
        file system cannot lock, as on some clusters. Each system has its own errors for that.
    """
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # a held lock is EACCES on some network disks
        return False
    except OSError as error:
        console.warn_once(
            f"cannot lock {stream.name} ({error.strerror}): do not start two commands that write"
            " the same files"
        )
        return None
    return True


def _note(stream: IO[str], holder: Holder) -> None:
    """Add a line to a lock file; several sharers may do so at once.

    The line is written without a buffer: a buffer that cannot be written fails again when the file
    is closed.
    """
    os.write(stream.fileno(), f"\n{json.dumps(asdict(holder))}".encode())


def _leave(stream: IO[str], holder: Holder) -> None:
    """Empty a lock file if this holder is the last, else add a line that says it has left."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stream.truncate(0)
    except OSError:
        _note(stream, replace(holder, left=True))


def _holders(stream: IO[str]) -> str:
    """Return the living holders of a lock file, as text."""
    has_left = {}
    stream.seek(0)
    for line in stream:
        with contextlib.suppress(DataError):  # a line that is being written
            holder = parse(Holder, line, stream.name)
            has_left[replace(holder, left=False)] = holder.left
    alive = [str(holder) for holder, left in has_left.items() if not left and holder.alive]
    return ", ".join(alive) or "another process"
