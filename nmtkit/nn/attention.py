"""Scaled dot-product attention: one function for all models, and the two layers of the
Transformer made from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar

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
    # "causal and steps > 1" would be a symbol in a compiled graph, which no kernel accepts.
    if steps == 1:
        causal = False
    context: Tensor | None
    if capturing() or cpu.writes_attention_out(q, k):
        context = _explicit(q, k, v, visible, causal, p, name, parts)
    elif causal and visible is None and q.size(2) == k.size(2):
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
    else:
        mask = mask_of(visible, causal, q, k, q.dtype)
        context = None if p else gpu.search_attention(q, k, v, mask)
        if context is None:
            mask = None if mask is None else _with_head_axis(mask)
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
    context = context.transpose(1, 2).to(q.dtype, memory_format=torch.contiguous_format)
    context = context.reshape(rows, steps, -1)
    if name and capturing():
        record(f"{name}_context", context)
    return context


def _within_sentences(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, causal: bool, p: float
) -> Tensor:
    """Return `attention` of a packed batch, (1, T, H·C'): by kernels for packed rows, or if none
    fits, in the padded form.
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
    """Compute the equation step by step, (B, H, K·T, C'), in 32 bits or more: the error of a
    16-bit score is up to a quarter.
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
        weights = scores.softmax(-1)
        if name and capturing():  # each group of heads under its own name
            sites = [f"{name}.{part}" for part in parts] or [name]
            groups = []
            for site, group in zip(sites, weights.chunk(len(sites), dim=1), strict=True):
                groups.append(changed(site, group))
                record(site, groups[-1])
            weights = torch.cat(groups, dim=1)
        return torch.matmul(dropout(weights, p), v)


def _with_head_axis(mask: Tensor) -> Tensor:
    return mask if mask.dim() == 4 else mask.unsqueeze(-3)


class Attention(nn.Module):
    """What self- and cross-attention share: sizes, dropout on the weights, the output projection.

    Args:
        width: D.
        heads: H, a divisor of D.
        dropout: probability of dropping an attention weight.
        bias: whether the projections have biases.
    Raises: ConfigError if H does not divide D.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    """Names of several groups of H heads side by side, for `capture`; none for a single group."""
    name = ""
    """The name of the weights in `capture`, from `Model.initialise`."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(
                f"{heads} heads cannot share a width of {width}",
                where="model.heads, model.d_model",
                hint="make d_model a multiple of heads",
            )
        self.heads = heads
        self.p = dropout
        self.out = Linear((len(self.parts) or 1) * width, width, bias)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Sight,
        causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the output projection of `context`: (R, T, D).

        With a cache, k and v are added to this layer's earlier ones, and all are attended to.
        """
        if cache is not None:
            k, v = cache.append(k, v)
            visible, causal = cache.visible, cache.visible is None
        return self.out(self.context(q, k, v, visible, causal))

    def context(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Sight, causal: bool = False
    ) -> Tensor:
        """Return `attention` of q (R, T, H, C) with this layer's dropout and name: (R, T, H·C)."""
        p = self.p if self.training else 0.0
        return attention(q, k, v, visible, causal, p, self.name, self.parts)


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
    ) -> Tensor:
        """Attend within x (R, T, D).

        Args:
            x: the new positions.
            visible: bool (R, 1 or T, T), None = all; not for use with a cache.
            causal: no position sees a later one.
            cache: the positions before these, to which these are added; None if x is everything.
        """
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (R, T, 3, H, C)
        q, k, v = gpu.unbind_parts(qkv)  # (R, T, H, C) each
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        return self.attend(q, k, v, visible, causal, cache)


class CrossAttention(Attention):
    """Target positions attend to a source whose keys and values are computed once."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__(width, heads, dropout, bias)
        self.query = Linear(width, width, bias)
        self.kv = Linear(width, 2 * width, bias, blocks=2)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries (R, T, H, C) of x (R, T, D)."""
        return self.query(x).unflatten(-1, (self.heads, -1))

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
        return self.attend(self.queries(x), *source, visible)
