"""A prepared set of sentence pairs on disk: token ids, and for some sets the consecutive parts
(spans) of each source sentence.

A set is a folder of shards 00000, 00001, …, with its pairs in the order of the corpus. A shard is a
ragged array: the ids of src 0, tgt 0, src 1, tgt 1, …, each sentence with its </s>, as uint16
(uint32 for a larger vocabulary). The fields of its header are the bytes per id and the size of the
larger vocabulary. 00000.spans has the number of tokens of each span of the sources of shard 00000,
as uint8; a sentence without spans is one whose parts are not known.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.arrays import Array, Integers, Ints, Mask
from nmtkit.data.documents import Documents
from nmtkit.data.ragged import AGAIN, RaggedShards, ragged_files, write_ragged
from nmtkit.errors import DataError, counted

MAGIC, SPANS_MAGIC = b"nmtstor\x01", b"nmtspan\x01"


def id_type(vocab_size: int) -> np.dtype[Any]:
    """Return the type of stored ids: uint16, or uint32 for more than 65,535 tokens."""
    return np.dtype("<u4") if vocab_size > 65535 else np.dtype("<u2")


class Store:
    """A prepared set of sentence pairs, read only and memory-mapped.

    Opening it reads only the beginning and the end of the index of each shard.

    Args:
        path: the folder of the set, for example prep/train.
    Attributes:
        shard_sizes: number of pairs of each shard.
        spans: see `load_spans`.
    Raises: DataError if a file is missing, truncated, or not a store; also from every method that
        reads damaged lengths.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shards = _shards(path)
        self._sentences = RaggedShards(self._shards, MAGIC, fields=2)
        for shard, sentences in enumerate(self._sentences.sizes):
            if sentences % 2:
                raise self._damaged(shard)
        self.shard_sizes = [sentences // 2 for sentences in self._sentences.sizes]
        self._starts = np.array(self._sentences.starts) // 2
        self.spans = load_spans(path, len(self))

    def _damaged(self, shard: int) -> DataError:
        index = ragged_files(self._shards[shard])[1]
        return DataError(
            "damaged: a sentence of a pair, or its </s>, is missing", where=index, hint=AGAIN
        )

    @functools.cached_property
    def src_lengths(self) -> Ints:
        """Lengths of all sources (N), </s> included; training reads `shard_lengths`."""
        return self._all_lengths(0)

    @functools.cached_property
    def tgt_lengths(self) -> Ints:
        """Lengths of all targets (N), </s> included; training reads `shard_lengths`."""
        return self._all_lengths(1)

    def _all_lengths(self, side: int) -> Ints:
        shards = range(len(self.shard_sizes))
        return np.concatenate([self.shard_lengths(shard)[side] for shard in shards], dtype=np.int64)

    def shard_lengths(self, shard: int) -> tuple[Integers, Integers]:
        """Return the lengths of the sources and targets of a shard, </s> included, in the smallest
        unsigned type.
        """
        lengths = np.diff(self._sentences.shard(shard).offsets)
        if lengths.min(initial=1) < 1:
            raise self._damaged(shard)
        lengths = lengths.astype(np.min_scalar_type(lengths.max(initial=1)))
        return np.ascontiguousarray(lengths[0::2]), np.ascontiguousarray(lengths[1::2])

    def lengths(self, pairs: Ints) -> tuple[Ints, Ints]:
        """Return the lengths of the sources and targets of some pairs (B), </s> included."""
        src, tgt = np.empty((2, len(pairs)), np.int64)
        for shard, in_shard, places in self.by_shard(pairs):
            offsets, first = self._sentences.shard(shard).offsets, 2 * places
            middle = offsets[first + 1]
            src[in_shard], tgt[in_shard] = middle - offsets[first], offsets[first + 2] - middle
        return src, tgt

    def by_shard(self, pairs: Ints) -> Iterator[tuple[int, Mask, Ints]]:
        """Yield each shard of some pairs (B), the mask of its pairs (B), and their numbers in the
        shard.
        """
        shards = np.searchsorted(self._starts, pairs, "right") - 1
        for shard in np.unique(shards).tolist():
            in_shard = shards == shard
            yield shard, in_shard, pairs[in_shard] - self._starts[shard]

    def sides(self, pairs: Ints) -> list[tuple[Array, Ints]]:
        """Return the sources and the targets of some pairs (B): the ids of all sentences, one after
        another, and the length of each sentence (B), </s> included.
        """
        sides = [(np.empty(lengths.sum(), np.int64), lengths) for lengths in self.lengths(pairs)]
        for shard, in_shard, places in self.by_shard(pairs):
            sentences = self._sentences.shard(shard)
            for side, (ids, lengths) in enumerate(sides):
                ids[np.repeat(in_shard, lengths)] = sentences.joined(2 * places + side)
        return sides

    @functools.cached_property
    def documents(self) -> Documents:
        """Where documents start. Blank lines are not read as context.

        Raises: DataError if the file with the starts is damaged.
        """
        blank = [
            start + np.flatnonzero(self.shard_lengths(shard)[0] <= 1)  # </s> alone
            for shard, start in enumerate(self._starts[:-1])
        ]
        documents = Documents.of_set(self.path.parent, self.path.name, len(self))
        return documents.without(set(np.concatenate(blank).tolist()))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def src(self, pair: int) -> Array:
        """Return the ids of a source sentence (S), </s> included; a view into the file."""
        return self._sentences[2 * pair]

    def tgt(self, pair: int) -> Array:
        """Return the ids of a target sentence (T), </s> included; a view into the file."""
        return self._sentences[2 * pair + 1]


def write_store(
    folder: Path, shard: int, vocab_size: int, ids: Array, lengths: Sequence[int] | Ints
) -> list[Path]:
    """Write a shard of a set, and return its files.

    Args:
        folder: of the set.
        shard: its number, from 0.
        vocab_size: size of the larger vocabulary.
        ids: of all sentences, each pair's source first.
        lengths: of the sentences.
    """
    kind = id_type(vocab_size)
    fields = kind.itemsize, vocab_size
    return write_ragged(
        shard_path(folder, shard), MAGIC, fields, ids.astype(kind, copy=False), lengths
    )


def write_spans(folder: Path, shard: int, spans: Sequence[Sequence[int]]) -> list[Path]:
    """Write the spans of the sources of a shard (the number of tokens of each span), and return the
    files.
    """
    path, sizes = spans_path(shard_path(folder, shard)), itertools.chain.from_iterable(spans)
    numbers = np.fromiter(sizes, np.uint8)
    return write_ragged(path, SPANS_MAGIC, (), numbers, list(map(len, spans)))


def shard_path(folder: Path, shard: int) -> Path:
    """Return the array of a shard of a set."""
    return folder / f"{shard:05d}"


def spans_path(shard: Path) -> Path:
    """Return the array of the spans of a shard."""
    return shard.with_name(f"{shard.name}.spans")


def spans_files(folder: Path) -> list[Path]:
    """Return the files of the spans of a set, sorted; none if it has no spans."""
    return sorted(folder.glob("[0-9]*.spans.*"))


def load_spans(folder: Path, count: int) -> RaggedShards | None:
    """Return the spans of a set of `count` sentences: the number of tokens of each span, </s>
    included. A sentence whose parts are not known has no spans.

    Returns: None if the set has no spans.
    Raises: DataError if the files are damaged, or belong to another set.
    """
    if not spans_files(folder):
        return None
    spans = RaggedShards([spans_path(shard) for shard in _shards(folder)], SPANS_MAGIC)
    if len(spans) != count:
        raise DataError(f"not the spans of {counted(count, 'sentence')}", where=folder, hint=AGAIN)
    return spans


def _shards(folder: Path) -> list[Path]:
    """Return the paths of the N shards of a set, 0 to N-1. A missing shard is an error when it is
    opened.

    Raises: DataError if the set is not a folder.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}", hint=AGAIN) from error
    stems = {name[:-4] for name in names if re.fullmatch(r"\d{5,}\.(bin|idx)", name)}
    return [shard_path(folder, number) for number in range(max(1, len(stems)))]
