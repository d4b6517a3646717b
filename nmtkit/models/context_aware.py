"""The context-aware Transformer: the encoder's last layer attends to the source and to a context, and a gate adds the two up."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.data.batches import Batch
from nmtkit.data.context import Context, stacked
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, Vocabularies
from nmtkit.models.documents import DocumentTransformer
from nmtkit.models.transformer import EncoderLayer, TransformerSettings, visible_source
from nmtkit.nn.attention import CrossAttention
from nmtkit.nn.capture import record, recorded_under
from nmtkit.nn.linear import Linear
from nmtkit.nn.masks import visible_positions
from nmtkit.text.vocabulary import BOS

Keys = tuple[Tensor, Tensor]


class ContextAwareLayer(EncoderLayer):
    """g ⊙ self-attention + (1-g) ⊙ attention to the context in the place of self-attention, g = σ(W_g [both] + b); then feed-forward.

    Args:
        settings: sizes.
    Source: Voita et al. 2018, Eqs. 1-2.
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        s = settings
        self.context = CrossAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias)
        self.gate = Linear(2 * s.d_model, s.d_model)

    def read(self, x: Tensor, visible: Tensor | None, keys: Keys, of_context: Tensor | None, has: Tensor) -> Tensor:
        """One layer that sees contexts too.

        Args:
            x: (B, S, D), of which `visible` bool (B, 1, S) is real.
            keys: of the contexts, from `context.source` (B rows), of which `of_context` bool (B, 1, M) is real.
            has: bool (B, 1, 1), which sentences have one; for the others g is 1.
        Returns: (B, S, D).
        """

        def both(h: Tensor) -> Tensor:
            own, other = self.attention(h, visible), self.context(h, keys, of_context)
            gate = torch.sigmoid(self.gate(torch.cat([own, other], dim=-1)))
            record("context.gate", gate.mean(-1).masked_fill(~has.squeeze(-1), torch.nan))
            return torch.where(has, other + gate * (own - other), own)

        return self.feed_forward_residual(self.attention_residual(x, both), self.feed_forward)


class ContextAwareTransformer(DocumentTransformer):
    """Voita, Serdyukov, Sennrich & Titov 2018, *Context-aware neural machine translation learns anaphora resolution*, ACL.

    The context, after <s>, goes through the encoder's layers but the last, and then through one of its own. A sentence without context
    has a gate of 1: it is translated as the Transformer would. Trained so, bit for bit; in a search the Transformer encodes rows of like length
    together, which rounds otherwise.
    """

    paper: ClassVar[str] = "Voita et al. 2018"

    def __init__(self, settings: TransformerSettings, vocabularies: Vocabularies) -> None:
        if not settings.encoder_layers:
            raise ConfigError("the context meets the source in the encoder's last layer", where="model.encoder_layers", hint="at least 1")
        super().__init__(settings, vocabularies)
        self.context_layer = EncoderLayer(settings)
        self.context_norm = nn.LayerNorm(settings.d_model) if settings.norm == "pre" else nn.Identity()
        self.name_attentions()

    def encoder_layer(self, index: int) -> EncoderLayer:
        """See `Transformer.encoder_layer`."""
        return (EncoderLayer if index < self.settings.encoder_layers - 1 else ContextAwareLayer)(self.settings)

    def encode(self, batch: Batch) -> Memory:
        """See `Transformer.encode`."""
        if batch.context is None:
            return super().encode(batch)
        visible = visible_source(batch)
        x = self.src_embedder(batch.src)
        for layer in self.encoder[:-1]:
            x = layer(x, visible)
        last = cast(ContextAwareLayer, self.encoder[-1])
        rows = batch.context.rows[:, 0]  # (B); several sentences of context come as one
        with recorded_under("context."):
            states = self._read_context(batch.context)
        keys = last.context.apart(stacked([last.context.kv(part) for part in states]))
        k, v = (t.index_select(0, rows.clamp(min=0)) for t in keys)
        of_context = _visible(batch.context)
        if of_context is not None:
            of_context = of_context.index_select(0, rows.clamp(min=0))
        x = last.read(x, visible, (k, v), of_context, (rows >= 0)[:, None, None])
        return self.remember(self.encoder_norm(x), visible)

    def _read_context(self, context: Context) -> list[Tensor]:
        """Each context of the batch once: states (U, 1+M, D) of those of like length at a time."""
        found = []
        for part in context.of_like_length():
            visible = _visible(part)
            x = self.src_embedder(F.pad(part.ids, (1, 0), value=BOS))
            for layer in [*self.encoder[:-1], self.context_layer]:
                x = layer(x, visible)
            found.append(self.context_norm(x))
        return found


def _visible(context: Context) -> Tensor | None:
    """Which positions of contexts are real, <s> before each: bool (U, 1, 1+M); None = all."""
    return visible_positions(context.lengths + 1, context.ids.size(1) + 1) if context.padded else None
