"""Folders that appear whole or not at all, and that keep the files of the user in them."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from nmtkit import console, files

Owned = Collection[str] | Callable[[Path], Collection[str]]
"""The files of nmtkit in a folder, as relative paths (`*` matches no slash), or a function that
reads these paths from the folder.
"""
NOT_OURS = "not-of-nmtkit-"
"""Prefix of a folder that keeps the user's files after nmtkit has removed their folder."""
FINDER = ".DS_Store"
"""A file that a Mac writes into a folder that somebody looks at."""


def is_still_open(path: Path) -> bool:
    """True for the name that a network disk gives to a removed file that a process still reads.
    Until it is closed, it can be neither removed nor moved.
    """
    return re.fullmatch(r"\.nfs[0-9a-f]{24}", path.name) is not None


def unchanged(folder: Path, hashes: Mapping[str, str]) -> set[str]:
    """Return the files that nmtkit wrote into a folder, for `Owned`. A file that has changed since
    then is the user's.

    Args:
        folder: the folder.
        hashes: file -> SHA-256 when it was written.
    """
    return {*map(glob.escape, hashes.keys() - files.changed(folder, hashes))}


def remove_unfinished(folder: Path) -> None:
    """Remove half-written files of killed processes from a folder that no other process writes."""
    for path in folder.rglob(f"{files.UNFINISHED}*"):
        if not path.is_dir():
            files.remove(path)


def remove_owned(folder: Path, owned: Owned) -> None:
    """Remove the files of nmtkit from a folder, and the folders that this empties. Empty folders of
    the user stay.

    Args:
        folder: the folder; it goes too if nothing is left in it.
        owned: the files of nmtkit in it.
    Raises: DataError as `files.check_place`; OSError.
    """
    files.check_place(folder)
    names = set(owned(folder) if callable(owned) else owned)
    patterns = [f"/{name}" for name in names if glob.has_magic(name)]
    lists = "manifest.json", "nmtkit.json", "meta.json"
    emptied = {folder}

    def is_owned(path: Path) -> bool:
        place = "/" / path.relative_to(folder)
        named = str(place)[1:] in names or any(map(place.match, patterns))
        return path.name == FINDER or (named and not is_still_open(path))

    for parent, folders, entries in os.walk(folder, topdown=False):
        inner = Path(parent)
        # The file that lists the other files goes last.
        for entry in sorted((*entries, *folders), key=lists.__contains__):
            path = inner / entry
            is_file = path.is_symlink() or (path.exists() and not path.is_dir())
            if is_file and is_owned(path):
                path.unlink()
                emptied.add(inner)
        if inner in emptied or is_owned(inner):
            with contextlib.suppress(OSError):  # somebody's files are left in it
                inner.rmdir()
                emptied.add(inner.parent)


def publish(complete: Path, final: Path, owned: Owned) -> None:
    """Give a complete folder its name, so that it appears whole or not at all.

    An older folder of that name is removed. Its files that are not of nmtkit move to the new one.
    If the process is killed, `recover` finishes the work.

    Args:
        complete: the complete folder.
        final: its final path.
        owned: the files of nmtkit in the older folder.
    Raises: DataError as `files.check_place`; OSError if a rename fails; an older folder then has
        its name `final` again.
    """
    files.check_place(final)
    for path in [*complete.rglob("*"), complete]:
        files.sync_folder(path)  # files are flushed the same way
    older = temporary_name(final, "old")
    if final.exists():
        os.replace(final, older)
    try:
        os.replace(complete, final)
    except OSError:
        recover(final, owned)
        raise
    files.sync_folder(final.parent)
    _retire(older, final, owned)


def recover(final: Path, owned: Owned) -> None:
    """Tidy up after a process that was killed in `writing_folder` or `publish`, unless a process
    with its number runs. The arguments are those of `publish`.
    """
    files.check_place(final)
    pattern = rf"{files.UNFINISHED}(tmp|old)-{re.escape(final.name)}-(\d+)"
    for folder in final.parent.glob(f"{files.UNFINISHED}*"):
        if not (match := re.fullmatch(pattern, folder.name)):
            continue
        files.check_place(folder)
        if (process := int(match[2])) != os.getpid() and is_running(process):
            continue
        if match[1] == "tmp":
            console.say(f"removing {folder}, which a stopped process has left half-written")
            shutil.rmtree(folder)
        elif final.exists():
            _retire(folder, final, owned)
        else:
            os.replace(folder, final)


def temporary_name(final: Path, kind: str) -> Path:
    """Return the name that this process gives to a folder before (tmp) or after (old) it is
    `final`.
    """
    return final.with_name(f"{files.UNFINISHED}{kind}-{final.name}-{os.getpid()}")


def is_running(number: int) -> bool:
    """True if a process with this number runs on this machine."""
    try:
        os.kill(number, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def _retire(older: Path, final: Path, owned: Owned) -> None:
    """Remove a folder that `final` has replaced. The files of the user in it move to `final`, or
    beside `final` if `final` has files of the same name.
    """
    remove_owned(older, owned)
    for path in sorted(older.rglob("*")):  # a folder before what is in it
        target, stays = final / path.relative_to(older), is_still_open(path)
        if not stays and os.path.lexists(path) and target.parent.is_dir() and not target.exists():
            os.replace(path, target)
    for parent, _, _ in os.walk(older, topdown=False):
        with contextlib.suppress(OSError):  # it has files that `final` has too
            Path(parent).rmdir()
    _keep_rest(older, final.parent)


def _keep_rest(folder: Path, place: Path) -> None:
    """Keep what is left in a removed folder: files of the user. If a file in it is still open, the
    folder stays for the next removal.
    """
    with contextlib.suppress(OSError):  # it is not empty
        folder.rmdir()
    if folder.exists() and not any(map(is_still_open, folder.rglob("*"))):
        keep_files_of_user(folder, place)


def keep_files_of_user(folder: Path, place: Path) -> None:
    """Move a folder with files of the user to a new name in `place`, with a warning."""
    path = place / f"{NOT_OURS}{time.time_ns()}"
    os.replace(folder, path)
    console.warn(f"files that nmtkit did not write, or that have changed since, are now in {path}")


def remove_folder(folder: Path, owned: Owned, place: Path) -> None:
    """Remove a folder of nmtkit; files of the user in it move to a new folder in `place`.

    Raises: DataError as `check_place`; OSError.
    """
    remove_unfinished(folder)
    remove_owned(folder, owned)
    _keep_rest(folder, place)


@contextlib.contextmanager
def writing_folder(final: Path, owned: Owned, hint: str = "") -> Iterator[Path]:
    """Write a folder completely or not at all, as `publish`.

    Args:
        final, owned: as for `publish`.
        hint: what the user can do if the disk is full; empty: the hint of all stages.
    Yields: the folder to write into.
    Raises: DataError as `files.check_place`; EnvironmentProblem if the disk is full or not
        writable. Other errors of the body are raised unchanged.
    """
    files.check_place(final)
    temporary = temporary_name(final, "tmp")
    in_body = False
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        in_body = True
        yield temporary
        in_body = False
        publish(temporary, final, owned)
    except OSError as error:
        if in_body and error.errno not in files.UNWRITABLE:
            raise
        raise files.unwritable(final, error, hint) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
