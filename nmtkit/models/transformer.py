"""The Transformer: the baseline, and the layers that other variants are assembled from."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.data.context import Context
from nmtkit.data.documents import ContextRule, Join
from nmtkit.models.base import (
    Memory,
    Model,
    ModelSettings,
    State,
    Vocabularies,
    embedding_tables,
    source_sight,
)
from nmtkit.nn import cpu
from nmtkit.nn.attention import Attention, CrossAttention, SelfAttention
from nmtkit.nn.cache import Cache
from nmtkit.nn.embeddings import Embedder, Embedding, OutputLayer
from nmtkit.nn.linear import Init, Linear
from nmtkit.nn.masks import Sight, own_sentence, packing_of, visible_positions
from nmtkit.nn.sharing import Share, share_parameters
from nmtkit.nn.sublayer import FeedForward, Norm, Residual
from nmtkit.settings import AtLeastOne, BelowOne


class TransformerSettings(ModelSettings):
    """Sizes and choices of a Transformer; the defaults are Vaswani et al.'s base."""

    d_model: int = Field(512, ge=2, le=1_000_000)
    """Width of embeddings, of every layer and of the memory. Positions are sinusoids of this width.
    """
    d_ff: int = Field(2048, ge=1, le=10_000_000)
    """Width of the feed-forward sublayers, whose activation is ReLU."""
    heads: AtLeastOne = 8
    """Attention heads; a divisor of d_model."""
    encoder_layers: int = Field(6, ge=0, le=10_000)
    """Layers of the encoder."""
    decoder_layers: int = Field(6, ge=1, le=10_000)
    """Layers of the decoder."""
    attention_dropout: BelowOne = 0.0
    """Dropout on attention weights."""
    activation_dropout: BelowOne = 0.0
    """Dropout on the feed-forward sublayer's hidden units."""
    norm: Norm = "post"
    """Layer norm after each residual sum (as in the papers), or before each sublayer and at the end
    of each stack.
    """
    tie: Literal["none", "target", "all"] = "all"
    """Shared weights: none; target, the output layer uses the target embeddings; all, source and
    target also share their embeddings (needs a joint vocabulary).
    """
    attn_bias: bool = True
    """Biases in the attention projections."""
    softmax_bias: bool = False
    """A bias in the output layer."""
    init: Init = "fan_in"
    """Initial weights of all matrices except embeddings: fan_in, uniform within 1/sqrt(inputs); or
    xavier. Post-norm learns much faster with fan_in.
    """
    distinct_layers: NonNegativeInt = 0
    """Layers of each stack with parameters of their own, which the other layers use too; 0 = every
    layer has its own.
    """
    share: Share = "cycle-rev"
    """Which parameters a layer uses, with 3 distinct layers of 6: 1 1 2 2 3 3 (sequence), 1 2 3 1 2
    3 (cycle), or 1 2 3 3 2 1 (cycle-rev).
    """

    @property
    def attention_sizes(self) -> tuple[int, int, float, bool]:
        """Width, heads, dropout and biases of an attention."""
        return self.d_model, self.heads, self.attention_dropout, self.attn_bias

    def feed_forward(self) -> FeedForward:
        """Return a new feed-forward sublayer."""
        return FeedForward(self.d_model, self.d_ff, self.activation_dropout)

    def residual(self, norm: Norm | None = None) -> Residual:
        """Return a new residual connection; `norm` overrides the setting."""
        return Residual(self.d_model, self.dropout, norm or self.norm)

    def last_norm(self) -> nn.Module:
        """Return the layer norm at the end of a stack; a post-norm stack has none."""
        return nn.LayerNorm(self.d_model) if self.norm == "pre" else nn.Identity()

    def stack(self, layers: Iterable[nn.Module]) -> nn.ModuleList:
        """Return a stack of layers that share parameters as `distinct_layers` and `share` say."""
        stack = nn.ModuleList(layers)
        share_parameters(list(stack), self.distinct_layers, self.share)
        return stack


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in a residual connection.

    Args:
        settings: sizes.
        attention: in place of self-attention; it has the same arguments.
    """

    def __init__(self, settings: TransformerSettings, attention: Attention | None = None) -> None:
        super().__init__()
        self.attention = attention or SelfAttention(*settings.attention_sizes)
        self.attention_residual = settings.residual()
        self.feed_forward = settings.feed_forward()
        self.feed_forward_residual = settings.residual()

    def forward(self, x: Tensor, visible: Sight) -> Tensor:
        """x (B, S, D), of which `visible` bool (B, 1, S) is real -> (B, S, D)."""
        x = self.attention_residual(x, partial(self.attention, visible=visible))
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward, each in a residual connection.

    Args:
        settings: sizes.
        attention: in place of self-attention; it has the same arguments.
    """

    def __init__(self, settings: TransformerSettings, attention: Attention | None = None) -> None:
        super().__init__()
        self.attention = attention or SelfAttention(*settings.attention_sizes)
        self.attention_residual = settings.residual()
        self.cross = CrossAttention(*settings.attention_sizes)
        self.cross_residual = settings.residual()
        self.feed_forward = settings.feed_forward()
        self.feed_forward_residual = settings.residual()

    def remember(self, states: Tensor) -> Memory:
        """Return what this layer reads of the encoder's states (B, S, D), once per sentence."""
        return {"source": self.cross.source(states)}

    def forward(self, x: Tensor, memory: Memory, visible: Sight, cache: Cache | None) -> Tensor:
        """One layer of the decoder.

        Args:
            x: (R, T, D).
            memory: from `remember`, B rows.
            visible: bool (B, 1, S), the real source positions.
            cache: the positions before these; None if x is the whole target.
        Returns: (R, T, D).
        """
        own = own_sentence(packing_of(visible))
        attend = partial(self.attention, visible=own, causal=True, cache=cache)
        x = self.read_source(self.attention_residual(x, attend), memory, visible)
        return self.feed_forward_residual(x, self.feed_forward)

    def read_source(self, x: Tensor, memory: Memory, visible: Sight) -> Tensor:
        """Attend to the source, in the residual connection: (R, T, D) -> (R, T, D)."""
        attend = partial(self.cross, source=memory["source"], visible=visible)
        return self.cross_residual(x, attend)


class Transformer(Model):
    """Vaswani et al. 2017, *Attention is all you need*, NeurIPS.

    A variant overrides `encoder_layer` or `decoder_layer` to put other layers in some places, or
    `encode` to add to the memory.
    """

    Settings: ClassVar[type[ModelSettings]] = TransformerSettings
    settings: TransformerSettings
    paper = "Vaswani et al. 2017"
    packs = True

    def __init__(self, settings: TransformerSettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        s = settings
        source, target, tied = embedding_tables(s.tie, vocabularies, s.d_model)
        self.src_embedder = self.embedder(source)
        self.tgt_embedder = self.embedder(target)
        self.encoder: Any = s.stack(map(self.encoder_layer, range(s.encoder_layers)))
        self.decoder: Any = s.stack(map(self.decoder_layer, range(s.decoder_layers)))
        self.encoder_norm = s.last_norm()
        self.decoder_norm = s.last_norm()
        self.output = OutputLayer(vocabularies.tgt, s.d_model, tied, s.softmax_bias)

    def embedder(self, table: Embedding) -> Embedder:
        """Return the embedding layer of a stack: scaled embeddings plus positions."""
        return Embedder(table, self.settings.d_model, self.settings.dropout)

    def encoder_layer(self, index: int) -> EncoderLayer:
        """Return the encoder's layer `index` (from 0)."""
        return EncoderLayer(self.settings)

    def decoder_layer(self, index: int) -> DecoderLayer:
        """Return the decoder's layer `index` (from 0)."""
        return DecoderLayer(self.settings)

    def initialise(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, Linear):
                module.draw(self.settings.init)
            elif isinstance(module, Attention):
                module.name = name

    @property
    def width(self) -> int:
        return self.settings.d_model

    @property
    def beyond_transformer(self) -> str | None:
        return None if type(self) is Transformer else super().beyond_transformer

    def encode(self, batch: Batch) -> Memory:
        """See `Model.encode`.

        Returns: states (B, S, D) of the top layer, visible bool (B, 1, S) or None, and what each
            decoder layer reads.
        """
        visible = source_sight(batch)
        x = self.src_embedder(batch.src, visible=visible)
        return self.remember(self.through_encoder(x, visible), batch.segments or visible)

    def through_encoder(self, x: Tensor, visible: Sight) -> Tensor:
        """Return the encoder's states of inputs x (B, S, D): (B, S, D)."""
        for layer in self.encoder:
            x = layer(x, visible)
        return self.encoder_norm(x)

    def remember(self, states: Tensor, visible: Sight) -> Memory:
        """Return what the decoder computes once per sentence.

        Args:
            states: of the source (B, S, D).
            visible: what a target position may attend to in the source: of a padded batch bool
                (B, 1, S) or None, of a packed batch its own sentence.
        """
        layers = [layer.remember(states) for layer in self.decoder]
        visible = cpu.search_mask(visible, states)
        return {"states": states, "visible": visible, "layers": layers}

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        cache = None if state is None else state.get("cache") or Cache()
        start = 0 if cache is None else cache.length
        x = self.tgt_embedder(tgt_in, start, memory["visible"])
        if cache is not None:
            cache.begin(tgt_in.size(0), memory["states"].size(0), tgt_in.size(1), x)
        for layer, of_layer in zip(self.decoder, memory["layers"], strict=True):
            x = layer(x, of_layer, memory["visible"], cache)
        return self.decoder_norm(x), None if cache is None else {"cache": cache}


class DocumentSettings(TransformerSettings):
    """Settings of a Transformer, and which sentences are context."""

    context: Literal["previous", "next", "random", "foreign"] = "previous"
    """The nearest sentences before, the nearest after, any of the document, or (for ablations) any
    of other documents.
    """
    context_size: int = Field(1, ge=1, le=5)
    """The number of context sentences; fewer where the document has fewer."""
    context_seed: NonNegativeInt = 1
    """Seed of the random and foreign contexts; it does not depend on the training's seed, and is
    combined with the document's number in its set.
    """


class DocumentTransformer(Transformer):
    """A Transformer that reads `Batch.context`, other sentences of the document."""

    Settings = DocumentSettings
    settings: DocumentSettings
    join: Join = "concatenate"
    """How several context sentences are joined; see `ContextRule`."""

    @property
    def context_rule(self) -> ContextRule:
        s = self.settings
        return ContextRule(s.context, s.context_size, self.join, s.context_seed)


def visible_words(context: Context, more: int = 0) -> Sight:
    """Return which positions of contexts are real, bool (U, 1, more+M), None = all; in a packed
    batch, what a position of a context may attend to.

    Args:
        context: of which `ids` is (U, M).
        more: how many positions stand before each context of a padded batch, all real.
    """
    if context.copies is not None:
        return own_sentence(context.copies.segments.keys)
    return visible_positions(context.lengths + more, context.ids.size(1) + more, context.padded)
