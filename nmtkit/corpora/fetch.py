"""Find a published file and verify it.

nmtkit searches in this order: the user's folder, the cache, published archives on this machine that
hold the file, then every address.

If a file has no published checksum, nmtkit records the checksum of its first copy in the cache.
Later copies must have the recorded checksum.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nmtkit import console
from nmtkit.corpora import archives
from nmtkit.corpora.download import Failed, download
from nmtkit.corpora.table import MEMBER, Resource
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.files import COMPRESSED, cache_folder, is_damage, open_binary, write_text

ANOTHER = "is another file than the published one"


def cached(name: str) -> Path:
    """Return the path of a published file in the cache."""
    return cache_folder() / name


def is_cached(name: str, size: int | None) -> bool:
    """True if the cache holds a file of this name and size.

    Its checksum is compared when the file is used.
    """
    path = cached(name)
    return path.is_file() and size in {None, path.stat().st_size}


def checksum(path: Path, algorithm: str = "sha256", decompress: bool = False) -> str:
    """Return the checksum of a file, or of the uncompressed content of a compressed one.

    Args:
        path: the file.
        algorithm: sha256, md5 or git.
        decompress: True for the checksum of the uncompressed content.
    Returns: "ALGORITHM:HEXADECIMAL".
    """
    opener = open_binary if decompress else functools.partial(open, mode="rb")
    new = functools.partial(hashlib.new, algorithm, usedforsecurity=False)
    if algorithm == "git":
        with opener(path) as stream:
            size = sum(map(len, iter(functools.partial(stream.read, 1 << 20), b"")))
        new = functools.partial(hashlib.sha1, b"blob %d\0" % size, usedforsecurity=False)
    with opener(path) as stream:
        digest = hashlib.file_digest(stream, new)  # type: ignore[arg-type]
        return f"{algorithm}:{digest.hexdigest()}"


def recorded(name: str) -> str | None:
    """Return the checksum recorded for a file; None if no checksum is recorded."""
    with contextlib.suppress(OSError):
        match = re.match(r"[0-9a-f]{64}\b", cached(f"{name}.sha256").read_text("utf-8"))
        return f"sha256:{match[0]}" if match else None
    return None


def record(name: str, sha256: str) -> None:
    """Record the checksum of a file without a published checksum, as `sha256sum` writes it.

    Args:
        name: the name of the published file.
        sha256: "sha256:…".
    """
    write_text(cached(f"{name}.sha256"), f"{sha256.removeprefix('sha256:')}  {cached(name).name}\n")


@dataclass(frozen=True)
class VerifiedFile:
    """A published file on this machine, whose checksum is right."""

    name: str
    path: Path
    checksum: str
    new: bool
    """True if no checksum is published and this is the first copy seen."""

    def facts(self) -> dict[str, Any]:
        """Return the facts that the manifest stores."""
        size = self.path.stat().st_size
        return {"checksum": self.checksum, "size": size, "path": str(self.path)}

    def remember(self) -> None:
        """Record the checksum of a first copy that proved readable."""
        if not self.new:
            return
        try:
            record(self.name, self.checksum)
        except EnvironmentProblem as error:
            console.warn(
                f"{error.message}: a later copy of {self.name} cannot be compared with this one"
            )
        else:
            console.say(
                f"no checksum is published for {self.name}: that of this first copy is"
                " recorded, and later ones are compared with it"
            )


@dataclass(frozen=True)
class Finder:
    """Finds published files.

    Args:
        published: every published file by name ("SOURCE/PATH").
        from_dir: a folder that is searched, with its sub-folders, before the cache and the network.
        advice: how the user names such a folder, for the error about a file that was not found.
    """

    published: Mapping[str, Resource]
    from_dir: Path | None = None
    advice: str = "pass --from-dir DIR"

    def __post_init__(self) -> None:
        if self.from_dir is not None and not self.from_dir.is_dir():
            hint = "name the folder that holds the data set's files, or leave it out"
            raise DataError(f"no such folder: {self.from_dir}", where="--from-dir", hint=hint)

    @functools.cached_property
    def _files(self) -> Mapping[str, list[Path]]:
        """The files in the user's folder by name, also behind links; each folder is read once."""
        paths: defaultdict[str, list[Path]] = defaultdict(list)
        seen = set()
        for parent, folders, names in os.walk(self.from_dir or "", followlinks=True):
            status = Path(parent).stat()
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders.sort()  # always the same path to a folder that several links lead to
            for name in names:
                paths[name].append(Path(parent, name))
        return paths

    def find(self, name: str) -> VerifiedFile:
        """Find a file on this machine, or download it.

        Raises: DataError if the folder holds another file of this name; EnvironmentProblem if no
            address gives the right file.
        """
        return self._local(name) or self._bring(name)

    def _local(self, name: str) -> VerifiedFile | None:
        return self._in_folder(name) or self._in_cache(name, "was damaged")

    def _in_folder(self, name: str) -> VerifiedFile | None:
        """Return the file in the user's folder; None if the folder has no file of this name.

        Raises: DataError if it has one with another checksum.
        """
        wrong = None
        for path, packed in self._candidates(name):
            file, difference = self._compare(name, path, packed)
            if not difference:
                return file
            wrong = wrong or (path, difference)
        published = self.published[name].checksum is not None
        if wrong and not (published and self._namesakes(name)):  # `test.tgz` of another year
            path, difference = wrong
            expected = "published file" if published else "copy seen before"
            hint = "fetch the file again, or take it out of the folder so that it is downloaded"
            hint += _to_accept(name)
            raise DataError(f"{path.name} is not the {expected}: {difference}", path, hint)
        return None

    def _candidates(self, name: str) -> Iterator[tuple[Path, bool]]:
        """Yield the files in the user's folder that may be the published file, likeliest first.

        With True if the user has compressed the file: then its content is verified.
        """
        for suffix in ("", *COMPRESSED):
            paths = self._files[PurePosixPath(name).name + suffix]
            for path in sorted(paths, key=lambda p: (-_agreement(p, name), len(p.parts), p)):
                best = max(_agreement(path, other) for other in (name, *self._namesakes(name)))
                if path.is_file() and _agreement(path, name) == best:
                    yield path, bool(suffix)

    def _namesakes(self, name: str) -> list[str]:
        """Return the published files of the same name in other folders: `test.tgz` of each year."""
        base = PurePosixPath(name).name
        return [other for other in self.published if other != name and other.endswith(f"/{base}")]

    def _in_cache(self, name: str, problem: str) -> VerifiedFile | None:
        """Return the file in the cache; rename a wrong file to NAME.bad."""
        path = cached(name)
        if not path.is_file():
            return None
        file, difference = self._compare(name, path)
        if not difference:
            return file
        bad = path.with_name(f"{path.name}.bad")
        os.replace(path, bad)
        console.warn(f"{path} {problem}: {difference}; kept as {bad.name}")
        return None

    def _compare(self, name: str, path: Path, packed: bool = False) -> tuple[VerifiedFile, str]:
        """Return a file with its checksum, and how it differs from the published one, if so."""
        expected = self.published[name].checksum or recorded(name)
        algorithm, _, digest = (expected or "sha256").partition(":")
        try:
            actual = checksum(path, algorithm, packed)
        except Exception as error:
            if not is_damage(error):
                raise
            return VerifiedFile(name, path, "", new=False), f"it is damaged: {error}"
        difference = ""
        if expected is None and not packed and not archives.is_kind(path, name):
            difference = f"it is no {path.suffix} file"
        elif expected not in {None, actual}:
            difference = f"its {algorithm} is {actual.partition(':')[2]}, expected {digest}"
        return VerifiedFile(name, path, actual, new=expected is None), difference

    def _bring(self, name: str) -> VerifiedFile:
        """Put the file into the cache: from an archive on this machine, or from an address."""
        urls = self.published[name].urls
        local = {url: self._local(url.partition(MEMBER)[0]) for url in urls if MEMBER in url}
        failures = []
        for url in sorted(urls, key=lambda url: not local.get(url)):
            try:
                if url in local:
                    return self._from_archive(name, url, local[url])
                return self._download(name, url)
            except Failed as error:
                failures.append(f"{url}: {error.message}")
                if len(failures) < len(urls):
                    console.say(f"{error.message}; trying another address")
            except OSError as error:
                problem = f"cannot write {cached(name)}: {error.strerror or error}"
                hint = "set NMTKIT_CACHE to a folder with space"
                raise EnvironmentProblem(problem, hint=hint) from error
        base = PurePosixPath(name).name
        hint = f"try again, or fetch {base} by other means and {self.advice}"
        hint += f"; --from-dir {self.from_dir} does not hold it" if self.from_dir else ""
        raise Failed(f"cannot download {name}", "\n  ".join(failures) or name, hint)

    def _download(self, name: str, url: str) -> VerifiedFile:
        resource, path = self.published[name], cached(name)
        continued = download(url, path, resource.size, resource.checksum is not None)
        if continued and not self._in_cache(name, ANOTHER):
            # The parts may come from two files: download again from the beginning.
            download(url, path, resource.size, trusted=False)
        return self._arrived(name)

    def _from_archive(self, name: str, url: str, archive: VerifiedFile | None) -> VerifiedFile:
        outer, _, member = url.partition(MEMBER)
        archive = archive or self._bring(outer)
        path = cached(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        console.say(f"taking {member} out of {archive.path}")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            members = archives.extract(archive.path, [member], Path(folder), decompress=False)
            os.replace(members[member][0], path)
        archive.remember()
        return self._arrived(name)

    def _arrived(self, name: str) -> VerifiedFile:
        """Return the file that was just put into the cache; raise Failed if it is another file."""
        file = self._in_cache(name, ANOTHER)
        if file is None:
            raise Failed(
                f"what came is another file, kept as {cached(name).name}.bad{_to_accept(name)}"
            )
        return file


def _to_accept(name: str) -> str:
    """Return the end of a hint: how to accept a copy that differs from the first copy."""
    if not recorded(name):
        return ""
    return f"; to accept another copy, delete {cached(name)}.sha256 (and the file beside it)"


def _agreement(path: Path, name: str) -> int:
    """Return how many folders above the file are the same in a path and in a name."""
    folders = [parts[-2::-1] for parts in (path.parts, PurePosixPath(name).parts)]
    return len(os.path.commonprefix(folders))
