"""The associated memory: each source word attends to the words of other sentences of its document, and a gate mixes in what it reads.

The paper's equations are read as models.md section 3 has them. A sentence without context is translated as the Transformer would, bit for bit.
Legend: B sentences, S source length, U different contexts of a batch, M their length, J contexts of a sentence, H heads, C width of one, D = H·C.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.data.context import Context, stacked
from nmtkit.data.documents import ContextRule, Join
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, Vocabularies
from nmtkit.models.documents import DocumentSettings, DocumentTransformer, visible_words
from nmtkit.models.transformer import EncoderLayer, TransformerSettings, visible_source
from nmtkit.nn.attention import CrossAttention, SelfAttention, attention
from nmtkit.nn.capture import capturing, record, recorded_under
from nmtkit.nn.cells import GRU, LSTM
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.embeddings import Embedder
from nmtkit.nn.linear import Linear
from nmtkit.nn.recurrent import Recurrent
from nmtkit.nn.sublayer import FeedForward, Residual


class MemorySettings(DocumentSettings):
    """A Transformer's, and how contexts are read; the defaults are the paper's system.

    Its ablations: without the RNN, context_encoder=none; without inter-sentence attention, inter_attention=false and context=foreign;
    without both, context_encoder=transformer with these two.
    """

    context_join: Join = "concatenate"
    """Several context sentences are one text with breaks between them (as in the paper's table), or a memory each, weighted."""
    context_encoder: Literal["gru", "lstm", "bigru", "none", "transformer"] = "gru"
    """What reads a context's embeddings: a recurrent layer, nothing (but positions are added), or as many layers as the source has."""
    share_first_attention: bool = True
    """Source and contexts go through one and the same self-attention before they meet."""
    query_from: Literal["embed", "encoder"] = "embed"
    """What asks the contexts: the source's embeddings after self-attention, or the encoder's states."""
    inter_attention: bool = True
    """Source words attend to context words; off: all read the mean of the context's words."""
    context_residual: bool = False
    """What asked is added to what was read."""
    memory_scope: Literal["sentence", "batch"] = "sentence"
    """A sentence's memory is its own contexts, or (if it has any) in training those of all sentences of its batch, else of its document."""


SIDE_BY_SIDE = 2048
"""Contexts of sentences that are read at once in a search."""


def mean(x: Tensor, visible: Tensor | None) -> Tensor:
    """The mean of x (B, S, D) over visible bool (B, 1, S) positions, in 32 bits or more: (B, D); zero where there are none."""
    x = x.float() if x.dtype.itemsize == 2 else x
    if visible is None:
        return x.mean(1)
    return x.masked_fill(~visible.transpose(1, 2), 0).sum(1) / visible.sum(-1).clamp(min=1)


class ContextEncoder(nn.Module):
    """The words of contexts, each in the light of those before it.

    Args:
        settings: of the model.
    """

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        s = settings
        self.rnn: Recurrent | None = None
        if s.context_encoder in ("gru", "lstm", "bigru"):
            both = s.context_encoder == "bigru"
            if both and s.d_model % 2:
                raise ConfigError("two directions cannot share an odd width", where="model.d_model", hint="make d_model even")
            self.rnn = Recurrent(LSTM if s.context_encoder == "lstm" else GRU, s.d_model, s.d_model // (1 + both), both)
        own = s.context_encoder == "transformer"
        self.layers = nn.ModuleList([EncoderLayer(s) for _ in range(s.encoder_layers if own else 0)])
        self.norm = nn.LayerNorm(s.d_model) if own and s.norm == "pre" else nn.Identity()
        self.dropout = Dropout(s.dropout)

    def forward(self, context: Context, embedder: Embedder) -> list[Tensor]:
        """Contexts by the source's embeddings -> those of like length together, (U', M', D) each."""
        parts = context.of_like_length()
        if self.rnn is not None:  # it knows the order of words without positions; one loop reads all, for it has no work with padding
            states, _ = self.rnn(self.dropout(embedder.table(context.ids)), context.lengths, context.padded)
            rows = states.split([len(part.ids) for part in parts])
            return [own[:, : part.ids.size(1)] for part, own in zip(parts, rows, strict=True)]
        return [self._through_layers(embedder(part.ids), part) for part in parts]

    def _through_layers(self, x: Tensor, context: Context) -> Tensor:
        for layer in self.layers:
            x = layer(x, visible_words(context))
        return self.norm(x)


class InterSentenceAttention(CrossAttention):
    """Attention to each context by itself; the contexts of a sentence weighted by a softmax over their mean raw scores."""

    def read(self, x: Tensor, memory: Tensor, rows: Tensor, visible: tuple[Tensor | None, Tensor | None], everywhere: bool) -> Tensor:
        """What the words of sentences find in their contexts.

        Args:
            x: (B, S, D), what asks.
            memory: keys and values of the contexts' words, (U, M, 2·D) from `kv`.
            rows: (B, J), which contexts are a sentence's; -1 = none. A sentence without any gets something finite.
            visible: the real positions of x, bool (B, 1, S), and of the memory, bool (U, 1, M); None = all.
            everywhere: whether J = U, and every sentence asks all contexts in the order of the memory.
        Returns: (B, S, D).
        Source: models.md 3.5.
        """
        q = self.query(x).unflatten(-1, (self.heads, -1))  # (B, S, H, C)
        k, v = self.apart(memory)  # (U, H, M, C)
        if everywhere or torch.is_grad_enabled() or capturing() or rows.numel() <= SIDE_BY_SIDE:
            return self._read(q, k, v, rows, visible, everywhere)
        of_x, of_memory = visible  # a long document's contexts, for a batch of sentences, would not fit into memory
        found = []
        for i, own in enumerate(rows):
            own = own[: max(1, int((own >= 0).sum()))]
            found.append(self._read(q[i : i + 1], k, v, own.unsqueeze(0), (None if of_x is None else of_x[i : i + 1], of_memory), False))
        return torch.cat(found)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, visible: tuple[Tensor | None, Tensor | None], everywhere: bool) -> Tensor:
        (of_x, of_memory), (batch, sentences) = visible, rows.shape
        p = self.p if self.training else 0.0
        index = rows.clamp(min=0)
        if everywhere:  # keys stay where they are
            asking = q.flatten(0, 1).expand(len(k), -1, -1, -1)  # (U, B·S, H, C)
            found = attention(asking, k, v, of_memory, p=p, name=self.name).unflatten(1, (batch, -1)).transpose(0, 1)  # (B, U, S, D)
        else:
            k_own, v_own, seen = (t if t is None else t.index_select(0, index.flatten()) for t in (k, v, of_memory))
            assert k_own is not None and v_own is not None
            asking = q.repeat_interleave(sentences, dim=0)  # (B·J, S, H, C)
            found = attention(asking, k_own, v_own, seen, p=p, name=self.name).unflatten(0, (batch, -1))  # (B, J, S, D)
        if sentences == 1:  # its weight is 1
            return self.out(found[:, 0])
        # The mean over heads, words and context words of q·k is the product of the means.
        means = mean(k.transpose(1, 2).flatten(2), of_memory)[index]  # (B, J, D)
        scores = (mean(q.flatten(2), of_x).unsqueeze(1) * means).sum(-1) / (self.heads * math.sqrt(q.size(-1)))
        weights = scores.masked_fill(rows < 0, torch.finfo(scores.dtype).min).softmax(-1)  # (B, J)
        record(f"{self.name}_sentences", weights)
        return self.out((found * weights.to(found.dtype)[..., None, None]).sum(1))


class AssociatedMemory(nn.Module):
    """Reads the contexts of sentences and mixes what it finds into the encoder's states.

    All its sublayers are post-norm, as printed, also where the Transformer's are pre-norm.

    Args:
        settings: of the model.
    """

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__()
        s = settings
        self.settings = s
        self.encoder = ContextEncoder(s)
        if s.inter_attention:
            self.first = SelfAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias)
            self.first_residual = Residual(s.d_model, s.dropout, "post")
            self.inter = InterSentenceAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias)
            if s.query_from == "embed":
                separate = not s.share_first_attention
                self.source_first = SelfAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias) if separate else None
                self.source_residual = Residual(s.d_model, s.dropout, "post")
        self.read_residual = Residual(s.d_model, s.dropout, "post")
        self.feed_forward = FeedForward(s.d_model, s.d_ff, s.activation_dropout)
        self.feed_forward_residual = Residual(s.d_model, s.dropout, "post")
        self.gate = Linear(2 * s.d_model, s.d_model)
        self.dropout = Dropout(s.dropout)

    def forward(self, states: Tensor, embedded: Tensor, visible: Tensor | None, context: Context, embedder: Embedder) -> Tensor:
        """The encoder's states with what the contexts say.

        Args:
            states: (B, S, D).
            embedded: the source's embeddings (B, S, D).
            visible: its real positions, bool (B, 1, S); None = all.
            context: of the sentences.
            embedder: the source's.
        Returns: (B, S, D), for a sentence without context its states as they are.
        Source: models.md 3.3-3.6.
        """
        s = self.settings
        of_context = visible_words(context)
        asking = self._asking(states, embedded, visible)
        with recorded_under("context."):
            parts = self.encoder(context, embedder)
            if s.inter_attention:
                pairs = zip(parts, map(visible_words, context.of_like_length()), strict=True)
                parts = [self.first_residual(words, partial(self.first, visible=real)) for words, real in pairs]
        has = context.rows[:, :1] >= 0  # (B, 1)
        everywhere = s.memory_scope == "batch" and self.training
        rows = torch.where(has, torch.arange(len(context.ids), device=states.device), -1) if everywhere else context.rows
        if s.inter_attention:
            read = self.inter.read(asking, stacked([self.inter.kv(part) for part in parts]), rows, (visible, of_context), everywhere)
        else:
            words = stacked(parts)  # (U, M, D)
            real = (rows >= 0).unsqueeze(-1)  # (B, J, 1)
            means = mean(words, of_context)[rows.clamp(min=0)].masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)  # (B, D)
            read = means.to(words.dtype).unsqueeze(1).expand_as(states)
        read = self.read_residual.leave(asking, read) if s.context_residual else self.read_residual.norm(self.dropout(read))
        read = self.feed_forward_residual(read, self.feed_forward)
        gate = torch.sigmoid(self.gate(torch.cat([states, read], dim=-1)))
        record("memory.gate", gate.mean(-1).masked_fill(~has, torch.nan))
        return torch.where(has.unsqueeze(-1), read + gate * (states - read), states)

    def _asking(self, states: Tensor, embedded: Tensor, visible: Tensor | None) -> Tensor:
        """What asks the contexts (B, S, D)."""
        if not self.settings.inter_attention or self.settings.query_from == "encoder":
            return states
        own = self.source_first or self.first
        asking: Tensor = self.source_residual(embedded, lambda h: own(h, visible))
        return asking


class AssociatedMemoryTransformer(DocumentTransformer):
    """Jiang et al. 2019, *Document-level neural machine translation with inter-sentence attention*, arXiv 1910.14528."""

    Settings: ClassVar[type[TransformerSettings]] = MemorySettings
    settings: MemorySettings
    paper: ClassVar[str] = "Jiang et al. 2019"

    def __init__(self, settings: MemorySettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        if settings.memory_scope == "batch" and settings.context_size > 1 and settings.context_join == "concatenate":
            message = "the contexts of a batch are a memory each, and not one text"
            raise ConfigError(message, where="model.memory_scope", hint="with model.context_size above 1: --set model.context_join=parallel")
        self.memory = AssociatedMemory(settings)
        self.name_attentions()

    @property
    def context_join(self) -> Join:
        """See `DocumentTransformer.context_join`."""
        return "parallel" if self.settings.memory_scope == "batch" else self.settings.context_join

    @property
    def context_rule(self) -> ContextRule:
        """See `Model.context_rule`; outside training the memory that is a batch's in training is a document's, so that no batch matters."""
        return dataclasses.replace(super().context_rule, whole=self.settings.memory_scope == "batch" and not self.training)

    def encode(self, batch: Batch) -> Memory:
        """See `Transformer.encode`."""
        visible = visible_source(batch)
        embedded = self.src_embedder(batch.src)
        states = self.through_encoder(embedded, visible)
        if batch.context is not None:
            states = self.memory(states, embedded, visible, batch.context, self.src_embedder)
        return self.remember(states, visible)
