"""Training pairs whose subwords are drawn anew in each epoch (subword regularisation).

The words are read from the ids of a prepared set: a word ends with its last subword. In each epoch
every different word gets segmentations that are drawn from the seed: one for each occurrence, but
at most `DRAWS`. Each occurrence takes one of them at random. So an epoch depends only on the
prepared set, the settings, the seed and the number of the epoch, not on batches, ranks or earlier
epochs. Each window of a large set is drawn like a set (see `nmtkit.data.order`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from nmtkit.arrays import Array, Ints32, Mask
from nmtkit.data.documents import Documents
from nmtkit.data.padding import Ids
from nmtkit.data.ragged import Ragged
from nmtkit.data.store import Store, id_type
from nmtkit.text.sampling import Draw
from nmtkit.text.segmented import joined, starts_of
from nmtkit.text.splitter import Splitter
from nmtkit.text.vocabulary import EOS, UNK, Vocabulary

DRAWS = 32
"""The most segmentations of a word in an epoch."""
ROWS = 20_000
"""Pairs that are processed together; limits the memory."""
OF_SUBWORDS = 1
"""The third number of the seed of the choice for each occurrence."""


class Resegmented(Store):
    """A training set whose subwords `begin` draws anew, window by window.

    A pair outside these windows has the subwords of the prepared set. A model that reads documents
    may read such a pair if a document crosses the border of a window.

    Memory in each process: 4 bytes a word and 2 or 4 bytes a subword of a window.

    Args:
        prepared: the prepared set.
        splitters, vocabularies: of source and target.
        strength: of the draw, see `Splitter.sampler`.
        seed: of the training.
    Attributes:
        spans: None, because the spans of the prepared subwords do not fit.
    """

    def __init__(
        self,
        prepared: Store,
        splitters: Sequence[Splitter],
        vocabularies: Sequence[Vocabulary],
        strength: float,
        seed: int,
    ) -> None:
        super().__init__(prepared.path)
        self.spans = None
        self._prepared, self._seed = prepared, seed
        self._splitters, self._vocabularies = splitters, vocabularies
        self._id_type = id_type(max(map(len, vocabularies)))
        self._edges = [_edges(*side) for side in zip(splitters, vocabularies, strict=True)]
        self._samplers: list[Draw] = [
            splitter.sampler(strength, vocabulary)
            for splitter, vocabulary in zip(splitters, vocabularies, strict=True)
        ]
        self._words: _Words | None = None  # of the current window
        self._shards_of_words: list[int] = []
        self._drawn: dict[int, Ragged] = {}  # by shard
        of_prepared = self._sentences.shard
        self._sentences.shard = lambda shard: self._drawn.get(shard) or of_prepared(shard)

    @property
    def documents(self) -> Documents:  # type: ignore[override]
        return self._prepared.documents

    def begin(self, epoch: int, window: int, shards: list[int]) -> None:
        """Draw the subwords of a window; earlier windows are kept until they are forgotten."""
        if self._words is None or shards != self._shards_of_words:
            rows = [range(*self._starts[shard : shard + 2]) for shard in shards]
            self._shards_of_words, self._words = shards, self._read(list(itertools.chain(*rows)))
        ids, offsets = self._draw(self._words, epoch, window)
        sizes = [self.shard_sizes[shard] for shard in shards]
        edges = itertools.pairwise(itertools.accumulate(sizes, initial=0))
        for shard, (first, end) in zip(shards, edges, strict=True):
            self._drawn[shard] = Ragged(ids, offsets[2 * first : 2 * end + 1])

    def forget_earlier_windows(self) -> None:
        """Keep only the window that began last."""
        self._drawn = {shard: self._drawn[shard] for shard in self._shards_of_words}

    def _read(self, rows: Sequence[int]) -> _Words:
        """Return the words of some pairs."""
        types: dict[tuple[int, bytes], int] = {}
        chunks = [
            self._words_of(rows[first : first + ROWS], types) for first in range(0, len(rows), ROWS)
        ]
        of_chunks, counts = zip(*chunks, strict=True)
        numbers = np.concatenate(of_chunks)
        starts = np.cumsum(np.concatenate([[0], *counts]))
        word_types = [self._type(*key) for key in types]
        occurrences = np.bincount(numbers, minlength=len(types))
        several = np.array([bool(text) for _, text, _ in word_types])
        draws = np.where(several, np.minimum(occurrences, DRAWS), 1)
        return _Words(numbers, starts, word_types, draws)

    def _draw(self, words: _Words, epoch: int, window: int) -> tuple[Array, Ids]:
        """Return the subwords of the sentences of a window, and their offsets (2N+1)."""
        text = f"{self._seed} {epoch}" + (f" {window}" if window else "")
        flat, lengths = self._drawn_types(words, Random(text))
        starts, first = starts_of(lengths), starts_of(words.draws)
        draw = np.random.SeedSequence([self._seed, epoch, OF_SUBWORDS, window])
        rng = np.random.Generator(np.random.PCG64(draw))
        ids, sizes = [], [np.zeros(1, np.int64)]
        for begin in range(0, len(words.starts) - 1, 2 * ROWS):
            places = words.starts[begin : begin + 2 * ROWS + 1]
            numbers = words.numbers[places[0] : places[-1]]
            drawn = first[numbers] + rng.integers(0, words.draws[numbers])
            ids.append(joined(flat, starts[drawn], lengths[drawn]))
            sizes.append(np.add.reduceat(lengths[drawn], places[:-1] - places[0]))
        return np.concatenate(ids), np.cumsum(np.concatenate(sizes))

    def _drawn_types(self, words: _Words, random: Random) -> tuple[Array, Ids]:
        """Return the ids of all segmentations of all words, one after another, and the number of
        ids of each.
        """
        flat: list[int] = []
        lengths: list[int] = []
        for (side, text, ids), draws in zip(words.types, words.draws.tolist(), strict=True):
            for _ in range(draws):
                pieces = self._samplers[side](text, random) if text else None
                drawn = self._vocabularies[side].encode(pieces)[:-1] if pieces else ids
                if UNK in drawn:  # a subword that prep has not seen
                    drawn = ids
                flat += drawn
                lengths.append(len(drawn))
        return np.array(flat, self._id_type), np.array(lengths)

    def _words_of(
        self, pairs: Sequence[int], types: dict[tuple[int, bytes], int]
    ) -> tuple[Ints32, Ids]:
        """Return the numbers of the words of some pairs, and the number of words of each sentence.

        Args:
            types: the side and ids of each different word -> its number; new words are added. </s>
                is a word.
        """
        store = self._prepared
        sentences = [ids for pair in pairs for ids in (store.src(pair), store.tgt(pair))]
        lengths = np.array(list(map(len, sentences)))
        ids = np.concatenate(sentences).astype(self._id_type)
        side = np.repeat(np.arange(len(sentences)) % 2, lengths)
        # An id of the other side may be beyond this vocabulary; then its value is not used.
        may_end, may_begin = (
            np.where(side, tgt.take(ids, mode="wrap"), src.take(ids, mode="wrap"))
            for src, tgt in zip(*self._edges, strict=True)
        )
        is_end = (may_end & np.append(may_begin[1:], True)) | (ids == EOS)
        is_end[:-1] |= ids[1:] == EOS
        ends = np.flatnonzero(is_end) + 1
        data, cuts = ids.tobytes(), [0, *(ends * ids.itemsize).tolist()]
        words = (data[start:end] for start, end in itertools.pairwise(cuts))
        keys = zip(side[ends - 1].tolist(), words, strict=True)
        numbers = np.fromiter((types.setdefault(key, len(types)) for key in keys), np.int32)
        sentence = np.searchsorted(np.cumsum(lengths), ends, "left")
        return numbers, np.bincount(sentence, minlength=len(sentences))

    def _type(self, side: int, word: bytes) -> tuple[int, str, list[int]]:
        """Return the side, the text and the ids of a word. The text is empty if the word is never
        split anew: </s>, words with an unknown subword, and words that the splitter splits in
        another way.
        """
        ids: list[int] = np.frombuffer(word, self._id_type).tolist()
        if EOS in ids or UNK in ids:
            return side, "", ids
        pieces = [self._vocabularies[side][i] for i in ids]
        words = self._splitters[side].join(pieces)
        usual = len(words) == 1 and self._splitters[side].segment(words) == pieces
        return side, words[0] if usual else "", ids


@dataclass(frozen=True)
class _Words:
    """The words of some pairs.

    Attributes:
        numbers: the numbers of the words of the text, one word after another.
        starts: of sentences in `numbers` (2N+1).
        types: the side, the text (empty if it is never split anew) and the ids of each different
            word.
        draws: how many segmentations of each different word to draw.
    """

    numbers: Ints32
    starts: Ids
    types: list[tuple[int, str, list[int]]]
    draws: Ids


def _edges(splitter: Splitter, vocabulary: Vocabulary) -> tuple[Mask, Mask]:
    """Return for each id True if a word may end with it, and True if a word may begin with it.

    A word ends between two subwords if it may end with the first and begin with the second.
    """
    return (
        np.array([splitter.ends([subword])[0] for subword in vocabulary]),
        np.array([splitter.ends(["a", subword])[0] for subword in vocabulary]),
    )
