"""Write a prepared set pair by pair."""

import contextlib

import numpy as np

from nmtkit.data.store import id_type, write_store


@contextlib.contextmanager
def pair_writer(folder, shard, vocab_size):
    """Yield a function that adds a pair of sentences, each a sequence of ids that ends in </s>."""
    kind = id_type(vocab_size)
    sentences = []

    def add(src, tgt):
        sentences.extend([np.array(src, kind), np.array(tgt, kind)])

    yield add
    ids = np.concatenate([np.zeros(0, kind), *sentences])
    write_store(folder, shard, vocab_size, ids, list(map(len, sentences)))
