"""The context-aware Transformer: the encoder's last layer mixes source and context by a gate."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from nmtkit.data.batches import Batch
from nmtkit.data.context import Context
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, Vocabularies, source_sight
from nmtkit.models.transformer import (
    DocumentSettings,
    DocumentTransformer,
    EncoderLayer,
    visible_words,
)
from nmtkit.nn.attention import CrossAttention
from nmtkit.nn.capture import recorded_as_context
from nmtkit.nn.masks import Sight
from nmtkit.nn.state import select_rows
from nmtkit.nn.sublayer import GatedSum
from nmtkit.text.vocabulary import BOS


class ContextAwareLayer(EncoderLayer):
    """g ⊙ self-attention + (1-g) ⊙ attention to the context, g = σ(W_g [both] + b); feed-forward.

    Args:
        settings: sizes.
    Source: Voita et al. 2018, Eqs. 1-2.
    """

    def __init__(self, settings: DocumentSettings) -> None:
        super().__init__(settings)
        self.context = CrossAttention(*settings.attention_sizes)
        self.gate = GatedSum(settings.d_model)

    def read(self, x: Tensor, visible: Sight, keys: Any, of_context: Sight, has: Tensor) -> Tensor:
        """Return the states of the layer.

        Args:
            x: (B, S, D).
            visible: what a position of x may attend to in x.
            keys: keys and values of contexts, from `context.source`.
            of_context: what a position of x may attend to in its context.
            has: `Context.has`; without a context, g is 1.
        Returns: (B, S, D).
        """

        def attend(h: Tensor) -> Tensor:
            to_self = self.attention(h, visible)
            to_context = self.context(h, keys, of_context)
            return self.gate.mix(to_self, to_context, has, "context.gate")

        return self.feed_forward_residual(self.attention_residual(x, attend), self.feed_forward)


class ContextAwareTransformer(DocumentTransformer):
    """Voita, Serdyukov, Sennrich & Titov 2018, *Context-aware neural machine translation learns
    anaphora resolution*, ACL.

    The context, after <s>, goes through all layers of the encoder except the last, and then through
    a layer for contexts only. A sentence without context has a gate of 1, so its translation
    equals the Transformer's bit for bit.
    """

    paper = "Voita et al. 2018"
    packs = True
    context_form = "begin"

    def __init__(self, settings: DocumentSettings, vocabularies: Vocabularies) -> None:
        if not settings.encoder_layers:
            raise ConfigError(
                "the model joins context and source in the encoder's last layer",
                where="model.encoder_layers",
                hint="at least 1",
            )
        super().__init__(settings, vocabularies)
        self.context_layer = EncoderLayer(settings)
        self.context_norm = settings.last_norm()

    def encoder_layer(self, index: int) -> EncoderLayer:
        last = index == self.settings.encoder_layers - 1
        return (ContextAwareLayer if last else EncoderLayer)(self.settings)

    def encode(self, batch: Batch) -> Memory:
        context = batch.context
        if context is None:
            return super().encode(batch)
        visible = source_sight(batch)
        x = self.src_embedder(batch.src, visible=visible)
        *layers, last = self.encoder
        for layer in layers:
            x = layer(x, visible)
        with recorded_as_context():
            states = map(self._read, context.of_like_length())
            keys = last.context.source(*states)  # (U, H, 1+M, C) each
        if context.copies is not None:
            of_context: Sight = context.copies.segments
        else:  # the keys of the contexts, in the order of the sentences
            rows = context.rows[:, 0].clamp(min=0)  # several context sentences are joined
            keys, of_context = select_rows((keys, visible_words(context, 1)), rows)
        x = last.read(x, visible, keys, of_context, context.has)
        return self.remember(self.encoder_norm(x), batch.segments or visible)

    def _read(self, context: Context) -> Tensor:
        """Return the states (U, 1+M, D) of contexts with <s>, which a packed batch already has."""
        ids = context.ids if context.copies else F.pad(context.ids, (1, 0), value=BOS)
        visible = visible_words(context, 1)
        x = self.src_embedder(ids, visible=visible)
        for layer in [*self.encoder[:-1], self.context_layer]:
            x = layer(x, visible)
        return self.context_norm(x)
