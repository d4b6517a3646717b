"""The order of an epoch: windows of shards, one after another, and the batches of each window.

A window has about `WINDOW_PAIRS` pairs. Each epoch permutes the shards and cuts them into windows
of nearly equal size; `batch_list` batches a window. So a rank needs the lengths of one window only,
and a batch comes from the shards of one window. A set that fits one window is not permuted: its
batches depend on its pairs only, not on the shards.

The order depends only on the sizes of the shards, the lengths, the settings, the seed and the
epoch. Training resumes at (epoch, window, batch) without a replay of earlier windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmtkit.arrays import Integers
from nmtkit.data.batch_lists import Unit, batch_list, padded_positions
from nmtkit.data.padding import Ids
from nmtkit.data.store import Store

WINDOW_PAIRS = 2_000_000
"""Pairs of a window; whole shards can make it larger (see `epoch_windows`). A change of this number
changes the order of resumed trainings.
"""
OF_SHARDS = 3
"""The third number of the seed of the permutation of the shards."""


def epoch_windows(sizes: Sequence[int], seed: int, epoch: int) -> list[list[int]]:
    """Return the windows of an epoch, the shards of each in the order of the corpus.

    Every shard with a pair is in exactly one window. No window has more than WINDOW_PAIRS pairs
    plus the pairs of the largest shard.

    Args:
        sizes: pairs of each shard.
        seed, epoch: determine the permutation of the shards.
    """
    shards = np.flatnonzero(sizes)
    pairs = np.array(sizes, np.int64)[shards]
    total = int(pairs.sum())
    count = -(-total // WINDOW_PAIRS)
    rng = np.random.Generator(np.random.PCG64([seed, epoch, OF_SHARDS]))
    order = rng.permutation(len(shards))
    shards, pairs = shards[order], pairs[order]
    # A shard is in the window that the middle of the shard is in.
    window = (2 * np.cumsum(pairs) - pairs) * count // (2 * total)
    return [np.sort(shards[window == number]).tolist() for number in np.unique(window)]


@dataclass(frozen=True)
class WindowBatches:
    """The batches of a window. `batches[i]` is the array of the rows of batch i.

    Args:
        rows: (N), the rows of the window.
        src_lengths, tgt_lengths: (N).
        places: for each batch the indices of its pairs in `rows`.
    """

    rows: Ids
    src_lengths: Integers
    tgt_lengths: Integers
    places: list[Ids]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: int) -> Ids:
        return self.rows[self.places[i]]

    def positions(self, i: int) -> int:
        """Return the number of positions of batch i, padding included."""
        places = self.places[i]
        return padded_positions(self.src_lengths[places], self.tgt_lengths[places])

    def largest(self) -> Ids:
        """Return the rows of the batch with the most positions."""
        return self[max(range(len(self)), key=self.positions)]


def window_batches(
    pairs: Store,
    shards: Sequence[int],
    size: int,
    unit: Unit,
    seed: int,
    epoch: int,
    window: int = 0,
) -> WindowBatches:
    """Return the batches of a window.

    Args:
        pairs: the training set.
        shards: of the window.
        size, unit, seed, epoch, window: as of `batch_list`.
    """
    starts = np.cumsum([0, *pairs.shard_sizes])
    rows = np.concatenate([np.arange(starts[shard], starts[shard + 1]) for shard in shards])
    sides = zip(*map(pairs.shard_lengths, shards), strict=True)
    src, tgt = (np.concatenate(lengths) for lengths in sides)
    return WindowBatches(rows, src, tgt, batch_list(src, tgt, size, unit, seed, epoch, window))
