"""Files that worker processes write, each its own, and that later steps read in the order of the
corpus.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple


class Part(NamedTuple):
    """Where the text of one chunk is."""

    path: Path
    start: int
    length: int

    def read(self) -> bytes:
        """Its bytes."""
        with open(self.path, "rb") as stream:
            stream.seek(self.start)
            return stream.read(self.length)


class PartWriter:
    """Writes parts one after another to a file of this process.

    Args:
        path: what the file's name begins with.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.{os.getpid()}")
        self._stream: BinaryIO | None = None
        self._end = 0

    def write(self, data: bytes) -> Part:
        """Write a part; it can be read at once."""
        if self._stream is None:
            self._stream = open(self._path, "wb", buffering=0)
        view = memoryview(data)
        while view:
            view = view[self._stream.write(view) :]
        part = Part(self._path, self._end, len(data))
        self._end += len(data)
        return part
