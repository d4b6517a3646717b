"""Concatenation: what is read as one source, and that nothing else differs from the Transformer."""

import dataclasses

import torch

from nmtkit.data.context import BREAK
from nmtkit.models.concat import joined
from tests.models import contract, test_transformer
from tests.models.test_memory import (
    ONE,
    PAIRS,
    THREE,
    TWO,
    batch_of,
    of,
    transformer_of,
)

BASELINE = "transformer"
count = test_transformer.count


def slow_logits(weights, s, src, tgt_in, contexts=()):
    text = [*contexts[0][:-1], BREAK, *src] if contexts else src
    return test_transformer.slow_logits(weights, s, text, tgt_in)


def without_idea(case):
    """Without context it is the Transformer of the same weights; with one it is that Transformer
    on the longer source.
    """
    model = case.build()
    base, batch = transformer_of(model), contract.batch_for(model)
    has = (batch.context.rows >= 0).any(1)
    assert 0 < has.sum() < len(has)
    expected = contract.full(base, batch)
    contract.close(contract.full(model, batch)[~has], expected[~has])
    assert torch.equal(contract.full(model, dataclasses.replace(batch, context=None)), expected)
    longer = [
        (contract.contexts_of(src, model.context_rule)[0][:-1] + [BREAK] + src if own else src, tgt)
        for own, (src, tgt) in zip(has, contract.pairs(), strict=True)
    ]
    contract.close(contract.full(model, batch), contract.full(base, contract.collate(longer)))


def test_what_the_encoder_reads():
    """[context, <s> for </s>, source, padding]; the source alone where there is no context."""
    batch = batch_of(of(ONE, THREE, TWO, rows=[[1], [], [0], [2]]))
    found = joined(batch)
    for row, own, (src, _) in zip(found.src.tolist(), (THREE, [], ONE, TWO), PAIRS, strict=True):
        text = own[:-1] + [BREAK] * bool(own) + src
        assert row == text + [0] * (found.src.size(1) - len(text))
    assert found.src_lengths.tolist() == [
        len(own) + len(src) for own, (src, _) in zip((THREE, [], ONE, TWO), PAIRS, strict=True)
    ]
    assert found.context is None and torch.equal(found.tgt_in, batch.tgt_in)
