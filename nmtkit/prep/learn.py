"""Learning BPE merges: subword-nmt's learn_bpe with the words in one array, so that a merge is done in all its words at once.

subword-nmt prunes rare pairs from its statistics for speed, and what it loses there shows in its result; and where a merge makes a symbol
that another merge made before (ab+c, a+bc), it counts the neighbours of the old symbols of the words it touches again. To give the same
merges, this keeps the same two tables, pruned at the same moments. (One thing is left out: subword-nmt may then take a pair to be in a word
that no longer holds it, and if a later merge of that pair makes a symbol the word has, it counts that symbol's neighbours once more. In
10,000 made-up corpora of few letters it never changed a merge.)
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MIN_FREQUENCY = 2
_LAST = chr(0x10FFFF)
_LOW = (1 << 32) - 1
_NONE = np.empty(0, np.int64)


class Learner:
    """The state of learning. A pair of symbols is one integer: first << 32 | second.

    Args:
        counts: how often each word occurs; words hold no white space.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        words = list(counts)
        self.counts: Ints = np.array(list(counts.values()), np.int64)
        self.symbols: list[str] = []
        self.inverted: list[str] = []  # a symbol as text that sorts the other way round
        self.ids: dict[str, int] = {}
        self.length: Ints = np.array([len(word) for word in words], np.int64)
        self.start: Ints = np.cumsum(self.length) - self.length  # where a word lies in the text; it shrinks in its place
        codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
        last = self.start + self.length - 1
        codes[last] += 1 << 32
        distinct, self.text = np.unique(codes, return_inverse=True)
        for code in distinct.tolist():
            self._symbol(chr(code & _LOW) + ("</w>" if code >> 32 else ""))
        self.stats: defaultdict[int, int] = defaultdict(int)  # pruned now and then
        self.where: dict[int, list[Ints]] = {}  # pair -> numbers of the words it came to be in; it may have gone from some since
        inner = np.ones(len(self.text), bool)
        inner[last] = False
        left = np.flatnonzero(inner)
        self._gain(_pairs(self.text[left], self.text[left + 1]), np.repeat(np.arange(len(words)), self.length)[left])
        self.full = self.stats.copy()  # what the pruned pairs had
        self.threshold = max(self.stats.values(), default=0) / 10
        self.heap: list[tuple[int, str, str, int]] = []
        self._fill_heap()

    def learn(self, merges: int) -> list[tuple[str, str]]:
        """Learn up to `merges` merges, fewer when no pair occurs twice any more.

        Returns: the pairs, in the order of merging.
        """
        result: list[tuple[str, str]] = []
        for i in range(merges):
            best = self._best()
            if best is None or (i and self.stats[best] < self.threshold):
                self._prune()
                self.stats = self.full.copy()
                self._fill_heap()
                best = self._best()
                if best is None:
                    break
                self.threshold = self.stats[best] * i / (i + 10000.0)
                self._prune()
            if self.stats[best] < MIN_FREQUENCY:
                break
            result.append((self.symbols[best >> 32], self.symbols[best & _LOW]))
            self._merge(best)
            if not i % 100:
                self._prune()
        return result

    def _symbol(self, symbol: str) -> int:
        """The number of a symbol, a new one if it has none yet."""
        number = self.ids.get(symbol)
        if number is None:
            number = self.ids[symbol] = len(self.symbols)
            self.symbols.append(symbol)
            self.inverted.append("".join(chr(0x10FFFF - ord(character)) for character in symbol) + _LAST)
        return number

    def _entry(self, pair: int) -> tuple[int, str, str, int]:
        """A heap entry that sorts first for the most frequent pair, and among those for the pair that sorts last."""
        return -self.stats[pair], self.inverted[pair >> 32], self.inverted[pair & _LOW], pair

    def _fill_heap(self) -> None:
        self.heap = [self._entry(pair) for pair in self.stats]
        heapq.heapify(self.heap)

    def _best(self) -> int | None:
        """The pair with the highest count; counts that fell since they were put on the heap are put right on the way."""
        heap, stats = self.heap, self.stats
        while heap:
            count, _, _, pair = heap[0]
            current = stats.get(pair)
            if current is None:
                heapq.heappop(heap)
            elif current != -count:
                heapq.heapreplace(heap, self._entry(pair))
            else:
                return pair
        return None

    def _prune(self) -> None:
        stats, full, threshold = self.stats, self.full, self.threshold
        for pair in [pair for pair, count in stats.items() if count < threshold]:
            count = stats.pop(pair)
            full[pair] = full[pair] + count if count < 0 else count

    def _merge(self, pair: int) -> None:
        """Replace a pair everywhere and update the statistics of its neighbours."""
        new = self._symbol(self.symbols[pair >> 32] + self.symbols[pair & _LOW])
        numbers = np.unique(np.concatenate([_NONE, *self.where.pop(pair, [])]))
        length = self.length[numbers]
        end = np.cumsum(length)
        word = np.repeat(np.arange(len(numbers)), length)  # which of the words each of their symbols belongs to
        text = self.text[np.arange(len(word)) + (self.start[numbers] - end + length)[word]]
        matches = np.flatnonzero((text[:-1] == pair >> 32) & (text[1:] == pair & _LOW) & (word[:-1] == word[1:]))
        if pair >> 32 == pair & _LOW:
            matches = _apart(matches)
        touched = np.zeros(len(numbers), bool)  # not the words the pair has gone from
        touched[word[matches]] = True
        made = np.zeros(len(word), bool)
        made[matches] = True
        self._lose(numbers, word, text, made)
        kept = np.ones(len(word), bool)
        kept[matches + 1] = False
        text[matches] = new
        length = length - np.bincount(word[matches], minlength=len(numbers))
        self.length[numbers] = length
        text, word = text[kept], word[kept]
        self.text[np.arange(len(word)) + (self.start[numbers] - np.cumsum(length) + length)[word]] = text
        left = np.flatnonzero((word[1:] == word[:-1]) & ((text[1:] == new) | (text[:-1] == new)) & touched[word[1:]])
        grown = self._gain(_pairs(text[left], text[left + 1]), numbers[word[left]])
        self.stats[pair] = 0
        for other in grown:
            heapq.heappush(self.heap, self._entry(other))

    def _lose(self, numbers: Ints, word: Ints, text: Ints, made: Bools) -> None:
        """Take the pairs that overlap a match from the statistics.

        Args:
            numbers: the words; text, word: their symbols, and which of the words each belongs to.
            made: where a match begins.
        """
        matches = np.flatnonzero(made)
        before = matches[(matches > 0) & (word[matches - 1] == word[matches])]
        inside = matches[matches + 2 < len(word)]
        after = inside[(word[inside + 2] == word[inside]) & ~made[inside + 2]] + 1  # else it is the `before` of the next match
        left = np.concatenate([before - 1, after])
        distinct, sums, _, _ = self._grouped(_pairs(text[left], text[left + 1]), numbers[word[left]])
        for other, count in zip(distinct, sums, strict=True):
            self.stats[other] -= count

    def _gain(self, pairs: Ints, words: Ints) -> list[int]:
        """Add occurrences of pairs in words to the statistics.

        Returns: the distinct pairs.
        """
        distinct, sums, starts, words = self._grouped(pairs, words)
        stats, where = self.stats, self.where
        for pair, count, start, end in zip(distinct, sums, starts, [*starts, len(words)][1:], strict=True):
            stats[pair] += count
            where.setdefault(pair, []).append(words[start:end])
        return distinct

    def _grouped(self, pairs: Ints, words: Ints) -> tuple[list[int], list[int], list[int], Ints]:
        """Sort occurrences by pair.

        Returns: the distinct pairs, how often each occurs in the corpus, where its part begins, and the words in this order.
        """
        if not len(pairs):
            return [], [], [], words
        order = np.argsort(pairs, kind="stable")
        pairs, words = pairs[order], words[order]
        starts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        sums = np.add.reduceat(self.counts[words], starts)
        return pairs[starts].tolist(), sums.tolist(), starts.tolist(), words


def _pairs(first: Ints, second: Ints) -> Ints:
    return (first << 32) | second


def _apart(positions: Ints) -> Ints:
    """Of overlapping matches of a pair of equal symbols those that are replaced, from left to right."""
    chosen: list[int] = []
    for position in positions.tolist():
        if not chosen or position > chosen[-1] + 1:
            chosen.append(position)
    return np.array(chosen, np.int64)


def replaced(word: Sequence[str], pair: tuple[str, str], symbol: str) -> list[str]:
    """A word's symbols with each occurrence of a pair, from left to right, replaced by one symbol."""
    first, second = pair
    result: list[str] = []
    i, last = 0, len(word) - 1
    while i <= last:
        if i < last and word[i] == first and word[i + 1] == second:
            result.append(symbol)
            i += 2
        else:
            result.append(word[i])
            i += 1
    return result


def unusable(words: Iterable[str]) -> str | None:
    """The first word that holds white space of any kind (subword-nmt's files can't) or NUL, else None."""
    return next((word for word in words if len(word.split()) != 1 or word[0].isspace() or word[-1].isspace() or "\0" in word), None)
