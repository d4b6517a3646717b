"""The work folder of prep: what is finished stays there until the prep folder is complete."""

from __future__ import annotations

import contextlib
import json
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
"""The folder of a work folder that becomes the prep folder."""
TEXT_MODEL = "given"
"""Folder in the work folder: the files of a text model that the user names."""
LOOKUP = "lookup"
"""Folder in the work folder: the table of words with their token ids."""
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
"""The folders that prep makes in a work folder."""


class WorkRecord(Record):
    """The record of a work folder: the key of its work, and whether several jobs share it."""

    again: ClassVar[str] = "remove the folder, or name another one with --work"
    key: str
    shared: bool = False


def work_key(inputs: files.JsonObject) -> str:
    """Return a checksum of all that the output depends on."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False, default=str)
    return files.text_sha256(text)


@contextlib.contextmanager
def work_folder(work: Path, key: str, raw: Path, *, shared: bool) -> Iterator[None]:
    """Hold a work folder, with what an earlier call with the same key has finished.

    After an error of the machine, or Ctrl-C, the folder stays, so that the same command goes on.

    Args:
        work: the folder.
        key: from `work_key`.
        shared: True if other processes do other shards of the same work at the same time; the
            folder then stays.
        raw: the folder in it for the raw text of this call, which begins empty. Shared work does
            not keep it.
    Raises: ConfigError if the folder is no work folder; DataError if another prep holds it.
    """
    # in this order: another job may write the record meanwhile
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
                # After a wrong command nothing can be used again.
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
    """True if a folder has no files except locks and what another job is writing."""
    ours = (".lock", files.UNFINISHED)
    return folder.is_dir() and all(path.name.startswith(ours) for path in folder.iterdir())


def _begun(work: Path, key: str, shared: bool) -> bool:
    """True if an earlier call began this work; else begin it.

    Raises: DataError if the record is not one of prep; ConfigError if it is shared and of other
        work. Then nothing is removed.
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
    """Remove a work folder of a call that was killed, if the prep folder needs nothing of it.

    Shared work of which not all is published stays: another job may go on with it.

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
    """Remove what prep has written in a work folder, and nothing else."""
    for pattern in FOLDERS:
        for folder in work.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)
    (work / WORK_RECORD).unlink(missing_ok=True)  # last: until then this is a work folder
