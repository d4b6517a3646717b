"""Three context sentences, four sentences that may have them, and the Transformer without them."""

import dataclasses

import torch

from nmtkit.data.context import BREAK, Context
from nmtkit.text.vocabulary import BOS, EOS, PAD
from tests.models import contract
from tests.models.contract import transformer_of

ONE, TWO, THREE = [5, 9, 4, EOS], [7, EOS], [11, 3, BREAK, 8, 8, 6, EOS]
TGT_IN = {tuple(ONE): [BOS, 6, 13], tuple(TWO): [BOS, 17, 4, 8, 12], tuple(THREE): [BOS]}
"""What the decoder read to say the target sides of contexts."""
PAIRS = contract.pairs(count=4)
MIXED = [[2], [], [0, 1, 2], [1, 0]]
"""Contexts of the four sentences of `PAIRS`."""


def padded(texts, filler=PAD):
    """Ids (B, S) and lengths (B)."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [filler] * (longest - len(text)) for text in texts])
    return ids, torch.tensor([len(text) for text in texts])


def batch_of(*texts, rows, sentences=PAIRS):
    """A batch of sentences, row i with the contexts `rows[i]` of the texts."""
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
    """Without context it is the Transformer of the same weights, to the last bit: the sentences
    that have none among those that do, and all.
    """
    model = case.build()
    batch = contract.batch_for(model)
    has = (batch.context.rows >= 0).any(1)
    assert 0 < has.sum() < len(has)
    plain, found = contract.full(transformer_of(model), batch), contract.full(model, batch)
    assert torch.equal(found[~has], plain[~has])
    assert ((found - plain)[has].abs().amax((1, 2)) > 1e-4).all()
    assert torch.equal(contract.full(model, dataclasses.replace(batch, context=None)), plain)
