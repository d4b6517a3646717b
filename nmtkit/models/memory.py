"""The associated memory: source words attend to words of other sentences, and a gate mixes them in.

The paper (Jiang et al. 2019) describes its parts in words; readings.md lists what it leaves open.
The translation of a sentence without context equals the Transformer's, bit for bit.

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
from nmtkit.models.base import Memory, Vocabularies, source_sight
from nmtkit.models.transformer import (
    DocumentSettings,
    DocumentTransformer,
    EncoderLayer,
    visible_words,
)
from nmtkit.nn.attention import CrossAttention, SelfAttention
from nmtkit.nn.capture import capturing, record, recorded_as_context
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.embeddings import Embedder
from nmtkit.nn.masks import Sight, Visible, masked_softmax
from nmtkit.nn.recurrent import GRU, LSTM, Recurrent
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
    context_encoder: Literal["gru", "lstm", "bigru", "none", "transformer"] = "gru"
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
"""A search reads at most this number of contexts at once, for all sentences of a batch together."""
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
    """Return the `mean` of each sentence of a packed row, (1, N, D) -> (R, D)."""
    return mean(packing.padded(x), packing.visible)


class ContextEncoder(nn.Module):
    """Encodes the words of contexts.

    Legend: U' contexts of similar length, M' their length.

    Args:
        settings: of the model.
    """

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        s, kind = settings, settings.context_encoder
        self.rnn: Recurrent | None = None
        if kind in ("gru", "lstm", "bigru"):
            bidirectional = kind == "bigru"
            if bidirectional and s.d_model % 2:
                raise ConfigError(
                    "two directions cannot share an odd width",
                    where="model.d_model",
                    hint="make d_model even",
                )
            cell = LSTM if kind == "lstm" else GRU
            self.rnn = Recurrent(cell, s.d_model, s.d_model // (1 + bidirectional), bidirectional)
        layers = s.encoder_layers if kind == "transformer" else 0
        self.layers = s.stack(EncoderLayer(s) for _ in range(layers))
        self.norm = s.last_norm() if kind == "transformer" else nn.Identity()
        self.dropout = Dropout(s.dropout)

    def forward(self, context: Context, embedder: Embedder) -> list[Tensor]:
        """Return the words of contexts, contexts of similar length together, (U', M', D) each.

        Args:
            embedder: the source's.
        """
        parts = context.of_like_length()
        if self.rnn is None:
            of_parts = []
            for part in parts:
                visible = visible_words(part)
                x = embedder(part.ids, visible=visible)
                for layer in self.layers:
                    x = layer(x, visible)
                of_parts.append(self.norm(x))
            return of_parts
        # A recurrent layer needs no positions, and no parts either: padding costs it nothing.
        words = self.dropout(embedder.table(context.ids))
        if context.copies is not None:
            packing = context.copies.segments.keys
            states, _ = self.rnn(packing.padded(words), packing.lengths)
            return [packing.packed(states)]
        states, _ = self.rnn(words, context.lengths)
        rows = states.split([len(part.ids) for part in parts])
        return [x[:, : part.ids.size(1)] for part, x in zip(parts, rows, strict=True)]


class InterSentenceAttention(CrossAttention):
    """Attention to each context by itself; a softmax over mean raw scores weighs the contexts.

    Source: Jiang et al. 2019, inter-sentence attention.
    """

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
        """
        q = self.queries(x)  # (B, S, H, C)
        at_once = everywhere or torch.is_grad_enabled() or capturing()
        if at_once or rows.numel() <= CONTEXTS_AT_ONCE:
            return self._read(q, contexts, rows, visible, everywhere)
        # One sentence at a time: a long document's contexts, for a whole batch, would not fit into
        # memory.
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
        q = copies.repeated(self.queries(x))  # (1, J·S, H, C)
        read = self.context(q, *source, copies.segments)
        read = read.unflatten(1, (len(copies.has), -1)).squeeze(0)  # (J, S, D)
        if len(read) > 1:
            keys = mean_of_packed(source[0].transpose(1, 2).flatten(2), copies.segments.keys)
            queries = mean_of_packed(q.flatten(2), copies.segments.queries)
            scores = copies.per_position(self._scores(queries, keys).unsqueeze(-1))  # (J, S, 1)
            weights = masked_softmax(scores, ~copies.has.unsqueeze(-1), 0)
            read = read * weights.to(read.dtype)
        return self.out(read.sum(0, keepdim=True))

    def _read(
        self, q: Tensor, contexts: Contexts, rows: Tensor, visible: Visible, everywhere: bool
    ) -> Tensor:
        """Return `read` of projected queries (B, S, H, C)."""
        batch, count = rows.shape
        if everywhere:  # keys are not copied
            queries = q.flatten(0, 1).expand(count, -1, -1, -1)  # (U, B·S, H, C)
            read = self.context(queries, *contexts).unflatten(1, (batch, -1)).transpose(0, 1)
        else:
            queries = q.repeat_interleave(count, dim=0)  # (B·J, S, H, C)
            of_rows = select_rows(contexts, rows.clamp(min=0).flatten())  # (B·J, …) each
            read = self.context(queries, *of_rows).unflatten(0, (batch, -1))  # (B, J, S, D)
        if count == 1:  # its weight is 1
            return self.out(read[:, 0])
        k, _, of_context = contexts
        keys = mean(k.transpose(1, 2).flatten(2), of_context)[rows.clamp(min=0)]  # (B, J, D)
        queries = mean(q.flatten(2), visible).unsqueeze(1)  # (B, 1, D)
        weights = masked_softmax(self._scores(queries, keys), rows < 0, -1)  # (B, J)
        record(f"{self.name}_sentences", weights)
        return self.out((read * weights.to(read.dtype)[..., None, None]).sum(1))

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the mean over heads, words and context words of q·k/√C (…).

        It is the product of the means of queries and keys (…, D).
        """
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
        self.encoder = ContextEncoder(s)
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
            states: the encoder's (B, S, D).
            embedded: the source's embeddings (B, S, D).
            visible: what a source position may attend to.
            context: of the sentences.
            embedder: the source's.
        Returns: (B, S, D); the states of a sentence without context are unchanged.
        Source: Jiang et al. 2019; the gate is that of Voita et al. 2018.
        """
        queries = states
        if self.settings.inter_attention and self.settings.query_from == "embed":
            first = partial(self.source_first or self.first, visible=visible)
            queries = self.source_residual(embedded, first)
        with recorded_as_context():  # the words of each part of the contexts, (U', M', D) each
            parts = self.encoder(context, embedder)
            if self.settings.inter_attention:
                parts = [
                    self.first_residual(words, partial(self.first, visible=visible_words(part)))
                    for words, part in zip(parts, context.of_like_length(), strict=True)
                ]
        read = self._attend_to_contexts(queries, visible, context, parts)
        if self.settings.context_residual:
            read = self.read_residual.leave(queries, read)
        else:
            read = self.read_residual.norm(self.dropout(read))
        read = self.feed_forward_residual(read, self.feed_forward)
        return self.gate.mix(states, read, context.has, "memory.gate")

    def _attend_to_contexts(
        self, queries: Tensor, visible: Sight, context: Context, parts: list[Tensor]
    ) -> Tensor:
        """Return what the queries read of the parts of the contexts: (B, S, D) -> (B, S, D).

        A sentence without context reads any finite numbers, which `GatedSum.mix` leaves out.
        """
        copies, attends = context.copies, self.settings.inter_attention
        if copies is not None and attends:
            return self.inter.read_packed(queries, self.inter.source(*parts), copies)
        if copies is not None:
            has = copies.has.unsqueeze(-1)
            means = copies.per_position(mean_of_packed(parts[0], copies.segments.keys))  # (J, S, D)
            total = means.masked_fill(~has, 0).sum(0, keepdim=True)
            return (total / has.sum(0).clamp(min=1)).to(parts[0].dtype)
        rows, of_context = context.rows, visible_words(context)
        assert not isinstance(visible, Segments) and not isinstance(of_context, Segments)
        everywhere = self.settings.memory_scope == "batch" and self.training
        if everywhere:  # a sentence with a context reads those of all sentences
            every = torch.arange(len(context.ids), device=rows.device)
            rows = torch.where(rows[:, :1] >= 0, every, -1)
        if attends:
            contexts = *self.inter.source(*parts), of_context
            return self.inter.read(queries, contexts, rows, visible, everywhere)
        words = stacked(parts)
        means = mean(words, of_context)[rows.clamp(min=0)]  # (B, J, D)
        total = mean(means, (rows >= 0).unsqueeze(1)).to(words.dtype)
        return total.unsqueeze(1).expand_as(queries)


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
            raise ConfigError(
                "the contexts of a batch are a memory each, and not one text",
                where="model.memory_scope",
                hint="with model.context_size above 1: --set model.context_join=parallel",
            )
        self.join = "parallel" if batch_wide else s.context_join
        self.memory = AssociatedMemory(s)

    @property
    def reads_packed(self) -> bool:
        return super().reads_packed and self.settings.memory_scope == "sentence"

    @property
    def context_rule(self) -> ContextRule:
        """See `Model.context_rule`; outside training the memory of a batch is a whole document, so
        that batches do not matter.
        """
        whole = self.settings.memory_scope == "batch" and not self.training
        return dataclasses.replace(super().context_rule, whole=whole)

    def encode(self, batch: Batch) -> Memory:
        visible = source_sight(batch)
        embedded = self.src_embedder(batch.src, visible=visible)
        states = self.through_encoder(embedded, visible)
        if batch.context is not None:
            states = self.memory(states, embedded, visible, batch.context, self.src_embedder)
        return self.remember(states, batch.segments or visible)
