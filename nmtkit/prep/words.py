"""The text of one side of a shard as word numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from nmtkit.arrays import Ints, Ints32, Mask
from nmtkit.prep.word_table import NEVER, WORD, WordTable, refuse_collisions, word_hashes
from nmtkit.text.segmented import LINE_END, joined, starts_of
from nmtkit.text.truecase import DELAYED_START, SENTENCE_END, is_tag
from nmtkit.text.words import Numbers

LF = "\n"
"""The end of a line; no word holds an LF."""
LONGEST_WORD = 1000
KNOWN_PARTS = 1 << 18
"""If a process has seen more parts, it forgets them before the next shard."""


@dataclass
class NumberedLines:
    """Lines of one side as part numbers."""

    parts: Ints32
    """The part numbers of all lines."""
    lengths: Ints
    """Parts of each line (N)."""
    words: Ints
    """Words of each line; characters in text without spaces (N)."""
    giant: Mask
    """True for a line with a word that is too long (N)."""


class _Words:
    """The words that a process has seen, by number; 0 is the end of a line."""

    def __init__(self) -> None:
        self.numbers = Numbers(LF)
        self.hashes = np.zeros(1, np.uint64)
        self.text = np.zeros(0, np.uint8)
        """The UTF-8 of all words, one after another."""
        self.sizes = np.zeros(1, np.int64)
        """Bytes of each word."""
        self.kinds = np.zeros((3, 1), bool)
        """Rows: True for words that end a sentence, that delay its start, that are tags."""

    def update(self) -> None:
        """Add the words that are new in `numbers`."""
        new = self.numbers.texts[len(self.hashes) :]
        encoded = [word.encode() for word in new]
        kinds = [
            [word in SENTENCE_END for word in new],
            [word in DELAYED_START for word in new],
            list(map(is_tag, new)),
        ]
        self.hashes = np.append(self.hashes, word_hashes(encoded))
        self.text = np.append(self.text, np.frombuffer(b"".join(encoded), np.uint8))
        self.sizes = np.append(self.sizes, np.array(list(map(len, encoded)), np.int64))
        self.kinds = np.append(self.kinds, np.array(kinds, bool), axis=1)


class SideText:
    """The tokenized text of one side of a shard, as word numbers.

    A part is what the tokenizer makes of one word of the raw text: one or more words. Parts and
    words keep their numbers from shard to shard, so each part is split into words only once.

    Args:
        truecase: True to mark sentence starts, for the truecaser.
        by_character: True to count characters, for text without spaces between words.
    Attributes:
        parts: the numbers of the parts; the tokenizer adds new ones.
    """

    def __init__(self, truecase: bool, by_character: bool = False) -> None:
        self._truecase, self._by_character = truecase, by_character
        self._forget()
        self.begin()

    def _forget(self) -> None:
        self.parts, self._words = Numbers(LF), _Words()
        # for each part: its size, whether it has a word that is too long, and its words
        self._sizes, self._giant = np.zeros(1, np.int64), np.zeros(1, bool)
        self._flat, self._lengths = np.zeros(1, np.int32), np.ones(1, np.int64)

    def begin(self) -> None:
        """Begin the text of another shard."""
        self._kept: list[Ints32] = [np.zeros(0, np.int32)]
        if len(self.parts) > KNOWN_PARTS:
            self._forget()

    def read(self, lines: Sequence[Sequence[int]]) -> NumberedLines:
        """Measure lines, each a list of part numbers. `keep` adds them to the text."""
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        numbers = np.fromiter(chain.from_iterable(lines), np.int32, int(lengths.sum()))
        new = [part.split(" ") for part in self.parts.texts[len(self._sizes) :]]
        sizes = [sum(map(len, words)) if self._by_character else len(words) for words in new]
        giant = [max(map(len, words)) > LONGEST_WORD for words in new]
        self._sizes = np.append(self._sizes, np.array(sizes, np.int64))
        self._giant = np.append(self._giant, np.array(giant, bool))
        words = np.append(0, np.cumsum(self._sizes[numbers]))
        giants = np.append(0, np.cumsum(self._giant[numbers]))
        ends = np.cumsum(lengths)
        return NumberedLines(
            numbers,
            lengths,
            words[ends] - words[ends - lengths],
            giants[ends] > giants[ends - lengths],
        )

    def keep(self, lines: NumberedLines, kept: Mask) -> None:
        """Add lines from `read` to the text of the shard where `kept` is True."""
        parts = lines.parts[np.repeat(kept, lines.lengths)]
        ends = np.cumsum(lines.lengths[kept])
        self._kept.append(np.insert(parts, ends, 0).astype(np.int32))  # 0: the end of a line

    def finish(self, shard: int) -> tuple[Ints32, WordTable]:
        """Return the text of the shard, and the table of its words.

        Args:
            shard: the number of the shard.
        Returns: for each token 2 × the row of its word in the table, plus 1 at the start of a
            sentence, with LINE_END after each line; and the table.
        """
        words, tokens = self._words, self._tokens()
        starts, evidence = np.zeros((2, len(tokens)), bool)
        if self._truecase and len(tokens):
            starts, evidence = _sentence_marks(tokens, words.kinds)
        ends = tokens == 0
        total = len(words.hashes)
        used = np.flatnonzero(np.bincount(tokens[~ends], minlength=total))
        order = used[np.argsort(words.hashes[used])]
        rows = np.zeros(len(order), WORD)
        rows["hash"] = words.hashes[order]
        refuse_collisions(rows)
        rows["at_start"] = np.bincount(tokens[starts], minlength=total)[order]
        rows["elsewhere"] = np.bincount(tokens[~starts & ~ends], minlength=total)[order]
        places = np.flatnonzero(evidence)
        shown = tokens[places]
        rows["evidence"] = np.bincount(shown, minlength=total)[order]
        first = np.full(total, NEVER)
        first[shown[::-1]] = (shard << 32) + places[::-1]  # the first place is written last
        rows["first"] = first[order]
        rows["end"] = np.cumsum(words.sizes[order])
        text = joined(words.text, starts_of(words.sizes)[order], words.sizes[order])
        row_of = np.zeros(total, np.int32)
        row_of[order] = np.arange(len(order))
        forms = (2 * row_of[tokens] + starts).astype(np.int32)
        forms[ends] = LINE_END
        return forms, WordTable(rows, text)

    def _tokens(self) -> Ints32:
        """Return the text as numbers of `_words`, with 0 after each line."""
        new = [part.split(" ") for part in self.parts.texts[len(self._lengths) :]]
        flat = list(map(self._words.numbers.__getitem__, chain.from_iterable(new)))
        self._flat = np.append(self._flat, np.array(flat, np.int32))
        self._lengths = np.append(self._lengths, np.array(list(map(len, new)), np.int64))
        self._words.update()
        kept = np.concatenate(self._kept)
        return joined(self._flat, starts_of(self._lengths)[kept], self._lengths[kept])


def _sentence_marks(tokens: Ints32, kinds: Mask) -> tuple[Mask, Mask]:
    """Return which tokens start a sentence (`truecase.sentence_starts` does it for one line), and
    which are evidence of how words are written: all but the first of a sentence, marks and tags.

    Args:
        tokens: word numbers; 0 ends a line.
        kinds: of the words, as `_Words.kinds`.
    """
    is_end, is_delayed, is_tagged = kinds
    is_skipped = is_delayed | is_tagged
    line_end = tokens == 0
    # A sentence starts after an end mark or a line end, whatever quotes and brackets are between.
    before = _last_before(~is_delayed[tokens])
    starts = ((before < 0) | (is_end[tokens] | line_end)[before]) & ~line_end
    evidence = np.zeros(len(tokens), bool)
    read = np.flatnonzero(~is_skipped[tokens])  # quotes, brackets and tags are passed over
    evidence[read] = _evidence(is_end[tokens[read]], line_end[read])
    return starts, evidence


def _last_before(mask: Mask) -> Ints:
    """Return for each place the last one before it where the mask is True; -1 if there is none."""
    places = np.where(mask, np.arange(len(mask)), -1)
    return np.concatenate([[-1], np.maximum.accumulate(places)[:-1]])


def _evidence(end_mark: Mask, line_end: Mask) -> Mask:
    """Return which tokens are words that do not begin a sentence.

    The first token of a line begins a sentence, even if it is an end mark. An end mark that does
    not begin a sentence lets the next token begin one.

    Args:
        end_mark, line_end: True for tokens that are end marks, and for line ends.
    """
    other = _last_before(~end_mark)
    marks = np.arange(len(other)) - other - 1  # the number of end marks directly before a token
    after_line_end = (other < 0) | line_end[other]
    begins = (marks % 2 == 1) ^ after_line_end
    result: Mask = ~begins & ~end_mark & ~line_end
    return result
