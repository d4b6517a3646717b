"""Ragged arrays on disk: sequences of numbers with different lengths. They are memory-mapped, so
that processes share them.

NAME.bin holds the numbers, sequence after sequence. NAME.idx holds a header (an 8-byte magic that
includes the version, then little-endian 8-byte fields) and N+1 int64 offsets, counted in numbers.
The first field of a header, if there is one, is the size of a number in bytes; the default is 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nmtkit import files
from nmtkit.errors import DataError

AGAIN = "prepare it again: nmtkit prep … --force"


def ragged_files(path: Path) -> tuple[Path, Path]:
    """Return the files of an array: its numbers and its index."""
    return path.with_name(f"{path.name}.bin"), path.with_name(f"{path.name}.idx")


class Ragged:
    """A read-only ragged array.

    Args:
        path: the array, for example prep/train (its files are prep/train.bin and prep/train.idx).
        magic: the first bytes of the index.
        fields: number of fields of the header.
    Raises: DataError if a file is missing, truncated, or of another kind.
    """

    def __init__(self, path: Path, magic: bytes, fields: int = 0) -> None:
        data, index = ragged_files(path)
        try:
            width, self.offsets = _read_index(index, magic, fields)
            data_bytes = data.stat().st_size
        except OSError as error:
            raise DataError(
                f"cannot read {error.filename}: {error.strerror}", hint=AGAIN
            ) from error
        expected = int(self.offsets[-1]) * width
        if self.offsets[0] != 0 or expected != data_bytes:
            message = f"has {data_bytes} bytes where the index says {expected}"
            raise DataError(message, where=data, hint=AGAIN)
        dtype = np.dtype(f"<u{width}")
        # An empty file cannot be mapped.
        self._numbers: NDArray[Any] = (
            np.memmap(data, dtype=dtype, mode="r") if data_bytes else np.empty(0, dtype)
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[Any]:
        """Return sequence i, a view into the file."""
        if not 0 <= i < len(self):
            raise IndexError(f"sequence {i} of {len(self)}")
        start, end = self.offsets[i : i + 2]
        return self._numbers[start:end]


def _read_index(path: Path, magic: bytes, fields: int) -> tuple[int, NDArray[np.int64]]:
    """Return the size of a number in bytes, and the offsets (N+1)."""
    size = path.stat().st_size
    start = len(magic) + 8 * fields
    with open(path, "rb") as stream:
        first_bytes, width = stream.read(len(magic)), stream.read(8)
    number_bytes = int.from_bytes(width, "little") if fields else 1
    if first_bytes != magic or number_bytes not in {1, 2, 4}:
        raise DataError("not a prepared set of this version of nmtkit", where=path, hint=AGAIN)
    count, rest = divmod(size - start, 8)
    if rest or count < 1:
        raise DataError(f"truncated: it has {size} bytes", where=path, hint=AGAIN)
    return number_bytes, np.memmap(path, dtype="<i8", mode="r", offset=start, shape=(count,))


class RaggedWriter:
    """Writes a ragged array block by block; both files appear complete or not at all.

    Args:
        path, magic: as for Ragged.
        fields: values of the header's fields.
    Raises: EnvironmentProblem if the disk is full or not writable.
    """

    def __init__(self, path: Path, magic: bytes, *fields: int) -> None:
        data, index = ragged_files(Path(path))
        self._total = 0
        with contextlib.ExitStack() as stack:
            self._index = stack.enter_context(files.writing(index, "wb"))
            self._data = stack.enter_context(files.writing(data, "wb"))
            self._index.write(magic + b"".join(field.to_bytes(8, "little") for field in fields))
            self._index.write(bytes(8))  # the first offset is 0
            self._files = stack.pop_all()

    def add_block(self, numbers: bytes, lengths: Sequence[int] | NDArray[np.int64]) -> None:
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
