"""Training pairs with subwords drawn anew in each epoch (subword regularisation).

The words of a prepared set are found in its ids: a word ends where its last subword does. For each
epoch every different word gets segmentations drawn from the seed, at most `DRAWS` or as many as it
occurs, and each place where the word stands takes one of them. So an epoch depends on the prepared
set, the settings, the seed and its number alone, not on batches, ranks or earlier epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.documents import Documents
from nmtkit.data.padding import Ids
from nmtkit.data.ragged import Ragged
from nmtkit.data.store import Store, id_type
from nmtkit.text.sampling import Draw
from nmtkit.text.segmented import joined, starts_of
from nmtkit.text.splitter import Splitter
from nmtkit.text.vocabulary import EOS, UNK, Vocabulary

DRAWS = 32
"""The most segmentations of a word that are drawn for an epoch."""
ROWS = 20_000
"""Pairs that are looked at together; bounds the memory."""


class Resegmented:
    """A training set (`Pairs`) whose subwords `begin` draws anew.

    Memory: 4 bytes a word and 2 or 4 bytes a subword, in each process.

    Args:
        store: the prepared set.
        splitters, vocabularies: of source and target.
        strength: of the draw, see `Splitter.sampler`.
        seed: of the training.
    Attributes:
        src_lengths, tgt_lengths: (N), of the epoch; `begin` changes them in place.
        spans: None, because spans of other subwords do not fit.
        fixed: share of the words in the text that have no other segmentation.
    """

    def __init__(
        self,
        store: Store,
        splitters: Sequence[Splitter],
        vocabularies: Sequence[Vocabulary],
        strength: float,
        seed: int,
    ) -> None:
        self._store, self._seed = store, seed
        self._vocabularies = vocabularies
        self.src_lengths, self.tgt_lengths = store.src_lengths.copy(), store.tgt_lengths.copy()
        self.spans: Ragged | None = None
        self._kind = id_type(max(map(len, vocabularies)))
        edges = [_edges(*side) for side in zip(splitters, vocabularies, strict=True)]
        types: dict[tuple[int, bytes], int] = {}
        chunks = list(_words(store, edges, types, self._kind))
        self._numbers = np.concatenate([numbers for numbers, _ in chunks])
        counts = np.concatenate([counts for _, counts in chunks])
        self._word_starts = np.concatenate([[0], np.cumsum(counts)])  # of sentences (2N+1)
        # of each different word: its side, its text (empty if it is never split anew), and its ids
        self._types = [
            _type(side, np.frombuffer(ids, self._kind), splitters[side], vocabularies[side])
            for side, ids in types
        ]
        counts = np.bincount(self._numbers, minlength=len(types))
        several = np.array([bool(text) for _, text, _ in self._types])
        self._draws = np.where(several, np.minimum(counts, DRAWS), 1)
        self.fixed = float(counts[~several].sum() / max(1, counts.sum()))
        self._samplers: list[Draw] = [
            splitter.sampler(strength, vocabulary)
            for splitter, vocabulary in zip(splitters, vocabularies, strict=True)
        ]
        self.begin(0)

    @property
    def documents(self) -> Documents:
        """Where documents start."""
        return self._store.documents

    def __len__(self) -> int:
        return len(self._store)

    def src(self, pair: int) -> NDArray[Any]:
        """Return the ids of a source sentence (S) in this epoch, </s> included."""
        return self._sentence(2 * pair)

    def tgt(self, pair: int) -> NDArray[Any]:
        """Return the ids of a target sentence (T) in this epoch, </s> included."""
        return self._sentence(2 * pair + 1)

    def _sentence(self, number: int) -> NDArray[Any]:
        start, end = self._offsets[number : number + 2]
        return self._ids[start:end]

    def begin(self, epoch: int) -> None:
        """Draw the subwords of an epoch."""
        flat, lengths = self._drawn(Random(f"{self._seed} {epoch}"))
        starts, first = starts_of(lengths), starts_of(self._draws)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, epoch, 1])))
        ids, sizes = [], []
        for begin in range(0, 2 * len(self), 2 * ROWS):
            places = self._word_starts[begin : begin + 2 * ROWS + 1]
            numbers = self._numbers[places[0] : places[-1]]
            drawn = first[numbers] + rng.integers(0, self._draws[numbers])
            ids.append(joined(flat, starts[drawn], lengths[drawn]))
            sizes.append(np.add.reduceat(lengths[drawn], places[:-1] - places[0]))
        self._ids: NDArray[Any] = np.concatenate(ids)
        of_sentences = np.concatenate(sizes)
        self._offsets = np.concatenate([[0], np.cumsum(of_sentences)])
        self.src_lengths[:], self.tgt_lengths[:] = of_sentences[0::2], of_sentences[1::2]

    def _drawn(self, random: Random) -> tuple[NDArray[Any], Ids]:
        """Return the ids of all segmentations of all words, one after another, and the number of
        ids of each.
        """
        flat: list[int] = []
        lengths: list[int] = []
        for (side, text, ids), draws in zip(self._types, self._draws.tolist(), strict=True):
            for _ in range(draws):
                pieces = self._samplers[side](text, random) if text else None
                drawn = self._vocabularies[side].encode(pieces)[:-1] if pieces else ids
                if UNK in drawn:  # a subword that prep has not seen
                    drawn = ids
                flat += drawn
                lengths.append(len(drawn))
        return np.array(flat, self._kind), np.array(lengths)


Edges = tuple[NDArray[np.bool_], NDArray[np.bool_]]


def _edges(splitter: Splitter, vocabulary: Vocabulary) -> Edges:
    """Return for each id whether a word may end with it, and whether a word may begin with it.

    A word ends between two subwords if it may end with the first and begin with the second.
    """
    return (
        np.array([splitter.ends([subword])[0] for subword in vocabulary]),
        np.array([splitter.ends(["a", subword])[0] for subword in vocabulary]),
    )


def _words(
    store: Store, edges: Sequence[Edges], types: dict[tuple[int, bytes], int], kind: np.dtype[Any]
) -> Iterator[tuple[NDArray[np.int32], Ids]]:
    """Yield the numbers of the words of chunks of pairs, and how many words each sentence has.

    Args:
        types: gets the number of each different word, given by side and ids; </s> is a word.
        kind: type of the ids.
    """
    for first in range(0, len(store), ROWS):
        rows = range(first, min(first + ROWS, len(store)))
        sentences = [ids for row in rows for ids in (store.src(row), store.tgt(row))]
        lengths = np.array(list(map(len, sentences)))
        ids = np.concatenate(sentences).astype(kind)
        side = np.repeat(np.arange(len(sentences)) % 2, lengths)
        may_end, may_begin = (
            np.where(side, edges[1][i][ids % len(edges[1][i])], edges[0][i][ids % len(edges[0][i])])
            for i in (0, 1)
        )
        is_end = (may_end & np.append(may_begin[1:], True)) | (ids == EOS)
        is_end[:-1] |= ids[1:] == EOS
        ends = np.flatnonzero(is_end) + 1
        data, width = ids.tobytes(), kind.itemsize
        keys = (
            (of_side, data[start * width : end * width])
            for of_side, (start, end) in zip(
                side[ends - 1].tolist(), itertools.pairwise([0, *ends.tolist()]), strict=True
            )
        )
        numbers = np.fromiter((types.setdefault(key, len(types)) for key in keys), np.int32)
        sentence = np.searchsorted(np.cumsum(lengths), ends, "left")
        yield numbers, np.bincount(sentence, minlength=len(sentences))


def _type(
    side: int, ids: NDArray[Any], splitter: Splitter, vocabulary: Vocabulary
) -> tuple[int, str, list[int]]:
    """Return the side, the text and the ids of a word; the text is empty if it is never split anew:
    </s>, words with an unknown part, and words that the splitter would not split like this.
    """
    numbers: list[int] = ids.tolist()
    if EOS in numbers or UNK in numbers:
        return side, "", numbers
    pieces = [vocabulary[i] for i in numbers]
    words = splitter.join(pieces)
    usual = len(words) == 1 and splitter.segment(words) == pieces
    return side, words[0] if usual else "", numbers
