"""The associated memory: source words attend to words of other sentences, and a gate mixes them in.

The paper (Jiang et al. 2019) describes its parts in words; readings.md lists what it leaves open. A
sentence without context is translated as the Transformer would, bit for bit. context_encoder.py
encodes the words of contexts.

Legend: B sentences, S source length, U different contexts of a batch, M their length, J contexts of
a sentence, H heads, C width of one, D = H·C.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.data.context import Context, stacked
from nmtkit.data.documents import ContextRule, Join
from nmtkit.data.packing import Copies, Packing, Segments
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, Vocabularies, memory_sight, source_sight
from nmtkit.models.context_encoder import ContextEncoder, Reader
from nmtkit.models.transformer import DocumentSettings, DocumentTransformer, visible_words
from nmtkit.nn.attention import CrossAttention, SelfAttention, attention
from nmtkit.nn.capture import capturing, record, recorded_under
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.embeddings import Embedder
from nmtkit.nn.masks import Sight, Visible
from nmtkit.nn.state import select_rows
from nmtkit.nn.sublayer import GatedSum


class MemorySettings(DocumentSettings):
    """Settings of a Transformer, and how contexts are read; the defaults are the paper's system.

    Its ablations: without the RNN, context_encoder=none; without inter-sentence attention,
    inter_attention=false and context=foreign; without both, context_encoder=transformer with these
    two.
    """

    context_join: Join = "concatenate"
    """Several context sentences are one text with breaks between them (as in the paper's table), or
    a memory each, weighted.
    """
    context_encoder: Reader = "gru"
    """What reads a context's embeddings: a recurrent layer, nothing (but positions are added), or
    as many layers as the source has.
    """
    share_first_attention: bool = True
    """Source and contexts go through one and the same self-attention before they meet."""
    query_from: Literal["embed", "encoder"] = "embed"
    """Queries of the contexts: the source's embeddings after self-attention, or the encoder's
    states.
    """
    inter_attention: bool = True
    """Source words attend to context words; off: all read the mean of the context's words."""
    context_residual: bool = False
    """The query is added to what it reads."""
    memory_scope: Literal["sentence", "batch"] = "sentence"
    """A sentence's memory is its own contexts, or (if it has any) in training those of all
    sentences of its batch, else of its document.
    """


CONTEXTS_AT_ONCE = 2048
"""Contexts of sentences that are read at once in a search."""
Contexts = tuple[Tensor, Tensor, Visible]


def mean(x: Tensor, visible: Visible) -> Tensor:
    """Return the mean of x (B, S, D) over visible positions (B, D), in 32 bits or more.

    It is zero where nothing is visible.
    """
    x = x.float() if x.dtype.itemsize == 2 else x
    if visible is None:
        return x.mean(1)
    return x.masked_fill(~visible.transpose(1, 2), 0).sum(1) / visible.sum(-1).clamp(min=1)


def mean_of_packed(x: Tensor, packing: Packing) -> Tensor:
    """Return the mean of each sentence, (1, N, D) -> (R, D), as `mean` does."""
    return mean(packing.padded(x), packing.visible)


class InterSentenceAttention(CrossAttention):
    """Attention to each context by itself; a softmax over mean raw scores weighs the contexts."""

    def read(
        self, x: Tensor, contexts: Contexts, rows: Tensor, visible: Visible, everywhere: bool
    ) -> Tensor:
        """Return the attention of the words of sentences to their contexts.

        Args:
            x: the queries (B, S, D).
            contexts: keys and values of their words, (U, H, M, C) each, and their real positions,
                bool (U, 1, M) or None.
            rows: (B, J), the contexts of each sentence; -1 = none. The result for a sentence
                without any is finite.
            visible: the real positions of x, bool (B, 1, S); None = all.
            everywhere: True if J = U, and every sentence reads all contexts in their order.
        Returns: (B, S, D).
        Source: Jiang et al. 2019, inter-sentence attention.
        """
        q = self.query(x).unflatten(-1, (self.heads, -1))  # (B, S, H, C)
        at_once = everywhere or torch.is_grad_enabled() or capturing()
        if at_once or rows.numel() <= CONTEXTS_AT_ONCE:
            return self._read(q, contexts, rows, visible, everywhere)
        # A long document's contexts, for a batch of sentences, would not fit into memory.
        sentences = []
        for i, count in enumerate((rows >= 0).sum(1).clamp(min=1).tolist()):
            real = None if visible is None else visible[i : i + 1]
            row = rows[i : i + 1, :count]
            sentences.append(self._read(q[i : i + 1], contexts, row, real, everywhere=False))
        return torch.cat(sentences)

    def read_packed(self, x: Tensor, source: tuple[Tensor, Tensor], copies: Copies) -> Tensor:
        """Return `read` of a packed batch, (1, S, D).

        Args:
            x: the queries (1, S, D).
            source: keys and values of the contexts' words, (1, H, M, C) each.
            copies: what the sentences read.
        """
        q = copies.repeated(self.query(x).unflatten(-1, (self.heads, -1)))  # (1, J·S, H, C)
        p = self.p if self.training else 0.0
        read = attention(q, *source, copies.segments, p=p, name=self.name)
        read = read.unflatten(1, (len(copies.has), -1)).squeeze(0)  # (J, S, D)
        if len(read) > 1:
            keys = mean_of_packed(source[0].transpose(1, 2).flatten(2), copies.segments.keys)
            queries = mean_of_packed(q.flatten(2), copies.segments.queries)
            scores = copies.per_position(self._scores(queries, keys).unsqueeze(-1))  # (J, S, 1)
            lowest = torch.finfo(scores.dtype).min
            weights = scores.masked_fill(~copies.has.unsqueeze(-1), lowest).softmax(0)
            read = read * weights.to(read.dtype)
        return self.out(read.sum(0, keepdim=True))

    def _read(
        self, q: Tensor, contexts: Contexts, rows: Tensor, visible: Visible, everywhere: bool
    ) -> Tensor:
        read = self._read_each(q, contexts, rows, everywhere)  # (B, J, S, D)
        if rows.size(1) == 1:  # its weight is 1
            return self.out(read[:, 0])
        weights = self._weigh(q, contexts, rows, visible)
        record(f"{self.name}_sentences", weights)
        return self.out((read * weights.to(read.dtype)[..., None, None]).sum(1))

    def _read_each(self, q: Tensor, contexts: Contexts, rows: Tensor, everywhere: bool) -> Tensor:
        """Return what the words read of each context by itself (B, J, S, D)."""
        batch, count = rows.shape
        attend = partial(attention, p=self.p if self.training else 0.0, name=self.name)
        if everywhere:  # keys are not copied
            queries = q.flatten(0, 1).expand(len(contexts[0]), -1, -1, -1)  # (U, B·S, H, C)
            return attend(queries, *contexts).unflatten(1, (batch, -1)).transpose(0, 1)
        queries = q.repeat_interleave(count, dim=0)  # (B·J, S, H, C)
        of_rows = select_rows(contexts, rows.clamp(min=0).flatten())  # (B·J, …) each
        return attend(queries, *of_rows).unflatten(0, (batch, -1))

    def _weigh(self, q: Tensor, contexts: Contexts, rows: Tensor, visible: Visible) -> Tensor:
        """Return the weights of the contexts of each sentence (B, J).

        The mean over heads, words and context words of q·k is the product of the means.
        """
        k, _, of_context = contexts
        keys = mean(k.transpose(1, 2).flatten(2), of_context)[rows.clamp(min=0)]  # (B, J, D)
        queries = mean(q.flatten(2), visible).unsqueeze(1)  # (B, 1, D)
        scores = self._scores(queries, keys)
        return scores.masked_fill(rows < 0, torch.finfo(scores.dtype).min).softmax(-1)

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return mean raw scores (…) of the means of queries and keys (…, D)."""
        width = queries.size(-1) // self.heads
        return (queries * keys).sum(-1) / (self.heads * math.sqrt(width))


class AssociatedMemory(nn.Module):
    """Reads the contexts of sentences and mixes what it reads into the encoder's states.

    All its sublayers are post-norm, as printed, also where the Transformer's are pre-norm.

    Args:
        settings: of the model.
    """

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        s = self.settings = settings
        self.encoder = ContextEncoder(s, s.context_encoder)
        if s.inter_attention:
            self.first = SelfAttention(*s.attention_sizes)
            self.first_residual = s.residual("post")
            self.inter = InterSentenceAttention(*s.attention_sizes)
            if s.query_from == "embed":
                shared = s.share_first_attention
                self.source_first = None if shared else SelfAttention(*s.attention_sizes)
                self.source_residual = s.residual("post")
        self.read_residual = s.residual("post")
        self.feed_forward = s.feed_forward()
        self.feed_forward_residual = s.residual("post")
        self.gate = GatedSum(s.d_model)
        self.dropout = Dropout(s.dropout)

    def forward(
        self,
        states: Tensor,
        embedded: Tensor,
        visible: Sight,
        context: Context,
        embedder: Embedder,
    ) -> Tensor:
        """Return the encoder's states with the contexts mixed in.

        Args:
            states: (B, S, D).
            embedded: the source's embeddings (B, S, D).
            visible: what a position of it may attend to.
            context: of the sentences.
            embedder: the source's.
        Returns: (B, S, D); the states of a sentence without context are unchanged.
        Source: Jiang et al. 2019; the gate is that of Voita et al. 2018.
        """
        queries, residual = self._queries(states, embedded, visible), self.read_residual
        with recorded_under("context."):
            parts = self._read_contexts(context, embedder)
        read = self._attend_to_contexts(queries, visible, context, parts)
        if self.settings.context_residual:
            read = residual.leave(queries, read)
        else:
            read = residual.norm(self.dropout(read))
        read = self.feed_forward_residual(read, self.feed_forward)
        return self.gate.mix(states, read, context.has, "memory.gate")

    def _queries(self, states: Tensor, embedded: Tensor, visible: Sight) -> Tensor:
        """Return the queries of the attention to the contexts (B, S, D)."""
        if not self.settings.inter_attention or self.settings.query_from == "encoder":
            return states
        first = self.source_first or self.first
        return self.source_residual(embedded, partial(first, visible=visible))

    def _attend_to_contexts(
        self, queries: Tensor, visible: Sight, context: Context, parts: list[Tensor]
    ) -> Tensor:
        """Return what the queries (B, S, D) read of the parts of the contexts: (B, S, D)."""
        if context.copies is not None:
            return self._attend_to_packed_contexts(queries, context.copies, parts)
        rows, of_context = context.rows, visible_words(context)
        assert not isinstance(visible, Segments) and not isinstance(of_context, Segments)
        everywhere = self.settings.memory_scope == "batch" and self.training
        if everywhere:
            every = torch.arange(len(context.ids), device=rows.device)
            rows = torch.where(rows[:, :1] >= 0, every, -1)
        if self.settings.inter_attention:
            contexts = *self.inter.source(*parts), of_context
            return self.inter.read(queries, contexts, rows, visible, everywhere)
        words = stacked(parts)
        means = mean(words, of_context)[rows.clamp(min=0)]  # (B, J, D)
        total = mean(means, (rows >= 0).unsqueeze(1)).to(words.dtype)
        return total.unsqueeze(1).expand_as(queries)

    def _attend_to_packed_contexts(
        self, queries: Tensor, copies: Copies, parts: list[Tensor]
    ) -> Tensor:
        """Return what the queries (1, S, D) of a packed batch read: (1, S, D).

        A sentence without context reads <pad>; `GatedSum.mix` then returns its states unchanged.
        """
        if self.settings.inter_attention:
            return self.inter.read_packed(queries, self.inter.source(*parts), copies)
        (words,), has = parts, copies.has.unsqueeze(-1)
        means = copies.per_position(mean_of_packed(words, copies.segments.keys))  # (J, S, D)
        total = means.masked_fill(~has, 0).sum(0, keepdim=True)
        return (total / has.sum(0).clamp(min=1)).to(words.dtype)

    def _read_contexts(self, context: Context, embedder: Embedder) -> list[Tensor]:
        """Return the words of each part of the contexts, (U', M', D) each."""
        parts = self.encoder(context, embedder)
        if not self.settings.inter_attention:
            return parts
        visible = map(visible_words, context.of_like_length())
        return [
            self.first_residual(words, partial(self.first, visible=real))
            for words, real in zip(parts, visible, strict=True)
        ]


class AssociatedMemoryTransformer(DocumentTransformer):
    """Jiang et al. 2019, *Document-level neural machine translation with inter-sentence attention*,
    arXiv 1910.14528.
    """

    Settings = MemorySettings
    settings: MemorySettings
    paper = "Jiang et al. 2019"
    packs = True

    def __init__(self, settings: MemorySettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        s = settings
        batch_wide = s.memory_scope == "batch"
        if batch_wide and s.context_size > 1 and s.context_join == "concatenate":
            hint = "with model.context_size above 1: --set model.context_join=parallel"
            message = "the contexts of a batch are a memory each, and not one text"
            raise ConfigError(message, where="model.memory_scope", hint=hint)
        self.join = "parallel" if batch_wide else s.context_join
        self.memory = AssociatedMemory(s)

    @property
    def reads_packed(self) -> bool:
        return super().reads_packed and self.settings.memory_scope == "sentence"

    @property
    def context_rule(self) -> ContextRule:
        """See `Model.context_rule`; outside training a document is the memory: no batch matters."""
        whole = self.settings.memory_scope == "batch" and not self.training
        return dataclasses.replace(super().context_rule, whole=whole)

    def encode(self, batch: Batch) -> Memory:
        visible = source_sight(batch)
        embedded = self.src_embedder(batch.src, visible=visible)
        states = self.through_encoder(embedded, visible)
        if batch.context is not None:
            states = self.memory(states, embedded, visible, batch.context, self.src_embedder)
        return self.remember(states, memory_sight(batch, visible))
