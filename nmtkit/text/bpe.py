"""Byte-pair encoding by subword-nmt: learnt from word counts, applied with a cache and the
vocabulary filter, and undone.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nmtkit.errors import DataError
from nmtkit.files import text_lines, writing
from nmtkit.text.bpe_learner import END, Learner, replaced
from nmtkit.text.segmented import Segmented

JOINER = "@@"
Merge = Callable[[list[str], dict[tuple[str, ...], int]], list[str]]
CACHED_WORDS = 1 << 17
LONG_WORD = 200  # characters


def learn_bpe(counts: Mapping[str, int], merges: int, path: Path) -> Segmented:
    """Learn merges from word counts and write them as a subword-nmt codes file (version 0.2).

    The most frequent pair is merged first; among equally frequent pairs the one that sorts last
    (subword-nmt's rule), so the result doesn't depend on the order of `counts`. Learning stops
    early when no pair occurs twice.

    Args:
        counts: how often each word occurs.
        merges: merges wanted.
        path: the codes file.
    Returns: the words as these merges segment them, and how many were learnt: fewer than asked when
        the corpus has no more.
    Raises: DataError if there is no word of two characters or more.
    """
    words = [word for word in counts if word]
    if not any(len(word) > 1 and counts[word] > 0 for word in words):
        raise DataError(
            "no words to learn subwords from",
            hint="the training text is empty, or holds only single characters",
        )
    text = "\n".join(words)
    if len(text.split()) != len(words) or "\0" in text:
        where = next(repr(word) for word in words if word.split() != [word] or "\0" in word)
        raise DataError(
            "a word to learn subwords from holds white space or NUL",
            where=where,
            hint="tokenize the text first",
        )
    odd = (
        {number for number, word in enumerate(words) if END in word or word.endswith(JOINER)}
        if END in text or JOINER in text
        else set()
    )
    learner = Learner(
        ["" if END in word else word for word in words] if END in text else words,
        [counts[word] for word in words],
    )
    pairs = learner.learn(merges)
    with writing(path) as stream:
        stream.write("#version: 0.2\n")
        stream.writelines(f"{first} {second}\n" for first, second in pairs)
    pieces = [
        symbol.removesuffix(END) if symbol.endswith(END) else symbol + JOINER
        for symbol in learner.symbols
    ]
    segmented = Segmented(pieces, *learner.segmented(), len(pairs))
    bpe = Bpe(path) if odd else None
    return segmented.changed(
        {number: bpe.segment([words[number]]) for number in odd} if bpe else {}
    )


class Bpe:
    """Splits words into subwords, the same as subword-nmt's apply-bpe, with a bounded cache of
    words.

    Args:
        codes: the codes file.
        vocabulary: subwords (with their joiner) that may be used; merges that lead elsewhere are
            undone. None: no filter.
    Raises: DataError if the codes file is missing or malformed.
    """

    def __init__(self, codes: Path, vocabulary: set[str] | None = None) -> None:
        lines = list(text_lines(codes))
        marked = bool(lines) and lines[0].startswith("#version:")
        self._split_end = not marked or re.sub(r"(\.0+)*$", "", lines[0].split()[-1]) == "0.1"
        self._ranks: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(lines, 1):
            pair = tuple(line.rstrip("\r").split(" "))
            if len(pair) != 2 or "" in pair:
                raise DataError(
                    "not a BPE codes file",
                    where=f"{codes}, line {number}",
                    hint="expected: a version line, then two symbols a line",
                )
            if number > marked:
                self._ranks.setdefault(
                    pair, number
                )  # a pair given twice counts where it comes first
        self._vocabulary = vocabulary
        self._parts = (
            {pair[0] + pair[1]: pair for pair in reversed(self._ranks)} if vocabulary else {}
        )  # the first pair that makes a symbol
        self._cache: dict[str, list[str]] = {}

    def segment(self, tokens: list[str]) -> list[str]:
        """Split each token; all but the last piece of a word end in `@@`.

        Args:
            tokens: words without spaces.
        Returns: the subwords of all words, in order.
        """
        cache = self._cache
        result: list[str] = []
        for token in tokens:
            pieces = cache.get(token)
            if pieces is None:
                pieces = self._pieces(token)
            result += pieces
        return result

    def _pieces(self, word: str) -> list[str]:
        pieces = self._split(word, _merged_long if len(word) > LONG_WORD else _merged)
        if pieces and pieces[-1].endswith(JOINER):
            # a word ending in the joiner's own characters: end it with a lone @, so that `join`
            # gives the word back
            pieces = [*pieces[:-1], pieces[-1][:-1] + JOINER, "@"]
        if len(self._cache) >= CACHED_WORDS:
            self._cache.clear()
        if len(word) <= LONG_WORD:
            self._cache[word] = pieces
        return pieces

    def _split(self, word: str, merge: Merge) -> list[str]:
        """subword-nmt's encode of one word, with another way to find the merges."""
        if len(word) == 1:
            return [word]
        last = [word[-1], END] if self._split_end else [word[-1] + END]
        units = merge([*word[:-1], *last], self._ranks)
        units = units[:-1] if units[-1] == END else [*units[:-1], units[-1].removesuffix(END)]
        if self._vocabulary:
            from subword_nmt.apply_bpe import check_vocab_and_split

            units = check_vocab_and_split(units, self._parts, self._vocabulary, JOINER)
        return [*(unit + JOINER for unit in units[:-1]), units[-1]]


def _merged(symbols: list[str], ranks: dict[tuple[str, ...], int]) -> list[str]:
    """Merge pairs, the lowest rank first and all its occurrences from left to right, until no
    pair has a rank.
    """
    none = 1 << 60  # more than any rank
    found = [ranks.get(pair, none) for pair in zip(symbols, symbols[1:], strict=False)]
    while found and (lowest := min(found)) < none:
        if found.count(lowest) > 1:
            i = found.index(lowest)
            pair = (symbols[i], symbols[i + 1])
            symbols = list(replaced(symbols, pair, pair[0] + pair[1]))
            found = [ranks.get(pair, none) for pair in zip(symbols, symbols[1:], strict=False)]
            continue
        i = found.index(lowest)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        del found[i]
        if i:
            found[i - 1] = ranks.get((symbols[i - 1], symbols[i]), none)
        if i < len(found):
            found[i] = ranks.get((symbols[i], symbols[i + 1]), none)
    return symbols


def _merged_long(symbols: list[str], ranks: dict[tuple[str, ...], int]) -> list[str]:
    """The same as `_merged` in O(n log n)."""
    following = list(
        range(1, len(symbols) + 1)
    )  # a linked list over positions; a merged pair lives at its left position
    before = list(range(-1, len(symbols) - 1))
    alive: list[str | None] = list(symbols)
    heap = [
        (rank, i)
        for i, pair in enumerate(zip(symbols, symbols[1:], strict=False))
        if (rank := ranks.get(pair)) is not None
    ]
    heapq.heapify(heap)
    pairs = {rank: pair for pair, rank in ranks.items()}
    while heap:
        now = heap[0][0]
        first, second = pairs[now]
        changed: list[int] = []
        while heap and heap[0][0] == now:
            i = heapq.heappop(heap)[1]
            j = following[i]
            if alive[i] != first or j >= len(symbols) or alive[j] != second:
                continue
            alive[i], alive[j] = first + second, None
            following[i] = following[j]
            if following[i] < len(symbols):
                before[following[i]] = i
            changed.append(i)
        # neighbours are looked at after the round, as subword-nmt merges all occurrences of one
        # pair before the next
        for i in {i for left in changed for i in (before[left], left) if i >= 0}:
            if alive[i] is not None and following[i] < len(symbols):
                rank = ranks.get((alive[i], alive[following[i]]))  # type: ignore[arg-type]
                if rank is not None:
                    heapq.heappush(heap, (rank, i))
    return [symbol for symbol in alive if symbol is not None]


def join(subwords: Iterable[str]) -> list[str]:
    """Undo BPE: glue each subword ending in `@@` to the next; a joiner at the very end is dropped
    (as subword-nmt's sed line does).

    Returns: the words.
    """
    words: list[str] = []
    word = ""
    for piece in subwords:
        if piece.endswith(JOINER):
            word += piece[:-2]
        else:
            words.append(word + piece)
            word = ""
    if word:
        words.append(word)
    return words
