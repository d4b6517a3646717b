"""Hierarchical attention networks: attention to words of context sentences, then to the sentences.

A word attends to the words of each context sentence, which gives a summary of each sentence. Then
it attends to the summaries, and a gate mixes the result in. A sentence without context skips all of
this, the layer norm too: its translation equals the Transformer's, bit for bit.

Legend: B sentences, K rows of each, T their words, U different contexts of a batch, M their length,
J contexts of a sentence, H heads, C width of one, D = H·C.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.data.context import Context
from nmtkit.data.documents import ContextRule
from nmtkit.data.packing import Copies, Segments, one_after_another
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, State, Vocabularies, source_sight
from nmtkit.models.transformer import DocumentSettings, DocumentTransformer, visible_words
from nmtkit.nn.attention import CrossAttention
from nmtkit.nn.capture import record, recorded_as_context
from nmtkit.nn.dropout import dropout
from nmtkit.nn.masks import Sight, Visible, masked_softmax, own_sentence, visible_positions
from nmtkit.nn.state import select_rows
from nmtkit.nn.sublayer import GatedSum


class HierarchicalSettings(DocumentSettings):
    """Settings of a Transformer, and which sentences are context (in the paper, three)."""

    context_size: int = Field(3, ge=1, le=5)
    """The number of context sentences; fewer where the document has fewer."""
    side: Literal["encoder", "decoder", "joint"] = "encoder"
    """Where contexts are read: on the encoder's output, on the decoder's (then what was translated
    before is the context), or on both.
    """
    context_gradients: bool = True
    """Gradients reach the encoding of the contexts; off, as in the authors' code, the states of the
    contexts are constants: training costs less.
    """


class HierarchicalAttention(nn.Module):
    """LN(λ ⊙ h + (1-λ) ⊙ d), λ = σ(W [h; d] + b), with d = FFN(attention of h to summaries).

    There is one summary s_j of each context sentence for each h: attention of h to its words.

    Args:
        settings: sizes.
        name: under which the gate is recorded.
    Source: Miculicich et al. 2018, Eqs. 2-6; layer norms (of both queries, of summaries, before the
        feed-forward layer with its residual connection, of the result) as in the authors' code.
    """

    def __init__(self, settings: HierarchicalSettings, name: str) -> None:
        super().__init__()
        s, width = settings, settings.d_model
        self.name = name
        self.words_query_norm, self.words_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.words = CrossAttention(*s.attention_sizes)
        self.sentences_query_norm = nn.LayerNorm(width)
        self.sentences = CrossAttention(*s.attention_sizes)
        self.feed_forward = s.feed_forward()
        self.feed_forward_residual = s.residual("pre")
        self.gate = GatedSum(width)
        self.norm = nn.LayerNorm(width)

    def remember(self, states: Sequence[Tensor], visible: Sight | Copies, rows: Tensor) -> Memory:
        """Return the keys and values of contexts, computed once.

        Args:
            states: (U', M', D) of each of the parts of the contexts.
            visible: which positions of all contexts are real, bool (U, 1, M); None = all. In a
                packed batch, what its copies read.
            rows: (B, J), the contexts of each sentence; -1 = none. Not read in a packed batch.
        Returns: keys and values (B, J, H, M, C) each, visible (B, J, 1, M) or None, and real
            (B, J, 1, 1), True for a context that exists. In a packed batch, keys and values have
            B = J = 1, visible is Copies, and real is (1, J, 1, S).
        """
        k, v = self.words.source(*states)
        if isinstance(visible, Copies):
            keys = {"keys": k.unsqueeze(0), "values": v.unsqueeze(0)}
            return keys | {"visible": visible, "real": visible.has[None, :, None]}
        index = rows.clamp(min=0).flatten()
        picked = select_rows({"keys": k, "values": v, "visible": visible}, index)
        parts = {key: t if t is None else t.unflatten(0, rows.shape) for key, t in picked.items()}
        return parts | {"real": (rows >= 0)[..., None, None]}

    def forward(self, h: Tensor, contexts: Memory) -> Tensor:
        """Mix the contexts into h (B·K, T, D) -> (B·K, T, D); without any, h is unchanged."""
        real = contexts["real"]  # (B, J, 1, 1)
        read = self._read_sentences(h, self._read_words(h, contexts), real)
        read = self.feed_forward_residual(read, self.feed_forward)
        has = real[:, 0, 0].repeat_interleave(len(h) // len(real), dim=0)  # (B·K, 1)
        return self.gate.mix(h, read, has, f"{self.name}.gate", self.norm)

    def _read_words(self, h: Tensor, contexts: Memory) -> Tensor:
        """Return a summary of each context sentence for each word of h (B·K, T, D).

        Returns: (B, J, K, T, D); finite where there is no sentence.
        """
        batch, count = contexts["real"].shape[:2]
        q = self.words.queries(self.words_query_norm(h))
        k, v = contexts["keys"].flatten(0, 1), contexts["values"].flatten(0, 1)
        visible = contexts["visible"]
        if isinstance(visible, Copies):
            q, visible = visible.repeated(q), visible.segments
        else:  # (B, 1, K, T, H, C) -> (B·J·K, T, H, C)
            q = q.unflatten(0, (batch, 1, -1)).expand(-1, count, -1, -1, -1, -1).flatten(0, 2)
            visible = None if visible is None else visible.flatten(0, 1)
        summaries = self.words_norm(self.words.attend(q, k, v, visible))
        return summaries.view(batch, count, -1, *h.shape[1:])

    def _read_sentences(self, h: Tensor, summaries: Tensor, real: Tensor) -> Tensor:
        """Attend from each word of h to its own summaries.

        A word has at most five keys, of its own: they are multiplied number by number.

        Args:
            h: (B·K, T, D).
            summaries: (B, J, K, T, D).
            real: which of them there are, bool (B, J, 1, 1).
        Returns: (B·K, T, D).
        """
        q = self.sentences.queries(self.sentences_query_norm(h))
        q = q.unflatten(0, (len(real), 1, -1))  # (B, 1, K, T, H, C)
        kv = self.sentences.kv(summaries).unflatten(-1, (2, self.sentences.heads, -1))
        k, v = kv.unbind(-3)  # (B, J, K, T, H, C) each
        if q.dtype.itemsize == 2:  # as in `attention`
            q, k = q.float(), k.float()
        scores = (q * k).sum(-1) / math.sqrt(q.size(-1))  # (B, J, K, T, H)
        weights = masked_softmax(scores, ~real.unsqueeze(-1), 1)
        record(self.sentences.name, weights.permute(0, 4, 2, 3, 1).flatten(2, 3))  # (B, H, K·T, J)
        weights = dropout(weights, self.sentences.p if self.training else 0.0).to(v.dtype)
        read = (weights.unsqueeze(-1) * v).sum(1)  # (B, K, T, H, C)
        return self.sentences.out(read.flatten(-2).flatten(0, 1))


class HierarchicalAttentionNetwork(DocumentTransformer):
    """Miculicich, Ram, Pappas & Henderson 2018, *Document-level neural machine translation with
    hierarchical attention networks*, EMNLP.

    The encoder's output reads the encoder's states of context sentences; the decoder's output reads
    the decoder's states of their target sides. In training these are the references; in translation
    they are the system's own translations, so a document is translated sentence after sentence. The
    authors store the states. Here they are computed again from source and translation: a context
    sentence is read as the Transformer would, without context of its own. The paper trains in two
    stages; the second begins with the Transformer of the first: `nmtkit train --init-from`.
    """

    Settings = HierarchicalSettings
    settings: HierarchicalSettings
    paper = "Miculicich et al. 2018"
    packs = True
    join = "parallel"

    def __init__(self, settings: HierarchicalSettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        s = settings
        if s.side != "encoder" and s.context != "previous":
            raise ConfigError(
                "the decoder reads what was translated before",
                where="model.side, model.context",
                hint="--set model.context=previous, or --set model.side=encoder",
            )
        encoder, decoder = s.side != "decoder", s.side != "encoder"
        self.encoder_context = HierarchicalAttention(s, "encoder_context") if encoder else None
        self.decoder_context = HierarchicalAttention(s, "decoder_context") if decoder else None

    @property
    def context_rule(self) -> ContextRule:
        targets = self.decoder_context is not None
        return dataclasses.replace(super().context_rule, targets=targets)

    def encode(self, batch: Batch) -> Memory:
        """See `Transformer.encode`; `earlier` has the decoder's contexts, if any."""
        context, visible = batch.context, source_sight(batch)
        if context is None:
            return super().encode(batch)
        states, sources = self._read(batch.src, visible, context)
        if self.encoder_context is not None:
            words = context.copies or visible_words(context)
            contexts = self.encoder_context.remember(sources, words, context.rows)
            states = self.encoder_context(states, contexts)
        memory = self.remember(states, batch.segments or visible)
        if self.decoder_context is not None:
            with self._of_contexts():
                parts = zip(context.of_like_length(), sources, strict=True)
                targets = [self._targets(*part) for part in parts]
            words = context.tgt_copies or _visible_targets(context)
            memory["earlier"] = self.decoder_context.remember(targets, words, context.rows)
        return memory

    def _read(
        self, src: Tensor, visible: Sight, context: Context
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the encoder's states of a batch (B, S, D), and of the parts of its contexts
        (U', M', D).
        """
        learns = self.settings.context_gradients or not torch.is_grad_enabled()
        if isinstance(visible, Segments) and context.copies and learns:
            # One row needs half as many kernels as two.
            row = one_after_another(visible.queries, context.copies.segments.keys)
            both = self._encoded(torch.cat([src, context.ids], 1), own_sentence(row))
            states, of_contexts = both.split([src.size(1), context.ids.size(1)], 1)
            return states, [of_contexts]
        states = self._encoded(src, visible)
        with self._of_contexts():
            parts = context.of_like_length()
            return states, [self._encoded(part.ids, visible_words(part)) for part in parts]

    @contextlib.contextmanager
    def _of_contexts(self) -> Iterator[None]:
        """Record under names of contexts; compute without gradients, if the settings say so."""
        learns = self.settings.context_gradients and torch.is_grad_enabled()
        with recorded_as_context(), torch.set_grad_enabled(learns):
            yield

    def _encoded(self, ids: Tensor, visible: Sight) -> Tensor:
        """Return the encoder's states of ids (B, S): (B, S, D)."""
        return self.through_encoder(self.src_embedder(ids, visible=visible), visible)

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        hidden, state = super().decode(tgt_in, memory, state)
        if self.decoder_context is not None and "earlier" in memory:
            hidden = self.decoder_context(hidden, memory["earlier"])
        return hidden, state

    def _targets(self, context: Context, states: Tensor) -> Tensor:
        """Return the decoder's states (U, N, D) of the target sides of contexts.

        Args:
            context: the contexts.
            states: the encoder's of their sources (U, M, D).
        Raises: ValueError if the contexts have no target sides.
        """
        if context.tgt_in is None:
            raise ValueError("the decoder reads contexts, and they have no target sides")
        visible = visible_words(context)
        if context.copies and context.tgt_copies:
            visible = Segments(context.tgt_copies.segments.keys, context.copies.segments.keys)
        return super().decode(context.tgt_in, self.remember(states, visible))[0]


def _visible_targets(context: Context) -> Visible:
    """Return which positions of contexts' target sides are real, bool (U, 1, N); None = all."""
    assert context.tgt_in is not None and context.tgt_lengths is not None
    return visible_positions(context.tgt_lengths, context.tgt_in.size(1), context.tgt_padded)
