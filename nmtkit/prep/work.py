"""The work folder of prep, which keeps finished tasks until the prep folder is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from nmtkit import console, files
from nmtkit.errors import ConfigError, NmtkitError
from nmtkit.locks import locked
from nmtkit.prep.tasks import WORK_RECORD
from nmtkit.records import Record, load

OUT = "out"
"""The folder that becomes the prep folder."""
TEXT_MODEL = "given"
"""The folder of the user's text model."""
LOOKUP = "lookup"
"""The folder of the words with their token ids."""
FOLDERS = (
    "raw",
    "raw-*-[0-9]*",
    "plain",
    TEXT_MODEL,
    "survey",
    "repeats.*",
    "clean",
    "merge.*",
    "learn",
    LOOKUP,
    "encode",
    "sets",
    "spans.*",
    OUT,
)
"""All folders that prep makes in a work folder."""


class WorkRecord(Record):
    """The record of a work folder."""

    again: ClassVar[str] = "remove the folder, or name another one with --work"
    key: str
    """The key of the work (`stage._key`)."""
    shared: bool = False
    """True if the jobs of an array share the folder."""


@contextlib.contextmanager
def work_folder(work: Path, key: str, raw: Path, *, shared: bool) -> Iterator[None]:
    """Lock a work folder, and remove it at the end.

    Tasks that an earlier call with the same key has finished stay in the folder; other work is
    removed first. After an environment error or Ctrl-C the folder stays, so that the same command
    goes on. Shared work always stays.

    Args:
        work: the folder.
        key: of the work.
        raw: the folder in it for the raw text of this call. It is emptied first.
        shared: True if other jobs do other shards of the same work at the same time. Then each job
            removes its raw text.
    Raises: ConfigError if the folder is no work folder; DataError if another prep holds it.
    """
    # The record is looked for last: another job may write it meanwhile.
    if work.exists() and not _is_empty(work) and not (work / WORK_RECORD).exists():
        raise ConfigError(
            f"{work} is not empty, and no work folder of prep",
            where="--work",
            hint="name an empty or a new folder",
        )
    held = False
    try:
        with locked(work, "prep", shared=shared):
            held = True
            for folder, folders, names in os.walk(work):  # rglob fails if a job ends meanwhile
                for name in (*folders, *names):  # the tasks write here by paths of their own
                    files.check_place(Path(folder, name))
            again = _begun(work, key, shared)
            shutil.rmtree(raw, ignore_errors=True)
            try:
                yield
            except NmtkitError as error:
                # Nothing in the folder is of use to the corrected command.
                useless = error.exit_code == ConfigError.exit_code and not again
                if not shared and (useless or not any(work.glob("*/*.json"))):
                    remove(work)
                raise
            if not shared:
                remove(work)
    finally:
        if held and shared:
            shutil.rmtree(raw, ignore_errors=True)
        elif held and not (work / WORK_RECORD).exists():
            with contextlib.suppress(OSError):
                (work / ".lock").unlink(missing_ok=True)
                work.rmdir()


def _is_empty(folder: Path) -> bool:
    """True if a folder has no files except locks and unfinished files of another job."""
    ours = (".lock", files.UNFINISHED)
    return folder.is_dir() and all(path.name.startswith(ours) for path in folder.iterdir())


def _begun(work: Path, key: str, shared: bool) -> bool:
    """Return True if an earlier call began this work. Otherwise begin it, and remove other work.

    Raises: DataError if the record is damaged; ConfigError if jobs of an array would remove the
        work of another command.
    """
    record = work / WORK_RECORD
    if record.exists():
        if load(WorkRecord, record).key == key:
            console.say(f"going on in {work}, which another call has begun")
            return True
        if shared:
            hint = "give all jobs of an array the same options, or name another folder"
            raise ConfigError(f"{work} has the work of another call of prep", "--work", hint)
        console.say(f"removing what another call of prep left in {work}")
        remove(work)
    WorkRecord(key=key, shared=shared).write(record)
    return False


def remove_left(work: Path) -> None:
    """Remove the work folder of a killed call, when the prep folder is up to date.

    Shared work that is not published stays: another job may go on with it.

    Raises: DataError if another prep has just begun in it; OSError.
    """
    record = work / WORK_RECORD
    if record.exists() and not (load(WorkRecord, record).shared and (work / OUT).exists()):
        with locked(work, "prep"):
            console.say(f"removing {work}, which a call of prep that was stopped has left")
            remove(work)
            (work / ".lock").unlink()
        work.rmdir()


def remove(work: Path) -> None:
    """Remove only the files that prep has written in a work folder."""
    for pattern in FOLDERS:
        for folder in work.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)
    (work / WORK_RECORD).unlink(missing_ok=True)  # last: until then this is a work folder
