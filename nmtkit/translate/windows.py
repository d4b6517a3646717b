"""Reading input in windows: large ones from a file, whatever is there from a pipe or a person."""

from __future__ import annotations

import itertools
import os
import select
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from nmtkit import files
from nmtkit.errors import DataError

Item = TypeVar("Item")

WINDOW = 10_000
"""Lines sorted by length together; memory grows with this, not with the input."""
SILENCE = 0.05
"""Seconds without input after which what has come is translated."""
BYTES = 1 << 16


def windowed(items: Iterable[Item], size: int = WINDOW) -> Iterator[list[Item]]:
    """Group items into lists of `size` (the last one shorter)."""
    iterator = iter(items)
    while window := list(itertools.islice(iterator, size)):
        yield window


def file_windows(path: str, size: int = WINDOW) -> Iterator[list[str]]:
    """The lines of a UTF-8 file (compressed or not) in windows.

    Raises: DataError if it cannot be read or is not UTF-8.
    """
    return windowed(files.text_lines(Path(path)), size)


def stream_windows(stream: BinaryIO, size: int = WINDOW, silence: float = SILENCE) -> Iterator[list[str]]:
    """The lines of a stream in windows that end when nothing more has come for a moment, so that a dialogue is answered line by line.

    Args:
        stream: stdin's bytes; only its file descriptor is read if it has one.
        size: the most lines of a window.
        silence: seconds.
    Raises: DataError if a line is not UTF-8; the lines before it are yielded first.
    """
    number = offset = 0
    for window in _raw_windows(stream, size, silence):
        lines: list[str] = []
        for raw in window:
            number += 1
            try:
                lines.append(files.decode_line(raw, "stdin", number, offset))
            except DataError:
                if lines:
                    yield lines
                raise
            offset += len(raw) + 1
        yield lines


def _raw_windows(stream: BinaryIO, size: int, silence: float) -> Iterator[list[bytes]]:
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):  # not a real file (a test's BytesIO): it never makes anyone wait
        yield from windowed((line.removesuffix(b"\n") for line in stream), size)
        return
    waiting: list[bytes] = []
    partial: list[bytes] = []  # of the line not ended yet
    while True:
        if waiting and (len(waiting) >= size or not select.select([descriptor], [], [], silence)[0]):
            yield waiting[:size]
            waiting = waiting[size:]
            continue
        block = os.read(descriptor, BYTES)
        if not block:
            break
        first, *rest = block.split(b"\n")
        partial.append(first)
        if rest:
            waiting.append(b"".join(partial))
            waiting += rest[:-1]
            partial = [rest[-1]]
    last = b"".join(partial)
    yield from windowed([*waiting, *([last] if last else [])], size)
