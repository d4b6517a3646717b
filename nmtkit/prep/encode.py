"""Text to token ids: tokenized training pairs by the numbers of their words, dev and test sets
line by line.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.store import id_type
from nmtkit.prep.clean import SIDES
from nmtkit.prep.learn import Models
from nmtkit.text.segmented import LINE_END, WordIds
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy, utf8_lines
from nmtkit.text.truecase import SPECIAL, sentence_starts
from nmtkit.text.vocabulary import UNK, Vocabulary


@dataclass
class Encoded:
    """A chunk of pairs as token ids."""

    ids: NDArray[Any]
    """src, tgt, src, … each with its </s>, in the store's type."""
    lengths: NDArray[np.int64]
    kept: NDArray[np.bool_]
    """For each pair of the chunk, True if it is kept."""
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    """Tidied lines of each stream (dev and test sets only)."""
    changes: list[Counter[str]] = field(default_factory=list)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Subwords without </s>, and <unk>, of source and target (2, 2)."""
        line = np.searchsorted(np.cumsum(self.lengths), np.flatnonzero(self.ids == UNK), "right")
        subwords = (self.lengths - 1).reshape(-1, 2).sum(0)
        return np.stack([subwords, np.bincount(line % 2, minlength=2)])


class TrainEncoder:
    """Encodes tokenized training pairs and drops those with too many subwords.

    Args:
        models: learnt from the words of the text.
        max_subwords: most subwords of a side.
    """

    def __init__(self, models: Models, max_subwords: int) -> None:
        self._words = models.words
        sides = list(zip(models.segmented, models.vocabularies, strict=True))
        self._ids = WordIds(sides, id_type(max(map(len, models.vocabularies))))
        self._longest = max_subwords

    def __call__(self, text: bytes) -> Encoded:
        """Encode src line, tgt line, …"""
        ids, lengths = self._ids(np.frombuffer(self._numbers(text), np.int32))
        long = (lengths - 1 > self._longest).reshape(-1, 2)
        kept: NDArray[np.bool_] = np.logical_not(long.any(1))
        if kept.all():
            return Encoded(ids, lengths, kept)
        counts = dict(zip(SIDES, long.sum(0).tolist(), strict=True)) | {"pairs": int((~kept).sum())}
        reasons = Counter({("too many subwords", name): count for name, count in counts.items()})
        sides = np.repeat(kept, 2)
        return Encoded(ids[np.repeat(sides, lengths)], lengths[sides], kept, reasons)

    def _numbers(self, text: bytes) -> array[int]:
        """Return the numbers of all words; a word has another one where it starts a sentence."""
        numbers = array("i")
        for line, side in zip(text.decode().split("\n")[:-1], itertools.cycle(self._words)):
            tokens = line.split(" ")
            if not side.at_start:
                numbers.extend(map(side.elsewhere.__getitem__, tokens))
            elif SPECIAL.isdisjoint(tokens[:-1]):
                numbers.append(side.at_start[tokens[0]])
                numbers.extend(map(side.elsewhere.__getitem__, tokens[1:]))
            else:
                for token, first in zip(tokens, sentence_starts(tokens), strict=True):
                    numbers.append((side.at_start if first else side.elsewhere)[token])
            numbers.append(LINE_END)
        return numbers


@dataclass
class SetEncoder:
    """Encodes a dev or test set line for line, as translation will; nothing is dropped.

    Args:
        sides: the text of source and target.
        vocabularies: of both.
    """

    sides: Sequence[TextSide]
    vocabularies: Sequence[Vocabulary]

    def __call__(self, chunk: Sequence[bytes]) -> Encoded:
        """Encode the lines of src, ref, ref1, …; the store gets the first reference."""
        changes: list[Counter[str]] = [Counter(), Counter()]
        texts = [
            [
                tidy(line or "", changes[stream > 0])
                for line in utf8_lines(text, changes[stream > 0])
            ]
            for stream, text in enumerate(chunk)
        ]
        encoded = [
            vocabulary.encode(side.encode(line))
            for row in zip(texts[0], texts[1], strict=True)
            for vocabulary, side, line in zip(self.vocabularies, self.sides, row, strict=True)
        ]
        kind = id_type(max(map(len, self.vocabularies)))
        ids = np.array(list(itertools.chain.from_iterable(encoded)), kind)
        lengths = np.array(list(map(len, encoded)))
        kept = np.ones(len(texts[0]), bool)
        joined = ["".join([line + "\n" for line in lines]) for lines in texts]
        return Encoded(ids, lengths, kept, texts=joined, changes=changes)


def subword_counts(sizes: NDArray[np.int64]) -> dict[str, int]:
    """Return the sizes of all chunks together as a set's entry of the manifest has them."""
    keys = ("src_tokens", "tgt_tokens", "src_unknown", "tgt_unknown")
    return dict(zip(keys, sizes.ravel().tolist(), strict=True))
