"""The prepared corpus on disk: token ids of sentence pairs and their offsets, memory-mapped, so
that any number of processes share it.

NAME.bin holds the ids of src 0, tgt 0, src 1, tgt 1, …, each sentence with its </s>, as uint16
(uint32 when the vocabulary is larger); NAME.idx a header of three little-endian 8-byte fields
(magic with version, bytes per id, vocabulary size) and 2N+1 int64 offsets in ids.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.documents import Documents
from nmtkit.data.spans import Spans
from nmtkit.errors import DataError, EnvironmentProblem

MAGIC = b"nmtstor\x01"
HEADER = 24
FLUSH_IDS = 1 << 18
AGAIN = "prepare it again: nmtkit prep … --force"


def id_type(vocab_size: int) -> np.dtype[Any]:
    """The type ids are stored in: uint16, or uint32 for more than 65,535 tokens."""
    return np.dtype("<u4") if vocab_size > 65535 else np.dtype("<u2")


def _paths(path: Path) -> tuple[Path, Path]:
    name = (
        path.name.removesuffix(".bin")
        if path.name.endswith(".bin")
        else path.name.removesuffix(".idx")
    )
    return path.with_name(name + ".bin"), path.with_name(name + ".idx")


class Store:
    """A prepared set of sentence pairs, read only and memory-mapped.

    Args:
        path: the set, for example prep/train (its files are prep/train.bin and prep/train.idx).
    Raises: DataError if a file is missing, truncated, or not a store.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        ids_path, index_path = _paths(self.path)
        try:
            size = index_path.stat().st_size
            with open(index_path, "rb") as stream:
                header = stream.read(HEADER)
            ids_size = ids_path.stat().st_size
        except FileNotFoundError as error:
            raise DataError(f"no such prepared set: {error.filename}", hint="nmtkit prep") from None
        except OSError as error:
            raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
        width = int.from_bytes(header[8:16], "little")
        if header[:8] != MAGIC or width not in (2, 4):
            raise DataError(
                "not a prepared set of this version of nmtkit", where=index_path, hint=AGAIN
            )
        count, rest = divmod(size - HEADER, 8)
        if rest or count < 1 or count % 2 == 0:
            raise DataError(
                f"truncated: {size} bytes hold no whole number of pairs",
                where=index_path,
                hint=AGAIN,
            )
        self.vocab_size = int.from_bytes(header[16:24], "little")
        self._offsets: NDArray[np.int64] = np.memmap(
            index_path, dtype="<i8", mode="r", offset=HEADER, shape=(count,)
        )
        expected = int(self._offsets[-1]) * width
        if int(self._offsets[0]) != 0 or expected != ids_size:
            raise DataError(
                f"has {ids_size} bytes where the index says {expected}", where=ids_path, hint=AGAIN
            )
        kind = np.dtype(f"<u{width}")
        self._ids: NDArray[Any] = (
            np.memmap(ids_path, dtype=kind, mode="r") if ids_size else np.empty(0, kind)
        )
        lengths = np.diff(self._offsets)
        if len(lengths) and int(lengths.min()) < 1:
            raise DataError(
                f"damaged: item {int(lengths.argmin())} has no </s>", where=index_path, hint=AGAIN
            )
        self.src_lengths: NDArray[np.int64] = np.ascontiguousarray(lengths[0::2])
        """Tokens of each source sentence (N), </s> included."""
        self.tgt_lengths: NDArray[np.int64] = np.ascontiguousarray(lengths[1::2])
        """Tokens of each target sentence (N), </s> included."""
        self.spans = Spans.beside(ids_path.with_suffix(""), len(self))
        """How the source sentences are cut into parts; None where that was not prepared."""

    @functools.cached_property
    def documents(self) -> Documents:
        """Where documents start; blank lines are the context of none.

        Raises: DataError if the file that says so is damaged.
        """
        blank = np.flatnonzero(self.src_lengths <= 1)  # </s> alone
        return Documents.beside(self.path.parent, self.path.name, len(self)).without(
            {int(i) for i in blank}
        )

    def __len__(self) -> int:
        return len(self.src_lengths)

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        return Store, (self.path,)  # a process that gets one opens the files itself

    def src(self, pair: int) -> NDArray[Any]:
        """The ids of a source sentence (S), </s> included; a view into the file."""
        return self._item(pair, 0)

    def tgt(self, pair: int) -> NDArray[Any]:
        """The ids of a target sentence (T), </s> included; a view into the file."""
        return self._item(pair, 1)

    def _item(self, pair: int, side: int) -> NDArray[Any]:
        if not 0 <= pair < len(self):
            raise IndexError(f"pair {pair} of {len(self)}")
        start, end = self._offsets[2 * pair + side : 2 * pair + side + 2]
        return self._ids[start:end]


class StoreWriter:
    """Writes a set pair by pair, in constant memory; the files get their names at close, so a half
    one is never read.

    Args:
        path: the set, as for Store.
        vocab_size: tokens of the larger vocabulary; decides the type of the ids.
    Raises: EnvironmentProblem if the disk is full or not writable.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._final = _paths(Path(path))
        self._temporary = tuple(p.with_name(f".{p.name}.tmp-{os.getpid()}") for p in self._final)
        self._kind = id_type(vocab_size)
        self._ids = array("I" if self._kind.itemsize == 4 else "H")
        self._offsets = array("q", [0])
        self._total = 0
        try:
            self._final[0].parent.mkdir(parents=True, exist_ok=True)
            self._streams = [open(p, "wb") for p in self._temporary]
            self._streams[1].write(
                MAGIC + self._kind.itemsize.to_bytes(8, "little") + vocab_size.to_bytes(8, "little")
            )
        except OSError as error:
            raise _unwritable(self._final[0], error) from error

    def add(self, src: Sequence[int], tgt: Sequence[int]) -> None:
        """Add a pair of sentences, each a sequence of ids that ends in </s>."""
        for ids in (src, tgt):
            self._ids.extend(ids)
            self._total += len(ids)
            self._offsets.append(self._total)
        if len(self._ids) >= FLUSH_IDS or len(self._offsets) >= FLUSH_IDS:
            self._flush()

    def add_block(self, ids: bytes, lengths: Sequence[int] | NDArray[np.int64]) -> None:
        """Add pairs that another process encoded.

        Args:
            ids: ids of src, tgt, src, … in this writer's type (`id_type`), little-endian.
            lengths: ids of each of these sentences.
        """
        offsets = self._total + np.cumsum(lengths, dtype=np.int64)
        self._offsets.frombytes(offsets.tobytes())
        self._total = self._offsets[-1] if len(offsets) else self._total
        self._flush(ids)

    def _flush(self, block: bytes = b"") -> None:
        if sys.byteorder == "big":
            self._ids.byteswap()
            self._offsets.byteswap()
        try:
            self._ids.tofile(self._streams[0])
            self._streams[0].write(block)
            self._offsets.tofile(self._streams[1])
        except OSError as error:
            self.abandon()
            raise _unwritable(self._final[0], error) from error
        del self._ids[:], self._offsets[:]

    def close(self) -> None:
        """Finish both files and give them their names."""
        self._flush()
        try:
            for stream in self._streams:
                stream.flush()
                os.fsync(stream.fileno())
                stream.close()
            for temporary, final in zip(self._temporary, self._final, strict=True):
                os.replace(temporary, final)
        except OSError as error:
            self.abandon()
            raise _unwritable(self._final[0], error) from error

    def abandon(self) -> None:
        """Throw away what was written."""
        for stream, temporary in zip(self._streams, self._temporary, strict=True):
            with contextlib.suppress(OSError):
                stream.close()
            temporary.unlink(missing_ok=True)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _unwritable(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot write {path}: {error.strerror or error}",
        hint="free some space or choose another --run folder",
    )
