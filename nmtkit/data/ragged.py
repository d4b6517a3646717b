"""Ragged arrays on disk: sequences of numbers with different lengths. They are memory-mapped, so
that processes share them.

NAME.bin has the numbers, sequence after sequence. NAME.idx has a header (an 8-byte magic that
includes the version, then little-endian 8-byte fields) and N+1 int64 offsets, counted in numbers.
The first field of a header, if there is one, is the size of a number in bytes; the default is 1.
The second field, if there is one, is larger than every number of the array.

A large array is stored in shards: ragged arrays whose sequences follow each other.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

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


class Sequences:
    """Sequences of numbers with different lengths.

    Args:
        numbers: of all sequences.
        offsets: (N+1), where each sequence begins in `numbers`, and where the last sequence ends.
    """

    def __init__(self, numbers: Array, offsets: Ints) -> None:
        self._numbers, self.offsets = numbers, offsets

    def sequence(self, i: int) -> Array:
        """Return sequence i, a view; i is not checked."""
        start, end = self.offsets[i : i + 2]
        return self._checked(self._numbers[start:end])

    def joined(self, rows: Ints) -> Array:
        """Return some sequences one after another."""
        starts = self.offsets[rows]
        return self._checked(joined(self._numbers, starts, self.offsets[rows + 1] - starts))

    def _checked(self, numbers: Array) -> Array:
        return numbers


class Ragged(Sequences):
    """A read-only ragged array.

    Args:
        path: the array, for example prep/train/00000 (its files are prep/train/00000.bin and
            prep/train/00000.idx).
        magic: the first bytes of the index.
        fields: number of fields of the header.
    Raises: DataError if a file is missing, truncated, or of another kind; also from every method
        that reads a number that is too large.
    """

    def __init__(self, path: Path, magic: bytes, fields: int) -> None:
        self._data, index = ragged_files(path)
        width, count, numbers, self._limit = _check(path, magic, fields)
        start = len(magic) + 8 * fields
        offsets = np.memmap(index, dtype="<i8", mode="r", offset=start, shape=(count,))
        dtype = np.dtype(f"<u{width}")
        # An empty file cannot be mapped.
        mapped = np.memmap(self._data, dtype, mode="r") if numbers else np.empty(0, dtype)
        super().__init__(mapped.view(np.ndarray), offsets.view(np.ndarray))

    def _checked(self, numbers: Array) -> Array:
        if self._limit and numbers.max(initial=0) >= self._limit:
            message = f"damaged: an id is outside a vocabulary of {self._limit:,} tokens"
            raise DataError(message, where=self._data, hint=AGAIN)
        return numbers


class RaggedShards:
    """A read-only ragged array in shards. Opening it reads 24 to 40 bytes of each shard.

    Args:
        paths: the paths of the shards, in order.
        magic, fields: as for Ragged.
    Attributes:
        sizes: number of sequences of each shard.
        starts: the first sequence of each shard, then the number of all sequences.
    Raises: DataError if a file is missing, truncated, or of another kind.
    """

    def __init__(self, paths: Sequence[Path], magic: bytes, fields: int = 0) -> None:
        self.sizes = [_check(path, magic, fields)[1] - 1 for path in paths]
        self.starts = [0, *itertools.accumulate(self.sizes)]
        self.shard: Callable[[int], Sequences] = functools.lru_cache(MAPPED)(
            lambda i: Ragged(paths[i], magic, fields)
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
    Raises: DataError as `Ragged`.
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
        message = f"has {data_bytes} bytes where the index says {last * width}"
        raise DataError(message, where=data, hint=AGAIN)
    return width, offsets, last, limit


class RaggedWriter:
    """Writes a ragged array block by block. Both files appear complete or not at all.

    Args:
        path, magic: as for Ragged.
        fields: the fields of the header.
    Raises: EnvironmentProblem if the disk is full or not writable.
    """

    def __init__(self, path: Path, magic: bytes, *fields: int) -> None:
        data, index = ragged_files(path)
        self._total = 0
        with contextlib.ExitStack() as stack:
            self._index = stack.enter_context(files.writing(index, "wb"))
            self._data = stack.enter_context(files.writing(data, "wb"))
            self._index.write(magic + b"".join(field.to_bytes(8, "little") for field in fields))
            self._index.write(bytes(8))  # the first offset is 0
            self._files = stack.pop_all()

    def add_block(self, numbers: bytes, lengths: Sequence[int] | Ints) -> None:
        """Add sequences.

        Args:
            numbers: the numbers of all sequences, little-endian.
            lengths: the length of each sequence.
        """
        offsets = self._total + np.cumsum(lengths, dtype="<i8")
        self._total = int(offsets[-1]) if len(offsets) else self._total
        self._data.write(numbers)
        self._index.write(offsets.tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)
