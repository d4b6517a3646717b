"""Spans beside a prepared set: how each source sentence is cut into consecutive parts,
memory-mapped as the sentences are.

NAME.spans.bin holds the tokens of each span as uint8, sentence after sentence; NAME.spans.idx a
magic and N+1 int64 offsets in spans. A sentence without spans is one whose cut is not known.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import DataError, EnvironmentProblem

MAGIC = b"nmtspan\x01"
AGAIN = "prepare it again: nmtkit prep … --force"


def spans_files(path: Path) -> tuple[Path, Path]:
    """Where the spans of a set are, if it has any: lengths and index."""
    return path.with_name(f"{path.name}.spans.bin"), path.with_name(f"{path.name}.spans.idx")


class Spans:
    """The spans of a set, read only.

    Args:
        path: the set, for example prep/train.
        count: its sentences.
    Raises: DataError if the files are not whole, or of another set.
    """

    def __init__(self, path: Path, count: int) -> None:
        lengths_path, index_path = spans_files(path)
        try:
            with open(index_path, "rb") as stream:
                magic = stream.read(len(MAGIC))
            sizes = index_path.stat().st_size, lengths_path.stat().st_size
        except OSError as error:
            raise DataError(
                f"cannot read {error.filename}: {error.strerror}", hint=AGAIN
            ) from error
        if magic != MAGIC or sizes[0] != len(MAGIC) + 8 * (count + 1):
            raise DataError(f"not the spans of {count:,} sentences", where=index_path, hint=AGAIN)
        self._offsets: NDArray[np.int64] = np.memmap(
            index_path, dtype="<i8", mode="r", offset=len(MAGIC)
        )
        if int(self._offsets[-1]) != sizes[1]:
            raise DataError(
                f"has {sizes[1]} bytes where the index says {int(self._offsets[-1])}",
                where=lengths_path,
                hint=AGAIN,
            )
        self._lengths: NDArray[np.uint8] = (
            np.memmap(lengths_path, dtype=np.uint8, mode="r") if sizes[1] else np.empty(0, np.uint8)
        )

    @classmethod
    def beside(cls, path: Path, count: int) -> Spans | None:
        """The spans of a set, if it has any."""
        return cls(path, count) if any(p.exists() for p in spans_files(path)) else None

    def __getitem__(self, sentence: int) -> NDArray[np.uint8]:
        """Tokens of each span of a sentence (c), </s> included; empty if they are not known."""
        start, end = self._offsets[sentence : sentence + 2]
        return self._lengths[start:end]


class SpansWriter:
    """Writes the spans of a set block by block, in constant memory; the files get their names at
    the end, so half ones are never read.

    Args:
        path: the set, as for Spans.
    Raises: EnvironmentProblem if the disk is full or not writable.
    """

    def __init__(self, path: Path) -> None:
        self._final = spans_files(path)
        self._temporary = tuple(p.with_name(f".{p.name}.tmp-{os.getpid()}") for p in self._final)
        self._total = 0
        with self._writing():
            self._streams = [open(p, "wb") for p in self._temporary]
            self._streams[1].write(MAGIC + bytes(8))

    def add_block(self, lengths: bytes, counts: NDArray[Any]) -> None:
        """Add sentences.

        Args:
            lengths: tokens of each span, one byte each, sentence after sentence.
            counts: spans of each sentence.
        """
        offsets = self._total + np.cumsum(counts, dtype="<i8")
        self._total += len(lengths)
        with self._writing():
            self._streams[0].write(lengths)
            self._streams[1].write(offsets.tobytes())

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except OSError as error:
            hint = "free some space or choose another --run folder"
            raise EnvironmentProblem(
                f"cannot write {self._final[0]}: {error.strerror or error}", hint=hint
            ) from error

    def __enter__(self) -> SpansWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._writing():
            for stream, temporary, final in zip(
                self._streams, self._temporary, self._final, strict=True
            ):
                stream.close()
                if kind is None:
                    os.replace(temporary, final)
                else:
                    temporary.unlink(missing_ok=True)
