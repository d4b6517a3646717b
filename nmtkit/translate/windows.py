"""Reading input in windows: large ones from a file, whatever is there from a pipe or a person."""

from __future__ import annotations

import itertools
import os
import select
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from nmtkit import files
from nmtkit.corpora.document_starts import BLANK, MARKER, MARKER_LINE, read_starts
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.errors import ConfigError, DataError

Item = TypeVar("Item")

WINDOW = 10_000
"""Lines sorted by length together; memory grows with this, not with the input."""
SILENCE = 0.05
"""Seconds without input after which what has come is translated."""
BYTES = 1 << 16
MARKED = MARKER_LINE.decode()


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


Starts = Callable[[list[str], int], list[int]]
"""Where documents start among some lines (counted from 0; the place behind the last one is one of
them if it is known to start one), given the number of the first line in the text.
"""


def starts_after_blank(lines: list[str], first: int) -> list[int]:
    """A blank line ends a document, of which it is the last line."""
    return [number + 1 for number, line in enumerate(lines) if not line.strip()]


def starts_at_marker(lines: list[str], first: int) -> list[int]:
    """A line <d> starts a document, of which it is the first line."""
    return [number for number, line in enumerate(lines) if line.strip() == MARKED]


def has_marker(lines: Iterable[str]) -> bool:
    """Whether one of the lines is <d>."""
    return any(line.strip() == MARKED for line in lines)


def without_markers(lines: list[str], starts: Starts) -> list[str]:
    """Lines as they are to be read: where lines <d> start documents these are blank, for they
    are no sentences.
    """
    return (
        ["" if line.strip() == MARKED else line for line in lines]
        if starts is starts_at_marker
        else lines
    )


def with_markers(translations: list[str], lines: list[str], starts: Starts) -> list[str]:
    """The translations of `without_markers` of lines, the lines <d> among them again."""
    if starts is not starts_at_marker:
        return translations
    return [
        MARKED if line.strip() == MARKED else text
        for line, text in zip(lines, translations, strict=True)
    ]


def starts_everywhere(lines: list[str], first: int) -> list[int]:
    """Every line is a document."""
    return list(range(len(lines) + 1))


def starts_of(documents: Documents) -> Starts:
    """Those of a set whose documents are known."""
    return lambda lines, first: [
        start - first for start in documents.starts(first, first + len(lines))
    ]


STARTS: dict[str, Starts] = {BLANK: starts_after_blank, MARKER: starts_at_marker}
"""What --docs may say instead of a file."""


def starts_said(source: str | None, docs: str | None) -> Starts | None:
    """Where documents start by what --docs says: nothing, `blank`, `marker`, or a file; source is
    the file with the text, - or None.

    Raises: ConfigError where it is of no use; DataError for a file that does not fit.
    """
    if docs is None:
        return None
    if source is None:
        raise ConfigError(
            "the documents of prepared sets are known",
            where="--docs",
            hint="it is for a file or stdin; for a set: nmtkit prep --docs",
        )
    if docs in STARTS:
        return STARTS[docs]
    if source == "-":
        raise ConfigError(
            "the lines of stdin have no numbers yet",
            where="--docs",
            hint="--docs blank or marker, or put the text into a file",
        )
    count = files.count_lines(Path(source))
    return starts_of(Documents(read_starts(Path(docs), count), count))


def whole_documents(
    windows: Iterable[list[str]], starts: Starts
) -> Iterator[tuple[list[str], Documents]]:
    """The lines of windows anew, in windows of whole documents: lines of one that may go on are
    held back until it ends.

    Args:
        windows: of lines.
        starts: where documents start.
    Returns: lines, and their documents.
    """
    held: list[str] = []
    begun = {0}  # where documents start among these
    first = before = 0
    for window in windows:
        begun.update(len(held) + start for start in starts(window, first + len(held)))
        held += window
        if end := max(begun):
            edges = sorted(begun)
            yield held[:end], Documents(edges[:-1], end, before)
            before += sum(any(map(str.strip, held[a:b])) for a, b in itertools.pairwise(edges))
            held, first, begun = held[end:], first + end, {0}
    if held:
        yield held, Documents([0], len(held), before)


def windows_for(
    rule: ContextRule | None, windows: Iterable[list[str]], starts: Starts
) -> Iterator[tuple[list[str], Documents | None]]:
    """Windows of whole documents for a model that reads context by some rule, as they come for
    others.

    If the rule draws from other documents, they are one window: which lines there are to draw from
    is known at the end alone.
    """
    if rule is None:
        return ((window, None) for window in windows)
    return (
        _one_window(windows, starts) if rule.kind == "foreign" else whole_documents(windows, starts)
    )


def _one_window(
    windows: Iterable[list[str]], starts: Starts
) -> Iterator[tuple[list[str], Documents]]:
    lines = list(itertools.chain.from_iterable(windows))
    if lines:
        yield lines, Documents(sorted({0, *starts(lines, 0)} - {len(lines)}), len(lines))


def stream_windows(
    stream: BinaryIO, size: int = WINDOW, silence: float = SILENCE
) -> Iterator[list[str]]:
    """The lines of a stream in windows that end when nothing more has come for a moment, so that a
    dialogue is answered line by line.

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
    except (
        OSError,
        AttributeError,
    ):  # not a real file (a test's BytesIO): it never makes anyone wait
        yield from windowed((line.removesuffix(b"\n") for line in stream), size)
        return
    waiting: list[bytes] = []
    partial: list[bytes] = []  # of the line not ended yet
    while True:
        if waiting and (
            len(waiting) >= size or not select.select([descriptor], [], [], silence)[0]
        ):
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
