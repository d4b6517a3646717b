"""Convolutional self-attention: a query sees a window of positions, and of neighbouring heads.

Legend: B sentences, S source length, H heads, C width of one, M positions and N heads of a window;
a row has G blocks of W positions, whose queries see K positions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
"""The most queries of a block, W·H, if W is at least 8. Memory grows with S·W and not with S²."""


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
    half of the encoder, rounded up (the paper: 3 of 6).
    """


class Windows(NamedTuple):
    """Blocks of W queries, and the keys that the queries of each block see.

    All layers with convolutional self-attention share them.
    """

    block: int
    """W."""
    around: int
    """Positions before and after a block that its queries see: K = W + 2 · around."""
    mask: Any = None
    """Numbers to add to scores, (B·G, W·H, K·H): 0 for the keys of all heads that a query sees, the
    lowest for others.
    """

    @classmethod
    def of(
        cls,
        sentences: Tensor,
        heads: int,
        window: int,
        head_window: int,
        dtype: torch.dtype,
        packed: bool = False,
    ) -> Windows:
        """Return the windows of positions and heads.

        Args:
            sentences: the number of the sentence of each position, at least 0, (B, S).
            dtype: of the scores.
            packed: a row has several sentences.
        """
        steps, reach = sentences.size(1), window // 2
        longest = steps if capturing() else max(8, BLOCK // heads)
        if steps <= longest and not packed:
            windows = cls(steps, 0)
        else:
            # Blocks of a packed row are as long as possible. Those of sentences are of similar
            # size, and there are few sizes: a compiled graph is for blocks of one size.
            blocks, unit = -(-steps // longest), max(1, longest // 4)
            block = longest if packed else -(-steps // (blocks * unit)) * unit
            windows = cls(max(reach, block), reach)
        numbers = sentences.unsqueeze(-1)
        same = windows.queries(numbers, -1) == windows.keys(numbers, -1).mT  # (B, G, W, K)
        near = same & _near(windows.block, same.size(-1), reach, windows.around, same.device)
        near_head = _near(heads, heads, head_window // 2, 0, same.device)
        seen = near[..., None, :, None] & near_head[:, None]  # (B, G, W, H, K, H)
        seen = seen.flatten(4).flatten(2, 3).flatten(0, 1)  # (B·G, W·H, K·H)
        return windows._replace(mask=additive(seen, dtype))

    def queries(self, x: Tensor, beyond: int = 0) -> Tensor:
        """Return x (…, S, D) as blocks (…, G, W, D), filled up with `beyond`."""
        fill = -x.size(-2) % self.block
        if torch.compiler.is_compiling() or fill:  # one graph for all lengths
            x = F.pad(x, (0, 0, 0, fill), value=beyond)
        return x.unflatten(-2, (-1, self.block))

    def keys(self, x: Tensor, beyond: int = 0) -> Tensor:
        """Return what the blocks of x (…, S, D) see, (…, G, K, D), `beyond` outside the row.

        Neighbouring blocks share memory.
        """
        blocks = self.queries(x, beyond)
        return _Keys.apply(blocks, self.around, beyond) if self.around else blocks


class _Keys(torch.autograd.Function):
    """Blocks (…, G, W, D) with the positions around them, (…, G, K, D). On a CPU the gradient of
    `unfold` takes twenty times as long.
    """

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, around: int, beyond: int) -> Tensor:
        ctx.around, block = around, blocks.size(-2)
        x = F.pad(blocks.flatten(-3, -2), (0, 0, around, around), value=beyond)
        return x.unfold(-2, block + 2 * around, block).mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        around, block = ctx.around, gradient.size(-2) - 2 * ctx.around
        before, own, behind = gradient.split((around, block, around), -2)
        total = own.clone()
        total[..., :-1, -around:, :].add_(before[..., 1:, :, :])
        total[..., 1:, :around, :].add_(behind[..., :-1, :, :])
        return total, None, None


def _near(queries: int, keys: int, reach: int, before: int, device: torch.device) -> Tensor:
    """Return which keys are at most `reach` from each query, bool (queries, keys); `before` keys
    stand before the first query.
    """
    every = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return every.tril_(before + reach).triu_(before - reach)


class ConvolutionalAttention(SelfAttention):
    """Self-attention whose queries see the M positions around their own, in the N heads around
    their own.

    One softmax is over all N·M keys. There is nothing outside the sentence, and no head before the
    first or after the last one. The parameters are those of self-attention.

    A row is cut into blocks. In each, the queries of all heads attend to the keys of all heads, as
    if there was one head; a mask hides from a query the keys outside its own window. This computes
    more scores than needed, but copies no key and no value for the heads beside its own.

    Source: Yang et al. 2019, Eqs. 4-8.
    """

    def forward(
        self,
        x: Tensor,
        visible: Any = None,
        causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend within x (B, S, D) as `visible`, of type `Windows`, says.

        An encoder has no use for the other arguments of `SelfAttention.forward`.
        """
        windows: Windows = visible
        rows, steps, width = x.shape
        q, kv = self.qkv(x).split((width, 2 * width), -1)
        k, v = windows.keys(kv.unflatten(-1, (2, width)).movedim(-2, 0)).unbind()
        blocks = (windows.queries(q), k, v)  # (B, G, W or K, D) each
        # (B·G, W·H or K·H, C) each
        q, k, v = (y.unflatten(-1, (self.heads, -1)).flatten(2, 3).flatten(0, 1) for y in blocks)
        p = self.p if self.training else 0.0
        context = attention(q.unsqueeze(2), k.unsqueeze(1), v.unsqueeze(1), windows.mask, p=p)
        context = context.reshape(rows, -1, width)[:, :steps]
        if capturing():
            self._record(q, k, windows.mask)
            record(f"{self.name}_context", context)
        return self.out(context)

    def _record(self, q: Tensor, k: Tensor, mask: Tensor) -> None:
        """Record the weights of positions, those of all heads added up, (B, H, S, S)."""
        with torch.autocast(q.device.type, enabled=False):
            q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
            scores = q @ k.mT / math.sqrt(q.size(-1))
            weights = (scores + mask).softmax(-1)  # (B, S·H, S·H)
        weights = weights.unflatten(2, (-1, self.heads)).sum(-1)
        record(self.name, weights.unflatten(1, (-1, self.heads)).transpose(1, 2))


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
                raise ConfigError(
                    f"{name} {size} is even; a window has a middle",
                    where=f"model.{name}",
                    hint=f"--set model.{name}={size + 1}",
                )
        if not s.encoder_layers:
            raise ConfigError(
                "the encoder has no layers",
                where="model.encoder_layers",
                hint="--set model.encoder_layers=1",
            )
        if s.local_layers > s.encoder_layers:
            raise ConfigError(
                f"{s.local_layers} layers are more than the {s.encoder_layers} of the encoder",
                where="model.local_layers",
                hint=f"--set model.local_layers={s.encoder_layers}",
            )
        super().__init__(settings, vocabularies)

    def encoder_layer(self, index: int) -> EncoderLayer:
        s = self.settings
        local = index < (s.local_layers or (s.encoder_layers + 1) // 2)
        return EncoderLayer(s, ConvolutionalAttention(*s.attention_sizes) if local else None)

    def through_encoder(self, x: Tensor, visible: Sight) -> Tensor:
        longest = x.size(1)
        packed = isinstance(visible, Segments)
        if isinstance(visible, Segments):
            packing = visible.queries
            longest = packing.positions.size(1)
            sentences = (packing.cells // longest)[None]
        elif visible is None:
            sentences = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
        else:
            sentences = visible[:, 0].long()  # padding sees padding
        s = self.settings
        # A window wider than the longest sentence sees the same positions.
        window = s.window if s.window < 2 * longest else 2 * longest - 1
        dtype = gpu.product_type(x)
        windows = Windows.of(sentences, s.heads, window, s.head_window, dtype, packed)
        for layer in self.encoder:
            local = isinstance(layer.attention, ConvolutionalAttention)
            x = layer(x, windows if local else visible)
        return self.encoder_norm(x)
