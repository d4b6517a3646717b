"""The words of a corpus as subwords, in arrays."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nmtkit.arrays import Array, Integers, Ints

LINE_END = -1


@dataclass
class Segmented:
    """Numbered words, each as its pieces."""

    pieces: list[str]
    """The pieces by number. A piece may have several numbers."""
    flat: Integers
    """The piece numbers of all words, word after word."""
    lengths: Integers
    """Pieces of each word (W)."""

    def counts(self, words: Ints) -> Counter[str]:
        """Return how often each piece occurs.

        Args:
            words: how often each word occurs (W).
        """
        # float64, exact up to 2 ** 53
        sums = np.bincount(self.flat, np.repeat(words, self.lengths), minlength=len(self.pieces))
        counts: Counter[str] = Counter()
        for piece in np.flatnonzero(sums).tolist():
            counts[self.pieces[piece]] += int(sums[piece])
        return counts

    def changed(self, words: Mapping[int, Sequence[str]]) -> Segmented:
        """Return a copy with other pieces for some words.

        Args:
            words: the new pieces by the number of the word.
        """
        if not words:
            return self
        numbers = list(words)
        added = list(itertools.chain.from_iterable(words.values()))
        # The new pieces are appended, and the words point to them.
        numbered = np.arange(len(self.pieces), len(self.pieces) + len(added))
        flat = np.concatenate([self.flat, numbered.astype(self.flat.dtype)])
        sizes = np.array([len(word) for word in words.values()])
        lengths, starts = self.lengths.copy(), starts_of(self.lengths)
        lengths[numbers], starts[numbers] = sizes, len(self.flat) + starts_of(sizes)
        pieces = [*self.pieces, *added]
        return Segmented(pieces, joined(flat, starts, lengths), lengths)

    @classmethod
    def whole(cls, words: Iterable[str]) -> Segmented:
        """Return each word as one piece."""
        pieces = list(words)
        return cls(pieces, np.arange(len(pieces)), np.ones(len(pieces), np.int64))


def starts_of(lengths: Integers) -> Ints:
    """Return where pieces of these lengths start if they stand one after another."""
    starts: Ints = np.cumsum(lengths) - lengths
    return starts


def joined(flat: Array, starts: Ints, lengths: Integers) -> Array:
    """Return pieces of an array one after another, each given by its start and length."""
    places = np.repeat(starts - starts_of(lengths), lengths)
    places += np.arange(len(places))
    return flat[places]
