"""Updates and their batches, which a thread prepares a few ahead of the training on a GPU.

A GPU would wait while the host makes a batch. A CPU has no time to win: making a batch takes less
than a hundredth of the time of an update, and the thread would take it from the products.

What a checkpoint says of the order is that of the update trained on, not of those prepared.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

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
            hold it.
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

    None if subwords are drawn anew: those of the next window would take the place of this one's.
    """
    return UPDATES if device.type == "cuda" and not isinstance(pairs, Resegmented) else 0


class Prefetcher:
    """Yields prepared updates in their order; an error of the thread is raised by `next`.

    Args:
        updates: at the place where to begin; from then on only this object uses it.
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
        # Else the thread would take memory of the first GPU, whichever GPU the rank has.
        if self._gradients.device.type == "cuda":
            torch.cuda.set_device(self._gradients.device)

    def _prepare(self) -> PreparedUpdate:
        updates = self._updates
        rows = updates.next()
        lengths = [updates.pairs.lengths(batch) for batch in rows]
        tokens = sum(int(tgt.sum()) for _, tgt in lengths)
        positions = self._gradients.positions_of_update(rows)
        padding = positions - tokens - sum(int(src.sum()) for src, _ in lengths)
        place = updates.epoch, updates.window, updates.index
        share = self._share(rows) if self._count else None
        return PreparedUpdate(rows, tokens, positions, padding, place, updates.passes, share)

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
