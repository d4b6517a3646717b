"""Concatenation: context and source are read as one source; nothing else differs from the
Transformer.
"""

import dataclasses

import torch

from nmtkit.data.context import BREAK
from nmtkit.models.concat import joined
from tests.models import contract, test_transformer
from tests.models.contexts import ONE, PAIRS, THREE, TWO, batch_of
from tests.models.contract import padded, transformer_of

BASELINE = "transformer"
count = test_transformer.count


def slow_logits(weights, s, src, tgt_in, contexts=()):
    text = [*contexts[0][:-1], BREAK, *src] if contexts else src
    return test_transformer.slow_logits(weights, s, text, tgt_in)


def without_idea(case):
    """Without context the model is the Transformer of the same weights; with context it is that
    Transformer on the longer source.
    """
    model = case.build()
    base, batch = transformer_of(model), contract.batch_for(model)
    has_context = (batch.context.rows >= 0).any(1)
    assert 0 < has_context.sum() < len(has_context)
    expected = contract.full(base, batch)
    contract.close(contract.full(model, batch)[~has_context], expected[~has_context])
    assert torch.equal(contract.full(model, dataclasses.replace(batch, context=None)), expected)
    longer = [
        (src if not contexts else [*contexts[0][:-1], BREAK, *src], tgt)
        for src, tgt in contract.pairs()
        for contexts in [contract.contexts_of(src, model.context_rule)]
    ]
    contract.close(contract.full(model, batch), contract.full(base, contract.collate(longer)))


def test_encoder_reads_context_break_and_source():
    """[context, <s> for </s>, source, padding]; the source alone where there is no context."""
    batch = batch_of(ONE, THREE, TWO, rows=[[1], [], [0], [2]])
    read = joined(batch)
    contexts = [[*ids[:-1], BREAK] if ids else [] for ids in (THREE, [], ONE, TWO)]
    texts = [context + src for context, (src, _) in zip(contexts, PAIRS, strict=True)]
    src, lengths = padded(texts)
    width = src.size(1)
    assert torch.equal(read.src[:, :width], src) and (read.src[:, width:] == 0).all()
    assert torch.equal(read.src_lengths, lengths)
    assert read.context is None and torch.equal(read.tgt_in, batch.tgt_in)
