"""Updates and their batches, which a thread prepares ahead of the training on a GPU.

A GPU would wait while the host makes a batch. On a CPU there is nothing to gain: making a batch
takes less than a hundredth of the time of an update, and the thread would take time from the
matrix products.

A checkpoint has the place of the last update that was made, not of the last one prepared.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from nmtkit.data.padding import Ids
from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store
from nmtkit.errors import is_out_of_memory
from nmtkit.train.gradients import Gradients, Share
from nmtkit.train.updates import Updates

UPDATES = 3
"""Updates that are prepared ahead."""


@dataclass(frozen=True)
class PreparedUpdate:
    """An update that is ready to be computed.

    Attributes:
        rows: of each micro-batch.
        tokens, positions, padding: see Window.
        place: epoch, window and index after the update (see `Updates`).
        passes: over the training set, up to the end of the update.
        share: of this rank, with its batches; None if nothing is prepared ahead, or memory does not
            hold the batches.
    """

    rows: list[Ids]
    tokens: int
    positions: int
    padding: int
    place: tuple[int, int, int]
    passes: float
    share: Share | None


def updates_ahead(device: torch.device, pairs: Store) -> int:
    """Return how many updates are prepared ahead.

    It is 0 if subwords are drawn anew: the subwords of the next window would replace those of the
    current window.
    """
    return UPDATES if device.type == "cuda" and not isinstance(pairs, Resegmented) else 0


class Prefetcher:
    """Prepares updates in their order; `next` raises the error of the thread.

    Args:
        updates: at the place where to begin; only this object uses it from then on.
        gradients: makes the batches.
    """

    def __init__(self, updates: Updates, gradients: Gradients) -> None:
        self._updates, self._gradients = updates, gradients
        self._count = updates_ahead(gradients.device, updates.pairs)
        self._thread = ThreadPoolExecutor(1, "batches", self._begin)
        self._queue: deque[Future[PreparedUpdate]] = deque()

    def next(self) -> PreparedUpdate:
        """Return the next update."""
        if not self._count:
            return self._prepare()
        while len(self._queue) <= self._count:
            self._queue.append(self._thread.submit(self._prepare))
        return self._queue.popleft().result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        # Without this the thread would take memory of the first GPU, whichever GPU the rank has.
        if self._gradients.device.type == "cuda":
            torch.cuda.set_device(self._gradients.device)

    def _prepare(self) -> PreparedUpdate:
        updates, gradients = self._updates, self._gradients
        rows = updates.next()
        src, tgt = (int(side.sum()) for side in updates.pairs.lengths(np.concatenate(rows)))
        # If batches are not joined, a batch counts as a whole, also if it is computed in parts.
        computed = gradients.parts(rows) if gradients.joins else rows
        positions = sum(map(gradients.positions_of, computed))
        place = updates.epoch, updates.window, updates.index
        share = self._share(rows) if self._count else None
        sizes = tgt, positions, positions - src - tgt
        return PreparedUpdate(rows, *sizes, place, updates.passes, share)

    def _share(self, rows: list[Ids]) -> Share | None:
        """Return the share of this rank with its batches; None if memory does not hold them.

        `Gradients.compute` then makes the batches, and can give back the memory of graphs.
        """
        try:
            return self._gradients.share(rows, make=True)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None
