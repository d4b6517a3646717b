"""Learn BPE merges, the same as subword-nmt's learn_bpe.

All words are in one array, and the places of every pair are known.

subword-nmt prunes rare pairs from its statistics, and would lose the old count of a pruned pair
that grows later. No pair does: only pairs with a new symbol grow, and no symbol is made twice.
(Suppose xy is made first of x + y, and later of other symbols. Merges never cross the ends of that
later place, so its inside was merged as if it stood alone. It became xy when all other places did.)
For the same reason a merged pair never comes back. And when learning ends, the words are segmented
as with its merges.

Only the end marker "</w>" breaks this, if a word holds it as text: subword-nmt takes that text for
the marker.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
END = "</w>"
MIN_FREQUENCY = 2
FEW = 60  # places of a pair up to which a loop is faster than arrays
GAP = 0  # stands between words
HOLE = -1  # where the second symbol of a merged pair was
_LOW = (1 << 32) - 1
_LETTERS = 0x110000  # of Unicode


class Learner:
    """The state of learning. A pair of symbols is one integer: first << 32 | second.

    The words are a linked list of symbols over places; a merged pair lives on at the place of its
    first symbol. Every merge is done in all its places at once.

    Args:
        words: distinct words, without white space, NUL and "</w>"; empty ones are passed over.
        counts: how often each occurs.
    """

    def __init__(self, words: Sequence[str], counts: Sequence[int]) -> None:
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        self.symbols, text = _spelled(words, lengths)
        # symbols as text that sorts the other way round
        self._inverted = [
            "".join([chr(_LETTERS - 1 - ord(letter)) for letter in symbol]) + chr(_LETTERS - 1)
            for symbol in self.symbols
        ]
        place = np.arange(len(text), dtype=np.int32)
        weight = np.concatenate([[0], np.repeat(np.array(counts, np.int64), lengths + 1)])
        # a loop reads these faster than numpy's arrays, which are views of the same memory
        self._memory = [array("i", values.tobytes()) for values in (text, place + 1, place - 1)]
        self._memory.append(array("q", weight.tobytes()))
        self._views = [np.frombuffer(values, values.typecode) for values in self._memory]
        self._counts: defaultdict[int, int] = defaultdict(int)
        # entries of pairs with the count at their time, the best pair first
        self._ranking: list[tuple[int, str, str, int]] = []
        # pair -> the places where it came to be; it may have gone from some since
        self._where: dict[int, Any] = {}
        self._add(self._first_pairs())

    def _first_pairs(self) -> dict[int, Any]:
        """Count the pairs of letters, and return the places of each."""
        text, _, _, weight = self._views
        left = np.flatnonzero((text[:-1] != GAP) & (text[1:] != GAP)).astype(np.int32)
        pairs = text[left].astype(np.int64) << 32 | text[left + 1]
        where: dict[int, Any] = {}
        for pair, count, places in _grouped(pairs, weight[left], left):
            self._counts[pair] = count
            where[pair] = places
        return where

    def learn(self, merges: int) -> list[tuple[str, str]]:
        """Learn up to `merges` merges, fewer when no pair occurs twice any more.

        Returns: the pairs, in the order of merging.
        """
        result: list[tuple[str, str]] = []
        symbols, inverted = self.symbols, self._inverted
        while len(result) < merges and (best := self._best()) is not None:
            first, second = best >> 32, best & _LOW
            result.append((symbols[first], symbols[second]))
            new = len(symbols)
            symbols.append(symbols[first] + symbols[second])
            inverted.append(inverted[first][:-1] + inverted[second])
            places = self._where.pop(best)
            merge = self._merge_many if len(places) > FEW and first != second else self._merge_few
            gained = merge(first, second, places, new)
            self._counts[best] = 0
            self._add(gained)
        return result

    def _add(self, pairs: dict[int, Any]) -> None:
        """Rank new pairs, whose counts are known, and keep their places."""
        self._where.update(pairs)
        inverted = self._inverted
        for pair in pairs:
            if (count := self._counts[pair]) >= MIN_FREQUENCY:
                entry = (-count, inverted[pair >> 32], inverted[pair & _LOW], pair)
                heapq.heappush(self._ranking, entry)

    def _best(self) -> int | None:
        """Return the most frequent pair, of equal counts the one that sorts last.

        A pair whose count has fallen since it was ranked is ranked anew.

        Returns: None if no pair is frequent enough.
        """
        ranking = self._ranking
        while ranking:
            negative, first, second, pair = heapq.heappop(ranking)
            count = self._counts[pair]
            if count == -negative:
                return pair
            if count >= MIN_FREQUENCY:
                heapq.heappush(ranking, (-count, first, second, pair))
        return None

    def segmented(self) -> tuple[Ints, Ints]:
        """Return the words as they are now.

        Returns: the symbols of all words, and how many each word has.
        """
        text = self._views[0]
        text = text[text != HOLE].astype(np.int64)
        return text[text != GAP], np.diff(np.flatnonzero(text == GAP)) - 1

    def _merge_few(self, first: int, second: int, places: Any, new: int) -> dict[int, Any]:
        """Merge a pair place by place, and bring the counts of all pairs up to date.

        Returns: the pairs with the new symbol, and the places of each.
        """
        text, after, before, weight = self._memory
        counts = self._counts
        gained: defaultdict[int, list[int]] = defaultdict(list)
        if isinstance(places, np.ndarray):
            places = places.tolist()
        # from left to right where the symbols are equal: in aaa only the first aa is merged
        for place in sorted(places) if first == second else places:
            gone = after[place]
            if text[place] != first or text[gone] != second:
                continue
            text[place], text[gone] = new, HOLE
            left, right = before[place], after[gone]
            after[place], before[right] = right, place
            count = weight[place]
            if symbol := text[left]:
                counts[symbol << 32 | first] -= count
                pair = symbol << 32 | new
                counts[pair] += count
                gained[pair].append(left)
            if symbol := text[right]:
                counts[second << 32 | symbol] -= count
                pair = new << 32 | symbol
                counts[pair] += count
                gained[pair].append(place)
        return gained

    def _merge_many(self, first: int, second: int, places: Any, new: int) -> dict[int, Any]:
        """As `_merge_few`, in all places at once; the symbols of the pair differ."""
        text, after, before, weight = self._views
        counts = self._counts
        place = np.asarray(places)
        place = place[(text[place] == first) & (text[after[place]] == second)]
        gone = after[place]
        right = after[gone]
        text[place] = new
        text[gone] = HOLE
        after[place] = right
        before[right] = place
        left = before[place]
        gained: dict[int, Any] = {}
        for symbol, count, lefts in _grouped(text[left], weight[place], left):
            if symbol != GAP:
                counts[(second if symbol == new else symbol) << 32 | first] -= count
                counts[symbol << 32 | new] = count
                gained[symbol << 32 | new] = lefts
        for symbol, count, lefts in _grouped(text[right], weight[place], place):
            if symbol not in (GAP, new):  # the new symbol has counted this pair as its left
                counts[second << 32 | symbol] -= count
                counts[new << 32 | symbol] = count
                gained[new << 32 | symbol] = lefts
        return gained


def _spelled(words: Sequence[str], lengths: Ints) -> tuple[list[str], NDArray[np.int32]]:
    """Return the symbols, the first of which is the gap, and all words as numbers of symbols."""
    joined = "\0".join(["", *words, ""]).encode("utf-32-le", "surrogatepass")
    letters = np.frombuffer(joined, "<u4").astype(np.int64)
    letters[(np.cumsum(lengths + 1) - 1)[lengths > 0]] += _LETTERS  # last letters
    occurs = np.zeros(2 * _LETTERS, bool)
    occurs[letters] = True
    number = np.cumsum(occurs, dtype=np.int32) - 1
    symbols = [
        chr(code % _LETTERS) + (END if code >= _LETTERS else "")
        for code in np.flatnonzero(occurs).tolist()
    ]
    return symbols, number[letters]


def _grouped(
    keys: NDArray[Any], weights: Ints, places: NDArray[Any]
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Group places by key.

    Returns: each key, the sum of the weights of its places, and these.
    """
    order = np.argsort(keys, kind="stable")
    keys, places = keys[order], places[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(weights[order], starts)
    ends = [*starts.tolist(), len(keys)]
    parts = [places[start:end] for start, end in itertools.pairwise(ends)]
    return zip(keys[starts].tolist(), sums.tolist(), parts, strict=True)
