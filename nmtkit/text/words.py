"""Distinct words by number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nmtkit.arrays import Ints

CHUNK = 1 << 13  # words
CACHED_WORDS = 1 << 17
LONGEST_CACHED = 64  # characters
"""Bounds of the caches of words."""
_SURROGATES = "surrogatepass"


class Numbers(dict[str, int]):
    """Gives each new text the next number.

    Attributes:
        texts: by number.
        of_words: a tokenizer's cache: from a word to the number of its tokens, if they do not
            depend on the line. A last word, after others, has an LF.
    """

    def __init__(self, *texts: str) -> None:
        super().__init__(zip(texts, range(len(texts)), strict=True))
        self.texts = list(texts)
        self.of_words: dict[str, int] = {}

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        self.texts.append(text)
        return number


class Words(Sequence[str]):
    """A read-only list of words as one buffer of bytes, so that millions need no Python objects.

    Args:
        data: the UTF-8 of all words one after another, without separators; bytes, or an array of
            bytes that may be memory-mapped.
        offsets: where each word starts in `data`, and the end of the last (W + 1).
    """

    def __init__(self, data: bytes | NDArray[np.uint8], offsets: Ints) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.offsets = offsets

    @classmethod
    def of(cls, words: Sequence[str]) -> Words:
        """Return the same words as a buffer."""
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
        """Return the code points of all words, some thousand words at a time.

        Returns: which words, their letters one after another, and the letters of each word.
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
        if re.search(re.escape(text.encode()), self.data.data) is None:  # of most texts, fast
            return []
        return [number for number, word in enumerate(self) if text in word]
