"""The dual contextual module: attention to a local summary of each position's neighbours beside attention to the positions themselves."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerSettings
from nmtkit.nn.attention import Attention
from nmtkit.nn.cache import Cache
from nmtkit.nn.linear import Linear
from nmtkit.nn.sublayer import Residual


class DualContextSettings(TransformerSettings):
    """A Transformer's, and where the dual contextual module stands."""

    encoder: bool = True
    """The module in place of self-attention in the encoder."""
    decoder: bool = False
    """The module in place of causal self-attention in the decoder."""
    kernel_size: int = Field(2, ge=1, le=8)
    """Positions that the local context unit sees, f."""
    layers: str = Field("", pattern=r"^(\d+-\d+)?$")
    """Which layers have it, counted from 1, as 4-6 or 2; empty = all."""
    even_side: Literal["left", "right"] = "left"
    """Where an encoder's window of even size has one position more; a decoder's never reaches to the right."""

    @field_validator("layers", mode="before")
    @classmethod
    def _one_layer_is_a_range(cls, value: Any) -> Any:
        number = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        return f"{number}-{number}" if number.isdecimal() else value


class LocalContext(nn.Module):
    """Each position and its neighbours as one vector: LN(x + Dropout(a ⊙ σ(b))), [a|b] a convolution of width f.

    Args:
        width: D.
        kernel: f.
        before: how many positions of the window lie before its own.
        dropout: on the gated convolution.
    Source: Ampomah et al. 2021, Eq. 6.
    """

    def __init__(self, width: int, kernel: int, before: int, dropout: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.before = before
        self.convolution = Linear(kernel * width, 2 * width, blocks=2)
        self.residual = Residual(width, dropout, "post")

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """x (R, T, D), zero where padded; past (R, before, D), None = nothing -> (R, T, D)."""
        steps = x.size(1)
        around = F.pad(x, (0, 0, self.before, self.kernel - 1 - self.before)) if past is None else torch.cat([past, x], dim=1)
        windows = x if self.kernel == 1 else torch.cat([around[:, i : i + steps] for i in range(self.kernel)], dim=-1)  # (R, T, f·D)
        return self.residual(x, lambda _: F.glu(self.convolution(windows), dim=-1))


class DualContextAttention(Attention):
    """Attention from every position to the local contexts and to the positions, as one attention of 2·H heads.

    The paper's two units of H heads have projections of their own and no output projection; what joins them, [h_l; h_g] W_z, is then
    the output projection of all heads (models.md 1.3). The first H heads are the local ones.

    Args:
        width: D.
        heads: H.
        kernel: f.
        before: how many positions of the window lie before its own.
        dropout: on the local unit's output.
        attention_dropout: on the attention weights.
        bias: whether the projections have biases.
    Source: Ampomah et al. 2021, Eqs. 6-9.
    """

    def __init__(self, width: int, heads: int, kernel: int, before: int, dropout: float, attention_dropout: float, bias: bool) -> None:
        super().__init__(width, heads, attention_dropout, bias, parts=("local", "global"))
        self.local = LocalContext(width, kernel, before, dropout)
        self.own = Linear(width, 4 * width, bias, blocks=4)  # both units' queries, the global unit's keys and values
        self.local_kv = Linear(width, 2 * width, bias, blocks=2)

    def forward(self, x: Tensor, visible: Tensor | None = None, causal: bool = False, cache: Cache | None = None, layer: int = 0) -> Tensor:
        """Attend within x (R, T, D); see `SelfAttention.forward`."""
        heads = self.heads
        past = None
        if cache is not None and self.local.before:
            past = cache.recent.get(layer)
            if past is None:
                past = x.new_zeros(x.size(0), self.local.before, x.size(2))
            cache.recent[layer] = torch.cat([past, x], dim=1)[:, -self.local.before :]
        real = x if visible is None else x.masked_fill(~visible.transpose(1, 2), 0)
        local = self.local(real, past)
        q, own_kv = self.own(x).chunk(2, dim=-1)
        both = [kv.unflatten(-1, (2, heads, -1)) for kv in (self.local_kv(local), own_kv)]  # (R, T, 2, H, C) each: key, value
        k, v = torch.cat(both, dim=3).unbind(2)  # (R, T, 2·H, C) each
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.append(layer, k, v)
            visible, causal = cache.visible, cache.visible is None
        return self.attend(q.unflatten(-1, (2 * heads, -1)), k, v, visible, causal)


class DualContext(Transformer):
    """Ampomah, McClean & Hawe 2021, *Dual contextual module for neural machine translation*, Machine Translation 35."""

    Settings: ClassVar[type[TransformerSettings]] = DualContextSettings
    settings: DualContextSettings
    paper: ClassVar[str] = "Ampomah et al. 2021"

    def __init__(self, settings: DualContextSettings, vocabularies: Vocabularies) -> None:
        self._first, self._last = _bounds(settings)
        super().__init__(settings, vocabularies)

    def encoder_layer(self, index: int) -> EncoderLayer:
        """See `Transformer.encoder_layer`."""
        s = self.settings
        spare = s.kernel_size - 1
        return EncoderLayer(s, self._attention(s.encoder, index, spare // 2 + (spare % 2 if s.even_side == "left" else 0)))

    def decoder_layer(self, index: int) -> DecoderLayer:
        """See `Transformer.decoder_layer`; the window ends at its own position."""
        return DecoderLayer(self.settings, self._attention(self.settings.decoder, index, self.settings.kernel_size - 1))

    def _attention(self, wanted: bool, index: int, before: int) -> DualContextAttention | None:
        s = self.settings
        if not wanted or not self._first <= index < self._last:
            return None
        return DualContextAttention(s.d_model, s.heads, s.kernel_size, before, s.dropout, s.attention_dropout, s.attn_bias)


def _bounds(settings: DualContextSettings) -> tuple[int, int]:
    """The first layer that has the module, from 0, and the first after it that has not.

    Raises: ConfigError if there are no such layers, the module stands nowhere, or its windows have no side to choose.
    """
    s = settings
    if not (s.encoder or s.decoder):
        raise ConfigError("the module stands nowhere", where="model.encoder, model.decoder", hint="set one of them, or train --variant transformer")
    if s.even_side == "right" and not s.encoder:  # an odd size is no slip: sweeps over sizes say the side once for all
        what = "the module stands in the decoder alone, whose window never reaches to the right"
        raise ConfigError(what, where="model.even_side, model.encoder", hint="leave out model.even_side, or --set model.encoder=true")
    most = max(s.encoder_layers if s.encoder else 0, s.decoder_layers if s.decoder else 0)
    if not s.layers:
        return 0, most
    first, last = map(int, s.layers.split("-"))
    if not 1 <= first <= last <= most:
        raise ConfigError(f"layers '{s.layers}' are not among the layers 1-{most}", where="model.layers", hint="for example --set model.layers=1-2")
    return first - 1, last


class DecoderDualContextSettings(DualContextSettings):
    """The module in the decoder alone."""

    encoder: bool = False
    """The module in place of self-attention in the encoder."""
    decoder: bool = True
    """The module in place of causal self-attention in the decoder."""


class FullDualContextSettings(DualContextSettings):
    """The module in encoder and decoder."""

    decoder: bool = True
    """The module in place of causal self-attention in the decoder."""


class DecoderDualContext(DualContext):
    """Dec-DC of Ampomah et al. 2021: the dual contextual module in the decoder."""

    Settings: ClassVar[type[TransformerSettings]] = DecoderDualContextSettings


class FullDualContext(DualContext):
    """Full-DC of Ampomah et al. 2021: the dual contextual module in encoder and decoder."""

    Settings: ClassVar[type[TransformerSettings]] = FullDualContextSettings
