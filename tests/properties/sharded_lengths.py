"""Sentence lengths of a sharded training set, in memory."""

import itertools

import numpy as np


class ShardedLengths:
    """Lengths of pairs, in shards of `sizes` pairs; `read` lists the shards that were read."""

    def __init__(self, src, tgt, sizes=None):
        self.shard_sizes = [len(src)] if sizes is None else list(sizes)
        assert sum(self.shard_sizes) == len(src) == len(tgt)
        self._sides = np.asarray(src), np.asarray(tgt)
        self._bounds = list(itertools.pairwise(itertools.accumulate(self.shard_sizes, initial=0)))
        self.read = []

    def shard_lengths(self, shard):
        self.read.append(shard)
        start, end = self._bounds[shard]
        return tuple(side[start:end].astype(np.uint8) for side in self._sides)

    def lengths(self, pairs):
        return tuple(side[pairs].astype(np.int64) for side in self._sides)

    def shard_of(self, row):
        """Return the shard of a pair, by a search of all shards."""
        (shard,) = [i for i, (start, end) in enumerate(self._bounds) if start <= row < end]
        return shard
