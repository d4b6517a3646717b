"""The gradient of an affine map's bias, and ReLU or σ of the map.

The backward pass reads the gradient of the result once: it makes the gradient before ReLU or σ from
it, and sums its columns, which is the gradient of the bias.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.nn import private

ROWS, COLUMNS = 32, 64
"""Numbers that a program reads at once."""
WIDEST = 1 << 17
"""Columns of the widest map."""
PROGRAMS = 1024
"""Programs of a backward pass; each sums some rows of a block of columns."""


@triton.jit(do_not_specialize=["count"])
def _backward(
    d_out, out, dy, sums, d_bias, ended, count, width, row,
    RELU: tl.constexpr, SIGMOID: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        rows = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        at, real = rows * width + columns[None, :], (rows < count) & mask[None, :]
        gradient = tl.load(d_out + rows * row + columns[None, :], mask=real, other=0.0)
        gradient = gradient.to(tl.float32)
        if RELU or SIGMOID:
            result = tl.load(out + at, mask=real, other=0.0).to(tl.float32)
            if SIGMOID:
                gradient *= result * (1 - result)
            else:
                gradient = tl.where(result > 0, gradient, 0.0)
            tl.store(dy + at, gradient.to(dy.dtype.element_ty), mask=real)
        total += gradient
    tl.store(sums + tl.program_id(0) * width + columns, tl.sum(total, 0), mask=mask)
    # The program that ends last adds the sums of all programs, always in the same order.
    tl.debug_barrier()
    programs = tl.num_programs(0)
    if tl.atomic_add(ended + tl.program_id(1), 1) == programs - 1:
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first in range(0, programs, ROWS):
            rows = (first + tl.arange(0, ROWS))[:, None]
            real = (rows < programs) & mask[None, :]
            at = sums + rows * width + columns[None, :]
            total += tl.load(at, mask=real, other=0.0, cache_modifier=".cg")
        tl.store(d_bias + columns, tl.sum(total, 0).to(d_bias.dtype.element_ty), mask=mask)
        tl.store(ended + tl.program_id(1), 0)


@functools.cache
def _counters(device: torch.device) -> Tensor:
    """Return the numbers of programs that have ended, which each kernel leaves at 0."""
    return torch.zeros(WIDEST // COLUMNS, dtype=torch.int32, device=device)


def _gradients(
    d_out: Tensor, out: Tensor | None, dtype: torch.dtype, sigmoid: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the gradient before ReLU or σ, (N, D), and the one of the bias, (D).

    Args:
        d_out: (N, D), perhaps some columns of a wider tensor.
        out: the result of ReLU or σ, (N, D); None = there was neither.
        dtype: of the bias.
        sigmoid: it was σ.
    """
    d_out = d_out if d_out.stride(1) == 1 else d_out.contiguous()
    count, width = d_out.shape
    dy = d_out if out is None else torch.empty_like(out)
    blocks = triton.cdiv(width, COLUMNS)
    programs = max(1, min(triton.cdiv(PROGRAMS, blocks), triton.cdiv(count, ROWS)))
    sums = torch.empty(programs, width, dtype=torch.float32, device=d_out.device)
    d_bias, ended = torch.empty(width, dtype=dtype, device=d_out.device), _counters(d_out.device)
    values = (d_out, out, dy, sums, d_bias, ended, count, width, d_out.stride(0))
    kind = {"RELU": out is not None and not sigmoid, "SIGMOID": sigmoid}
    _backward[programs, blocks](*values, **kind, ROWS=ROWS, COLUMNS=COLUMNS)
    return dy, d_bias


class _Biased(torch.autograd.Function):
    """`biased` and its gradients."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor, sigmoid: bool) -> Tensor:
        ctx.dtype, ctx.sigmoid = bias.dtype, sigmoid
        ctx.mark_dirty(y)
        if sigmoid:
            ctx.save_for_backward(y.sigmoid_())
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Any:
        out = ctx.saved_tensors[0] if ctx.sigmoid else None
        return *_gradients(d_out, out, ctx.dtype, ctx.sigmoid), None


def biased(y: Tensor, bias: Tensor, sigmoid: bool = False) -> Tensor:
    """Return y (N, D), which includes the bias as a constant; the bias (D) gets its gradient here.

    Args:
        y: contiguous; only the caller has it.
        sigmoid: return σ(y).
    """
    return _Biased.apply(y, bias, sigmoid)


class _ReLU(torch.autograd.Function):
    """`relu_of_affine` and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, constant: Tensor) -> Tensor:
        out, ctx.dtype = private.relu_of_affine(x, weight, constant), bias.dtype
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Any:
        x, weight, out = ctx.saved_tensors
        dy, d_bias = _gradients(d_out, out, ctx.dtype)
        return dy @ weight, dy.t() @ x, d_bias, None


def relu_of_affine(x: Tensor, weight: Tensor, bias: Tensor, constant: Tensor) -> Tensor:
    """Return ReLU(x·Wᵀ + b), (N, in) -> (N, out).

    Args:
        x: (N, in).
        weight: (out, in), of the type of x.
        bias: (out), which gets a gradient.
        constant: its copy of the type of x.
    """
    return _ReLU.apply(x, weight, bias, constant)


def fits(bias: Tensor) -> bool:
    """True if the kernels compute with a bias (D)."""
    return bias.dtype.itemsize <= 4 and len(bias) <= WIDEST
