"""Sets of sentence pairs to make batches of: prepared on disk, or in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nmtkit.arrays import Array, Ints
from nmtkit.data.documents import Documents
from nmtkit.data.padding import joined
from nmtkit.data.ragged import RaggedShards
from nmtkit.data.store import Store


class GivenPairs:
    """Pairs of token ids in memory.

    Args:
        src, tgt: ids of each sentence, </s> last.
        spans: of the sources, if known (see `nmtkit.data.store`).
        documents: where documents start (default: each sentence is a document).
    """

    def __init__(
        self,
        src: Sequence[Sequence[int] | Array],
        tgt: Sequence[Sequence[int]],
        spans: RaggedShards | None = None,
        documents: Documents | None = None,
    ) -> None:
        self._src, self._tgt = src, tgt
        self.spans = spans
        self.documents = documents or Documents([], len(src))
        self.src_lengths = np.fromiter(map(len, src), dtype=np.int64, count=len(src))
        self.tgt_lengths = np.fromiter(map(len, tgt), dtype=np.int64, count=len(tgt))

    def src(self, i: int) -> Ints:
        """Return the source ids of pair i."""
        return np.asarray(self._src[i], dtype=np.int64)

    def tgt(self, i: int) -> Ints:
        """Return the target ids of pair i."""
        return np.asarray(self._tgt[i], dtype=np.int64)

    def sides(self, pairs: Ints) -> list[tuple[Array, Ints]]:
        """Return the joined sources and targets of some pairs (B); see `Store.sides`."""
        return [joined([side(i) for i in pairs.tolist()]) for side in (self.src, self.tgt)]


Pairs = Store | GivenPairs
