"""The cache of published files: the path and the checksum of each file.

If a file has no published checksum, the checksum of its first copy is recorded. Later copies must
have the recorded checksum.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from pathlib import Path

from nmtkit.files import cache_folder, open_binary, write_text

PATTERN = r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}|git:[0-9a-f]{40})$"
"""`git:` is the id of a git blob (`git hash-object FILE`), the only checksum that a public
repository publishes."""


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
        decompress: read the uncompressed content.
    Returns: "ALGORITHM:HEXADECIMAL".
    """
    opener = open_binary if decompress else functools.partial(open, mode="rb")
    new = functools.partial(hashlib.new, algorithm, usedforsecurity=False)
    if algorithm == "git":
        with opener(path) as stream:
            size = sum(map(len, stream))
        new = functools.partial(hashlib.sha1, b"blob %d\0" % size, usedforsecurity=False)
    with opener(path) as stream:
        digest = hashlib.file_digest(stream, new)  # type: ignore[arg-type]
        return f"{algorithm}:{digest.hexdigest()}"


def recorded(name: str) -> str | None:
    """Return the checksum recorded for a file; None if no checksum is recorded."""
    with contextlib.suppress(OSError):
        match = re.match(r"[0-9a-f]{64}\b", _record(name).read_text("utf-8"))
        return f"sha256:{match[0]}" if match else None
    return None


def record(name: str, sha256: str) -> None:
    """Record the checksum of a file without a published checksum, as `sha256sum` writes it.

    Args:
        name: of the published file.
        sha256: "sha256:…".
    """
    write_text(_record(name), f"{sha256.removeprefix('sha256:')}  {cached(name).name}\n")


def _record(name: str) -> Path:
    return cached(f"{name}.sha256")
