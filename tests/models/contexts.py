"""Context sentences, a batch whose sentences have 0 to 3 of them, and the check without context."""

import dataclasses

import torch

from nmtkit.data.context import BREAK, Context
from nmtkit.text.vocabulary import BOS, EOS
from tests.models import contract
from tests.models.contract import padded, transformer_of

ONE, TWO, THREE = [5, 9, 4, EOS], [7, EOS], [11, 3, BREAK, 8, 8, 6, EOS]
SHORT = [10, EOS]
TGT_IN = {
    tuple(ONE): [BOS, 6, 13],
    tuple(TWO): [BOS, 17, 4, 8, 12],
    tuple(THREE): [BOS],
    tuple(SHORT): [BOS, 14],
}
"""The decoder's input for the target side of each context."""
PAIRS = contract.pairs(count=4)
MIXED = [[2], [], [0, 1, 2], [1, 0]]
"""Numbers of the contexts of each sentence of `PAIRS`."""


def batch_of(*texts, rows, sentences=PAIRS):
    """Return a batch of sentences; sentence i has the contexts `rows[i]` of the texts."""
    ids, lengths = padded(texts)
    tgt_in, tgt_lengths = padded([TGT_IN[tuple(text)] for text in texts])
    context = Context(
        ids,
        lengths,
        padded(rows, filler=-1)[0],
        bool((lengths < ids.size(1)).any()),
        tgt_in=tgt_in,
        tgt_lengths=tgt_lengths,
        tgt_padded=bool((tgt_lengths < tgt_in.size(1)).any()),
    )
    return dataclasses.replace(contract.collate(sentences), context=context)


def without_idea(case):
    """Without contexts a model is the Transformer of the same weights, bit for bit: for the
    sentences of a batch that have none, and for a batch without any.
    """
    model = case.build()
    batch = contract.batch_for(model)
    has_context = (batch.context.rows >= 0).any(1)
    assert 0 < has_context.sum() < len(has_context)
    plain, logits = contract.full(transformer_of(model), batch), contract.full(model, batch)
    assert torch.equal(logits[~has_context], plain[~has_context])
    assert ((logits - plain)[has_context].abs().amax((1, 2)) > 1e-4).all()
    assert torch.equal(contract.full(model, dataclasses.replace(batch, context=None)), plain)
