"""Where a published file is found: a folder of the person's, the cache, an address, or inside another published file; verified either way."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from nmtkit import console
from nmtkit.corpora import archives
from nmtkit.corpora.checksums import digest, record, recorded
from nmtkit.corpora.download import Failed, download
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.files import COMPRESSED, cache_folder

MEMBER = "::"
"""Between a published file and the name of a member in it."""


class Published(Protocol):
    """What is known of a published file."""

    @property
    def size(self) -> int | None:
        """Bytes, if published."""

    @property
    def checksum(self) -> str | None:
        """sha256:…, md5:… or git:…, if published."""

    @property
    def addresses(self) -> list[str]:
        """http(s) addresses, or FILE::MEMBER, in the order they are tried."""


@dataclass(frozen=True)
class Found:
    """A verified file on this machine."""

    name: str
    path: Path
    checksum: str
    unpublished: bool = False
    """No checksum is published; this one is what later copies are compared with."""
    new: bool = False
    """It has never been seen before."""

    def remember(self) -> None:
        """Record the checksum of a file for which none is published."""
        if self.unpublished and self.new:
            try:
                record(cached(self.name), self.checksum)
            except EnvironmentProblem as error:
                console.warn(f"{error.message}: a later copy of {self.name} cannot be compared with this one")


def cached(name: str) -> Path:
    """Where a published file is kept."""
    return cache_folder() / name


def is_cached(name: str, size: int | None) -> bool:
    """Whether the cache holds a file of this name and size (its checksum is compared when it is used)."""
    path = cached(name)
    return path.is_file() and size in {None, path.stat().st_size}


class Finder:
    """Finds published files.

    Args:
        published: all there are, by name ("GROUP/PATH").
        from_dir: looked through, with its sub-folders, before the cache and the network.
        advice: how the person gives such a folder, said where a file cannot be had.
    """

    def __init__(self, published: Mapping[str, Published], from_dir: Path | None = None, advice: str = "pass --from-dir DIR") -> None:
        if from_dir is not None and not from_dir.is_dir():
            raise DataError(
                f"no such folder: {from_dir}", where="--from-dir", hint="name the folder that holds the data set's files, or leave it out"
            )
        self._published = published
        self._from_dir = from_dir
        self._advice = advice

    def find(self, name: str) -> Found:
        """Find a file here, or download it.

        Raises: DataError if the folder's file is not the published one; EnvironmentProblem if no address gives the right file.
        """
        return self._here(name) or self._bring(name)

    def _here(self, name: str) -> Found | None:
        """The file if the folder or the cache holds it, itself or inside an archive that holds it."""
        found = self._in_folder(name) or self._in_cache(name)
        for address in self._published[name].addresses if found is None else []:
            outer, inside, member = address.partition(MEMBER)
            if inside and (archive := self._in_folder(outer) or self._in_cache(outer)) is not None:
                return self._from_archive(name, archive, member)
        return found

    def _in_folder(self, name: str) -> Found | None:
        """The verified file in the person's folder, None if there is none of that name.

        Raises: DataError if there is one, but not the right one.
        """
        expected = self._expected(name)
        wrong: list[tuple[Path, str]] = []
        for path, decompress in self._candidates(name) if self._from_dir is not None else []:
            algorithm = expected.partition(":")[0] if expected else "sha256"
            actual = f"{algorithm}:{digest(path, algorithm, decompress)}"
            if expected is None and not (decompress or archives.is_kind(path, name)):
                raise DataError(f"{path.name} is no {path.suffix} file", where=path, hint="fetch it again: a web page may have come under its name")
            if expected in {None, actual}:
                return self._accept(name, path, actual)
            wrong.append((path, actual))
        for path, actual in wrong:
            if not self._is_another(name, path):
                _refuse(name, path, actual, str(expected), self._published[name].checksum is None)
        return None

    def _candidates(self, name: str) -> Iterator[tuple[Path, bool]]:
        """Files of the folder that may be the published one, likeliest first; True: compressed since, to be verified uncompressed."""
        assert self._from_dir is not None
        wanted = PurePosixPath(name)
        for suffix in ("", *COMPRESSED):
            paths = [p for p in self._from_dir.rglob(wanted.name + suffix) if p.is_file()]
            for path in sorted(paths, key=lambda p: (-_agreement(p, name), len(p.parts), p)):
                if all(_agreement(path, other) <= _agreement(path, name) for other in self._same_base(name)):
                    yield path, bool(suffix)

    def _same_base(self, name: str) -> list[str]:
        """Other published files called the same but for their folder."""
        base = PurePosixPath(name).name
        return [other for other in self._published if other != name and PurePosixPath(other).name == base]

    def _is_another(self, name: str, path: Path) -> bool:
        """Whether a file is another published one of the same base name (`test.tgz` of another year)."""
        known = [checksum for other in self._same_base(name) if (checksum := self._expected(other)) is not None]
        return any(checksum == f"{(algorithm := checksum.partition(':')[0])}:{digest(path, algorithm)}" for checksum in known)

    def _in_cache(self, name: str) -> Found | None:
        path, expected = cached(name), self._expected(name)
        if not path.is_file():
            return None
        algorithm = expected.partition(":")[0] if expected else "sha256"
        actual = f"{algorithm}:{digest(path, algorithm)}"
        if expected == actual or (expected is None and archives.is_kind(path, name)):
            return self._accept(name, path, actual)
        console.warn(f"{path} was damaged: {_differs(path, actual, expected)}; kept as {_set_aside(path).name}, fetching it again")
        return None

    def _bring(self, name: str) -> Found:
        """Get the file into the cache from the first address that gives the right one."""
        failures = []
        for address in self._published[name].addresses:
            outer, inside, member = address.partition(MEMBER)
            try:
                return self._from_archive(name, self.find(outer), member) if inside else self._download(name, address)
            except Failed as error:
                failures.append(f"{address}: {error}")
            except EnvironmentProblem as error:
                if not inside:
                    raise
                failures.append(f"{address}: {error.message}")
            if address != self._published[name].addresses[-1]:
                console.say(f"{failures[-1].removeprefix(address + ': ')}; trying another address")
        looked = f"; --from-dir {self._from_dir} has no {PurePosixPath(name).name}" if self._from_dir is not None else ""
        hint = f"try again, or fetch {PurePosixPath(name).name} by other means and {self._advice}{looked}"
        raise EnvironmentProblem(f"cannot download {name}", where="\n  ".join(failures) or name, hint=hint)

    def _download(self, name: str, url: str) -> Found:
        one, path = self._published[name], cached(name)
        try:
            continued = download(url, path, one.size, trusted=one.checksum is not None)
            found = self._verified(name, path)
            if found is None and continued:  # two files may have been mixed: once more, from the beginning
                download(url, path, one.size, trusted=False)
                found = self._verified(name, path)
        except OSError as error:
            raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}", hint="set NMTKIT_CACHE to a folder with space") from error
        if found is None:
            raise Failed(f"what came is another file, kept as {path.name}.bad")
        return found

    def _from_archive(self, name: str, archive: Found, member: str) -> Found:
        path = cached(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        console.say(f"taking {member} out of {archive.path}")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            taken = archives.extract(archive.path, [member], Path(folder), decompress=False)[member][0]
            os.replace(taken.path, path)
        archive.remember()
        found = self._verified(name, path)
        if found is None:
            raise Failed(f"{member} of {archive.path} is another file, kept as {path.name}.bad")
        return found

    def _verified(self, name: str, path: Path) -> Found | None:
        """A file that has just come, if it is the right one; a wrong one is set aside."""
        expected = self._expected(name)
        algorithm = expected.partition(":")[0] if expected else "sha256"
        actual = f"{algorithm}:{digest(path, algorithm)}"
        if expected == actual or (expected is None and archives.is_kind(path, name)):
            found = self._accept(name, path, actual)
            found.remember()
            return found
        console.warn(f"what came as {path.name} is another file: {_differs(path, actual, expected)}; kept as {_set_aside(path).name}")
        return None

    def _expected(self, name: str) -> str | None:
        return self._published[name].checksum or recorded(cached(name))

    def _accept(self, name: str, path: Path, checksum: str) -> Found:
        unpublished = self._published[name].checksum is None
        return Found(name, path, checksum, unpublished, new=unpublished and self._expected(name) is None)


def _agreement(path: Path, name: str) -> int:
    """How many of the last parts of a path are those of a published name."""
    pairs = zip(reversed(path.parts), reversed(PurePosixPath(name).parts), strict=False)
    return 1 + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], itertools.islice(pairs, 1, None)))


def _differs(path: Path, actual: str, expected: str | None) -> str:
    algorithm, _, value = actual.partition(":")
    if expected is None:
        return f"it is no {path.suffix} file"
    return f"its {algorithm} is {value}, expected {expected.partition(':')[2]}"


def _refuse(name: str, path: Path, actual: str, expected: str, unpublished: bool) -> None:
    """Raise the DataError about a file of the person's folder that is another one than expected."""
    if unpublished:
        hint = f"if this is the right one, delete {cached(name)}.sha256 (and the file beside it); else take it out of the folder"
        raise DataError(f"{path.name} is not the copy seen before: {_differs(path, actual, expected)}", where=path, hint=hint)
    hint = "fetch the file again, or take it out of the folder so that it is downloaded"
    raise DataError(f"{path.name} is not the published file: {_differs(path, actual, expected)}", where=path, hint=hint)


def _set_aside(path: Path) -> Path:
    """Keep a wrong file for inspection, never under the good name."""
    bad = path.with_name(path.name + ".bad")
    os.replace(path, bad)
    return bad
