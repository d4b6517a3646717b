"""Checksums of published files: as published, or, where none is, that of the first copy seen, recorded and compared ever after."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from nmtkit.files import open_binary, write_text

PATTERN = r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}|git:[0-9a-f]{40})$"
"""`git:` is the id of a git blob, which is what a public repository publishes of its files (`git hash-object FILE`)."""
BLOCK = 1 << 20


def digest(path: Path, algorithm: str, decompress: bool = False) -> str:
    """The checksum of a file, or of what it holds uncompressed.

    Args:
        path: the file.
        algorithm: sha256, md5 or git.
        decompress: read what a compressed file holds.
    Returns: hexadecimal text.
    """
    total = hashlib.new("sha1" if algorithm == "git" else algorithm, usedforsecurity=False)
    if algorithm == "git":
        size = sum(map(len, _blocks(path, decompress))) if decompress else path.stat().st_size
        total.update(b"blob %d\0" % size)
    for block in _blocks(path, decompress):
        total.update(block)
    return total.hexdigest()


def _blocks(path: Path, decompress: bool) -> Iterator[bytes]:
    with open_binary(path) if decompress else open(path, "rb") as stream:
        while block := stream.read(BLOCK):
            yield block


def recorded(path: Path) -> str | None:
    """The checksum recorded for a file of the cache for which none is published; None if it has not been seen yet."""
    with contextlib.suppress(OSError):
        found = re.match(r"[0-9a-f]{64}\b", _record(path).read_text("utf-8"))
        return f"sha256:{found[0]}" if found else None
    return None


def record(path: Path, checksum: str) -> Path:
    """Remember the checksum of a file for which none is published, as `sha256sum` writes it.

    Args:
        path: where the file is (or would be) in the cache.
        checksum: "sha256:…".
    Returns: the file that remembers it; taking it away makes nmtkit forget.
    """
    write_text(_record(path), f"{checksum.removeprefix('sha256:')}  {path.name}\n")
    return _record(path)


def _record(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def human_size(size: float) -> str:
    """Bytes as people say them: 1.2 MB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
