"""Convolutional self-attention: a query sees a window of positions, and of neighbouring heads.

Legend: B sentences, S source length, H heads, C width of one, M positions and N heads of a window;
a sentence has G blocks of W positions, whose queries see K positions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from pydantic import NonNegativeInt
from torch import Tensor
from torch.nn import functional as F

from nmtkit.data.packing import Segments
from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.transformer import EncoderLayer, Transformer, TransformerSettings
from nmtkit.nn import gpu
from nmtkit.nn.attention import SelfAttention, attention
from nmtkit.nn.cache import Cache
from nmtkit.nn.capture import capturing, record
from nmtkit.nn.masks import Sight, additive
from nmtkit.settings import AtLeastOne

BLOCK = 64
"""The most positions of a block, W. Memory grows with S·W and not with S²."""


class ConvolutionalSettings(TransformerSettings):
    """Settings of a Transformer, and of convolutional self-attention."""

    window: AtLeastOne = 11
    """Positions that a query sees, M, an odd number: its own, and as many before as after it."""
    head_window: AtLeastOne = 3
    """Heads whose keys and values a query sees, N, an odd number: its own and its neighbours
    (2D-CSAN), or 1 (1D-CSAN).
    """
    local_layers: NonNegativeInt = 0
    """Layers of the encoder that have convolutional self-attention, from the lowest; 0 = the lower
    half of the encoder, as in the paper (3 of 6).
    """


class Cut(NamedTuple):
    """How sentences (B, S, …) are cut into blocks of queries, and into the keys of each block."""

    block: int
    """W."""
    around: int
    """Positions before and after a block that its queries see: K = W + 2 · around."""
    fill: int
    """Positions by which the blocks are longer than the sentence."""

    @classmethod
    def of(cls, steps: int, longest: int, reach: int) -> Cut:
        """Return a cut of S positions into blocks of like size, whose queries see `reach` positions
        on each side.
        """
        if steps <= longest:
            return cls(steps, 0, 0)
        # A compiled graph is for blocks of one size, so there are few sizes.
        blocks, unit = -(-steps // longest), max(1, longest // 4)
        block = -(-steps // (blocks * unit)) * unit
        return cls(block, reach, -steps % block)

    def queries(self, x: Tensor) -> Tensor:
        """Return x (B, S, …) as (B·G, …, W)."""
        return self._windows(x, 0)

    def keys(self, x: Tensor) -> Tensor:
        """Return x (B, S, …) as (B·G, …, K), zero beyond the sentence."""
        return self._windows(x, self.around)

    def near(self, reach: int, device: torch.device) -> Tensor:
        """Return which keys are at most `reach` positions from each query, bool (W, K)."""
        keys = torch.arange(-self.around, self.block + self.around, device=device)
        return (keys - keys[self.around : self.around + self.block, None]).abs() <= reach

    def _windows(self, x: Tensor, around: int) -> Tensor:
        if self.block == x.size(1):  # a single block
            return x.movedim(1, -1)
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (around, around + self.fill))
        return x.unfold(1, self.block + 2 * around, self.block).flatten(0, 1)


class ConvolutionalAttention(SelfAttention):
    """Self-attention whose queries see the M positions around their own, in the N heads around
    their own.

    One softmax is over all N·M keys. There is nothing outside the sentence, and no head before the
    first or after the last one. The parameters are those of self-attention.

    A sentence is cut into blocks. A head reads the N·K keys that any query of a block sees in any
    of the N heads. A mask hides from a query the keys outside its own window.

    Args:
        settings: of the model.
    Source: Yang et al. 2019, Eqs. 4-8.
    """

    def __init__(self, settings: ConvolutionalSettings) -> None:
        super().__init__(*settings.attention_sizes)
        self.reach = settings.window // 2
        self.beside = min(settings.head_window // 2, self.heads - 1)

    def forward(
        self,
        x: Tensor,
        visible: Sight = None,
        causal: bool = False,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Attend within x (B, S, D), of which `visible` bool (B, 1, S) is real; None = all.

        An encoder has no use for the other arguments of `SelfAttention.forward`.
        """
        if isinstance(visible, Segments):  # the blocks are cut from the padded form
            sentences = visible.queries
            return sentences.packed(self(sentences.padded(x), sentences.visible))
        rows, steps, width = x.shape
        cut = Cut.of(steps, steps if capturing() else BLOCK, self.reach)
        q, k, v = gpu.parts(self.qkv(x).unflatten(-1, (3, self.heads, -1)))  # (B, S, H, C) each
        real = x.new_ones(rows, steps, dtype=torch.bool) if visible is None else visible[:, 0]
        seen = self._seen(cut, cut.keys(real))
        q = cut.queries(q).permute(0, 3, 1, 2)  # (B·G, W, H, C)
        k, v = (self._of_neighbours(cut.keys(each)) for each in (k, v))
        if capturing():
            self._record(q, k, seen)
        # A query of padding may see no key. Its context is never used.
        mask = additive(seen, q.dtype)
        context = attention(q, k, v, mask, p=self.p if self.training else 0.0)
        context = context.reshape(rows, -1, width)[:, :steps]
        if capturing():
            record(f"{self.name}_context", context)
        return self.out(context)

    def _of_neighbours(self, x: Tensor) -> Tensor:
        """Return what each head reads of x (B·G, H, C, K): (B·G, H, N·K, C), zero where there is no
        head.
        """
        x = F.pad(x.mT, (0, 0, 0, 0, self.beside, self.beside))  # (B·G, N-1+H, K, C)
        of_heads = [x[:, i : i + self.heads] for i in range(2 * self.beside + 1)]
        return torch.stack(of_heads, 2).flatten(2, 3)

    def _seen(self, cut: Cut, real: Tensor) -> Tensor:
        """Return which keys of which heads each query sees, bool (B·G, H, W, N·K).

        Args:
            real: bool (B·G, K).
        """
        head = torch.arange(-self.beside, self.heads + self.beside, device=real.device)
        exists = ((head >= 0) & (head < self.heads)).unfold(0, 2 * self.beside + 1, 1)  # (H, N)
        near = cut.near(self.reach, real.device) & real[:, None]  # (B·G, W, K)
        return (near[:, None, :, None] & exists[:, None, :, None]).flatten(3)

    def _record(self, q: Tensor, k: Tensor, seen: Tensor) -> None:
        """Record the weights of positions, those of all heads added up, (B, H, S, S)."""
        with torch.autocast(q.device.type, enabled=False):
            q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
            scores = q.transpose(1, 2) @ k.mT / math.sqrt(q.size(-1))
            weights = (scores + additive(seen, scores.dtype)).softmax(-1) * seen
        record(self.name, weights.unflatten(3, (2 * self.beside + 1, -1)).sum(3))


class ConvolutionalTransformer(Transformer):
    """Yang, Wang, Wong, Chao & Tu 2019, *Convolutional self-attention networks*, NAACL."""

    Settings = ConvolutionalSettings
    settings: ConvolutionalSettings
    paper = "Yang et al. 2019"
    packs = True

    def __init__(self, settings: ConvolutionalSettings, vocabularies: Vocabularies) -> None:
        s = settings
        for name, size in (("window", s.window), ("head_window", s.head_window)):
            if size % 2 == 0:
                message = f"{name} {size} is even; a window has a middle"
                hint = f"--set model.{name}={size + 1}"
                raise ConfigError(message, where=f"model.{name}", hint=hint)
        if not s.encoder_layers:
            message, hint = "the encoder has no layers", "--set model.encoder_layers=1"
            raise ConfigError(message, where="model.encoder_layers", hint=hint)
        if s.local_layers > s.encoder_layers:
            message = f"{s.local_layers} layers are more than the {s.encoder_layers} of the encoder"
            hint = f"--set model.local_layers={s.encoder_layers}"
            raise ConfigError(message, where="model.local_layers", hint=hint)
        super().__init__(settings, vocabularies)

    def encoder_layer(self, index: int) -> EncoderLayer:
        s = self.settings
        local = index < (s.local_layers or (s.encoder_layers + 1) // 2)
        return EncoderLayer(s, ConvolutionalAttention(s) if local else None)
