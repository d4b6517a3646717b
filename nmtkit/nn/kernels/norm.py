"""Dropout, the residual sum and layer norm, forward and backward, each in one pass over memory."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.nn.dropout import new_seed
from nmtkit.nn.kernels.random import dropout_factors

WIDEST = 8192
"""Wider rows do not fit into registers."""
NUMBERS = 4096
"""Numbers of all the rows that a program reads at once."""
PROGRAMS = 264
"""Programs of a backward pass; each sums the gradients of the parameters over its rows."""


@triton.jit
def _total(
    x, y, rows, columns, real, width, seed, p,
    SUMS: tl.constexpr, DROPS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Return x + Dropout(y) of some rows, or x alone, float32 (rows, D), and the factors of y."""
    at = rows[:, None] * width + columns
    total = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    factors = 1.0
    if DROPS:
        factors = dropout_factors(tl.load(seed), rows, 0, width, p, D)
    if SUMS:
        total += tl.load(y + at, mask=real, other=0.0).to(tl.float32) * factors
    return total, factors


@triton.jit
def _forward(
    x, y, weight, bias, out, narrow, means, scales, seed, count, width, p, eps,
    SUMS: tl.constexpr, DROPS: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)[None, :]
    real = (rows < count)[:, None] & (columns < width)
    total, _ = _total(x, y, rows, columns, real, width, seed, p, SUMS, DROPS, D)
    mean = tl.sum(total, 1) / width
    centred = tl.where(real, total - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
    gain = tl.load(weight + columns, mask=columns < width, other=0.0)
    shift = tl.load(bias + columns, mask=columns < width, other=0.0)
    result = centred * scale[:, None] * gain + shift
    at = rows[:, None] * width + columns
    if WIDE:
        tl.store(out + at, result, mask=real)
    if NARROW:
        tl.store(narrow + at, result.to(narrow.dtype.element_ty), mask=real)
    tl.store(means + rows, mean, mask=rows < count)
    tl.store(scales + rows, scale, mask=rows < count)


@triton.jit
def _backward(
    x, y, weight, means, scales, d_out, d_narrow, dx, dy, d_weight, d_bias, seed, count, width, p,
    SUMS: tl.constexpr, DROPS: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, D)[None, :]
    gain = tl.load(weight + columns, mask=columns < width, other=0.0)
    gain_sums, shift_sums = tl.zeros([ROWS, D], tl.float32), tl.zeros([ROWS, D], tl.float32)
    for start in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        real = (rows < count)[:, None] & (columns < width)
        total, factors = _total(x, y, rows, columns, real, width, seed, p, SUMS, DROPS, D)
        mean = tl.load(means + rows, mask=rows < count, other=0.0)[:, None]
        scale = tl.load(scales + rows, mask=rows < count, other=0.0)[:, None]
        normal = tl.where(real, (total - mean) * scale, 0.0)
        at = rows[:, None] * width + columns
        gradient = tl.zeros([ROWS, D], tl.float32)
        if WIDE:
            gradient += tl.load(d_out + at, mask=real, other=0.0)
        if NARROW:
            gradient += tl.load(d_narrow + at, mask=real, other=0.0).to(tl.float32)
        gain_sums += gradient * normal
        shift_sums += gradient
        gradient *= gain
        mean = tl.sum(gradient, 1)[:, None] / width
        product = tl.sum(gradient * normal, 1)[:, None] / width
        result = scale * (gradient - mean - normal * product)
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=real)
        if SUMS:
            tl.store(dy + at, (result * factors).to(dy.dtype.element_ty), mask=real)
    at, real = tl.program_id(0) * width + tl.arange(0, D), tl.arange(0, D) < width
    tl.store(d_weight + at, tl.sum(gain_sums, 0), mask=real)
    tl.store(d_bias + at, tl.sum(shift_sums, 0), mask=real)


class _ResidualNorm(torch.autograd.Function):
    """`residual_norm` and its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        p: float,
        eps: float,
        wide: bool,
        narrow_type: torch.dtype | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        x, y, ctx.p = x.contiguous(), y if y is None else y.contiguous(), p
        out = torch.empty_like(x, dtype=torch.float32) if wide else None
        narrow = None if narrow_type is None else torch.empty_like(x, dtype=narrow_type)
        count, width = x.numel() // x.size(-1), x.size(-1)
        means, scales = weight.new_empty(2, count).unbind()
        seed = new_seed(x.device) if p else None
        rows, options = _options(x, y, p, out, narrow)
        values = (x, y, weight, bias, out, narrow, means, scales, seed, count, width, p, eps)
        _forward[(triton.cdiv(count, rows),)](*values, **options)
        ctx.save_for_backward(x, y, weight, means, scales, seed)
        return out, narrow

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_narrow: Tensor | None) -> Any:
        x, y, weight, means, scales, seed = ctx.saved_tensors
        d_out, d_narrow = (g if g is None else g.contiguous() for g in (d_out, d_narrow))
        rows, options = _options(x, y, ctx.p, d_out, d_narrow)
        programs = min(PROGRAMS, triton.cdiv(len(means), rows))
        sums = means.new_empty(2, programs, x.size(-1))
        dx, dy = torch.empty_like(x), y if y is None else torch.empty_like(y)
        values = (x, y, weight, means, scales, d_out, d_narrow, dx, dy, *sums.unbind(), seed)
        _backward[(programs,)](*values, len(means), x.size(-1), ctx.p, **options)
        return dx, dy, *sums.sum(1).unbind(), None, None, None, None


def _options(
    x: Tensor, y: Tensor | None, p: float, wide: Tensor | None, narrow: Tensor | None
) -> tuple[int, dict[str, Any]]:
    """Return how many rows a program reads at once, and the options of both kernels."""
    width: int = triton.next_power_of_2(max(4, x.size(-1)))
    rows = max(1, NUMBERS // width)
    options = {"SUMS": y is not None, "DROPS": p > 0, "ROWS": rows, "D": width, "num_warps": 4}
    return rows, options | {"WIDE": wide is not None, "NARROW": narrow is not None}


def fits(x: Tensor, y: Tensor | None = None) -> bool:
    """True if `residual_norm` takes x and y (…, D)."""
    if y is not None and (y.shape != x.shape or y.dtype.itemsize > 4):
        return False
    return x.dtype.itemsize <= 4 and x.size(-1) <= WIDEST and x.numel() < 2**31


def residual_norm(
    x: Tensor,
    y: Tensor | None,
    norm: torch.nn.LayerNorm,
    p: float,
    wide: bool,
    narrow: torch.dtype | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return LN(x + Dropout(y)), and the same numbers rounded to 16 bits.

    Args:
        x, y: (…, D); without y, it is LN(x).
        norm: weight and bias float32 (D).
        p: probability of dropping an element of y.
        wide: False = without the first result.
        narrow: the type of 16 bits; None = without the second result.
    Returns: float32 (…, D); of the narrow type (…, D).
    """
    return _ResidualNorm.apply(x, y, norm.weight, norm.bias, p, norm.eps, wide, narrow)
