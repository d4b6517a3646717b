"""Lists of batches: sentence pairs of similar length go together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from nmtkit.arrays import Integers
from nmtkit.data.padding import Ids

Unit = Literal["tgt_tokens", "src_tokens", "sentences"]

# The budget of the side that `unit` does not count, as a multiple of the other budget. Without a
# limit, a pair with a very long other side could make a batch huge.
OTHER_SIDE = 2
# Widths of length bands that `batch_list` tries (see `_batches`). With more than LARGE_CORPUS pairs
# it uses width 1, which is the best there.
BAND_WIDTHS = (1, 2, 3, 4, 6, 8)
LARGE_CORPUS = 100_000
# The third number of the seed of a window after the first (see `nmtkit.data.order`).
OF_WINDOW = 2


def batch_list(
    src_lengths: Integers,
    tgt_lengths: Integers,
    size: int,
    unit: Unit,
    seed: int,
    epoch: int,
    window: int = 0,
) -> list[Ids]:
    """Return the batches of one window of an epoch as arrays of rows. Every pair is in exactly one
    batch.

    The result depends on the arguments only, so training resumes without a replay of earlier
    epochs. Pairs of similar length share a batch. Each epoch draws new batches in a new order.

    Args:
        src_lengths, tgt_lengths: (N) subwords of each pair, </s> included.
        size: budget of a batch: padded positions of the side that `unit` counts, or sentences. A
            pair above the budget gets its own batch.
        unit: tgt_tokens, src_tokens or sentences.
        seed, epoch, window: determine the draw.
    """
    # An epoch of one window is drawn as before there were windows.
    draw = [seed, epoch, OF_WINDOW, window] if window else [seed, epoch]
    rng = np.random.Generator(np.random.PCG64(draw))
    # Lengths of the side that the budget counts, and of the other side.
    first, second = (
        (src_lengths, tgt_lengths) if unit == "src_tokens" else (tgt_lengths, src_lengths)
    )
    shuffled = rng.permutation(len(first))
    widths = (1,) if len(first) > LARGE_CORPUS else BAND_WIDTHS
    batches = min(  # the fewest padded positions
        (_batches(first, second, size, unit, shuffled, width) for width in widths),
        key=lambda batches: sum(padded_positions(first[r], second[r]) for r in batches),
    )
    return [batches[i] for i in rng.permutation(len(batches))]


def padded_positions(src_lengths: Integers, tgt_lengths: Integers) -> int:
    """Return the number of positions of a batch of pairs (B): both sides, padding included."""
    return len(src_lengths) * (int(src_lengths.max()) + int(tgt_lengths.max()))


def _batches(
    first: Integers, second: Integers, size: int, unit: Unit, shuffled: Ids, width: int
) -> list[Ids]:
    """Cut batches from an order in which pairs of similar length are neighbours.

    A band holds the pairs with `width` neighbouring lengths of the first side. Bands follow each
    other, longest first. The second side's length rises in one band and falls in the next, so that
    it does not jump where bands meet. Narrow bands suit large corpora; in a small corpus a batch
    would span many of them.
    """
    first, second = first[shuffled].astype(np.int64), second[shuffled].astype(np.int64)
    band = first // width
    snake = np.where(band % 2, second, second.max(initial=0) - second)
    order = np.lexsort((-snake, -band))  # stable: pairs with equal keys stay shuffled
    cuts = _cuts(first[order], second[order], size, unit)
    return [shuffled[order[start:end]] for start, end in itertools.pairwise(cuts)]


def _cuts(first: Integers, second: Integers, size: int, unit: Unit) -> list[int]:
    """Return where batches begin and end in an ordered list of pairs.

    Each batch takes as many pairs as its padded sides allow.
    """
    count = len(first)
    if unit == "sentences":
        return [*range(0, count, size), count]
    cuts = [0]
    while cuts[-1] < count:
        start = cuts[-1]
        # No more pairs fit: each row is padded to at least the first pair's length.
        rows = max(1, size // int(first[start]))
        for lengths, budget in ((first, size), (second, OTHER_SIDE * size)):
            # Padded positions of the first 1, 2, … pairs: those within the budget make the batch.
            longest = np.maximum.accumulate(lengths[start : start + rows])
            positions = longest * np.arange(1, len(longest) + 1)
            rows = max(1, int(np.searchsorted(positions, budget, side="right")))
        cuts.append(min(start + rows, count))
    return cuts


def longest_first(lengths: Sequence[int], positions: int, sentences: int) -> list[list[int]]:
    """Return batches of sentence indices, the longest sentences first.

    Args:
        lengths: number of tokens of each sentence.
        positions: the most positions of a batch, padding included; a longer sentence is a batch.
        sentences: the most sentences of a batch.
    """
    batches: list[list[int]] = []
    rows = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or len(batches[-1]) >= rows:
            batches.append([])
            rows = max(1, min(sentences, positions // lengths[i]))
        batches[-1].append(i)
    return batches
