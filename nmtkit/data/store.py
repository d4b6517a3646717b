"""A prepared set of sentence pairs on disk: token ids, and for some sets how each source sentence
is cut into consecutive parts (spans).

Both are ragged arrays. NAME holds the ids of src 0, tgt 0, src 1, tgt 1, …, each sentence with its
</s>, as uint16 (uint32 when the vocabulary is larger); the fields of its header are bytes per id
and size of the larger vocabulary. NAME.spans holds the tokens of each span of a source sentence as
uint8; a sentence without spans is one whose cut is not known.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.documents import Documents
from nmtkit.data.ragged import AGAIN, Ragged, RaggedWriter, ragged_files
from nmtkit.errors import DataError

MAGIC, SPANS_MAGIC = b"nmtstor\x01", b"nmtspan\x01"


def id_type(vocab_size: int) -> np.dtype[Any]:
    """Return the type ids are stored in: uint16, or uint32 for more than 65,535 tokens."""
    return np.dtype("<u4") if vocab_size > 65535 else np.dtype("<u2")


class Store:
    """A prepared set of sentence pairs, read only and memory-mapped.

    Args:
        path: the set, for example prep/train.
    Raises: DataError if a file is missing, truncated, or not a store.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._sentences = Ragged(self.path, MAGIC, fields=2)
        lengths = np.diff(self._sentences.offsets)
        if len(lengths) % 2 or lengths.min(initial=1) < 1:
            index = ragged_files(self.path)[1]
            message = "damaged: a sentence of a pair, or its </s>, is missing"
            raise DataError(message, where=index, hint=AGAIN)
        self.src_lengths: NDArray[np.int64] = np.ascontiguousarray(lengths[0::2])
        """Tokens of each source sentence (N), </s> included."""
        self.tgt_lengths: NDArray[np.int64] = np.ascontiguousarray(lengths[1::2])
        """Tokens of each target sentence (N), </s> included."""
        self.spans = load_spans(self.path, len(self))

    @functools.cached_property
    def documents(self) -> Documents:
        """Where documents start; blank lines are the context of none.

        Raises: DataError if the file with the starts is damaged.
        """
        blank = np.flatnonzero(self.src_lengths <= 1)  # </s> alone
        documents = Documents.beside(self.path.parent, self.path.name, len(self))
        return documents.without(set(blank.tolist()))

    def __len__(self) -> int:
        return len(self.src_lengths)

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        return Store, (self.path,)  # a process that gets one opens the files itself

    def src(self, pair: int) -> NDArray[Any]:
        """Return the ids of a source sentence (S), </s> included; a view into the file."""
        return self._sentences[2 * pair]

    def tgt(self, pair: int) -> NDArray[Any]:
        """Return the ids of a target sentence (T), </s> included; a view into the file."""
        return self._sentences[2 * pair + 1]


class StoreWriter(RaggedWriter):
    """Writes the sentences of a set, each pair's source first, in constant memory.

    Args:
        path: the set, as for Store.
        vocab_size: tokens of the larger vocabulary; decides the type of the ids.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._kind = id_type(vocab_size)
        super().__init__(path, MAGIC, self._kind.itemsize, vocab_size)

    def add(self, src: Sequence[int], tgt: Sequence[int]) -> None:
        """Add a pair of sentences, each a sequence of ids that ends in </s>."""
        self.add_block(np.array([*src, *tgt], self._kind).tobytes(), [len(src), len(tgt)])


def spans_path(path: Path) -> Path:
    """Return the array of a set's spans."""
    return path.with_name(f"{path.name}.spans")


def load_spans(path: Path, count: int) -> Ragged | None:
    """Return the spans of a set of `count` sentences: tokens of each span (c), </s> included.

    Returns: None if the set has none; a sentence whose cut is not known has no spans.
    Raises: DataError if the files are damaged, or of another set.
    """
    data, index = ragged_files(spans_path(path))
    if not data.exists() and not index.exists():
        return None
    spans = Ragged(spans_path(path), SPANS_MAGIC)
    if len(spans) != count:
        raise DataError(f"not the spans of {count:,} sentences", where=index, hint=AGAIN)
    return spans


def spans_writer(path: Path) -> RaggedWriter:
    """Return a writer of the spans of a set; a number is the tokens of a span."""
    return RaggedWriter(spans_path(path), SPANS_MAGIC)
