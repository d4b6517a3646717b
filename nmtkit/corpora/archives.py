"""Take members out of zip files and tarballs safely.

nmtkit chooses the names of the files that it writes; a member's name only identifies the member. An
archive is refused if any name in it leaves its folder (`..`, an absolute path), if a wanted member
is a link, or if its content is far larger than text can be.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from rich.filesize import decimal

from nmtkit import console
from nmtkit.errors import FREE_SPACE, DataError, EnvironmentProblem, nearest
from nmtkit.files import COMPRESSED, decompressed, is_damage, open_binary

NUMBER = "{number}"
"""Stands for any number in the name of a member."""
MOST_RATIO = 300
"""The most bytes of content per byte of archive. Text shrinks to a fifth, repetitive text to a
fiftieth."""
ALWAYS_ALLOWED = 1 << 28
"""Bytes of content that every archive may have."""
BLOCK = 1 << 20
MOST_HEADER = 1 << 20
IN_MEMORY = b"LKxgX"
"""Types of tar headers whose content (a name or a list of properties) tarfile reads into memory."""
ANOTHER_COPY = "get another copy of the archive"
_MAGIC = {
    ".zip": b"PK",
    ".gz": b"\x1f\x8b",
    ".tgz": b"\x1f\x8b",
    ".xz": b"\xfd7zXZ\x00",
    ".bz2": b"BZh",
    ".zst": b"\x28\xb5\x2f\xfd",
}
"""The first bytes of files, by the suffix of their names."""
Extracted = dict[str, dict[int, Path]]
"""The files of each member by number."""
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, ValueError, RuntimeError)
"""Errors of damaged archives, beside those of damaged compressed data."""


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    size: int
    """In bytes, as the archive declares it."""
    plain: bool
    """True for a plain file (no link, no device)."""
    open: Callable[[], Any]


def is_kind(path: Path, name: str) -> bool:
    """True if a file is what the suffix of `name` says; a web page saved as .tgz is not."""
    return _starts_with(path, _MAGIC.get(PurePosixPath(name).suffix, b""))


def _starts_with(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as stream:
        return stream.read(len(magic)) == magic


def extract(archive: Path, members: list[str], folder: Path, decompress: bool = True) -> Extracted:
    """Write some members of an archive into a folder.

    Args:
        archive: .zip, .tar, .tgz, .tar.xz, …
        members: the names of the members; {number} in a name stands for any number.
        folder: an existing folder.
        decompress: True to write members that are compressed files uncompressed.
    Returns: for each name its files by rising number; the number is 0 for a name without {number}.
    Raises: DataError if a member is missing or unsafe, or if the archive is damaged;
        EnvironmentProblem if the disk has too little space.
    """
    numbered = re.escape(NUMBER)
    patterns = {n: re.compile(re.escape(n).replace(numbered, r"(\d+)")) for n in members}
    paths: Extracted = {name: {} for name in members}
    names = []
    with (
        _naming_damage(archive),
        console.progress(f"unpacking {archive.name}", None) as advance,
    ):
        writer = _Writer(archive, folder, decompress, advance)
        for member in _members(archive):
            names.append(member.name)
            for wanted, pattern in patterns.items():
                if match := pattern.fullmatch(member.name):
                    index = int(match[1]) if match.groups() else 0
                    paths[wanted][index] = writer.write(member)
    _check_complete(archive, paths, names)
    return {wanted: dict(sorted(numbered.items())) for wanted, numbered in paths.items()}


@contextlib.contextmanager
def _naming_damage(archive: Path) -> Iterator[None]:
    """Turn the errors of a damaged archive into a DataError; errors of the disk stay."""
    try:
        yield
    except Exception as error:
        # A damaged directory of a zip makes Python seek to a negative place.
        is_negative = getattr(error, "errno", None) == errno.EINVAL
        if not (is_damage(error) or is_negative or isinstance(error, _DAMAGED)):
            raise
        raise DataError(f"{archive.name} is damaged: {error}", archive, "fetch it again") from error


def _members(archive: Path) -> Iterator[Member]:
    """Walk through an archive in one pass.

    Raises: DataError for a name that leaves the archive's folder.
    """
    if _starts_with(archive, _MAGIC[".zip"]):
        yield from _zip_members(archive)
        return
    kinds = (kind for kind in COMPRESSED if _starts_with(archive, _MAGIC[kind]))
    stream = decompressed(archive, next(kinds, ""))
    bounded: Any = _Bounded(stream, archive)
    with stream, tarfile.open(fileobj=bounded, mode="r|", tarinfo=_SmallHeader) as tarball:
        for info in tarball:
            if not info.isdir():
                opener = functools.partial(tarball.extractfile, info)
                yield Member(_safe(info.name, archive), info.size, info.isfile(), opener)
        while bounded.read(BLOCK):
            pass  # to the very end, so that checksums inside the compressed data are compared


@dataclass
class _Bounded:
    """The content of a tarball, wanted or not. It is read only as far as text can go."""

    stream: IO[bytes]
    archive: Path
    size: int = 0

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes.

        Raises: DataError if the content is larger than any text.
        """
        block = self.stream.read(size)
        # At the end tarfile reads on, 10 kB at once, until it has all that a header announces.
        self.size += len(block) or BLOCK
        _check_growth(self.archive, self.size)
        return block


class _SmallHeader(tarfile.TarInfo):
    """A header of a tarball, refused if tarfile would read too much of it into memory."""

    def _proc_member(self, tarball: tarfile.TarFile) -> Any:  # tarfile offers it to subclasses
        if self.type in IN_MEMORY and self.size > MOST_HEADER:
            raise DataError(
                f"refused: a header of {decimal(self.size)} is too long for a file name",
                hint=ANOTHER_COPY,
            )
        return super()._proc_member(tarball)  # type: ignore[misc]


def _check_growth(archive: Path, size: int, name: str | None = None) -> None:
    """Raise DataError if `size` bytes of content are too much for the size of the archive.

    Args:
        name: the member, for the error.
    """
    packed = archive.stat().st_size
    most = max(ALWAYS_ALLOWED, MOST_RATIO * packed)
    if size > most:
        raise DataError(
            f"{archive.name} ({decimal(packed)}) would grow to more than {decimal(most)}: refused",
            name or archive,
            f"text does not compress this much; {ANOTHER_COPY}",
        )


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        for entry in zipped.infolist():
            if not entry.is_dir():
                plain = not stat.S_ISLNK(entry.external_attr >> 16)
                opener = functools.partial(zipped.open, entry)
                yield Member(_safe(entry.filename, archive), entry.file_size, plain, opener)


def _safe(name: str, archive: Path) -> str:
    """Return the normalised name of a member; raise DataError if it leaves the archive's folder."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if ".." in parts or (parts and re.match(r"/|[A-Za-z]:", parts[0])):
        problem = f"{archive.name} is not safe: '{name[:80]}' is outside its folder"
        raise DataError(problem, archive, ANOTHER_COPY)
    return "/".join(parts)


def _check_complete(archive: Path, paths: Extracted, names: list[str]) -> None:
    """Raise DataError for the first wanted member that the archive lacks."""
    for wanted, numbered in paths.items():
        if not numbered:
            examples = ", ".join(names[:4]) + ", …" * (len(names) > 4)
            near = nearest(wanted, names[:1000], f"it holds {examples or 'nothing'}")
            hint = f"{near}; is it another release of this name?"
            raise DataError(f"{archive.name} has no {wanted}", archive, hint)


@dataclass
class _Writer:
    """Writes members as numbered files, named by the last part of the member's name."""

    archive: Path
    folder: Path
    decompress: bool
    advance: console.Advance
    written: int = 0
    count: int = 0

    def write(self, member: Member) -> Path:
        name = member.name
        if not member.plain:
            raise DataError(f"{name} is not a plain file", self.archive, ANOTHER_COPY)
        if member.size > shutil.disk_usage(self.folder).free:
            problem = f"no space to unpack {name} ({decimal(member.size)}) in {self.folder}"
            raise EnvironmentProblem(problem, self.archive, FREE_SPACE)
        _check_growth(self.archive, self.written + member.size, name)
        plain_name = re.sub(r"[^\w.-]", "_", PurePosixPath(name).name)
        path = self.folder / f"{self.count:05d}-{plain_name}"
        self.count += 1
        with member.open() as stream:
            self._copy(name, stream, path)
        if not self.decompress or path.suffix not in COMPRESSED:
            return path
        with open_binary(path) as stream:
            self._copy(name, stream, path.with_suffix(""))
        path.unlink()
        return path.with_suffix("")

    def _copy(self, name: str, stream: IO[bytes], path: Path) -> None:
        with open(path, "xb") as copy:
            while block := stream.read(BLOCK):
                self.written += len(block)
                _check_growth(self.archive, self.written, name)
                self.advance(len(block))
                copy.write(block)
