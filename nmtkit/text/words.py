"""Distinct words by number, and as one array of numbered letters."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nmtkit.arrays import Ints, Ints32, Mask
from nmtkit.errors import DataError

CHUNK = 1 << 13  # words
END = "</w>"
"""Marks the last letter of a word."""
LETTERS = 0x110000  # of Unicode
PLACES_AT_ONCE = 1 << 16
MOST_PLACES = (1 << 31) - 1
CACHED_WORDS = 1 << 17
"""A cache of words is emptied when it becomes larger."""
_SURROGATES = "surrogatepass"


class Numbers(dict[str, int]):
    """Numbers texts: a new text gets the next number.

    Attributes:
        texts: the texts by number.
        of_words: the cache of `Moses._number`, from words to the numbers of their tokens.
    """

    def __init__(self, *texts: str) -> None:
        super().__init__(zip(texts, range(len(texts)), strict=True))
        self.texts = list(texts)
        self.of_words: dict[object, int] = {}

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        self.texts.append(text)
        return number


class Words(Sequence[str]):
    """A read-only list of words in one buffer. Millions of words need no Python objects.

    Args:
        data: the UTF-8 of all words one after another, without separators; an array may be
            memory-mapped.
        offsets: where each word starts in `data`, and where the last word ends (W + 1).
    """

    def __init__(self, data: bytes | NDArray[np.uint8], offsets: Ints) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.offsets = offsets

    @classmethod
    def of(cls, words: Sequence[str]) -> Words:
        """Return words as a buffer."""
        if isinstance(words, cls):
            return words
        lengths = (len(word.encode("utf-8", _SURROGATES)) for word in words)
        offsets = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.fromiter(lengths, np.int64, len(words)), out=offsets[1:])
        return cls("".join(words).encode("utf-8", _SURROGATES), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> str:  # type: ignore[override]  # no slices
        number = range(len(self))[number]
        start, end = self.offsets[number], self.offsets[number + 1]
        return self.data[start:end].tobytes().decode("utf-8", _SURROGATES)

    def letters(self) -> Iterator[tuple[slice, NDArray[np.uint32], Ints]]:
        """Yield the code points of all words, CHUNK words at a time.

        Returns: the slice of words, their code points one after another, and the number of code
            points of each word.
        """
        for first in range(0, len(self), CHUNK):
            which = slice(first, min(first + CHUNK, len(self)))
            ends = self.offsets[which.start : which.stop + 1]
            data = self.data[ends[0] : ends[-1]]
            text = data.tobytes().decode("utf-8", _SURROGATES).encode("utf-32-le", _SURROGATES)
            heads = np.zeros(len(data) + 1, np.int64)
            np.cumsum(data & 0xC0 != 0x80, out=heads[1:])  # bytes that start a letter
            yield which, np.frombuffer(text, "<u4"), np.diff(heads[ends - ends[0]])

    def holding(self, text: str) -> list[int]:
        """Return the numbers of the words that hold some text."""
        if re.search(re.escape(text.encode()), self.data.data) is None:  # fast, and usual
            return []
        return [number for number, word in enumerate(self) if text in word]


def spelled(words: Words, counts: Ints, learnt: Mask) -> tuple[list[str], array[int], array[int]]:
    """Write all words to learn from as one array of symbol numbers, for `bpe_learner`.

    Returns: the symbols, the first of which is the gap; the symbol number at every place, with a
        gap before, between and after the words; and the count of the word at every place.
    """
    sizes = (int(lengths[learnt[which]].sum()) for which, _, lengths in words.letters())
    size = 1 + int(np.count_nonzero(learnt)) + sum(sizes)
    if size > MOST_PLACES:
        problem = f"too many words to learn subwords from: {size:,} letters and gaps"
        raise DataError(problem, hint=f"at most {MOST_PLACES:,}; leave out the rarest words")
    largest = int(counts.max(where=learnt, initial=0))
    memory = array("i", [0]) * size, array("I" if largest < 1 << 32 else "q", [0]) * size
    text, weight = (np.frombuffer(values, values.typecode) for values in memory)
    end = 1
    for which, letters, lengths in words.letters():
        used = learnt[which]
        codes, lengths = letters[np.repeat(used, lengths)].astype(np.int32), lengths[used]
        codes[np.cumsum(lengths) - 1] += LETTERS  # last letters
        start, end = end, end + len(codes) + len(lengths)
        inside = np.ones(end - start, bool)
        inside[np.cumsum(lengths + 1) - 1] = False
        text[start:end][inside] = codes
        weight[start:end] = np.repeat(counts[which][used], lengths + 1)
    return _number(text), *memory


def _number(text: Ints32) -> list[str]:
    """Replace the code of every letter by its symbol number, and return the symbols."""
    occurs = np.zeros(2 * LETTERS, bool)
    for start in range(0, len(text), PLACES_AT_ONCE):
        occurs[text[start : start + PLACES_AT_ONCE]] = True
    codes = np.flatnonzero(occurs)
    number = np.zeros(len(occurs), np.int32)
    number[codes] = np.arange(len(codes))
    for start in range(0, len(text), PLACES_AT_ONCE):
        text[start : start + PLACES_AT_ONCE] = number[text[start : start + PLACES_AT_ONCE]]
    return [chr(code % LETTERS) + (END if code >= LETTERS else "") for code in codes.tolist()]
