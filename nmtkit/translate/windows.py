"""Reads lines in windows: large ones from a file, what has come so far from a pipe or a person."""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from nmtkit import files
from nmtkit.corpora.document_starts import BLANK, MARKER, MARKER_LINE, read_starts
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.errors import ConfigError, DataError

Item = TypeVar("Item")

WINDOW = 10_000
"""Lines that are sorted by length together. Memory grows with this number, not with the input."""
SILENCE = 0.05
"""Seconds without input after which the lines that have come are translated."""
PATIENCE = 1.0
"""Seconds after which a line is translated even if more lines keep coming."""
BYTES = 1 << 16
MARKED = MARKER_LINE.decode()


def windowed(items: Iterable[Item], size: int | None = None) -> Iterator[list[Item]]:
    """Group items into lists of `size` (the last one shorter), by default of WINDOW."""
    iterator = iter(items)
    while window := list(itertools.islice(iterator, WINDOW if size is None else size)):
        yield window


def file_windows(path: str | Path) -> Iterator[list[str]]:
    """Return the lines of a UTF-8 file (compressed or not) in windows.

    Raises: DataError if the file cannot be read, is not UTF-8, or is a TSV file by its name.
    """
    if files.is_tsv(Path(path)) and Path(path).is_file():
        raise DataError(
            f"{path} is a TSV file, and lines of text are translated whole",
            hint="decompressed: cut -f1 FILE.tsv | nmtkit translate - …",
        )
    return windowed(files.text_lines(Path(path)))


def is_marker(line: str) -> bool:
    """True for a line <d>."""
    return line.strip() == MARKED


@dataclass(frozen=True)
class Boundaries:
    """Where the documents of a text start. Without `mark` and `known`, every line is a document.

    Attributes:
        mark: "blank": a blank line ends a document; "marker": a line <d> is the first line of a
            document.
        known: the documents of the whole text.
    """

    mark: str = ""
    known: Documents | None = None

    def starts(self, lines: list[str], first: int) -> list[int]:
        """Return the indices of `lines` that start documents; also len(lines), if the line after
        them is known to start a document.

        Args:
            lines: some lines of the text.
            first: the number of the first of these lines.
        """
        if self.known is not None:
            return [start - first for start in self.known.starts(first, first + len(lines))]
        if self.mark == BLANK:
            return [number + 1 for number, line in enumerate(lines) if not line.strip()]
        if self.mark == MARKER:
            return [number for number, line in enumerate(lines) if is_marker(line)]
        return list(range(len(lines) + 1))

    def sentences(self, lines: list[str]) -> list[str]:
        """Return the lines to translate: lines <d> that start documents become blank."""
        if self.mark != MARKER:
            return lines
        return ["" if is_marker(line) else line for line in lines]


def named_boundaries(source: str | None, docs: str | None) -> Boundaries | None:
    """Return the boundaries that --docs names; None without --docs.

    Args:
        source: the file with the text, - or None.
        docs: `blank`, `marker`, or a file.
    Raises: ConfigError if --docs cannot be used here; DataError if its file does not fit the text.
    """
    if docs is None:
        return None
    if source is None:
        raise ConfigError(
            "the documents of prepared sets are known",
            where="--docs",
            hint="it is for a file or stdin; for a set: nmtkit prep --docs",
        )
    if docs in {BLANK, MARKER}:
        return Boundaries(docs)
    if source == "-":
        raise ConfigError(
            "the lines of stdin have no numbers yet",
            where="--docs",
            hint="--docs blank or marker, or put the text into a file",
        )
    count = files.count_lines(Path(source))
    return Boundaries(known=Documents(read_starts(Path(docs), count), count))


def whole_documents(
    windows: Iterable[list[str]], boundaries: Boundaries
) -> Iterator[tuple[list[str], Documents]]:
    """Yield the lines again in windows of whole documents, with their documents. The lines of a
    document are held until it ends.
    """
    held: list[str] = []
    begun = {0}  # where documents start among the held lines
    first = before = 0  # the number of the first held line, and of the documents before it
    for window in windows:
        starts = boundaries.starts(window, first + len(held))
        begun.update(len(held) + start for start in starts)
        held += window
        if end := max(begun):
            edges = sorted(begun)
            yield held[:end], Documents(edges[:-1], end, before)
            text = boundaries.sentences(held)  # a document of lines <d> alone does not count
            before += sum(any(map(str.strip, text[a:b])) for a, b in itertools.pairwise(edges))
            held, first, begun = held[end:], first + end, {0}
    if held:
        yield held, Documents([0], len(held), before)


def windows_for(
    rule: ContextRule | None, windows: Iterable[list[str]], boundaries: Boundaries
) -> Iterator[tuple[list[str], Documents | None]]:
    """Yield windows of whole documents for a model that reads context by a rule. Without a rule,
    yield the windows unchanged.

    If the rule draws from other documents, all lines are one window, because it draws from all
    lines of the text.
    """
    if rule is None:
        yield from ((window, None) for window in windows)
    elif rule.kind != "foreign":
        yield from whole_documents(windows, boundaries)
    elif lines := list(itertools.chain.from_iterable(windows)):
        starts = sorted({0, *boundaries.starts(lines, 0)} - {len(lines)})
        yield lines, Documents(starts, len(lines))


def stream_windows(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield the lines of a stream in windows of at most WINDOW lines. A window ends when no line
    comes for SILENCE, so that a dialogue is answered line by line; or when a line has waited for
    PATIENCE.

    Args:
        stream: stdin's bytes; only its file descriptor is read if it has one.
    Raises: DataError if a line is not UTF-8 or has no end; the lines before it are yielded first.
    """
    windows, again = itertools.tee(_raw_windows(stream))
    texts = files.decoded(itertools.chain.from_iterable(again), "stdin")
    for window in windows:
        lines: list[str] = []
        try:
            lines.extend(itertools.islice(texts, len(window)))
        except DataError:
            if lines:
                yield lines
            raise
        yield lines


def _raw_windows(stream: BinaryIO) -> Iterator[list[bytes]]:
    try:
        descriptor = stream.fileno()
    except OSError:  # not a real file (a test's BytesIO): reading never waits
        yield from windowed(line.removesuffix(b"\n") for line in stream)
        return

    def has_input(seconds: float | None = None) -> bool:
        return bool(select.select([descriptor], [], [], seconds)[0])

    waiting: list[bytes] = []
    rest = b""  # the beginning of a line
    number = 0  # lines that have ended
    begin = 0.0  # when the first waiting line came, or the last window ended
    while has_input() and (block := os.read(descriptor, BYTES)):  # it may be non-blocking
        *ended, rest = (rest + block).split(b"\n")
        number += len(ended)
        begin = begin if waiting else time.monotonic()
        waiting += ended
        if len(rest) > files.LONGEST:
            yield from windowed(waiting)
            raise files.too_long(number + 1, "stdin")
        while len(waiting) >= WINDOW or (
            waiting and (time.monotonic() - begin > PATIENCE or not has_input(SILENCE))
        ):
            yield waiting[:WINDOW]
            waiting, begin = waiting[WINDOW:], time.monotonic()  # a search may have taken long
    yield from windowed([*waiting, rest] if rest else waiting)
