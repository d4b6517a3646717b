"""Tables of words with their counts, sorted by a hash of the word.

Tables of shards are added up in parts, each with the words of one range of hashes. The result
depends only on the text.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit import files
from nmtkit.arrays import Array, Ints, Mask
from nmtkit.errors import DataError
from nmtkit.prep.tasks import Outcome, read_fact
from nmtkit.text.segmented import joined, starts_of
from nmtkit.text.tokenizer import SIDES

NEVER = np.iinfo(np.int64).max
FREQUENT = 1 << 16
"""A word that occurs this often is always learnt from."""
WORD = np.dtype(
    [
        ("hash", "<u8"),
        ("at_start", "<i8"),
        ("elsewhere", "<i8"),
        ("evidence", "<i8"),
        ("first", "<i8"),
        ("end", "<i8"),
    ]
)
"""A row of a table, for one word.

hash: of the text. at_start, elsewhere, evidence: how often the word occurs at the start of a
sentence, elsewhere, and as evidence for the truecaser. first: the place where it is first seen as
evidence (shard << 32 | token). end: where its text ends in `WordTable.text`.
"""


def refuse_collisions(rows: Array) -> None:
    """Raise DataError if two rows have the same hash; the rows are sorted by hash."""
    if (rows["hash"][1:] == rows["hash"][:-1]).any():
        raise _collision()


def word_hashes(words: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each word, the same in every process and on every machine."""
    digests = b"".join([hashlib.blake2b(word, digest_size=8).digest() for word in words])
    return np.frombuffer(digests, "<u8")


def _collision() -> DataError:
    hint = "please report it with the corpus; another prep.shard_lines does not help"
    return DataError("two different words have the same 64-bit hash", where="prep", hint=hint)


@dataclass(frozen=True)
class WordTable:
    """Words sorted by their hash, with counts.

    Attributes:
        rows: (W) of type WORD.
        text: the UTF-8 of all words, one after another.
    """

    rows: Array
    text: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def words(self) -> list[str]:
        """Return the words in the order of the rows."""
        text, ends = self.text.tobytes(), self.rows["end"].tolist()
        return [text[start:end].decode() for start, end in itertools.pairwise([0, *ends])]

    def lengths(self) -> Ints:
        """Return the number of bytes of each word."""
        return np.diff(self.rows["end"], prepend=0)

    def counts(self) -> Ints:
        """Return how often each word occurs."""
        counts: Ints = self.rows["at_start"] + self.rows["elsewhere"]
        return counts

    def some(self, mask: Mask) -> WordTable:
        """Return the words for which the mask is True."""
        lengths = self.lengths()
        # In numpy before 2.2, self.rows[mask] of a read-only file is read-only too.
        rows, sizes = self.rows.compress(mask), lengths[mask]
        rows["end"] = np.cumsum(sizes)
        return WordTable(rows, joined(self.text, starts_of(lengths)[mask], sizes))

    def part(self, number: int, parts: int) -> WordTable:
        """Return the words in range `number` of `parts` equal ranges of hashes."""
        hashes = self.rows["hash"]  # bisect, unlike searchsorted, reads few pages of a file
        low, high = (bisect_left(hashes, (n << 64) // parts, key=int) for n in (number, number + 1))
        rows = np.array(self.rows[low:high])
        begin = int(self.rows["end"][low - 1]) if low else 0
        end = int(rows["end"][-1]) if len(rows) else begin
        rows["end"] -= begin
        # A view would keep the file of every shard open.
        return WordTable(rows, np.array(self.text[begin:end]))

    def save(self, path: Path) -> list[Path]:
        """Write the table as path.npy and path.words.npy, and return both."""
        arrays = {"npy": self.rows, "words.npy": self.text}
        return [files.write_array(Path(f"{path}.{kind}"), arrays[kind]) for kind in arrays]

    @classmethod
    def load(cls, path: Path) -> WordTable:
        """Return a table that `save` wrote, memory-mapped."""
        kinds = ("npy", "words.npy")
        return cls(*(np.load(f"{path}.{kind}", "r", allow_pickle=False) for kind in kinds))


def concatenated(tables: Sequence[WordTable]) -> WordTable:
    """Return the rows of several tables one after another. They are sorted only if the tables are
    consecutive parts (`WordTable.part`).
    """
    rows = np.concatenate([table.rows for table in tables])
    rows["end"] = np.cumsum(np.concatenate([table.lengths() for table in tables]))
    return WordTable(rows, np.concatenate([table.text for table in tables]))


def merged(tables: Sequence[WordTable]) -> WordTable:
    """Add up several tables.

    Raises: DataError if two words have the same hash but not the same length.
    """
    table = concatenated(tables)
    lengths = table.lengths()
    order = np.argsort(table.rows["hash"], kind="stable")
    rows, starts, lengths = table.rows[order], starts_of(lengths)[order], lengths[order]
    groups = np.flatnonzero(np.diff(rows["hash"], prepend=~rows["hash"][:1]))
    result = rows[groups]
    if len(groups):
        for field in ("at_start", "elsewhere", "evidence"):
            result[field] = np.add.reduceat(rows[field], groups)
        result["first"] = np.minimum.reduceat(rows["first"], groups)
        if (np.maximum.reduceat(lengths, groups) != np.minimum.reduceat(lengths, groups)).any():
            raise _collision()
    result["end"] = np.cumsum(lengths[groups])
    return WordTable(result, joined(table.text, starts[groups], lengths[groups]))


def merge_words(work: Path, index: int, step: str, parts: int, shards: int) -> Outcome:
    """Add up the word tables of all shards, for range `index` of `parts` equal ranges of hashes.
    Write the table of each side.

    Args:
        step: the folder of the results in the work folder.
        parts: the number of ranges.
        shards: the number of shards that were cleaned.
    """
    for shard in range(index, shards, parts):  # each shard is checked by only one task
        read_fact(work, "clean", shard)
    paths = []
    for side in SIDES:
        tables = [
            WordTable.load(work / "clean" / f"{shard:05}.{side}").part(index, parts)
            for shard in range(shards)
        ]
        paths += merged(tables).save(work / step / f"{index:05}.{side}")
    return {}, paths


def frequent_words(types: Ints, limit: int) -> Callable[[WordTable], WordTable]:
    """Return a function that chooses the most frequent words of a table. Among words of the same
    frequency it chooses by hash.

    Args:
        types: number of words by frequency: 0, 1, …, FREQUENT or more (FREQUENT + 1).
        limit: the approximate number of words to choose from all tables.
    """
    fits = np.cumsum(types[::-1])[::-1] <= limit
    least = int(fits.argmax()) if fits.any() else FREQUENT
    room = max(0, limit - int(types[least:].sum()))
    # Of the words that occur one time less, those with a hash below this are chosen.
    below = np.uint64((room << 64) // max(1, int(types[least - 1])) if least else 0)

    def choose(table: WordTable) -> WordTable:
        counts = table.counts()
        rest = (counts == least - 1) & (table.rows["hash"] < below)
        return table.some((counts >= least) | rest)

    return choose
