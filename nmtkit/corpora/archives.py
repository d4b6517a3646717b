"""Members out of zips and tarballs, safely: nothing is written but what was asked for, under names of our own, and not without bounds.

The names in an archive only say which member is which; they never decide where something is written. An archive with a name that leaves its
folder (`..`, an absolute path) is refused whole, a wanted member that is a link too, and so is one that would grow beyond all measure.
"""

from __future__ import annotations

import bz2
import contextlib
import difflib
import gzip
import lzma
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from nmtkit import console
from nmtkit.corpora.checksums import human_size
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.files import COMPRESSED, open_binary

NUMBER = "{number}"
"""In the name of a member: any number; such members are taken in the order of their numbers."""
MOST_RATIO = 300
"""Text shrinks to a fifth, repetitive text to a fiftieth; what shrinks to less than this is no text."""
ALWAYS_ALLOWED = 1 << 28
BLOCK = 1 << 20
_KINDS = {".zip": b"PK", ".gz": b"\x1f\x8b", ".tgz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\x00", ".bz2": b"BZh", ".zst": b"\x28\xb5\x2f\xfd"}
_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Taken:
    """A member written to disk."""

    path: Path
    number: int = 0
    """What stood for {number} in its name."""


def is_kind(path: Path, name: str) -> bool:
    """Whether a file is what the suffix of its name says (a web page saved as .tgz is not)."""
    return _starts_with(path, _KINDS.get(PurePosixPath(name).suffix, b""))


def _starts_with(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as stream:
        return stream.read(len(magic)) == magic


def extract(archive: Path, members: list[str], folder: Path, decompress: bool = True) -> dict[str, list[Taken]]:
    """Write some members of an archive into a folder, as numbered files with the last part of their names.

    Args:
        archive: .zip, .tar, .tgz, .tar.xz, …
        members: their names; {number} in one stands for any number.
        folder: an existing folder.
        decompress: members that are compressed files themselves are written uncompressed.
    Returns: for each name, its file; for a name with {number}, its files in the order of the numbers.
    Raises: DataError if a member is missing or unsafe or the archive is damaged; EnvironmentProblem if the disk is too small.
    """
    wanted = _Wanted(archive, members, folder, decompress)
    try:
        with contextlib.ExitStack() as stack:
            walk = _walk_zip if _starts_with(archive, _KINDS[".zip"]) else _walk_tar
            for name, size, link, read in walk(archive, stack):
                wanted.take(name, size, link, read)
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise EnvironmentProblem(f"cannot write in {folder}: {error.strerror}", hint="free some space") from error
        raise DataError(f"{archive.name} is damaged: {error}", where=archive, hint="fetch it again") from error
    return wanted.result()


def _walk_zip(archive: Path, stack: contextlib.ExitStack) -> Iterator[_Member]:
    one = stack.enter_context(zipfile.ZipFile(archive))
    for info in one.infolist():
        if not info.is_dir():
            yield info.filename, info.file_size, stat.S_ISLNK(info.external_attr >> 16), lambda info=info: one.open(info)  # type: ignore[misc]


def _walk_tar(archive: Path, stack: contextlib.ExitStack) -> Iterator[_Member]:
    """The members of a tarball, in one pass that goes to the very end, so that checksums inside the compressed data are compared too."""
    advance = stack.enter_context(console.progress(f"unpacking {archive.name}", archive.stat().st_size))
    counted: Any = _Counted(stack.enter_context(open(archive, "rb")), advance)
    opener = next((one for suffix, one in _OPENERS.items() if _starts_with(archive, _KINDS[suffix])), None)
    stream = stack.enter_context(opener(counted)) if opener else counted
    with tarfile.open(fileobj=stream, mode="r|") as one:
        for info in one:
            if not info.isdir():
                yield info.name, info.size, not info.isfile(), lambda info=info: one.extractfile(info)  # type: ignore[misc]
    while stream.read(BLOCK):
        pass


_Member = tuple[str, int, bool, Callable[[], IO[bytes]]]
"""Name, size in bytes, whether it is a link (or a device, …), and a function that opens it."""


class _Counted:
    """A file that says how much of it has been read."""

    def __init__(self, stream: BinaryIO, advance: Callable[[float], None]) -> None:
        self._stream = stream
        self._advance = advance

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        data = self._stream.read(size)
        self._advance(len(data))
        return data


@dataclass
class _Wanted:
    """The members that are looked for, and those found."""

    archive: Path
    members: list[str]
    folder: Path
    decompress: bool
    _found: dict[str, dict[int, Taken]] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _written: int = 0
    _count: int = 0

    def __post_init__(self) -> None:
        self._exact = {name: name for name in self.members if NUMBER not in name}
        self._patterns = {name: re.compile(re.escape(name).replace(re.escape(NUMBER), r"(\d+)")) for name in self.members if NUMBER in name}
        self._most = max(ALWAYS_ALLOWED, MOST_RATIO * self.archive.stat().st_size)

    def take(self, name: str, size: int, link: bool, read: Callable[[], IO[bytes]]) -> None:
        """Write a member if it is wanted.

        Raises: DataError if its name, wanted or not, leads out of the folder.
        """
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or (parts and (parts[0] == "/" or re.match(r"[A-Za-z]:", parts[0]))):
            what = f"{self.archive.name} is not safe: '{name[:80]}' is outside its folder"
            raise DataError(what, where=self.archive, hint="get another copy of the archive")
        plain = "/".join(parts)
        if len(self._names) < 1000:
            self._names.append(plain)
        number, member = 0, self._exact.get(plain)
        if member is None:
            match = next(((key, found) for key, pattern in self._patterns.items() if (found := pattern.fullmatch(plain))), None)
            if match is None:
                return
            member, number = match[0], int(match[1][1])
        if link:
            raise DataError(f"{name} is a link, not a file", where=self.archive, hint="get another copy of the archive")
        self._found.setdefault(member, {})[number] = Taken(self._write(plain, size, read), number)

    def _write(self, name: str, size: int, read: Callable[[], IO[bytes]]) -> Path:
        if size > shutil.disk_usage(self.folder).free:
            what = f"no space to unpack {name} ({human_size(size)}) in {self.folder}"
            raise EnvironmentProblem(what, where=self.archive, hint="free some space, or choose another --run folder")
        own_name = re.sub(r"[^\w.-]", "_", PurePosixPath(name).name)
        path = self.folder / f"{self._count:05d}-{own_name}"
        self._count += 1
        self._bounded(name, size)
        with read() as stream:
            self._copy(name, stream, path)
        if not self.decompress or path.suffix not in COMPRESSED:
            return path
        with open_binary(path) as stream:
            self._copy(name, stream, path.with_suffix(""))
        path.unlink()
        return path.with_suffix("")

    def _copy(self, name: str, stream: IO[bytes], path: Path) -> None:
        with open(path, "xb") as out:
            while block := stream.read(BLOCK):
                self._written += len(block)
                self._bounded(name, 0)
                out.write(block)

    def _bounded(self, name: str, more: int) -> None:
        if self._written + more > self._most:
            what = f"{self.archive.name} ({human_size(self.archive.stat().st_size)}) would grow to more than {human_size(self._most)}: refused"
            raise DataError(what, where=name, hint="that is no text; get another copy of the archive")

    def result(self) -> dict[str, list[Taken]]:
        """Every member's files.

        Raises: DataError naming a member that is not there.
        """
        for member in self.members:
            if member not in self._found:
                close = difflib.get_close_matches(member, self._names, n=1)
                some = ", ".join(self._names[:4]) + ", …" * (len(self._names) > 4)
                held = f"did you mean '{close[0]}'?" if close else f"it holds {some or 'nothing'}"
                raise DataError(f"{self.archive.name} has no {member}", where=self.archive, hint=f"{held}; is it another release of this name?")
        return {member: [found[number] for number in sorted(found)] for member, found in self._found.items()}
