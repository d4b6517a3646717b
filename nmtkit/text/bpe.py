"""Byte-pair encoding as in subword-nmt: learn merges, split words, and join subwords."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from random import Random

import numpy as np

from nmtkit.arrays import Ints
from nmtkit.errors import DataError
from nmtkit.files import text_lines, writing
from nmtkit.text.bpe_learner import Learner
from nmtkit.text.sampling import Draw, merge_with_dropout
from nmtkit.text.segmented import Segmented
from nmtkit.text.splitter import CachingSplitter
from nmtkit.text.tidy import JOINER
from nmtkit.text.words import END, Words

Pair = tuple[str, str]


def learn_bpe(
    words: Sequence[str], counts: Ints | Sequence[int], merges: int, path: Path
) -> Segmented:
    """Learn merges from word counts and write them as a subword-nmt codes file (version 0.2).

    The most frequent pair is merged first. Among equally frequent pairs it is the one that sorts
    last, as in subword-nmt. So the result does not depend on the order of the words. Learning stops
    early when no pair occurs twice.

    Args:
        words: distinct words without white space and NUL; many words need least memory as `Words`.
        counts: how often each word occurs (W).
        merges: the number of merges wanted.
        path: the codes file.
    Returns: the words as these merges segment them. Empty words, and words that never occur, have
        no pieces.
    Raises: DataError if no word has two characters or more.
    """
    words, counts = Words.of(words), np.asarray(counts, np.int64)
    learnt = (counts > 0) & (np.diff(words.offsets) > 0)
    if not any((learnt[which] & (sizes > 1)).any() for which, _, sizes in words.letters()):
        raise DataError(
            "no words to learn subwords from",
            hint="if all words are single characters, give --set prep.subwords=none; if"
            " prep.max_types leaves out the others, raise it",
        )
    # The learner cannot learn from words that hold its end marker, and does not segment words that
    # end in the joiner as `Bpe` does.
    marked = [number for number in words.holding(END) if learnt[number]]
    joined = [n for n in words.holding(JOINER) if learnt[n] and words[n].endswith(JOINER)]
    learnt[marked] = False
    learner = Learner(words, counts, learnt)
    pairs = learner.learn(merges)
    with writing(path) as stream:
        stream.write("#version: 0.2\n")
        stream.writelines(f"{first} {second}\n" for first, second in pairs)
    pieces = [
        symbol.removesuffix(END) if symbol.endswith(END) else symbol + JOINER
        for symbol in learner.symbols
    ]
    segmented = Segmented(pieces, *learner.segmented())
    del learner
    bpe = Bpe(path)
    return segmented.changed({number: bpe.segment([words[number]]) for number in marked + joined})


class Bpe(CachingSplitter):
    """Splits words into subwords as subword-nmt's apply-bpe does. All subwords of a word but the
    last end in `@@`.

    Args:
        codes: the codes file.
        vocabulary: the subwords (with their joiner) that may be used. Merges to other subwords are
            undone. None allows all.
    Raises: DataError if the codes file is missing or malformed.
    """

    def __init__(self, codes: Path, vocabulary: set[str] | None = None) -> None:
        super().__init__()
        self._ranks, self._split_end = _read_codes(codes)
        self._vocabulary = vocabulary
        # the first pair that makes a symbol
        self._parts = {"".join(pair): pair for pair in reversed(self._ranks)} if vocabulary else {}

    @property
    def merges(self) -> int:
        """The number of different merges."""
        return len(self._ranks)

    def joins_next(self, subword: str) -> bool:
        return subword.endswith(JOINER)

    def join(self, subwords: Sequence[str]) -> list[str]:
        # A joiner at the very end is dropped, as by subword-nmt's sed command.
        return f"{' '.join(subwords)} ".replace(f"{JOINER} ", "").split()

    def sampler(self, strength: float, vocabulary: Container[str]) -> Draw:
        rank = self._ranks.get

        def draw(word: str, random: Random) -> list[str]:
            if END in word or word.endswith(JOINER):
                return []
            return self._split(
                word, lambda symbols: merge_with_dropout(symbols, rank, strength, random.random)
            )

        return draw

    def _pieces(self, word: str) -> list[str]:
        pieces = self._split(word, lambda symbols: _merged(symbols, self._ranks))
        if pieces[-1].endswith(JOINER):
            # If the word itself ends in @@, its last piece becomes @, so that `join` restores it.
            pieces = [*pieces[:-1], pieces[-1][:-1] + JOINER, "@"]
        return pieces

    def _split(self, word: str, merge: Callable[[list[str]], list[str]]) -> list[str]:
        """Split one word as subword-nmt does; `merge` merges the symbols of the word."""
        if len(word) == 1:
            return [word]
        end = [word[-1], END] if self._split_end else [word[-1] + END]
        *units, last = merge([*word[:-1], *end])
        if last != END:
            units.append(last.removesuffix(END))
        if self._vocabulary:
            from subword_nmt.apply_bpe import check_vocab_and_split

            units = check_vocab_and_split(units, self._parts, self._vocabulary, JOINER)
        return [*(unit + JOINER for unit in units[:-1]), units[-1]]


def _read_codes(path: Path) -> tuple[dict[Pair, int], bool]:
    """Read a codes file.

    Returns: the rank of each pair; and True if the end of a word is a symbol, as in version 0.1.
    """
    lines = list(text_lines(path))
    versioned = bool(lines) and lines[0].startswith("#version:")
    split_end = not versioned or re.sub(r"(\.0+)*$", "", lines[0].split()[-1]) == "0.1"
    counts = not versioned and all(line.split(" ")[-1].strip().isdecimal() for line in lines)
    ranks: dict[Pair, int] = {}
    for number, line in enumerate(lines, 1):
        first, _, second = line.rstrip("\r").partition(" ")
        if counts or not (first and second) or " " in second:  # counts: it is a vocabulary
            raise DataError(
                "not a BPE codes file",
                where=f"{path}, line {number}",
                hint="expected: a version line, then two symbols a line",
            )
        if number > versioned:  # a pair given twice counts where it comes first
            ranks.setdefault((first, second), number)
    return ranks, split_end


def _merged(symbols: list[str], ranks: dict[Pair, int]) -> list[str]:
    """Merge pairs in O(n log n): the pair of the lowest rank first, in all places from left to
    right.

    Args:
        symbols: of a word.
        ranks: of pairs.
    """
    size = len(symbols)
    # A linked list over places: a merged pair stays at its left place, and its right place becomes
    # empty. The empty symbol after the last symbol has no rank with any other symbol.
    alive = [*symbols, ""]
    after, before = [*range(1, size + 1), size], list(range(-1, size))
    waiting: list[tuple[int, int, Pair]] = []
    changed = list(range(size))
    while True:
        # New neighbours wait until all places are merged, as in subword-nmt.
        for left in changed:
            pair = alive[left], alive[after[left]]
            if (rank := ranks.get(pair)) is not None:
                heapq.heappush(waiting, (rank, left, pair))
        if not waiting:
            return [symbol for symbol in alive if symbol]
        changed = []
        lowest, _, (first, second) = waiting[0]
        while waiting and waiting[0][0] == lowest:
            left = heapq.heappop(waiting)[1]
            right = after[left]
            if alive[left] == first and alive[right] == second:
                alive[left], alive[right] = first + second, ""
                after[left] = right = after[right]
                before[right] = left
                changed += [before[left], left]
