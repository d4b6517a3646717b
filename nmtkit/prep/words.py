"""The text of one side of a shard as numbers of words."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nmtkit.prep.word_table import NEVER, WORD, WordTable, sorted_table
from nmtkit.text.segmented import LINE_END, joined, starts_of
from nmtkit.text.truecase import DELAYED_START, SENTENCE_END, is_tag

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Numbers(dict[str, int]):
    """Gives each new text the next number.

    Attributes:
        texts: by number.
    """

    def __init__(self, *texts: str) -> None:
        super().__init__(zip(texts, range(len(texts)), strict=True))
        self.texts = list(texts)

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        self.texts.append(text)
        return number


@dataclass
class Lines:
    """Lines of one side as numbers of parts, and their sizes."""

    parts: NDArray[np.int32]
    """Numbers of the parts of all lines."""
    lengths: Ints
    """Parts of each line (N)."""
    words: Ints
    """Words of each line; characters, if these are counted (N)."""
    giant: Mask
    """True for a line with a word that is too long (N)."""


class SideText:
    """The tokenized text of one side of a shard, as numbers of words.

    Text comes in parts: a part is what the tokenizer makes of one word of the raw text. So only
    parts that are new are split into words.

    Args:
        truecase: True if the truecaser looks at sentences.
        by_character: True for a side without spaces between words, whose characters are counted.
    """

    def __init__(self, truecase: bool, by_character: bool = False) -> None:
        self._truecase, self._by_character = truecase, by_character
        self._numbers = Numbers(LF)
        self._words = np.zeros(0, np.int64)  # of each part, as `Lines.words`
        self._giant = np.zeros(0, bool)
        self._kept: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]

    def read(self, lines: Sequence[Sequence[str]]) -> Lines:
        """Return lines, each a list of parts, as numbers; none of them is kept yet."""
        parts = array("i", map(self._numbers.__getitem__, chain.from_iterable(lines)))
        numbers = np.frombuffer(parts, np.int32) if parts else np.zeros(0, np.int32)
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        new = self._numbers.texts[len(self._words) :]
        size = _characters if self._by_character else _words
        self._words = np.append(self._words, list(map(size, new))).astype(np.int64)
        self._giant = np.append(self._giant, list(map(_is_giant, new))).astype(bool)
        words = np.append(0, np.cumsum(self._words[numbers]))
        giant = np.append(0, np.cumsum(self._giant[numbers]))
        ends = np.cumsum(lengths)
        return Lines(
            numbers,
            lengths,
            words[ends] - words[ends - lengths],
            giant[ends] > giant[ends - lengths],
        )

    def keep(self, lines: Lines, kept: Mask) -> None:
        """Add some of the lines to the text of the shard.

        Args:
            lines: from `read`.
            kept: for each line.
        """
        parts = lines.parts[np.repeat(kept, lines.lengths)]
        ends = np.cumsum(lines.lengths[kept])
        self._kept.append(np.insert(parts, ends, 0).astype(np.int32))  # 0: the end of a line

    def finish(self, shard: int) -> tuple[NDArray[np.int32], WordTable]:
        """Return the text and its words.

        Args:
            shard: its number.
        Returns: for each token 2 × the row of its word in the table, plus 1 where a sentence
            starts; LINE_END after each line. And the table.
        """
        tokens, words = self._tokens()
        starts, evidence = np.zeros((2, len(tokens)), bool)
        if self._truecase and len(tokens):
            starts, evidence = _sentence_marks(tokens, words)
        rows = np.zeros(len(words), WORD)
        ends = tokens == 0
        rows["at_start"] = np.bincount(tokens[starts], minlength=len(words))
        rows["elsewhere"] = np.bincount(tokens[~starts & ~ends], minlength=len(words))
        places = np.flatnonzero(evidence)
        shown = tokens[places]
        rows["evidence"] = np.bincount(shown, minlength=len(words))
        rows["first"] = NEVER
        rows["first"][shown[::-1]] = (shard << 32) + places[::-1]  # the first place is written last
        table, order = sorted_table(words[1:], rows[1:])
        row_of = np.empty(len(words), np.int32)
        row_of[1:][order] = np.arange(len(order), dtype=np.int32)
        forms = (2 * row_of[tokens] + starts).astype(np.int32)
        forms[ends] = LINE_END
        return forms, table

    def _tokens(self) -> tuple[NDArray[np.int32], list[str]]:
        """Return the text as numbers of words, 0 after each line, and the words by number."""
        kept = np.concatenate(self._kept)
        used = np.flatnonzero(np.bincount(kept, minlength=1))
        texts = map(self._numbers.texts.__getitem__, used.tolist())
        split = [text.split(" ") if " " in text else (text,) for text in texts]
        numbers = Numbers(LF)
        flat = np.fromiter(map(numbers.__getitem__, chain.from_iterable(split)), np.int32)
        lengths = np.zeros(len(self._numbers), np.int64)
        lengths[used] = list(map(len, split))
        lengths_of = lengths[kept]
        return joined(flat, starts_of(lengths)[kept], lengths_of), numbers.texts


LF = "\n"
"""The end of a line; no word holds an LF."""
LONGEST_WORD = 1000


def _words(part: str) -> int:
    return part.count(" ") + 1


def _characters(part: str) -> int:
    return len(part) - part.count(" ")


def _is_giant(part: str) -> bool:
    return len(part) > LONGEST_WORD and max(map(len, part.split(" "))) > LONGEST_WORD


def _sentence_marks(tokens: NDArray[np.int32], words: Sequence[str]) -> tuple[Mask, Mask]:
    """Return which tokens start a sentence, and which are evidence of how words are written.

    They are those of `truecase.sentence_starts` and `truecase.evidence`, for all lines at once.

    Args:
        tokens: numbers of words; 0 ends a line.
        words: by number.
    """
    is_end = np.array([word in SENTENCE_END for word in words])
    is_delayed = np.array([word in DELAYED_START for word in words])
    is_skipped = is_delayed | np.array(list(map(is_tag, words)))
    line_end = tokens == 0
    place = np.arange(len(tokens))
    # A sentence starts after an end mark or the end of a line; quotes and brackets do not count.
    solid = np.where(~is_delayed[tokens], place, -1)
    before = np.concatenate([[-1], np.maximum.accumulate(solid)[:-1]]) if len(place) else solid
    starts = np.where(before < 0, True, (is_end[tokens] | line_end)[before]) & ~line_end
    evidence = np.zeros(len(tokens), bool)
    read = np.flatnonzero(~is_skipped[tokens])  # tokens that evidence looks at, and line ends
    evidence[read] = _evidence(is_end[tokens[read]], line_end[read])
    return starts, evidence


def _evidence(end_mark: Mask, line_end: Mask) -> Mask:
    """Return which tokens do not begin a sentence, for the tokens that evidence looks at.

    The first token of a line begins a sentence, whatever it is. After that an end mark lets the
    next token begin one, again whatever it is: in a row of end marks every second one is used up.
    """
    place = np.arange(len(end_mark))
    other = np.concatenate([[-1], np.maximum.accumulate(np.where(~end_mark, place, -1))[:-1]])
    marks = place - other - 1  # end marks directly before the token
    after_line_end = np.where(other < 0, True, line_end[other])
    begins = (marks % 2 == 1) ^ after_line_end
    result: Mask = ~begins & ~end_mark & ~line_end
    return result
