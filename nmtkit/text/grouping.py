"""Arrays of keys with values: sorted, grouped and summed by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nmtkit.arrays import Array, Ints, Ints32


def grouped(keys: Ints32, weights: Array, places: Ints32) -> Iterator[tuple[int, int, Ints32]]:
    """Group places by key.

    Returns: each key, the sum of the weights of its places, and these.
    """
    order = np.sort(keys.astype(np.int64) << 32 | np.arange(len(keys)))
    unique, starts, ends = runs(order >> 32)
    order &= (1 << 32) - 1
    sums = np.add.reduceat(weights[order], starts, dtype=np.int64)
    places = places[order]
    for key, total, start, end in tuples(unique, sums, starts, ends):
        yield key, total, places[start:end]


def runs(keys: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the different keys of an ordered array, and where each starts and ends."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], starts, np.append(starts[1:], len(keys))


def tuples(*columns: Ints) -> Iterator[tuple[int, ...]]:
    """Return the values of arrays of one length, those of a place together."""
    return zip(*(column.tolist() for column in columns), strict=True)


def summed(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Return the keys of all parts, and the sum of the counts of each."""
    keys, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(keys)
    unique, starts, _ = runs(keys[order])
    return unique, np.add.reduceat(counts[order], starts)
