"""Scaled dot-product attention: one function for all models, and the two layers of the
Transformer made from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.data.context import stacked
from nmtkit.data.packing import Segments
from nmtkit.errors import ConfigError
from nmtkit.nn import cpu, gpu
from nmtkit.nn.cache import Cache
from nmtkit.nn.capture import capturing, changed, record
from nmtkit.nn.dropout import dropout
from nmtkit.nn.linear import Linear
from nmtkit.nn.masks import Sight, Visible, mask_of


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Sight = None,
    causal: bool = False,
    p: float = 0.0,
    name: str = "",
    parts: Sequence[str] = (),
) -> Tensor:
    """softmax(q·kᵀ/√C)·v for every head.

    Keys may belong to fewer rows than queries: with R = B·K, the K neighbours of a sentence attend
    to that sentence's keys, which are never copied.

    Args:
        q: queries (R, T, H, C).
        k: keys (B, H, S, C).
        v: values (B, H, S, C').
        visible: bool (B, 1 or K·T, S), True = may be attended; or numbers to add to the scores
            (`masks.additive`), which may differ by head, (B, H, K·T, S); None = all. For a packed
            batch (R = B = 1), `Segments`. Every query sees a key.
        causal: query t sees keys up to t only, counted from the end if S > T (needs R = B).
        p: dropout on the attention weights (training only).
        name: under which the weights (B, H, K·T, S) are captured.
        parts: names of groups of equally many heads; each group is captured under NAME.PART.
    Returns: (R, T, H·C').
    Source: Vaswani et al. 2017, Eq. 1.
    """
    if isinstance(visible, Segments):
        return _within_sentences(q, k, v, visible, causal, p)
    rows, steps, heads, width = q.shape
    q = q.reshape(k.size(0), -1, heads, width).transpose(1, 2)  # (B, H, K·T, C)
    # A Python bool: "causal and steps > 1" would be a symbol in a compiled graph, which no kernel
    # accepts.
    if steps == 1:
        causal = False
    if capturing() or cpu.writes_attention_out(q, k):
        context = _explicit(q, k, v, visible, causal, p, name, parts)
    else:
        context = _fused(q, k, v, visible, causal, p)
    context = context.transpose(1, 2).to(q.dtype, memory_format=torch.contiguous_format)
    context = context.reshape(rows, steps, -1)
    if name and capturing():
        record(f"{name}_context", context)
    return context


def _within_sentences(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, causal: bool, p: float
) -> Tensor:
    """Return `attention` of a packed batch, (1, T, H·C'): by kernels for sentences in a row, or in
    the padded form where there are none.
    """
    k, v = k.transpose(1, 2), v.transpose(1, 2)  # (1, S, H, C)
    queries, keys = segments
    # squeeze, not q[0]: the backward pass of an index first fills a whole gradient with zeros.
    context = gpu.row_attention(q.squeeze(0), k.squeeze(0), v.squeeze(0), segments, causal, p)
    if context is not None:
        return context.flatten(1).unsqueeze(0)
    q, k, v = queries.padded(q), keys.padded(k).transpose(1, 2), keys.padded(v).transpose(1, 2)
    # With a causal mask no query reaches the padding after its sentence.
    visible = None if causal else keys.visible
    return queries.packed(attention(q, k, v, visible, causal, p))


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    causal: bool,
    p: float,
    name: str,
    parts: Sequence[str],
) -> Tensor:
    """Compute the equation literally, (B, H, K·T, C'), in 32 bits or more: a score of 16 bits is
    off by up to a quarter.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    autocast = torch.is_autocast_enabled(q.device.type)
    with torch.autocast(q.device.type, enabled=False) if autocast else nullcontext():
        # The matrix products would copy tensors that are not contiguous a second time.
        q, k, v = (cpu.factor(x.to(wide)) for x in (q, k, v))
        scores = torch.matmul(q, k.mT).div_(math.sqrt(q.size(-1)))  # (B, H, K·T, S)
        mask = mask_of(visible, causal, q, k, wide)
        if mask is not None:
            scores.add_(_with_head_axis(mask))  # filling would need a backward pass
        weights = _captured(scores.softmax(-1), name, parts)
        return torch.matmul(dropout(weights, p), v)


def _captured(weights: Tensor, name: str, parts: Sequence[str]) -> Tensor:
    """Record weights (B, H, K·T, S), each group of heads under its own name.

    Returns: the weights as the open `capture` changes them.
    """
    if not name or not capturing():
        return weights
    names = [f"{name}.{part}" for part in parts] or [name]
    groups = zip(names, weights.chunk(len(names), dim=1), strict=True)
    used = {site: changed(site, group) for site, group in groups}
    for site, group in used.items():
        record(site, group)
    return torch.cat(list(used.values()), dim=1)


def _fused(q: Tensor, k: Tensor, v: Tensor, visible: Visible, causal: bool, p: float) -> Tensor:
    """Compute the equation in one kernel, (B, H, K·T, C')."""
    if causal and visible is None and q.size(2) == k.size(2):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
    mask = mask_of(visible, causal, q, k, q.dtype)
    context = None if p else gpu.search_attention(q, k, v, mask)
    if context is not None:
        return context
    mask = None if mask is None else _with_head_axis(mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)


def _with_head_axis(mask: Tensor) -> Tensor:
    return mask if mask.dim() == 4 else mask.unsqueeze(-3)


class Attention(nn.Module):
    """What self- and cross-attention share: sizes, dropout on the weights, the output projection.

    Args:
        width: D.
        heads: H, a divisor of D.
        dropout: probability of dropping an attention weight.
        bias: whether the projections have biases.
        parts: names of several groups of H heads side by side, under which `capture` sees them;
            none for a single group.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, bias: bool, parts: Sequence[str] = ()
    ) -> None:
        super().__init__()
        if width % heads:
            message = f"{heads} heads cannot share a width of {width}"
            hint = "make d_model a multiple of heads"
            raise ConfigError(message, where="model.heads, model.d_model", hint=hint)
        self.heads = heads
        self.p = dropout
        self.parts = tuple(parts)
        self.out = Linear((len(parts) or 1) * width, width, bias)
        self.name = ""
        """Under which `capture` sees the weights."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Sight,
        causal: bool = False,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Return `attention` of q (R, T, H, C) with this layer's dropout and name, then the output
        projection: (R, T, D).

        With a cache, k and v are added to those of its layer, and all of them are attended to.
        """
        if cache is not None:
            k, v = cache.append(layer, k, v)
            visible, causal = cache.visible, cache.visible is None
        p = self.p if self.training else 0.0
        return self.out(attention(q, k, v, visible, causal, p, self.name, self.parts))


class SelfAttention(Attention):
    """Every position attends to its own sequence; queries, keys and values come from one
    product.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__(width, heads, dropout, bias)
        self.qkv = Linear(width, 3 * width, bias, blocks=3)

    def forward(
        self,
        x: Tensor,
        visible: Sight = None,
        causal: bool = False,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Attend within x (R, T, D).

        Args:
            x: the new positions.
            visible: bool (R, 1 or T, T), None = all; not for use with a cache.
            causal: no position sees a later one.
            cache: the positions before these, to which these are added; None if x is everything.
            layer: the index of this layer in the cache.
        """
        q, k, v = gpu.unbind_parts(
            self.qkv(x).unflatten(-1, (3, self.heads, -1))
        )  # (R, T, H, C) each
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        return self.attend(q, k, v, visible, causal, cache, layer)


class CrossAttention(Attention):
    """Target positions attend to a source whose keys and values are computed once."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__(width, heads, dropout, bias)
        self.query = Linear(width, width, bias)
        self.kv = Linear(width, 2 * width, bias, blocks=2)

    def source(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each (B, H, S, C), of states.

        Args:
            parts: the states (B, S, D), or those of some rows at a time (B', S', D).
        """
        kv = stacked([self.kv(gpu.low_precision_copy(part)) for part in parts])
        k, v = gpu.unbind_parts(kv.unflatten(-1, (2, self.heads, -1)))
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if torch.is_grad_enabled():
            return k, v
        return k.contiguous(), v.contiguous()  # every step of a search reads them

    def forward(self, x: Tensor, source: tuple[Tensor, Tensor], visible: Sight) -> Tensor:
        """Attend from x (R, T, D) to `source` (from `source()`, B rows), of which `visible` bool
        (B, 1, S) may be seen.
        """
        return self.attend(self.query(x).unflatten(-1, (self.heads, -1)), *source, visible)
