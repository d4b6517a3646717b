"""Getting a published file: from a folder of the person's, from the download cache, or from the network; verified either way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nmtkit import console
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.files import COMPRESSED, cache_folder, open_binary

TIMEOUT = 30
BLOCK = 1 << 20


def cached(family: str, name: str, size: int) -> bool:
    """Whether the cache holds a file of this name and size (its checksum is compared when it is used)."""
    path = cache_folder() / family / name
    return path.is_file() and path.stat().st_size == size


def human_size(size: float) -> str:
    """Bytes as people say them: 1.2 MB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def digest(path: Path, algorithm: str, decompress: bool = False) -> str:
    """The checksum of a file, or of what it holds uncompressed, as hexadecimal text."""
    total = hashlib.new(algorithm, usedforsecurity=False)
    with open_binary(path) if decompress else open(path, "rb") as stream:
        while block := stream.read(BLOCK):
            total.update(block)
    return total.hexdigest()


def fetch(name: str, checksum: str, urls: list[str], size: int, family: str, from_dir: Path | None = None) -> Path:
    """Find a published file here, or download it.

    Args:
        name: its published name.
        checksum: "sha256:…" or "md5:…".
        urls: where it is published, mirrors in the order they are tried.
        size: bytes, for the progress display.
        family: the folder of the cache.
        from_dir: looked through, with its sub-folders, before the cache and the network.
    Returns: the verified file.
    Raises: DataError if a file of that name in from_dir has another checksum; EnvironmentProblem if no address gives the right file.
    """
    if from_dir is not None:
        found = _look(from_dir, name, checksum)
        if found is not None:
            return found
    path = cache_folder() / family / name
    algorithm, _, wanted = checksum.partition(":")
    if path.is_file():
        actual = digest(path, algorithm)
        if actual == wanted:
            return path
        _set_aside(path, path, wanted, actual)
    failures = []
    for url in urls:
        try:
            return _download(url, path, checksum, size)
        except _Failed as error:
            failures.append(f"{url}: {error}")
            console.warn(f"could not fetch {failures[-1]}")
    looked = f"; --from-dir {from_dir} has no {name}" if from_dir is not None else ""
    hint = f"try again, or fetch {name} by other means and pass --from-dir DIR{looked}"
    raise EnvironmentProblem(f"cannot download {name}", where=failures[-1] if failures else name, hint=hint)


def _look(folder: Path, name: str, checksum: str) -> Path | None:
    """The verified file in a folder of the person's, None if there is none of that name."""
    if not folder.is_dir():
        raise DataError(f"no such folder: {folder}", where="--from-dir")
    algorithm, _, wanted = checksum.partition(":")
    wrong: list[tuple[Path, str]] = []
    for path, decompress in _candidates(folder, name):
        actual = digest(path, algorithm, decompress)
        if actual == wanted:
            return path
        wrong.append((path, actual))
    if not wrong:
        return None
    path, actual = wrong[0]
    raise DataError(
        f"{path.name} is not the published file: its {algorithm} is {actual}, expected {wanted}",
        where=path,
        hint="fetch the file again, or take it out of the folder so that it is downloaded",
    )


def _candidates(folder: Path, name: str) -> Iterator[tuple[Path, bool]]:
    """Files that may be the published one: the exact name, nearest the top first; then the same file compressed (verified uncompressed)."""
    for wanted, decompress in [(name, False), *((name + suffix, True) for suffix in COMPRESSED)]:
        paths = (p for p in folder.rglob(Path(wanted).name) if p.is_file())
        yield from ((p, decompress) for p in sorted(paths, key=lambda p: (len(p.parts), p)))


class _Failed(Exception):
    """One address did not give the right file."""


class _Bar:
    """What pooch's downloader reports to, passed on to nmtkit's progress display."""

    def __init__(self, advance: Callable[[float], None], size: int) -> None:
        self.total = size
        self._advance = advance
        self._done = 0

    def update(self, amount: int) -> None:
        amount = min(amount, self.total - self._done) if self.total else amount  # pooch counts whole blocks
        self._done += amount
        self._advance(amount)

    def reset(self) -> None:
        """Pooch resets before it fills the bar; ours is full then."""
        self._done = self.total

    def close(self) -> None:
        """Nothing to close: the display is a context of its own."""


def _download(url: str, path: Path, checksum: str, size: int) -> Path:
    """Download to a temporary name, verify, then rename; a file with the wrong checksum is kept as NAME.bad."""
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    algorithm, _, wanted = checksum.partition(":")

    def get(address: str, output: str, manager: Any) -> None:
        with console.progress(f"downloading {path.name} ({human_size(size)})", size) as advance:
            headers = {"Accept-Encoding": "identity", "User-Agent": "nmtkit"}
            pooch.HTTPDownloader(progressbar=_Bar(advance, size), headers=headers, timeout=TIMEOUT)(address, output, manager)
        actual = digest(Path(output), algorithm)
        if actual != wanted:
            _set_aside(Path(output), path, wanted, actual)
            raise _Failed(f"the {algorithm} of what came is {actual}, expected {wanted}; kept as {path.name}.bad")

    console.say(f"downloading {url} ({human_size(size)})")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(url, known_hash=checksum, fname=path.name, path=path.parent, downloader=get)
    except requests.RequestException as error:
        raise _Failed(_reason(error)) from error
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}", hint="set NMTKIT_CACHE to a folder with space") from error
    return path


def _reason(error: Exception) -> str:
    """Why a request failed, in few words: the innermost cause."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answers {response.status_code} {response.reason}"
    while (cause := getattr(error, "reason", None) or (error.args[0] if error.args and isinstance(error.args[0], Exception) else None)) is not None:
        if not isinstance(cause, Exception):
            return str(cause)
        error = cause
    return str(error) or type(error).__name__


def _set_aside(file: Path, path: Path, wanted: str, actual: str) -> None:
    """Keep a wrong file for inspection, never under the good name."""
    bad = path.with_name(path.name + ".bad")
    os.replace(file, bad)
    if file == path:
        console.warn(f"{path} was damaged (its checksum is {actual}, expected {wanted}); kept as {bad.name}, fetching it again")
    else:
        Path(file).touch()  # pooch removes its temporary file itself
