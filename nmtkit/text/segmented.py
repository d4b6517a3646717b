"""The words of a corpus as subwords, all in arrays: how often each subword occurs, and the ids
of running text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.text.vocabulary import EOS, Vocabulary

Ints = NDArray[np.int64]
LINE_END = -1


@dataclass
class Segmented:
    """Words by number, each as its pieces."""

    pieces: list[str]
    """Pieces by number; one may have several."""
    flat: Ints
    """The pieces of all words by their number, word after word."""
    lengths: Ints
    """Pieces of each word (W)."""
    merges: int = 0
    """Merges learnt."""

    def counts(self, words: Ints) -> Counter[str]:
        """How often each piece occurs.

        Args:
            words: how often each word does (W).
        """
        sums = np.bincount(
            self.flat, np.repeat(words, self.lengths), minlength=len(self.pieces)
        )  # exact up to 2 ** 53
        counts: Counter[str] = Counter()
        for piece in np.flatnonzero(sums).tolist():
            counts[self.pieces[piece]] += int(sums[piece])
        return counts

    def outside(self, allowed: set[str]) -> list[int]:
        """The words with a piece that is not allowed."""
        bad = np.array([piece not in allowed for piece in self.pieces])
        owners = np.repeat(np.arange(len(self.lengths)), self.lengths)
        words: list[int] = np.unique(owners[bad[self.flat]]).tolist()
        return words

    def changed(self, words: Mapping[int, Sequence[str]]) -> Segmented:
        """A copy with other pieces for some words, given by number."""
        if not words:
            return self
        new = {
            piece: len(self.pieces) + i
            for i, piece in enumerate({piece: None for word in words.values() for piece in word})
        }
        added = np.array([new[piece] for word in words.values() for piece in word], np.int64)
        lengths = self.lengths.copy()
        lengths[list(words)] = [len(word) for word in words.values()]
        starts = np.cumsum(self.lengths) - self.lengths
        starts[list(words)] = (
            len(self.flat) + np.cumsum(lengths[list(words)]) - lengths[list(words)]
        )
        return Segmented(
            [*self.pieces, *new],
            _gathered(np.concatenate([self.flat, added]), starts, lengths),
            lengths,
            self.merges,
        )

    @classmethod
    def whole(cls, words: Iterable[str]) -> Segmented:
        """Each word as one piece."""
        pieces = list(words)
        return cls(pieces, np.arange(len(pieces)), np.ones(len(pieces), np.int64))


class WordIds:
    """Token ids of words by number.

    Args:
        sides: the words of each side, and its vocabulary; the numbers of one side follow those of
            the other.
        kind: type of the ids.
    """

    def __init__(self, sides: Sequence[tuple[Segmented, Vocabulary]], kind: np.dtype[Any]) -> None:
        ids = [
            np.array(vocabulary.encode(words.pieces)[:-1], kind)[words.flat]
            for words, vocabulary in sides
        ]
        self._ids: NDArray[Any] = np.concatenate(
            [*ids, np.array([EOS], kind)]
        )  # the last word is the end of a line, -1
        self._lengths = np.concatenate([*(words.lengths for words, _ in sides), [1]])
        self._starts = np.cumsum(self._lengths) - self._lengths

    def __call__(self, words: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
        """The ids of running text.

        Args:
            words: the words of all lines by number, each line followed by LINE_END.
        Returns: the ids, each line with its </s>, and how many each line has.
        """
        lengths = self._lengths[words]
        ends = np.cumsum(lengths)[words == LINE_END]
        return _gathered(self._ids, self._starts[words], lengths), np.diff(ends, prepend=0)


def _gathered(flat: NDArray[Any], starts: Ints, lengths: Ints) -> NDArray[Any]:
    """The parts of an array from `starts`, one after another."""
    before = np.cumsum(lengths) - lengths
    result: NDArray[Any] = flat[np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)]
    return result
