"""The dual contextual module: attention to local summaries beside attention to positions."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.data.packing import Packing, Segments
from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies, with_defaults
from nmtkit.models.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerSettings
from nmtkit.nn import gpu
from nmtkit.nn.attention import Attention
from nmtkit.nn.cache import Cache
from nmtkit.nn.linear import Linear
from nmtkit.nn.masks import Sight, beyond_sentence


class DualContextSettings(TransformerSettings):
    """Settings of a Transformer, and of the dual contextual module."""

    encoder: bool = True
    """The module replaces self-attention in the encoder."""
    decoder: bool = False
    """The module replaces causal self-attention in the decoder."""
    local: Literal["conv", "none"] = "conv"
    """What the local heads read: the local context unit, or (a control) the positions as they are.
    """
    kernel_size: int = Field(2, ge=1, le=8)
    """Positions that the local context unit sees, f."""
    layers: str = Field("", pattern=r"^(\d+-\d+)?$")
    """Layers that have the module, counted from 1, for example 4-6 or 2; empty = all."""
    even_side: Literal["left", "right"] = "left"
    """The side on which an encoder's window of even size has one position more. A decoder's window
    never reaches to the right.
    """

    @field_validator("layers", mode="before")
    @classmethod
    def _one_layer_is_a_range(cls, value: Any) -> Any:
        number = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        return f"{number}-{number}" if number.isdecimal() else value

    @model_validator(mode="after")
    def _a_window_needs_the_convolution(self) -> Self:
        if self.local == "none" and (self.kernel_size != 2 or self.even_side == "right"):
            raise ValueError(
                "with model.local = none there is no window: leave out model.kernel_size and"
                " model.even_side"
            )
        return self


class LocalContext(nn.Module):
    """LN(x + Dropout(a ⊙ σ(b))), [a|b] a convolution over windows of f positions.

    Args:
        settings: of the model.
        before: how many positions of the window lie before its own.
    Source: Ampomah et al. 2021, Eq. 6.
    """

    def __init__(self, settings: DualContextSettings, before: int) -> None:
        super().__init__()
        self.kernel, self.before = settings.kernel_size, before
        width = settings.d_model
        self.convolution = Linear(self.kernel * width, 2 * width, blocks=2)
        self.residual = settings.residual("post")

    def forward(
        self, x: Tensor, past: Tensor | None = None, packing: Packing | None = None
    ) -> Tensor:
        """x (R, T, D), zero where padded; past (R, before, D), None = zeros -> (R, T, D).

        In a packed batch x is (1, T, D), and no window reaches beyond its sentence.
        """
        if packing is None:
            sides = 0, 0, self.before, self.kernel - 1 - self.before
            around = F.pad(x, sides) if past is None else torch.cat([past, x], 1)
            window = [around[:, i : i + x.size(1)] for i in range(self.kernel)]
        else:
            shifts = range(-self.before, self.kernel - self.before)
            window = [
                x.roll(-i, 1).masked_fill(beyond_sentence(packing, i), 0) if i else x
                for i in shifts
            ]
        joined = torch.cat(window, dim=-1)  # (R, T, f·D)
        return self.residual(x, lambda _: F.glu(self.convolution(joined), dim=-1))


class DualContextAttention(Attention):
    """Attention to the local contexts and to the positions, as one attention of 2·H heads.

    The paper has two units of H heads, each with its own projections and no output projection. It
    joins them with [h_l; h_g] W_z. This is the output projection of all 2·H heads.
    The first H heads are the local ones.

    Args:
        settings: of the model.
        before: how many positions of the window lie before its own.
    Source: Ampomah et al. 2021, Eqs. 6-8; Eq. 9 is the layer's residual connection.
    """

    parts = "local", "global"

    def __init__(self, settings: DualContextSettings, before: int) -> None:
        super().__init__(*settings.attention_sizes)
        width, bias = settings.d_model, settings.attn_bias
        self.local = LocalContext(settings, before) if settings.local == "conv" else None
        # Queries of both units, and keys and values of the global unit, all read x.
        self.own = Linear(width, 4 * width, bias, blocks=4)
        self.local_kv = Linear(width, 2 * width, bias, blocks=2)

    def forward(
        self,
        x: Tensor,
        visible: Sight = None,
        causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend within x (R, T, D); see `SelfAttention.forward`."""
        local = x
        if self.local is not None:
            if isinstance(visible, Segments):
                local = self.local(x, packing=visible.queries)  # Eq. 6
            else:
                real = x if visible is None else x.masked_fill(~visible.transpose(1, 2), 0)
                past = None if cache is None else self._past(x, self.local.before, cache)
                local = self.local(real, past)  # Eq. 6
        q, global_kv = self.own(x).chunk(2, dim=-1)
        # Of each unit, keys and values: (R, T, 2, H, C).
        units = [kv.unflatten(-1, (2, self.heads, -1)) for kv in (self.local_kv(local), global_kv)]
        # (R, 2·H, T, C) each
        k, v = (part.transpose(1, 2) for part in gpu.unbind_parts(torch.cat(units, dim=3)))
        q = q.unflatten(-1, (2 * self.heads, -1))
        return self.attend(q, k, v, visible, causal, cache)  # Eqs. 7 and 8

    def _past(self, x: Tensor, before: int, cache: Cache) -> Tensor:
        """Return the inputs (R, before, D) before x, and store those before the next step."""
        past = cache.recent.get(cache.attention)
        if past is None:
            past = x.new_zeros(x.size(0), before, x.size(2))
        cache.recent[cache.attention] = torch.cat([past, x], dim=1)[:, x.size(1) :]
        return past


class DualContext(Transformer):
    """Ampomah, McClean & Hawe 2021, *Dual contextual module for neural machine translation*,
    Machine Translation 35.
    """

    Settings = DualContextSettings
    settings: DualContextSettings
    paper = "Ampomah et al. 2021"
    packs = True

    def __init__(self, settings: DualContextSettings, vocabularies: Vocabularies) -> None:
        self._dual = layers_with_module(settings)
        super().__init__(settings, vocabularies)

    def encoder_layer(self, index: int) -> EncoderLayer:
        s = self.settings
        neighbours = s.kernel_size - 1
        before = neighbours // 2 if s.even_side == "right" else (neighbours + 1) // 2
        return EncoderLayer(s, self._attention(s.encoder, index, before))

    def decoder_layer(self, index: int) -> DecoderLayer:
        s = self.settings
        return DecoderLayer(s, self._attention(s.decoder, index, s.kernel_size - 1))

    def _attention(self, side: bool, index: int, before: int) -> DualContextAttention | None:
        return DualContextAttention(self.settings, before) if side and index in self._dual else None


def layers_with_module(settings: DualContextSettings) -> range:
    """Return the layers that have the module, counted from 0.

    Raises: ConfigError if there are none, or if `even_side` has no effect.
    """
    s = settings
    count = max(s.encoder * s.encoder_layers, s.decoder * s.decoder_layers)
    if not count:
        raise ConfigError(
            "no layer has the module",
            where="model.encoder, model.decoder",
            hint="switch it on where there are layers, or train --variant transformer",
        )
    # Windows of odd size are allowed: a sweep over sizes sets the side once.
    if s.even_side == "right" and not s.encoder:
        raise ConfigError(
            "only the decoder has the module, and its window never reaches to the right",
            where="model.even_side, model.encoder",
            hint="leave out model.even_side, or --set model.encoder=true",
        )
    first, last = map(int, s.layers.split("-")) if s.layers else (1, count)
    if s.layers and not 1 <= first <= last <= count:
        raise ConfigError(
            f"layers '{s.layers}' are not among the layers 1-{count}",
            where="model.layers",
            hint="for example --set model.layers=1-2",
        )
    return range(first - 1, last)


class DecoderDualContext(DualContext):
    """Dec-DC of Ampomah et al. 2021: the dual contextual module in the decoder."""

    Settings = with_defaults(DualContextSettings, encoder=False, decoder=True)
    packs = True


class FullDualContext(DualContext):
    """Full-DC of Ampomah et al. 2021: the dual contextual module in encoder and decoder."""

    Settings = with_defaults(DualContextSettings, decoder=True)
    packs = True
