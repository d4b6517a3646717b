"""The simplest document model: it reads context, a break and the source as one sentence."""

from __future__ import annotations

import dataclasses

import torch

from nmtkit.data.batches import Batch
from nmtkit.data.context import BREAK
from nmtkit.models.base import Memory
from nmtkit.models.transformer import DocumentTransformer
from nmtkit.text.vocabulary import PAD


class ConcatTransformer(DocumentTransformer):
    """Tiedemann & Scherrer 2017, *Neural machine translation with extended context*, DiscoMT.

    The paper's 2+1 model as a Transformer: the decoder attends to context and source, and positions
    are counted through both. Without context it translates as the Transformer does.
    """

    paper = "Tiedemann & Scherrer 2017"
    packs = True
    context_form = "source"

    def encode(self, batch: Batch) -> Memory:
        """See `Transformer.encode`; S is the length of context and source together."""
        return super().encode(joined(batch))


def joined(batch: Batch) -> Batch:
    """Return the batch with sources [context, `BREAK`, source], or [source] without context."""
    context = batch.context
    if context is None:
        return batch
    rows = context.rows[:, 0]  # (B), -1 = no context; several context sentences are joined
    # (B), with the break in the place of </s>.
    context_lengths = context.lengths[rows.clamp(min=0)].masked_fill(rows < 0, 0)
    lengths, end = context_lengths + batch.src_lengths, context_lengths[:, None]
    texts = torch.cat([context.ids[rows.clamp(min=0)], batch.src], dim=1)  # (B, M+S)
    index = torch.arange(texts.size(1), device=texts.device)
    # Move each source, which begins at M, to the end of its context.
    from_texts = torch.where(index < end, index, index - end + context.ids.size(1))
    ids = texts.gather(1, from_texts.clamp(max=texts.size(1) - 1))
    # The break takes the place of the context's </s>; padding follows the source.
    ids = ids.masked_fill(index == end - 1, BREAK).masked_fill(index >= lengths[:, None], PAD)
    return dataclasses.replace(batch, src=ids, src_lengths=lengths, src_padded=True, context=None)
