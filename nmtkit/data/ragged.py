"""Ragged arrays on disk: sequences of numbers with different lengths. They are memory-mapped, so
that processes share them.

NAME.bin has the numbers, sequence after sequence. NAME.idx has a header (an 8-byte magic that
includes the version, then little-endian 8-byte fields) and N+1 int64 offsets, counted in numbers.
The first field of a header, if there is one, is the size of a number in bytes; the default is 1.
The second field, if there is one, is larger than every number of the array.

A large array is stored in shards: ragged arrays whose sequences follow each other.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmtkit import files
from nmtkit.arrays import Array, Ints
from nmtkit.errors import DataError
from nmtkit.text.segmented import joined

AGAIN = "prepare it again: nmtkit prep … --force"
MAPPED = 40 if sys.platform == "darwin" else 160
"""The maximum number of mapped shards of an array. A batch reads most shards of its window, and
prep cuts a set of one window into up to 65. A shard has at most four open files; a process may have
1,024, but only 256 on macOS.
"""


def ragged_files(path: Path) -> tuple[Path, Path]:
    """Return the files of an array: the numbers and the index."""
    return path.with_name(f"{path.name}.bin"), path.with_name(f"{path.name}.idx")


@dataclass(frozen=True)
class Ragged:
    """A ragged array in memory, mapped or not.

    Attributes:
        numbers: of all sequences.
        offsets: (N+1), where each sequence begins in `numbers`, and where the last sequence ends.
        limit: larger than every number; 0 = no limit.
        path: the file of the numbers, for errors.
    Raises: DataError from every method that reads a number that is too large.
    """

    numbers: Array
    offsets: Ints
    limit: int = 0
    path: Path | None = None

    def sequence(self, i: int) -> Array:
        """Return sequence i, a view; i is not checked."""
        start, end = self.offsets[i : i + 2]
        return self._checked(self.numbers[start:end])

    def joined(self, rows: Ints) -> Array:
        """Return some sequences one after another."""
        starts = self.offsets[rows]
        return self._checked(joined(self.numbers, starts, self.offsets[rows + 1] - starts))

    def _checked(self, numbers: Array) -> Array:
        if self.limit and numbers.max(initial=0) >= self.limit:
            raise DataError(
                f"damaged: an id is outside a vocabulary of {self.limit:,} tokens",
                where=self.path,
                hint=AGAIN,
            )
        return numbers


def map_ragged(path: Path, magic: bytes, fields: int) -> Ragged:
    """Map a ragged array into memory, read-only.

    Args:
        path: the array, for example prep/train/00000 (its files are prep/train/00000.bin and
            prep/train/00000.idx).
        magic: the first bytes of the index.
        fields: number of fields of the header.
    Raises: DataError if a file is missing, truncated, or of another kind.
    """
    data, index = ragged_files(path)
    width, count, numbers, limit = _check(path, magic, fields)
    start = len(magic) + 8 * fields
    offsets = np.memmap(index, dtype="<i8", mode="r", offset=start, shape=(count,))
    dtype = np.dtype(f"<u{width}")
    # An empty file cannot be mapped.
    mapped = np.memmap(data, dtype, mode="r") if numbers else np.empty(0, dtype)
    return Ragged(mapped.view(np.ndarray), offsets.view(np.ndarray), limit, data)


class RaggedShards:
    """A read-only ragged array in shards. Opening it reads 24 to 40 bytes of each shard.

    Args:
        paths: the paths of the shards, in order.
        magic, fields: as of `map_ragged`.
    Attributes:
        sizes: number of sequences of each shard.
        starts: the first sequence of each shard, then the number of all sequences.
    Raises: DataError if a file is missing, truncated, or of another kind.
    """

    def __init__(self, paths: Sequence[Path], magic: bytes, fields: int = 0) -> None:
        self.sizes = [_check(path, magic, fields)[1] - 1 for path in paths]
        self.starts = [0, *itertools.accumulate(self.sizes)]
        self.shard: Callable[[int], Ragged] = functools.lru_cache(MAPPED)(
            lambda i: map_ragged(paths[i], magic, fields)
        )
        """Return a shard by its number."""

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, i: int) -> Array:
        """Return sequence i, a view into a file."""
        if not 0 <= i < len(self):
            raise IndexError(f"sequence {i} of {len(self)}")
        shard = bisect_right(self.starts, i) - 1
        return self.shard(shard).sequence(i - self.starts[shard])


def _check(path: Path, magic: bytes, fields: int) -> tuple[int, int, int, int]:
    """Check the files of an array.

    Returns: the bytes of a number, the number of offsets, the number of numbers, and the second
        field of the header (0 if there is none).
    Raises: DataError as `map_ragged`.
    """
    data, index = ragged_files(path)
    start = len(magic) + 8 * fields
    try:
        if index.exists():
            files.check_file(index)
        with open(index, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            header = stream.read(start + 8)
            stream.seek(max(0, size - 8))
            last = int.from_bytes(stream.read(8), "little")
        data_bytes = data.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}", hint=AGAIN) from error
    places = range(len(magic), start, 8)
    stated = [int.from_bytes(header[place : place + 8], "little") for place in places]
    width, limit = *stated, *(1, 0)[fields:]
    if header[: len(magic)] != magic or width not in {1, 2, 4}:
        raise DataError("not a prepared set of this version of nmtkit", where=index, hint=AGAIN)
    offsets, rest = divmod(size - start, 8)
    if rest or offsets < 1:
        raise DataError(f"truncated: it has {size} bytes", where=index, hint=AGAIN)
    if any(header[start:]) or last * width != data_bytes:
        raise DataError(
            f"has {data_bytes} bytes where the index says {last * width}", where=data, hint=AGAIN
        )
    return width, offsets, last, limit


def write_ragged(
    path: Path, magic: bytes, fields: Sequence[int], numbers: Array, lengths: Sequence[int] | Ints
) -> list[Path]:
    """Write a ragged array, and return its files. Both appear complete or not at all.

    Args:
        path, magic: as of `map_ragged`.
        fields: the fields of the header.
        numbers: of all sequences, in their type on disk.
        lengths: of the sequences.
    Raises: EnvironmentProblem if the disk is full or not writable.
    """
    data_path, index_path = ragged_files(path)
    offsets = np.append(0, np.cumsum(lengths)).astype("<i8")
    with files.writing(index_path, "wb") as index, files.writing(data_path, "wb") as data:
        index.write(magic + b"".join(field.to_bytes(8, "little") for field in fields))
        index.write(offsets.tobytes())
        data.write(numbers.tobytes())
    return [data_path, index_path]
