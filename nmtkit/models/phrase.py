"""Source phrase representations: encoder and decoder layers attend to phrases of the source beside its tokens."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, Vocabularies
from nmtkit.models.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerSettings
from nmtkit.nn.attention import CrossAttention
from nmtkit.nn.capture import record
from nmtkit.nn.dropout import Dropout, dropout
from nmtkit.nn.embeddings import Embedder, Embedding
from nmtkit.nn.linear import Init, Linear
from nmtkit.nn.masks import visible_positions
from nmtkit.nn.sublayer import Residual

Keys = tuple[Tensor, Tensor]


class PhraseSettings(TransformerSettings):
    """A Transformer's, and how phrases are made and used; the defaults are the paper's "+PR"."""

    glance: Literal["mean", "max"] = "max"
    """The first view of a phrase: the mean of its tokens or their element-wise maximum."""
    attentive: bool = True
    """A phrase is what attention from that view finds in its tokens (+Attn); off: the view itself (+Mean, +Max)."""
    transparent: bool = True
    """Each decoder layer reads its own mixture of all levels' phrases (+TA); off: those of the top level."""
    combiner_hidden: int = Field(0, ge=0)
    """Hidden units of the combiner; 0 = 3 * d_model, which fits the paper's table (the authors' code: 4 * d_model)."""
    combiner_residual: Literal["x", "x+o"] = "x"
    """What is added to the combiner's output: its layer's input, or that and what the phrase attention found (the authors' code)."""
    generator: Literal["softmax", "sigmoid_residual"] = "softmax"
    """Weights of a phrase's tokens: a softmax (Eq. 5), or gates whose rest goes to the first view (the authors' code)."""
    segmentation: Literal["ngram", "parse"] = "ngram"
    """Phrases are n-grams, or follow a parse of the source (`nmtkit prep --parses`); sentences without one are cut into n-grams."""
    phrase_length: Literal["sentence", "batch"] = "sentence"
    """Phrases are cut by the length of the sentence, or by that of the longest in its batch (the authors' code; then batches matter)."""
    embed_norm: bool = False
    """Layer norm on the sum of embedding and position (the authors' code)."""
    ta_tokens: bool = False
    """Each decoder layer reads its own mixture of all encoder layers' tokens too (the authors' code)."""


class Phrases(NamedTuple):
    """A cut of sentences (B, S) into at most c phrases of at most m consecutive tokens."""

    members: Tensor
    """bool (B, c, S): which tokens a phrase has."""
    tokens: Tensor
    """int64 (B, c, m): their positions, 0 where there is no further token."""
    real: Tensor
    """bool (B, c, m): which of `tokens` there are."""
    visible: Tensor | None
    """bool (B, 1, c): phrases that have a token; None = all."""


def longest_phrase(lengths: Tensor) -> Tensor:
    """Most tokens of a phrase in sentences of these lengths: a sixth, but at least 3 and at most 8 (Xu et al. 2020, §3.1)."""
    return ((lengths + 5) // 6).clamp(3, 8)


def ngrams(lengths: Tensor, columns: int, padded: bool, by_batch: bool = False) -> Phrases:
    """Cut sentences into phrases of equal length, the last one shorter.

    Args:
        lengths: (B), </s> included.
        columns: S.
        padded: whether any row is padded.
        by_batch: cut all by the length S.
    Source: Xu et al. 2020, §3.1.
    """
    device = lengths.device
    size = longest_phrase(torch.full_like(lengths, columns) if by_batch else lengths)[:, None]  # (B, 1)
    longest = _most(columns)
    # All counts are known from S alone: 18 tokens make the most phrases (6) until 49 do. A phrase too many has no token.
    count = -(-columns // longest) if by_batch or not padded else -(-columns // 3) if columns < 18 else max(6, -(-columns // 8))
    starts = torch.arange(count, device=device) * size  # (B, c)
    return _phrases(starts, torch.minimum(starts + size, lengths[:, None]), columns, padded)


def given(spans: Tensor, otherwise: Phrases, columns: int) -> Phrases:
    """The phrases that a batch brings with it.

    Args:
        spans: (B, c) tokens of each, none of more tokens than `longest_phrase` says; 0 behind the last one. A row of zeros has none of its own.
        otherwise: the phrases of such rows.
        columns: S.
    """
    own = otherwise.members.sum(-1)  # (B, c')
    count = max(own.size(1), spans.size(1))
    own, spans = (nn.functional.pad(sizes, (0, count - sizes.size(1))) for sizes in (own, spans))
    sizes = torch.where(spans[:, :1] > 0, spans, own)
    ends = sizes.cumsum(1)
    return _phrases(ends - sizes, ends, columns, padded=True)


def _most(columns: int) -> int:
    return min(8, max(3, -(-columns // 6)))


def _phrases(starts: Tensor, ends: Tensor, columns: int, padded: bool) -> Phrases:
    """Phrases from where they begin and end, (B, c) both; with padding, one may be empty (its end not behind its start)."""
    starts, ends = starts[..., None], ends[..., None]
    places = torch.arange(columns, device=starts.device)
    tokens = starts + torch.arange(_most(columns), device=starts.device)  # (B, c, m)
    real = tokens < ends
    visible = (starts < ends).transpose(1, 2) if padded else None
    return Phrases((places >= starts) & (places < ends), tokens.masked_fill(~real, 0), real, visible)


class HalfOfW1(Linear):
    """The D of W1's 2·D columns that meet R_t, or R_all, drawn within the bounds of the whole matrix."""

    def draw(self, init: Init) -> None:
        """See `Linear.draw`."""
        super().draw(init)
        with torch.no_grad():
            self.weight.mul_(math.sqrt(1 / 2 if init == "fan_in" else 2 / 3))  # 1/√2D, not 1/√D; √(6/3D), not √(6/2D)


class PhraseGenerator(nn.Module):
    """A vector for each phrase, from the vectors of its tokens.

    Args:
        settings: of the model.
    Source: Xu et al. 2020, Eqs. 2-5; the score's own bias would cancel in the softmax and is left out.
    """

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__()
        s = settings
        self.glance, self.residual = s.glance, s.generator == "sigmoid_residual"
        self.attentive = s.attentive
        if s.attentive:
            self.token = HalfOfW1(s.d_model, s.d_model, bias=False)  # W1 [R_t | R_all] + b1 in two halves, the second once a phrase
            self.summary = HalfOfW1(s.d_model, s.d_model)
            self.score = Linear(s.d_model, 1, bias=False)
            self.dropout = Dropout(s.dropout)

    def forward(self, x: Tensor, phrases: Phrases) -> Tensor:
        """x (B, S, D) -> (B, c, D); zero for a phrase without tokens."""
        members = phrases.members
        sizes = members.sum(-1, keepdim=True).clamp(min=1)  # (B, c, 1)
        view = self._maximum(x, phrases) if self.glance == "max" else torch.bmm(members.to(x.dtype) / sizes, x)
        if not self.attentive:
            return view
        belongs = members.to(x.dtype)
        hidden = self.token(x) + torch.bmm(belongs.transpose(1, 2), self.summary(view).to(x.dtype))  # (B, S, D)
        scores = self.score(torch.sigmoid(self.dropout(hidden))).transpose(1, 2)  # (B, 1, S)
        if self.residual:
            weights = torch.sigmoid(scores) * members / sizes
            return torch.bmm(weights.to(x.dtype), x) + (1 - weights.sum(-1, keepdim=True)) * view
        weights = scores.float() if scores.dtype == torch.bfloat16 else scores
        weights = weights.masked_fill(~members, torch.finfo(weights.dtype).min).softmax(-1) * members
        return torch.bmm(weights.to(x.dtype), x)

    @staticmethod
    def _maximum(x: Tensor, phrases: Phrases) -> Tensor:
        """The largest number of each column; its gradient goes to where it was found."""
        with torch.no_grad():
            rows = torch.arange(x.size(0), device=x.device)[:, None, None]
            vectors = x[rows, phrases.tokens].masked_fill(~phrases.real[..., None], -torch.inf)  # (B, c, m, D)
            where = phrases.tokens[:, :, :1] + vectors.max(2).indices  # (B, c, D)
        return x.gather(1, where) * phrases.real[:, :, :1]


class PhraseSublayer(nn.Module):
    """Attention to phrases, combined with what asked: LN(x + Dropout(W4 · Dropout(σ(W3 [x|o] + b3)) + b4)).

    Args:
        settings: of the model.
    Source: Xu et al. 2020, Eq. 8.
    """

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__()
        s = settings
        hidden = s.combiner_hidden or 3 * s.d_model
        self.attention = CrossAttention(s.d_model, s.heads, s.attention_dropout, s.attn_bias)
        self.inner = Linear(2 * s.d_model, hidden)
        self.outer = Linear(hidden, s.d_model)
        self.dropout = Dropout(s.dropout)
        self.residual = Residual(s.d_model, s.dropout, s.norm)
        self.both = s.combiner_residual == "x+o"

    def forward(self, x: Tensor, keys: Keys, visible: Tensor | None) -> Tensor:
        """x (R, T, D) asks phrases, given as `attention.source` makes them (B rows), of which `visible` (B, 1, c) exist -> (R, T, D)."""
        return self.ask(x, self.residual.enter(x), keys, visible)

    def ask(self, x: Tensor, h: Tensor, keys: Keys, visible: Tensor | None) -> Tensor:
        """As `forward`, for an x that has entered the residual connection as h (R, T, D)."""
        found = self.attention(h, keys, visible)
        combined = self.outer(self.dropout(torch.sigmoid(self.inner(torch.cat([h, found], dim=-1)))))
        return self.residual.leave(x + found if self.both else x, combined)


class PhraseEncoderLayer(EncoderLayer):
    """Phrases, then self-attention, then feed-forward."""

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__(settings)
        self.phrases = PhraseSublayer(settings)

    def read(self, x: Tensor, generator: nn.Module, phrases: Phrases, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """One layer: tokens x (B, S, D) -> (B, S, D), and the vectors (B, c, D) of the phrases that it has read."""
        h = self.phrases.residual.enter(x)
        vectors = generator(h, phrases)
        x = self.phrases.ask(x, h, self.phrases.attention.source(vectors), phrases.visible)
        return self(x, visible), vectors


class PhraseDecoderLayer(DecoderLayer):
    """Causal self-attention, phrases, attention to the source's tokens, feed-forward."""

    def __init__(self, settings: PhraseSettings) -> None:
        super().__init__(settings)
        self.phrases = PhraseSublayer(settings)

    def read_source(self, x: Tensor, own: dict[str, Any], visible: Tensor | None) -> Tensor:
        """See `DecoderLayer.read_source`."""
        return super().read_source(self.phrases(x, own["phrases"], own["visible"]), own, visible)


class PhraseTransformer(Transformer):
    """Xu, van Genabith, Xiong, Liu & Zhang 2020, *Learning source phrase representations for neural machine translation*, ACL."""

    Settings: ClassVar[type[TransformerSettings]] = PhraseSettings
    settings: PhraseSettings
    paper: ClassVar[str] = "Xu et al. 2020"

    def __init__(self, settings: PhraseSettings, vocabularies: Vocabularies) -> None:
        s = settings
        if s.generator != "softmax" and not s.attentive:
            what = "without attention the tokens of a phrase have no weights"
            raise ConfigError(what, where="model.generator, model.attentive", hint="leave out one of them")
        super().__init__(settings, vocabularies)
        levels = s.encoder_layers + 1
        self.generators = nn.ModuleList([PhraseGenerator(s) for _ in range(levels)])  # the last one is read by the decoder alone
        self.phrase_mixture = _mixture(levels, s.decoder_layers) if s.transparent else None
        self.token_mixture = _mixture(levels, s.decoder_layers) if s.ta_tokens else None

    @property
    def reads_spans(self) -> bool:
        """See `Model.reads_spans`."""
        return self.settings.segmentation == "parse"

    def embedder(self, table: Embedding) -> Embedder:
        """See `Transformer.embedder`."""
        return Embedder(table, self.settings.d_model, self.settings.dropout, self.settings.embed_norm)

    def encoder_layer(self, index: int) -> EncoderLayer:
        """See `Transformer.encoder_layer`."""
        return PhraseEncoderLayer(self.settings)

    def decoder_layer(self, index: int) -> DecoderLayer:
        """See `Transformer.decoder_layer`."""
        return PhraseDecoderLayer(self.settings)

    def encode(self, batch: Batch) -> Memory:
        """See `Transformer.encode`; each decoder layer's part has the keys and values of its phrases too."""
        columns = batch.src.size(1)
        visible = visible_positions(batch.src_lengths, columns) if batch.src_padded else None
        phrases = ngrams(batch.src_lengths, columns, batch.src_padded, self.settings.phrase_length == "batch")
        if batch.spans is not None and self.reads_spans:
            phrases = given(batch.spans, phrases, columns)
        x = self.src_embedder(batch.src)
        tokens, vectors = [x], []
        for module, generator in zip(self.encoder, self.generators, strict=False):
            x, read = cast(PhraseEncoderLayer, module).read(x, generator, phrases, visible)
            vectors.append(read)
            tokens.append(x)
        tokens[-1] = states = self.encoder_norm(x)
        vectors.append(self.generators[-1](states, phrases))
        memory = self.remember(states, visible)
        mixed = self._mixed(vectors, self.phrase_mixture, "phrase_mixture")
        if self.token_mixture is not None:
            mixed_tokens = self._mixed(tokens, self.token_mixture, "token_mixture")
            memory["layers"] = [cast(DecoderLayer, layer).remember(mix) for layer, mix in zip(self.decoder, mixed_tokens, strict=True)]
        for module, own, mix in zip(self.decoder, memory["layers"], mixed, strict=True):
            own["phrases"] = cast(PhraseDecoderLayer, module).phrases.attention.source(mix)
            own["visible"] = phrases.visible
        return memory

    def _mixed(self, levels: list[Tensor], weights: Tensor | None, name: str) -> list[Tensor]:
        """What each decoder layer reads: a mixture (B, ·, D) of the levels, all of them in one product (Eq. 6); the top level without weights."""
        if weights is None:
            return [levels[-1]] * len(self.decoder)
        if self.training:
            weights = dropout(weights, self.settings.dropout)
        shares = weights.softmax(0)
        record(f"decoder.{name}", shares)
        shares = shares.t().to(levels[0].dtype)  # (L_dec, L+1)
        return list((shares @ torch.stack(levels).flatten(1)).unflatten(1, levels[0].shape).unbind(0))


def _mixture(levels: int, layers: int) -> nn.Parameter:
    """Weights (L+1, L_dec) before the softmax."""
    bound = math.sqrt(1 / levels)
    return nn.Parameter(torch.empty(levels, layers).uniform_(-bound, bound))
