"""Shards: consecutive rows of parallel text, read from the middle of its files."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError
from nmtkit.prep.tasks import Outcome

MARK_EVERY = 1024
"""Lines between two marks of a file. Reading can begin at a mark."""
RUN_AGAIN = "run prep again, and leave its files alone until it ends"
PARTS, FEWEST, MOST = 64, 5_000, 200_000
"""The default number of shards of a text, and the fewest and the most rows of a shard."""


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of one text file.

    Attributes:
        path: the file, not compressed.
        mark: offset in bytes of the last mark at or before the first line.
        skip: lines from the mark to the first line.
        count: number of lines.
    """

    path: Path
    mark: int
    skip: int
    count: int

    def read(self) -> Iterator[bytes]:
        """Yield the lines, each with its LF."""
        with open(self.path, "rb") as stream:
            stream.seek(self.mark)
            for line in itertools.islice(stream, self.skip, self.skip + self.count):
                yield line if line.endswith(b"\n") else line + b"\n"


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of parallel text.

    Attributes:
        index: the number of the shard in its text.
        first: the number of its first row.
        rows: the number of rows.
        streams: the lines of each side.
    """

    index: int
    first: int
    rows: int
    streams: tuple[tuple[Lines, ...], ...]

    @property
    def name(self) -> str:
        """The beginning of the names of the shard's files."""
        return f"{self.index:05}"

    def chunks(self, max_rows: int = 4000, max_bytes: int = 1 << 20) -> Iterator[list[bytes]]:
        """Read the rows in chunks of bounded size.

        Args:
            max_rows, max_bytes: a chunk ends when it reaches one of them.
        Returns: for each chunk the lines of each side, each line with its LF.
        Raises: DataError if a file has changed since it was inspected.
        """
        sides = [
            itertools.chain.from_iterable(lines.read() for lines in stream)
            for stream in self.streams
        ]
        chunk = list[tuple[bytes, ...]]()
        size = rows = 0
        with contextlib.suppress(ValueError):  # one side has fewer lines
            for row in zip(*sides, strict=True):
                chunk.append(row)
                size += sum(map(len, row))
                rows += 1
                if len(chunk) >= max_rows or size >= max_bytes or rows == self.rows:
                    yield list(map(b"".join, zip(*chunk, strict=True)))
                    chunk, size = [], 0
        if rows != self.rows:
            problem = "the files changed while they were read: they have fewer lines than before"
            raise DataError(problem, self.streams[0][0].path, RUN_AGAIN)


SetShards = dict[str, list[Shard]]
"""The shards of every set, by its name."""


@dataclass(frozen=True)
class TextFile:
    """The facts of a text file."""

    sha256: str
    lines: int
    size: int
    mtime_ns: int
    plain: Path = field(repr=False)
    """The file; if it is compressed, its decompressed copy."""
    marks: list[int] = field(repr=False)
    """The offset in bytes of every MARK_EVERY-th line of the plain text."""

    def as_json(self) -> files.JsonObject:
        """Return the facts for the manifest."""
        return {key: value for key, value in vars(self).items() if key not in {"plain", "marks"}}


def shard_rows(total: int, wanted: int) -> int:
    """Return the number of rows of each shard but the last.

    Args:
        total: rows of the text.
        wanted: the setting prep.shard_lines; 0 chooses by the size of the text.
    """
    return wanted or min(MOST, max(FEWEST, total // PARTS))


def cut(streams: Sequence[Sequence[TextFile]], rows: int) -> list[Shard]:
    """Cut parallel text into shards.

    Args:
        streams: the files of each side; all sides have the same number of lines.
        rows: of each shard but the last.
    """
    total = sum(text.lines for text in streams[0])
    shards = []
    for index, first in enumerate(range(0, total, rows)):
        last = min(first + rows, total)
        parts = tuple(tuple(_parts(stream, first, last)) for stream in streams)
        shards.append(Shard(index, first, last - first, parts))
    return shards


def _parts(stream: Sequence[TextFile], first: int, last: int) -> Iterator[Lines]:
    """Yield the lines from `first` up to `last` of files that are read one after another."""
    before = 0
    for text in stream:
        begin, end = max(first - before, 0), min(last - before, text.lines)
        if begin < end:
            mark, skip = divmod(begin, MARK_EVERY)
            yield Lines(text.plain, text.marks[mark], skip, end - begin)
        before += text.lines


def unpacked(work: Path, index: int) -> Path:
    """Return the file that `unpack` writes."""
    return work / "plain" / f"{index:05}.txt"


def unpack(work: Path, index: int, path: Path) -> Outcome:
    """Write a compressed text file as plain text."""
    plain = unpacked(work, index)
    with files.writing(plain, "wb", durable=False) as out:
        for block in files.line_blocks(path, size=MARK_EVERY):
            out.writelines(block)
    return {}, [plain]
