"""Write a prepared set pair by pair."""

import contextlib

import numpy as np

from nmtkit.data.store import id_type, store_writer


@contextlib.contextmanager
def pair_writer(folder, shard, vocab_size):
    """Yield a function that adds a pair of sentences, each a sequence of ids that ends in </s>."""
    with store_writer(folder, shard, vocab_size) as add_block:

        def add(src, tgt):
            ids = np.array([*src, *tgt], id_type(vocab_size))
            add_block(ids.tobytes(), [len(src), len(tgt)])

        yield add
