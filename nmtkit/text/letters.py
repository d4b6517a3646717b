"""All words of a text as one array of numbered letters: what learning BPE merges begins with."""

from __future__ import annotations

from array import array

import numpy as np

from nmtkit.arrays import Ints, Ints32, Mask
from nmtkit.errors import DataError
from nmtkit.text.words import Words

END = "</w>"
"""Marks the last letter of a word."""
LETTERS = 0x110000  # of Unicode
CHUNK = 1 << 16  # places that are numbered at once
MOST_PLACES = (1 << 31) - 1


def spelled(words: Words, counts: Ints, learnt: Mask) -> tuple[list[str], array[int], array[int]]:
    """Return the symbols, the first of which is the gap; all words as numbers of symbols, with a
    gap before, between and after them; and the count of the word at every place.
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
    """Replace the code of every letter by the number of its symbol, and return the symbols."""
    occurs = np.zeros(2 * LETTERS, bool)
    for start in range(0, len(text), CHUNK):
        occurs[text[start : start + CHUNK]] = True
    codes = np.flatnonzero(occurs)
    number = np.zeros(len(occurs), np.int32)
    number[codes] = np.arange(len(codes))
    for start in range(0, len(text), CHUNK):
        text[start : start + CHUNK] = number[text[start : start + CHUNK]]
    return [chr(code % LETTERS) + (END if code >= LETTERS else "") for code in codes.tolist()]
