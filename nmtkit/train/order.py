"""Which batches make up each update: the batch lists of the epochs, one after the other, from a
position that two numbers describe.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nmtkit.data.batches import Ids, batch_list
from nmtkit.settings import TrainSettings


class Order:
    """Walks through the epochs' batches; an update takes batches until it holds `update_size`,
    across epochs if need be.

    Args:
        src_lengths, tgt_lengths: (N) of the training set.
        settings: batch_size, batch_unit, update_size, seed.
        epoch, index: where to begin.
    """

    def __init__(
        self,
        src_lengths: Ids,
        tgt_lengths: Ids,
        settings: TrainSettings,
        epoch: int = 0,
        index: int = 0,
    ) -> None:
        self._src, self._tgt = src_lengths, tgt_lengths
        self._settings = settings
        self.epoch, self.index = epoch, index
        self._batches = self._list()

    def _list(self) -> list[Ids]:
        s = self._settings
        return batch_list(self._src, self._tgt, s.batch_size, s.batch_unit, s.seed, self.epoch)

    def next_update(self) -> list[Ids]:
        """The micro-batches of the next update; `epoch` and `index` then point behind them."""
        update: list[Ids] = []
        size = 0
        while not update or size < self._settings.update_size:
            if self.index >= len(self._batches):
                self.epoch, self.index = self.epoch + 1, 0
                self._batches = self._list()
            update.append(self._batches[self.index])
            self.index += 1
            size += self._size(update[-1])
        return update

    def _size(self, rows: Ids) -> int:
        unit = self._settings.batch_unit
        return (
            len(rows)
            if unit == "sentences"
            else int((self._src if unit == "src_tokens" else self._tgt)[rows].sum())
        )

    @property
    def batches(self) -> int:
        """Batches in this epoch."""
        return len(self._batches)

    def largest(self) -> Ids:
        """The batch of this epoch that needs most memory."""
        return max(self._batches, key=self.positions)

    def positions(self, rows: Ids) -> int:
        """Positions of a batch, both sides, padding included."""
        return len(rows) * (int(self._src[rows].max()) + int(self._tgt[rows].max()))

    def tokens(self, update: Sequence[Ids]) -> tuple[int, int]:
        """Real tokens of some batches: of both sides, of the target side."""
        rows = np.concatenate(update)
        target = int(self._tgt[rows].sum())
        return target + int(self._src[rows].sum()), target
