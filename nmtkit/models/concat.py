"""The plainest document model: context, a break and the source are read as one sentence."""

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

    Their 2+1 model, as a Transformer: the decoder attends to all of it, and positions run on. A
    sentence without context is translated as the Transformer would.
    """

    paper = "Tiedemann & Scherrer 2017"

    def encode(self, batch: Batch) -> Memory:
        """See `Transformer.encode`; S is the length of context and source together."""
        return super().encode(joined(batch))


def joined(batch: Batch) -> Batch:
    """Return the batch with sources [context, `BREAK`, source]; without context, the source."""
    context = batch.context
    if context is None:
        return batch
    rows = context.rows[:, 0]  # (B); several sentences of context come as one
    # Words of the context (B), the break in the place of </s>.
    before = context.lengths[rows.clamp(min=0)].masked_fill(rows < 0, 0)
    lengths, end = before + batch.src_lengths, before[:, None]
    texts = torch.cat([context.ids[rows.clamp(min=0)], batch.src], dim=1)  # (B, M+S)
    places = torch.arange(texts.size(1), device=texts.device)
    # Move each source, which begins at M, to the end of its context.
    from_texts = torch.where(places < end, places, places - end + context.ids.size(1))
    ids = texts.gather(1, from_texts.clamp(max=texts.size(1) - 1))
    # The break takes the place of the context's </s>; padding follows the source.
    ids = ids.masked_fill(places == end - 1, BREAK).masked_fill(places >= lengths[:, None], PAD)
    return dataclasses.replace(batch, src=ids, src_lengths=lengths, src_padded=True, context=None)
