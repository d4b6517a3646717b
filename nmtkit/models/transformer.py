"""The Transformer: the baseline of every comparison, and the layers that other variants are assembled from."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.data.padding import like_length
from nmtkit.models.base import Memory, Model, ModelSettings, State, Vocabularies, embedding_tables
from nmtkit.nn.attention import Attention, CrossAttention, SelfAttention
from nmtkit.nn.cache import Cache
from nmtkit.nn.capture import capturing
from nmtkit.nn.embeddings import Embedder, Embedding, OutputLayer
from nmtkit.nn.linear import Init, Linear
from nmtkit.nn.masks import visible_positions
from nmtkit.nn.sublayer import FeedForward, Residual


class TransformerSettings(ModelSettings):
    """Sizes and choices of a Transformer; the defaults are Vaswani et al.'s base."""

    d_model: int = Field(512, ge=2)
    """Width of embeddings, of every layer and of the memory."""
    d_ff: int = Field(2048, ge=1)
    """Width of the feed-forward sublayers."""
    heads: int = Field(8, ge=1)
    """Attention heads; a divisor of d_model."""
    encoder_layers: int = Field(6, ge=0)
    """Layers of the encoder."""
    decoder_layers: int = Field(6, ge=1)
    """Layers of the decoder."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on attention weights."""
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the feed-forward sublayer's hidden units."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum (as in the papers), or before each sublayer and at the end of each stack."""
    tie: Literal["none", "target", "all"] = "all"
    """Which embeddings are one: none, the target's and the output layer's, or the source's too (needs a joint vocabulary)."""
    attn_bias: bool = True
    """Biases in the attention projections."""
    softmax_bias: bool = False
    """A bias in the output layer."""
    init: Init = "fan_in"
    """Initial weights of all matrices but embeddings: uniform within 1/sqrt(inputs), with which post-norm learns much faster, or Xavier's."""


def visible_source(batch: Batch) -> Tensor | None:
    """Which source positions of a batch are real, bool (B, 1, S); None = all."""
    return visible_positions(batch.src_lengths, batch.src.size(1)) if batch.src_padded else None


def in_parts(function: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, visible: Tensor) -> Tensor:
    """A function of each row by itself, called on rows of like length at a time, so that it has little to do for padding.

    Args:
        function: of some rows x (B', S', D) and their `visible`, bool (B', 1, S') or None = all.
        x: (B, S, D).
        visible: its real positions, which begin each row, bool (B, 1, S).
    Returns: (B, S, D); zeros may stand behind a row's real positions.
    """
    lengths, order = visible.sum(-1).flatten().sort(descending=True, stable=True)
    cuts = [*like_length(lengths.numpy()), len(lengths)]
    if len(cuts) == 2:
        return function(x, visible)
    found = torch.zeros_like(x)
    for start, end in itertools.pairwise(cuts):
        rows, longest = order[start:end], int(lengths[start])
        part = visible[rows, :, :longest] if lengths[end - 1] < longest else None
        found[rows, :longest] = function(x[rows, :longest], part)
    return found


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in a residual connection.

    Args:
        settings: sizes.
        attention: another one in the place of self-attention, called as that is.
    """

    def __init__(self, settings: TransformerSettings, attention: Attention | None = None) -> None:
        super().__init__()
        s = settings
        self.attention = attention or SelfAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias)
        self.attention_residual = Residual(s.d_model, s.dropout, s.norm)
        self.feed_forward = FeedForward(s.d_model, s.d_ff, s.activation_dropout)
        self.feed_forward_residual = Residual(s.d_model, s.dropout, s.norm)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """x (B, S, D), of which `visible` bool (B, 1, S) is real -> (B, S, D)."""
        x = self.attention_residual(x, lambda h: self.attention(h, visible))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward, each in a residual connection.

    Args:
        settings: sizes.
        attention: another one in the place of self-attention, called as that is.
    """

    def __init__(self, settings: TransformerSettings, attention: Attention | None = None) -> None:
        super().__init__()
        s = settings
        self.attention = attention or SelfAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias)
        self.attention_residual = Residual(s.d_model, s.dropout, s.norm)
        self.cross = CrossAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias)
        self.cross_residual = Residual(s.d_model, s.dropout, s.norm)
        self.feed_forward = FeedForward(s.d_model, s.d_ff, s.activation_dropout)
        self.feed_forward_residual = Residual(s.d_model, s.dropout, s.norm)

    def remember(self, states: Tensor) -> dict[str, Any]:
        """What this layer needs of the encoder's states (B, S, D), computed once per sentence."""
        return {"source": self.cross.source(states)}

    def forward(self, x: Tensor, own: dict[str, Any], visible: Tensor | None, cache: Cache | None, index: int) -> Tensor:
        """One layer of the decoder.

        Args:
            x: (R, T, D).
            own: from `remember`, B rows.
            visible: bool (B, 1, S), the real source positions.
            cache: the positions before these, None if x is the whole target.
            index: of this layer, in the cache.
        Returns: (R, T, D).
        """
        x = self.attention_residual(x, lambda h: self.attention(h, causal=True, cache=cache, layer=index))
        return self.feed_forward_residual(self.read_source(x, own, visible), self.feed_forward)

    def read_source(self, x: Tensor, own: dict[str, Any], visible: Tensor | None) -> Tensor:
        """The attention to the source, in its residual connection: (R, T, D) -> (R, T, D)."""
        return self.cross_residual(x, lambda h: self.cross(h, own["source"], visible))


class Transformer(Model):
    """Vaswani et al. 2017, *Attention is all you need*, NeurIPS.

    A variant overrides `encoder_layer` or `decoder_layer` to put other layers in some places, or `encode` to add to the memory.
    """

    Settings: ClassVar[type[TransformerSettings]] = TransformerSettings
    settings: TransformerSettings
    paper: ClassVar[str] = "Vaswani et al. 2017"

    def __init__(self, settings: TransformerSettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        s = settings
        source, target = embedding_tables(s.tie, vocabularies, s.d_model)
        self.src_embedder = self.embedder(source)
        self.tgt_embedder = self.embedder(target)
        self.encoder = nn.ModuleList([self.encoder_layer(i) for i in range(s.encoder_layers)])
        self.decoder = nn.ModuleList([self.decoder_layer(i) for i in range(s.decoder_layers)])
        self.encoder_norm = nn.LayerNorm(s.d_model) if s.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(s.d_model) if s.norm == "pre" else nn.Identity()
        self.output = OutputLayer(vocabularies.tgt, s.d_model, target if s.tie != "none" else None, s.softmax_bias)
        self.name_attentions()

    def name_attentions(self) -> None:
        """Tell attentions their names, under which `capture` sees their weights; to be called again by who adds some."""
        for name, module in self.named_modules():
            if isinstance(module, Attention):
                module.name = name

    def embedder(self, table: Embedding) -> Embedder:
        """What a stack reads."""
        return Embedder(table, self.settings.d_model, self.settings.dropout)

    def encoder_layer(self, index: int) -> EncoderLayer:
        """The encoder's layer `index` (from 0)."""
        return EncoderLayer(self.settings)

    def decoder_layer(self, index: int) -> DecoderLayer:
        """The decoder's layer `index` (from 0)."""
        return DecoderLayer(self.settings)

    def initialise(self) -> None:
        """See `Model.initialise`."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.draw(self.settings.init)

    @property
    def width(self) -> int:
        """D."""
        return self.settings.d_model

    @property
    def beyond_transformer(self) -> str | None:
        """See `Model.beyond_transformer`; what is derived from it computes something else, until it says otherwise."""
        return None if type(self) is Transformer else super().beyond_transformer

    def encode(self, batch: Batch) -> Memory:
        """See `Model.encode`.

        Returns: states (B, S, D) of the top layer, visible bool (B, 1, S) or None, and each decoder layer's own part.
        """
        visible = visible_source(batch)
        return self.remember(self.through_encoder(self.src_embedder(batch.src), visible), visible)

    def through_encoder(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """The states of the encoder's top layer (B, S, D) for inputs (B, S, D), of which `visible` bool (B, 1, S) are real."""
        watched = capturing() or any(layer._forward_hooks for layer in self.encoder)  # who looks on is to see all rows together
        if visible is None or torch.is_grad_enabled() or x.device.type != "cpu" or watched or torch.compiler.is_compiling():
            return self._layers(x, visible)
        return in_parts(self._layers, x, visible)

    def _layers(self, x: Tensor, visible: Tensor | None) -> Tensor:
        for layer in self.encoder:
            x = layer(x, visible)
        states: Tensor = self.encoder_norm(x)
        return states

    def remember(self, states: Tensor, visible: Tensor | None) -> Memory:
        """The memory of source states (B, S, D): all that the decoder computes from them, once per sentence."""
        return {"states": states, "visible": visible, "layers": [cast(DecoderLayer, layer).remember(states) for layer in self.decoder]}

    def decode(self, tgt_in: Tensor, memory: Memory, state: State | None = None) -> tuple[Tensor, State | None]:
        """See `Model.decode`; the state holds one `Cache`."""
        cache: Cache | None = None
        start = 0
        if state is not None:
            cache = state.get("cache") or Cache(len(self.decoder))
            start = cache.length
        x = self.tgt_embedder(tgt_in, start)
        if cache is not None:
            cache.begin(tgt_in.size(0), memory["states"].size(0), tgt_in.size(1), x)
        for index, layer in enumerate(self.decoder):
            x = layer(x, memory["layers"][index], memory["visible"], cache, index)
        return self.decoder_norm(x), None if cache is None else {"cache": cache}

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the target vocabulary: (…, D) -> (…, V)."""
        return self.output(hidden)
