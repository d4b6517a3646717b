"""Source phrase representations: layers attend to phrases of the source beside its tokens.

phrase_cuts.py cuts the sentences into phrases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.data.packing import Segments
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, Vocabularies, source_sight
from nmtkit.models.phrase_cuts import Phrases, in_packed, in_rows, ngrams, parsed
from nmtkit.models.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerSettings
from nmtkit.nn import gpu
from nmtkit.nn.attention import CrossAttention
from nmtkit.nn.capture import record
from nmtkit.nn.dropout import Dropout, dropout
from nmtkit.nn.embeddings import Embedder, Embedding
from nmtkit.nn.linear import Init, Linear
from nmtkit.nn.masks import Sight


class PhraseSettings(TransformerSettings):
    """Settings of a Transformer, and of its phrases; the defaults are the paper's "+PR"."""

    glance: Literal["mean", "max"] = "max"
    """The first view of a phrase: the mean of its tokens or their element-wise maximum."""
    attentive: bool = True
    """A phrase is the result of attention from that view to its tokens (+Attn); off: the view
    itself (+Mean, +Max).
    """
    transparent: bool = True
    """Each decoder layer reads its own mixture of the phrases of all levels (+TA); off: the phrases
    of the top level.
    """
    combiner_hidden: int = Field(0, ge=0, le=1_000_000)
    """Hidden units of the combiner; 0 = 3 * d_model, which fits the paper's table (the authors'
    code: 4 * d_model).
    """
    combiner_residual: Literal["x", "x+o"] = "x"
    """What is added to the combiner's output: its layer's input, or that and what the phrase
    attention found (the authors' code).
    """
    generator: Literal["softmax", "sigmoid_residual"] = "softmax"
    """Weights of a phrase's tokens: a softmax (Eq. 5), or gates whose rest goes to the first view
    (the authors' code).
    """
    segmentation: Literal["ngram", "parse"] = "ngram"
    """Phrases are n-grams, or follow a parse of the source (`nmtkit prep --parses`); sentences
    without one are cut into n-grams.
    """
    phrase_length: Literal["sentence", "batch"] = "sentence"
    """Phrases are cut by the length of the sentence, or by that of the longest in its batch (the
    authors' code; then batches matter).
    """
    embed_norm: bool = False
    """Layer norm on the sum of embedding and position (the authors' code)."""
    ta_tokens: bool = False
    """Each decoder layer reads its own mixture of all encoder layers' tokens too (the authors'
    code).
    """


class HalfOfW1(Linear):
    """Half of W1: the columns that multiply R_t, or those that multiply R_all.

    Its initial weights have the bounds of the whole W1, which has 2·D inputs.
    """

    def draw(self, init: Init) -> None:
        super().draw(init)
        with torch.no_grad():  # 1/√2D, not 1/√D; √(6/3D), not √(6/2D)
            self.weight.mul_(math.sqrt(1 / 2 if init == "fan_in" else 2 / 3))


class PhraseGenerator(nn.Module):
    """A vector for each phrase, from the vectors of its tokens.

    Args:
        settings: of the model.
    Source: Xu et al. 2020, Eqs. 2-5; the score's own bias cancels in the softmax and is left out.
    """

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__()
        self.settings, width = settings, settings.d_model
        if settings.attentive:
            # W1 [R_t | R_all] + b1 = W1a R_t + (W1b R_all + b1), the second half once per phrase.
            self.token = HalfOfW1(width, width, bias=False)
            self.summary = HalfOfW1(width, width)
            self.score = Linear(width, 1, bias=False)
            self.dropout = Dropout(settings.dropout)

    def forward(self, x: Tensor, phrases: Phrases) -> Tensor:
        """x (B, S, D) -> (B, c, D), or (1, N, D) -> (1, P, D); any vector for a phrase without
        tokens.
        """
        s = self.settings
        shape = x.size(0), -1, x.size(2)
        x = gpu.low_precision_copy(x).flatten(0, 1)  # (N, D)
        tokens = phrases.gathered(x)  # (P, m, D)
        if s.glance == "max":
            glance = tokens.max(1).values  # (P, D), R_all of Eq. 2
        else:
            glance = torch.bmm(phrases.shares, tokens).squeeze(1)  # (P, D)
        if not s.attentive:
            return glance.view(shape)
        summary = phrases.per_token(self.summary(glance))  # (N, D)
        hidden = torch.sigmoid(self.dropout(self.token(x) + summary))
        scores = phrases.gathered(self.score(hidden)).mT  # (P, 1, m), Eq. 3
        if s.generator == "softmax":
            with torch.autocast(x.device.type, enabled=False):  # autocast would keep 32 bits
                weights = (scores + phrases.mask).softmax(-1)  # Eq. 4
            return torch.bmm(weights, tokens).view(shape)  # Eq. 5
        weights = torch.sigmoid(scores) * phrases.shares
        rest = (1 - weights.sum(-1)) * glance
        return (torch.bmm(weights, tokens).squeeze(1) + rest).view(shape)


class PhraseSublayer(nn.Module):
    """Attention to phrases, and LN(x + Dropout(W4 · Dropout(σ(W3 [x|o] + b3)) + b4)) of it.

    Args:
        settings: of the model.
    Source: Xu et al. 2020, Eq. 8.
    """

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__()
        s = settings
        hidden = s.combiner_hidden or 3 * s.d_model
        self.attention = CrossAttention(*s.attention_sizes)
        self.inner = Linear(2 * s.d_model, hidden)
        self.outer = Linear(hidden, s.d_model)
        self.dropout = Dropout(s.dropout)
        self.residual = s.residual()
        self.adds_attention = s.combiner_residual == "x+o"

    def forward(self, x: Tensor, h: Tensor, keys: Any, visible: Sight) -> Tensor:
        """Attend to phrases.

        Args:
            x, h: (R, T, D), before and after `Residual.enter`.
            keys: of phrases, from `attention.source`, B rows.
            visible: which phrases may be attended to, bool (B, 1, c); None = all.
        Returns: (R, T, D).
        """
        o = self.attention(h, keys, visible)
        # Under autocast both halves of [x|o] have 16 bits.
        both = torch.cat([gpu.low_precision_copy(h).to(o.dtype), o], dim=-1)
        combined = self.outer(self.dropout(self.inner(both, sigmoid=True)))
        return self.residual.leave(x + o if self.adds_attention else x, combined)


class PhraseEncoderLayer(EncoderLayer):
    """Phrases, then self-attention, then feed-forward."""

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__(settings)
        self.phrases = PhraseSublayer(settings)

    def read(
        self, x: Tensor, generator: nn.Module, phrases: Phrases, visible: Sight
    ) -> tuple[Tensor, Tensor]:
        """One layer: tokens x (B, S, D) -> (B, S, D), and the phrases (B, c, D) it has read."""
        h = self.phrases.residual.enter(x)
        vectors = generator(h, phrases)
        x = self.phrases(x, h, self.phrases.attention.source(vectors), phrases.visible)
        return self(x, visible), vectors


class PhraseDecoderLayer(DecoderLayer):
    """Causal self-attention, phrases, attention to the source's tokens, feed-forward."""

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__(settings)
        self.phrases = PhraseSublayer(settings)

    def read_source(self, x: Tensor, memory: Memory, visible: Sight) -> Tensor:
        x = self.phrases(x, self.phrases.residual.enter(x), *memory["phrases"])
        return super().read_source(x, memory, visible)


class PhraseTransformer(Transformer):
    """Xu, van Genabith, Xiong, Liu & Zhang 2020, *Learning source phrase representations for neural
    machine translation*, ACL.
    """

    Settings = PhraseSettings
    settings: PhraseSettings
    paper = "Xu et al. 2020"
    packs = True

    def __init__(self, settings: PhraseSettings, vocabularies: Vocabularies) -> None:
        s = settings
        if s.generator != "softmax" and not s.attentive:
            raise ConfigError(
                "without attention the tokens of a phrase have no weights",
                where="model.generator, model.attentive",
                hint="leave out one of them",
            )
        super().__init__(settings, vocabularies)
        # Embeddings and every layer make phrases. Only the decoder reads those of the top layer.
        levels = s.encoder_layers + 1
        of_layers = s.stack(PhraseGenerator(s) for _ in range(s.encoder_layers))
        self.generators = nn.ModuleList([*of_layers, PhraseGenerator(s)])
        self.phrase_mixture = _mixture(levels, s.decoder_layers) if s.transparent else None
        self.token_mixture = _mixture(levels, s.decoder_layers) if s.ta_tokens else None

    @property
    def reads_batch_length(self) -> bool:
        return self.settings.phrase_length == "batch"

    @property
    def reads_spans(self) -> bool:
        return self.settings.segmentation == "parse"

    def prepare(self, batch: Batch) -> Batch:
        return replace(batch, prepared=self._cut(batch))

    def embedder(self, table: Embedding) -> Embedder:
        s = self.settings
        return Embedder(table, s.d_model, s.dropout, s.embed_norm)

    def encoder_layer(self, index: int) -> EncoderLayer:
        return PhraseEncoderLayer(self.settings)

    def decoder_layer(self, index: int) -> DecoderLayer:
        return PhraseDecoderLayer(self.settings)

    def encode(self, batch: Batch) -> Memory:
        """See `Transformer.encode`; a layer's part has keys and values of its phrases, too."""
        visible, phrases = source_sight(batch), batch.prepared or self._cut(batch)
        phrases = phrases.of_type(gpu.product_type(self.src_embedder.table.weight))
        x = gpu.with_low_precision_copy(self.src_embedder(batch.src, visible=visible))
        # Tokens (B, S, D) and phrases (B, c, D) of all levels, the embeddings first.
        tokens, vectors = [x], []
        for layer, generator in zip(self.encoder, self.generators, strict=False):
            x, of_level = layer.read(x, generator, phrases, visible)
            tokens.append(x)
            vectors.append(of_level)
        tokens[-1] = self.encoder_norm(x)
        vectors.append(self.generators[-1](tokens[-1], phrases))
        mixed_phrases = self._mixed(vectors, self.phrase_mixture, "phrase_mixture")
        mixed_tokens = self._mixed(tokens, self.token_mixture, "token_mixture")
        seen = phrases.visible
        if batch.segments is not None and isinstance(seen, Segments):
            seen = Segments(batch.segments.queries, seen.keys)
        layers = []
        reads = zip(self.decoder, mixed_tokens, mixed_phrases, strict=True)
        for layer, of_tokens, of_phrases in reads:
            keys = layer.phrases.attention.source(of_phrases)
            layers.append(layer.remember(of_tokens) | {"phrases": (keys, seen)})
        return {"states": tokens[-1], "visible": batch.segments or visible, "layers": layers}

    def _cut(self, batch: Batch) -> Phrases:
        """Return the phrases of a batch."""
        lengths, columns, padded = batch.src_lengths, batch.src.size(1), batch.src_padded
        if batch.segments is not None:
            packing, padded = batch.segments.keys, True
            lengths, columns = packing.offsets.diff(), packing.positions.size(1)
        sizes = ngrams(lengths, columns, padded, self.reads_batch_length)
        # An n-gram has 3 tokens at least, except for the last one of a sentence.
        most = (batch.src.size(1) + 2 * len(lengths)) // 3
        if batch.spans is not None and self.reads_spans:
            sizes, padded, most = parsed(batch.spans, sizes), True, batch.src.size(1)
        if batch.segments is None:
            return in_rows(sizes, columns, padded)
        return in_packed(sizes, packing, min(most, sizes.numel()))

    def _mixed(self, levels: list[Tensor], weights: Tensor | None, name: str) -> Sequence[Tensor]:
        """Return what each decoder layer reads, (B, ·, D): the top level, or mixtures (Eq. 6)."""
        if weights is None:
            return [levels[-1]] * len(self.decoder)
        if self.training:
            weights = dropout(weights, self.settings.dropout)
        shares = weights.softmax(0)
        record(f"decoder.{name}", shares)
        flat = torch.stack(levels).flatten(1)  # (L+1, B·S·D): all mixtures are one product
        mixtures = shares.t().to(flat.dtype) @ flat  # (L_dec, B·S·D)
        return mixtures.unflatten(1, levels[0].shape).unbind(0)


def _mixture(levels: int, layers: int) -> nn.Parameter:
    """Return weights (L+1, L_dec) before the softmax."""
    bound = math.sqrt(1 / levels)
    return nn.Parameter(torch.empty(levels, layers).uniform_(-bound, bound))
