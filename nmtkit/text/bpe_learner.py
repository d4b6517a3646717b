"""Learn the same BPE merges as subword-nmt's learn_bpe.

All words together are one array of symbols. The learner knows the places of frequent pairs.

The count of a pair only falls: a merge only adds pairs with the new symbol, and no symbol is made
twice. (Suppose xy is made of x + y, and later of other symbols. Merges never cross the ends of that
later place, so its inside was merged as if it stood alone. It became xy with all other places.) For
the same reason a merged pair never comes back, and after learning the words are segmented as its
merges segment them.

So only pairs with at least `_floor` occurrences are tracked. If they become too many, the floor
rises. If none of them reaches the floor any more, a survey of all words counts every pair again and
sets a lower floor.

This does not hold for words that contain the end marker "</w>" as text, because subword-nmt takes
that text for the marker.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from nmtkit.arrays import Array, Ints, Ints32, Mask
from nmtkit.text.words import LETTERS, Words, spelled

MIN_FREQUENCY = 2
SPARE = 1000  # pairs tracked in addition to one for each merge still wanted
_CHUNK_BITS = 16
CHUNK = 1 << _CHUNK_BITS  # places that a survey reads at once
GAP = 0  # stands between words
HOLE = -1  # inside a merged symbol
_BITS = 22  # of a symbol's number: a pair and a place in a chunk are one int64
_SECOND = (1 << _BITS) - 1


class Learner:
    """The state of learning. A pair of symbols is one integer: first << _BITS | second.

    A symbol that covers several places has its number at the first place and ~number at the last.
    So the neighbours of a symbol are found from its size. A merge is done in all its places at
    once.

    Args:
        words: distinct words, without white space and NUL.
        counts: how often each word occurs (W).
        learnt: True for each word to learn from; none of these contains "</w>" (W).
    """

    def __init__(self, words: Words, counts: Ints, learnt: Mask) -> None:
        self._learnt = learnt
        # the symbol at every place, and the count of its word
        self.symbols, *self._memory = spelled(words, counts, learnt)
        self._sizes = array("i", [1]) * len(self.symbols)  # places of each symbol
        # texts whose order is the reverse of the order of the symbols
        self._inverted = [
            "".join([chr(LETTERS - 1 - ord(letter)) for letter in symbol]) + chr(LETTERS - 1)
            for symbol in self.symbols
        ]
        self._floor = MIN_FREQUENCY + 1  # nothing is tracked yet
        self._limit = 0
        # of the tracked pairs: the counts, and the places in order. A pair may have disappeared
        # from some of its places.
        self._counts: dict[int, int] = {}
        self._where: dict[int, array[int]] = {}
        # a heap of tracked pairs with earlier counts, the best pair first
        self._ranking: list[tuple[int, str, str, int]] = []

    def learn(self, merges: int) -> list[tuple[str, str]]:
        """Learn up to `merges` merges; fewer if no pair occurs twice any more.

        Returns: the pairs, in the order of merging.
        """
        result: list[tuple[str, str]] = []
        symbols, inverted = self.symbols, self._inverted
        while len(result) < merges and (best := self._best(merges - len(result))) is not None:
            first, second = best >> _BITS, best & _SECOND
            result.append((symbols[first], symbols[second]))
            new = len(symbols)
            symbols.append(symbols[first] + symbols[second])
            inverted.append(inverted[first][:-1] + inverted[second])
            self._sizes.append(self._sizes[first] + self._sizes[second])
            places = self._where.pop(best)
            del self._counts[best]
            self._merge(first, second, places, new)
            if len(self._counts) > self._limit:
                self._prune(merges - len(result))
        return result

    def _merge(self, first: int, second: int, places: array[int], new: int) -> None:
        """Merge a pair in all its places, and update the counts of all pairs."""
        text, weight = self._views()
        size, length = self._sizes[first], self._sizes[new]
        place = np.frombuffer(places, np.int32)
        place = place[text[place] == first]
        place = place[text[place + size] == second]
        if first == second:
            place = _apart(place, size)
        text[place + size] = HOLE
        text[place + (length - 1)] = ~new
        text[place] = new
        left, right, count = text[place - 1], text[place + length], weight[place]
        left ^= left >> 31  # ~left where it is negative
        starts = place - np.frombuffer(self._sizes, np.int32)[left]
        for symbol, total, where in _grouped(left, count, starts):
            if symbol != GAP:
                before = second if symbol == new else symbol
                self._replace(before << _BITS | first, symbol << _BITS | new, total, where)
        for symbol, total, where in _grouped(right, count, place):
            if symbol not in (GAP, new):  # the loop above has counted a pair of new symbols
                self._replace(second << _BITS | symbol, new << _BITS | symbol, total, where)

    def _replace(self, old: int, pair: int, count: int, places: Ints32) -> None:
        """Count a pair in all its places, where it replaces an old one."""
        if old in self._counts:
            self._counts[old] -= count
        if count >= self._floor:
            self._track(pair, count, array("i", places.tobytes()))

    def _track(self, pair: int, count: int, places: array[int]) -> None:
        self._counts[pair] = count
        self._where[pair] = places
        first, second = self._inverted[pair >> _BITS], self._inverted[pair & _SECOND]
        heapq.heappush(self._ranking, (-count, first, second, pair))

    def _best(self, wanted: int) -> int | None:
        """Return the most frequent pair; of equally frequent pairs the one that sorts last.

        Args:
            wanted: merges still wanted.
        Returns: the pair, or None if no pair is frequent enough.
        """
        ranking, counts = self._ranking, self._counts
        while ranking or self._floor > MIN_FREQUENCY:
            if not ranking:
                self._survey(wanted)
                continue
            negative, first, second, pair = heapq.heappop(ranking)
            count = counts[pair]
            if count == -negative:
                return pair
            if count >= self._floor:
                heapq.heappush(ranking, (-count, first, second, pair))
            else:
                del counts[pair], self._where[pair]
        return None

    def _prune(self, wanted: int) -> None:
        """Stop tracking the rarer pairs."""
        counts = self._counts
        floor = _floor(np.fromiter(counts.values(), np.int64, len(counts)), wanted + SPARE)
        # The floor never falls here: pairs below the present floor are not known.
        self._floor = max(self._floor, floor)
        for pair in [pair for pair, count in counts.items() if count < self._floor]:
            del counts[pair], self._where[pair]
        self._ranking = [entry for entry in self._ranking if entry[-1] in counts]
        heapq.heapify(self._ranking)
        self._limit = 2 * max(wanted + SPARE, len(counts))

    def _survey(self, wanted: int) -> None:
        """Count all pairs, and track the frequent pairs."""
        self._compact()
        pairs, counts = self._all_pairs()
        self._floor = _floor(counts, wanted + SPARE)
        frequent = counts >= self._floor
        pairs, counts = pairs[frequent], counts[frequent]
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self._track(pair, count, array("i"))
        self._limit = 2 * max(wanted + SPARE, len(pairs))
        for keys, places, _ in self._sorted_pairs():
            unique, starts, ends = _runs(keys)
            tracked = np.isin(unique, pairs, assume_unique=True)
            for pair, start, end in _tuples(unique[tracked], starts[tracked], ends[tracked]):
                self._where[pair].frombytes(places[start:end].tobytes())

    def _compact(self) -> None:
        """Give every symbol one place."""
        text, weight = self._views()
        size = 0
        for start in range(0, len(text), CHUNK):
            part = slice(start, start + CHUNK)
            alive = text[part] >= 0
            end = size + int(np.count_nonzero(alive))
            text[size:end], weight[size:end] = text[part][alive], weight[part][alive]
            size = end
        del text, weight  # memory with views keeps its size
        for memory in self._memory:
            del memory[size:]
        self._sizes = array("i", [1]) * len(self.symbols)

    def _sorted_pairs(self) -> Iterator[tuple[Ints, Ints32, Array]]:
        """Yield the pairs of the compact text, a chunk of places at a time: the pairs in order, the
        place of each pair, and the count of its word.
        """
        text, weight = self._views()
        for start in range(0, len(text) - 1, CHUNK):
            symbols = text[start : start + CHUNK + 1].astype(np.int64)
            first, second = symbols[:-1], symbols[1:]
            places = np.flatnonzero((first != GAP) & (second != GAP))
            pairs = first[places] << _BITS | second[places]
            ordered = np.sort(pairs << _CHUNK_BITS | places)
            places = (ordered & (1 << _CHUNK_BITS) - 1) + start
            yield ordered >> _CHUNK_BITS, places.astype(np.int32), weight[places]

    def _all_pairs(self) -> tuple[Ints, Ints]:
        """Return the pairs of the compact text, and how often each occurs."""
        empty = np.zeros(0, np.int64)
        parts = [(empty, empty)]
        size = 0
        for pairs, _, weight in self._sorted_pairs():
            unique, starts, _ = _runs(pairs)
            parts.append((unique, np.add.reduceat(weight, starts, dtype=np.int64)))
            size += len(unique)
            if size > CHUNK + len(parts[0][0]):  # so that the sums take little time
                parts, size = [_summed(parts)], 0
        return _summed(parts)

    def _views(self) -> tuple[Ints32, Array]:
        """Return the symbols and the counts of all places as numpy arrays."""
        text, weight = (np.frombuffer(memory, memory.typecode) for memory in self._memory)
        return text, weight

    def segmented(self) -> tuple[Ints32, Ints32]:
        """End learning, and return the segmented words.

        Returns: the symbols of all words, and the number of symbols of each word; 0 for words that
            were not learnt from.
        """
        self._counts, self._where, self._ranking = {}, {}, []
        self._compact()
        text = self._views()[0]
        lengths = np.zeros(len(self._learnt), np.int32)
        lengths[self._learnt] = np.diff(np.flatnonzero(text == GAP)) - 1
        return text[text != GAP], lengths


def _floor(counts: Ints, size: int) -> int:
    """Return the count from which pairs are tracked: at most `size` pairs if possible."""
    size = max(size, 1)
    if len(counts) <= size:
        return MIN_FREQUENCY
    last = int(np.partition(counts, -size)[-size])
    # Many more pairs may occur as often as the last. They are left out if others occur more often.
    return max(MIN_FREQUENCY, min(last + 1, int(counts.max())))


def _runs(keys: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct keys of a sorted array, and where each key starts and ends."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], starts, np.append(starts[1:], len(keys))


def _grouped(keys: Ints32, weights: Array, places: Ints32) -> Iterator[tuple[int, int, Ints32]]:
    """Yield each key with the sum of the weights of its places, and the places."""
    order = np.sort(keys.astype(np.int64) << 32 | np.arange(len(keys)))
    unique, starts, ends = _runs(order >> 32)
    order &= (1 << 32) - 1
    sums = np.add.reduceat(weights[order], starts, dtype=np.int64)
    places = places[order]
    for key, total, start, end in _tuples(unique, sums, starts, ends):
        yield key, total, places[start:end]


def _tuples(*columns: Ints) -> Iterator[tuple[int, ...]]:
    """Return the rows of several columns."""
    return zip(*(column.tolist() for column in columns), strict=True)


def _summed(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return the keys of all parts, and the sum of the counts of each key."""
    keys, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(keys)
    unique, starts, _ = _runs(keys[order])
    return unique, np.add.reduceat(counts[order], starts)


def _apart(places: Ints32, size: int) -> Ints32:
    """Return the places where a symbol is merged with the same symbol after it: every other place
    of a run. In aaa only the first aa is merged.

    Args:
        places: in order.
        size: the number of places that the symbol covers.
    """
    number = np.arange(len(places))
    starts = np.diff(places, prepend=-size - 1) != size
    odd = (number - np.maximum.accumulate(np.where(starts, number, 0))) % 2 == 1
    return np.delete(places, odd)
