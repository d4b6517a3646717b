"""Learning BPE merges: subword-nmt's learn_bpe step for step, with a heap in place of its search through all pairs for each merge.

subword-nmt prunes rare pairs from its statistics for speed, and what it loses there (a symbol can arise from two merges) shows in its
result. To give the same merges, this keeps the same two tables, pruned at the same moments.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

Pair = tuple[str, str]
Word = tuple[str, ...]
_LAST = chr(0x10FFFF)
MIN_FREQUENCY = 2


class Learner:
    """The state of learning.

    Args:
        counts: how often each word occurs; words hold no white space.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.words: list[Word] = [(*word[:-1], word[-1] + "</w>") for word in counts]
        self.counts = list(counts.values())
        self.stats: defaultdict[Pair, int] = defaultdict(int)  # pruned now and then
        self.where: defaultdict[Pair, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))  # pair -> word number -> occurrences
        for number, (word, count) in enumerate(zip(self.words, self.counts, strict=True)):
            for pair in zip(word, word[1:], strict=False):
                self.stats[pair] += count
                self.where[pair][number] += 1
        self.full = self.stats.copy()  # what the pruned pairs had
        self.threshold = max(self.stats.values(), default=0) / 10
        self.inverted: dict[str, str] = {}
        self.heap: list[tuple[int, str, str, Pair]] = []
        self._fill_heap()

    def learn(self, merges: int) -> list[Pair]:
        """Learn up to `merges` merges, fewer when no pair occurs twice any more.

        Returns: the pairs, in the order of merging.
        """
        result: list[Pair] = []
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
            result.append(best)
            self._merge(best)
            if not i % 100:
                self._prune()
        return result

    def _entry(self, pair: Pair) -> tuple[int, str, str, Pair]:
        """A heap entry that sorts first for the most frequent pair, and among those for the pair that sorts last."""
        inverted = self.inverted
        for symbol in pair:
            if symbol not in inverted:
                inverted[symbol] = "".join(chr(0x10FFFF - ord(character)) for character in symbol) + _LAST
        return -self.stats[pair], inverted[pair[0]], inverted[pair[1]], pair

    def _fill_heap(self) -> None:
        self.heap = [self._entry(pair) for pair in self.stats]
        heapq.heapify(self.heap)

    def _best(self) -> Pair | None:
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
        for pair, count in list(self.stats.items()):
            if count < self.threshold:
                del self.stats[pair]
                if count < 0:
                    self.full[pair] += count
                else:
                    self.full[pair] = count

    def _merge(self, pair: Pair) -> None:
        """Replace a pair everywhere and update the statistics of its neighbours."""
        symbol = pair[0] + pair[1]
        numbers = [number for number, occurrences in self.where[pair].items() if occurrences > 0]
        self.stats[pair] = 0
        self.where[pair] = defaultdict(int)
        grown: set[Pair] = set()
        for number in numbers:
            word, count = self.words[number], self.counts[number]
            self._lose(word, pair, number, count)
            self.words[number] = word = tuple(replaced(word, pair, symbol))
            for i in range(len(word)):
                if word[i] == symbol:
                    if i:
                        self._gain((word[i - 1], symbol), number, count, grown)
                    if i < len(word) - 1 and word[i + 1] != symbol:
                        self._gain((symbol, word[i + 1]), number, count, grown)
        self.stats[pair] = 0
        for new in grown:
            heapq.heappush(self.heap, self._entry(new))

    def _gain(self, pair: Pair, number: int, count: int, grown: set[Pair]) -> None:
        self.stats[pair] += count
        self.where[pair][number] += 1
        grown.add(pair)

    def _lose(self, word: Word, pair: Pair, number: int, count: int) -> None:
        """Take the pairs that overlap an occurrence of `pair` from the statistics."""
        first, second = pair
        stats, where = self.stats, self.where
        length, i = len(word), 0
        while i < length - 1:
            if word[i] != first or word[i + 1] != second:
                i += 1
                continue
            if i:
                before = word[i - 1 : i + 1]
                stats[before] -= count  # type: ignore[index]
                where[before][number] -= 1  # type: ignore[index]
            # in A B C B C the second C B is the `before` of the next occurrence
            if i < length - 2 and (word[i + 2] != first or i >= length - 3 or word[i + 3] != second):
                after = word[i + 1 : i + 3]
                stats[after] -= count  # type: ignore[index]
                where[after][number] -= 1  # type: ignore[index]
            i += 2


def replaced(word: Sequence[str], pair: Pair, symbol: str) -> list[str]:
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
