"""Updates: which batches each has, and how its pairs are cut into parts for ranks and memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nmtkit.arrays import Integers
from nmtkit.data.batch_lists import padded_positions
from nmtkit.data.order import WindowBatches, epoch_windows, window_batches
from nmtkit.data.padding import Ids
from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store
from nmtkit.errors import CheckpointError
from nmtkit.owned_files import STATE
from nmtkit.records import TRAIN_AGAIN
from nmtkit.settings import TrainSettings

PART = 8192
"""The fixed cost of a part on a GPU, in positions that take the same time: an estimate from counted
launches.
"""


@dataclass
class Updates:
    """The micro-batches of update after update; an update may cross the end of a window or epoch.

    If subwords are drawn anew, they are drawn when their window begins. An update may hold batches
    of several windows. A pair in several of them has the subwords of the last one.

    Args:
        pairs: the training set, which is not empty.
        settings: batch_size, batch_unit, update_size, seed.
        epoch, window, index: where to begin; index: of the batch in the window.
    Attributes:
        batches: of the window.
    Raises: CheckpointError if the epoch has no such window.
    """

    pairs: Store
    settings: TrainSettings
    epoch: int = 0
    window: int = 0
    index: int = 0

    def __post_init__(self) -> None:
        s = self.settings
        self._count = max(1, round(s.update_size / s.batch_size))  # batches of an update
        self._windows = self._epoch_windows()
        if self.window >= len(self._windows):
            message = f"the training was in window {self.window} of {len(self._windows)}"
            raise CheckpointError(message, where=STATE, hint=TRAIN_AGAIN)
        self._begin()

    def _epoch_windows(self) -> list[list[int]]:
        return epoch_windows(self.pairs.shard_sizes, self.settings.seed, self.epoch)

    def _begin(self) -> None:
        """Begin the window that `epoch` and `window` point at."""
        s, shards = self.settings, self._windows[self.window]
        if isinstance(self.pairs, Resegmented):
            self.pairs.begin(self.epoch, self.window, shards)
        self.batches: WindowBatches = window_batches(
            self.pairs, shards, s.batch_size, s.batch_unit, s.seed, self.epoch, self.window
        )

    def next(self) -> list[Ids]:
        """Return the rows of each micro-batch of the next update, and move `epoch`, `window` and
        `index` to its end.
        """
        if isinstance(self.pairs, Resegmented):
            self.pairs.forget_earlier_windows()
        update: list[Ids] = []
        while len(update) < self._count:
            if self.index >= len(self.batches):
                self._begin_next()
            update.append(self.batches[self.index])
            self.index += 1
        return update

    def of_window(self) -> Iterator[list[Ids]]:
        """Yield the rows of the updates from the beginning of the window that fit into it."""
        for first in range(0, len(self.batches) - self._count + 1, self._count):
            yield [self.batches[i] for i in range(first, first + self._count)]

    def _begin_next(self) -> None:
        self.window, self.index = self.window + 1, 0
        if self.window >= len(self._windows):
            self.epoch, self.window = self.epoch + 1, 0
            self._windows = self._epoch_windows()
        self._begin()

    @property
    def passes(self) -> float:
        """Passes over the training set so far, a fraction; a window counts by its pairs."""
        sizes = self.pairs.shard_sizes
        pairs = [sum(sizes[shard] for shard in shards) for shards in self._windows]
        in_window = self.index / len(self.batches) * pairs[self.window]
        return self.epoch + (sum(pairs[: self.window]) + in_window) / sum(pairs)


def cuts_for_ranks(batches: int, ranks: int) -> int:
    """Return the number of parts into which each batch of an update is cut to occupy all ranks.

    It is 1 if every rank has a batch, else the number that takes least time. The time is that of
    the rank with most parts. Each further part of a batch costs a twentieth more, because short
    batches are slower for their length.
    """
    if batches >= ranks:
        return 1
    return min(
        range(1, ranks + 1),
        key=lambda count: math.ceil(batches * count / ranks) / count * (1 + count / 20),
    )


def equal_parts(
    rows: Ids,
    src: Integers,
    tgt: Integers,
    ranks: int,
    below: int,
    positions_of: Callable[[Integers, Integers], int] = padded_positions,
) -> list[Ids]:
    """Cut pairs into parts of similar length and equal work, with as many parts for each rank.

    The number of parts is the one that takes least time: more parts have less padding, but each
    part costs `PART` positions more.

    Args:
        rows: (N) of an update.
        src, tgt: (N), the tokens of each.
        ranks: W.
        below: each part has fewer positions, if one pair for each part allows that.
        positions_of: returns the positions of a part from its tokens.
    Returns: W parts, or a multiple of it; fewer for fewer pairs.
    """
    order = np.lexsort((src, tgt))[::-1]  # longest target first
    rows, src, tgt = rows[order], src[order], tgt[order]
    work = np.cumsum(src + tgt)
    best: list[Ids] = []
    least = math.inf
    for count in range(ranks, len(rows) + ranks, ranks):
        if count * PART >= least:
            break
        ends = np.searchsorted(work, work[-1] * np.arange(1, count) / count)
        edges = list(itertools.pairwise(np.unique([0, *ends, len(rows)]).tolist()))
        positions = [positions_of(src[start:end], tgt[start:end]) for start, end in edges]
        time = sum(positions) + count * PART if max(positions) < below else math.inf
        if not best or time < least:
            best, least = [rows[start:end] for start, end in edges], time
    return best
