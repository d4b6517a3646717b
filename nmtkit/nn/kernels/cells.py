"""The element-wise work of a recurrent cell's step, forward and backward, each in one pass.

A program computes a row of a step, all of whose H numbers are in registers. Legend: N cells side by
side, R rows, H the width of the states.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

WIDEST = 4096
"""Wider states do not fit into registers."""


@triton.jit
def _load(x, at, real):
    """Return x as float32; zeros if x is None."""
    value = tl.zeros(at.shape, tl.float32)
    if x is not None:
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    return value


@triton.jit
def _store(x, at, real, value):
    if x is not None:
        tl.store(x + at, value.to(x.dtype.element_ty), mask=real)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _places(x, x_cell, x_row, width, H: tl.constexpr):
    """Return where the inputs of a program's row begin, where its row of H numbers begins in
    contiguous memory, the columns, and which of them there are.
    """
    cell, row = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    start, at = (cell * tl.num_programs(0) + row) * width, tl.arange(0, H)
    return x + cell * x_cell + row * x_row, start, at, at < width


@triton.jit
def _gate(x, p, at, real):
    """Return a gate whose numbers begin at `at` in the inputs x and in the products p."""
    return tl.sigmoid(_load(x, at, real) + _load(p, at, real))


@triton.jit
def _gates(x, p, h, kept, update, x_cell, x_row, width, H: tl.constexpr):
    x, start, at, real = _places(x, x_cell, x_row, width, H)
    p += 2 * start
    _store(kept, start + at, real, _gate(x, p, at, real) * _load(h, start + at, real))
    _store(update, start + at, real, _gate(x, p, width + at, real))


@triton.jit
def _gates_backward(
    x, p, h, d_kept, d_update, d_candidate, d_h, dx, dp, dh, x_cell, x_row, width, H: tl.constexpr
):  # fmt: skip
    x, start, at, real = _places(x, x_cell, x_row, width, H)
    p, dp, dx = p + 2 * start, dp + 2 * start, dx + 3 * start
    reset, update = _gate(x, p, at, real), _gate(x, p, width + at, real)
    of_kept = _load(d_kept, start + at, real)
    of_reset = of_kept * _load(h, start + at, real) * reset * (1.0 - reset)
    of_update = _load(d_update, start + at, real) * update * (1.0 - update)
    _store(dp, at, real, of_reset)
    _store(dp, width + at, real, of_update)
    _store(dx, at, real, of_reset)
    _store(dx, width + at, real, of_update)
    _store(dx, 2 * width + at, real, _load(d_candidate, start + at, real))
    _store(dh, start + at, real, of_kept * reset + _load(d_h, start + at, real))


@triton.jit
def _mix(x, p, h, update, out, narrow, x_cell, x_row, width, H: tl.constexpr):
    x, start, at, real = _places(x, x_cell, x_row, width, H)
    candidate = _tanh(_load(x, at, real) + _load(p, start + at, real))
    old = _load(h, start + at, real)
    new = old + _load(update, start + at, real) * (candidate - old)
    _store(out, start + at, real, new)
    _store(narrow, start + at, real, new)


@triton.jit
def _mix_backward(
    x, p, h, update, d_out, d_narrow, dx, dp, dh, d_update, x_cell, x_row, width, H: tl.constexpr
):  # fmt: skip
    x, start, at, real = _places(x, x_cell, x_row, width, H)
    candidate = _tanh(_load(x, at, real) + _load(p, start + at, real))
    share = _load(update, start + at, real)
    of_new = _load(d_out, start + at, real) + _load(d_narrow, start + at, real)
    of_sum = of_new * share * (1.0 - candidate * candidate)
    _store(dx, start + at, real, of_sum)
    _store(dp, start + at, real, of_sum)
    _store(dh, start + at, real, of_new * (1.0 - share))
    _store(d_update, start + at, real, of_new * (candidate - _load(h, start + at, real)))


@triton.jit
def _adaptive(
    x, p, h, out, narrow, x_cell, x_row, width, H: tl.constexpr, FACTOR: tl.constexpr
):  # fmt: skip
    x, start, at, real = _places(x, x_cell, x_row, width, H)
    p += 2 * start
    content, old = _load(x, at, real), _load(h, start + at, real)
    candidate = _tanh(content + FACTOR * _load(p, at, real))
    new = old + tl.sigmoid(content) * _gate(x, p, width + at, real) * (candidate - old)
    _store(out, start + at, real, new)
    _store(narrow, start + at, real, new)


@triton.jit
def _adaptive_backward(
    x, p, h, d_out, d_narrow, dx, dp, dh,
    x_cell, x_row, width, H: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    x, start, at, real = _places(x, x_cell, x_row, width, H)
    p, dp, dx = p + 2 * start, dp + 2 * start, dx + 2 * start
    content, old = _load(x, at, real), _load(h, start + at, real)
    candidate = _tanh(content + FACTOR * _load(p, at, real))
    gate, weight = _gate(x, p, width + at, real), tl.sigmoid(content)
    of_new = _load(d_out, start + at, real) + _load(d_narrow, start + at, real)
    of_sum = of_new * weight * gate * (1.0 - candidate * candidate)
    of_share = of_new * (candidate - old)
    of_gate = of_share * weight * gate * (1.0 - gate)
    _store(dp, at, real, FACTOR * of_sum)
    _store(dp, width + at, real, of_gate)
    _store(dx, at, real, of_sum + of_share * gate * weight * (1.0 - weight))
    _store(dx, width + at, real, of_gate)
    _store(dh, start + at, real, of_new * (1.0 - weight * gate))


def _start(kernel: Any, x: Tensor, h: Tensor, *values: Tensor | None, **options: float) -> None:
    """Start a program for each row of h (…, R, H); x has the same rows, `values` are contiguous."""
    rows, width = h.shape[-2:]
    strides = (x.stride(0) if x.dim() > 2 else 0), x.stride(-2)
    columns = triton.next_power_of_2(width)
    grid, warps = (rows, h.numel() // (rows * width)), max(1, min(8, columns // 128))
    kernel[grid](x, *values, *strides, width, H=columns, num_warps=warps, **options)


class _Gates(torch.autograd.Function):
    """The gates of a GRU. Its inputs x and h are results, too: their gradients are added here."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, p: Tensor, narrow: torch.dtype
    ) -> tuple[Tensor, ...]:
        kept, update = torch.empty_like(h, dtype=narrow), torch.empty_like(h)
        _start(_gates, x, h, p, h, kept, update)
        ctx.save_for_backward(x, p, h)
        return kept, update, x[..., 2 * h.size(-1) :], h.view_as(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, p, h = ctx.saved_tensors
        dx, dp, dh = x.new_empty(x.shape), torch.empty_like(p), torch.empty_like(h)
        _start(_gates_backward, x, h, p, h, *(g.contiguous() for g in gradients), dx, dp, dh)
        return dx, dh, dp, None


class _NextState(torch.autograd.Function):
    """The next state of a cell, None if not `wide`, and its copy for products, in `narrow`.

    `kernels` are those of forward and backward, with options; they read x, p, h and what follows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kernels: tuple[Any, Any, dict[str, float]],
        narrow: torch.dtype,
        wide: bool,
        *values: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        x, p, h, *_ = values
        forward, ctx.kernel, ctx.options = kernels
        out = torch.empty_like(h) if wide else None
        copy = torch.empty_like(h, dtype=narrow)
        _start(forward, x, h, *values[1:], out, copy, **ctx.options)
        ctx.save_for_backward(*values)
        ctx.set_materialize_grads(False)
        return out, copy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        x, p, h, *more = ctx.saved_tensors
        results = [value.new_empty(value.shape) for value in (x, p, h, *more)]
        of_state = (None if g is None else g.contiguous() for g in gradients)
        _start(ctx.kernel, x, h, p, h, *more, *of_state, *results, **ctx.options)
        return None, None, None, *results


def fits(x: Tensor, h: Tensor) -> bool:
    """True if the kernels compute a step from input-side products x and states h (…, R, H)."""
    same = x.shape[:-1] == h.shape[:-1] and x.stride(-1) == 1
    # Axes between the first one and the rows must have size 1.
    return same and h.is_contiguous() and h.shape[1:-2].numel() <= 1 and h.size(-1) <= WIDEST


def gru(
    x: Tensor, h: Tensor, p: Tensor, candidate: Any, only: torch.dtype | None = None
) -> tuple[Tensor | None, Tensor]:
    """Return the next state of a GRU (…, R, H), and its copy for products.

    Args:
        x: input-side products (…, R, 3·H).
        h: the state (…, R, H).
        p: the product of h for both gates (…, R, 2·H).
        candidate: makes the product for the candidate.
        only: number type of the copy if only the copy is needed; None = p's.
    """
    narrow = only or p.dtype
    kept, update, of_candidate, h = _Gates.apply(x, h, p.contiguous(), narrow)
    p = candidate(kept).contiguous()
    return _NextState.apply(
        (_mix, _mix_backward, {}), narrow, only is None, of_candidate, p, h, update
    )


def adaptive(
    x: Tensor, h: Tensor, p: Tensor, factor: float = 1.0, only: torch.dtype | None = None
) -> tuple[Tensor | None, Tensor]:
    """Return the next state of a content-adaptive unit (…, R, H), and its copy for products.

    Args:
        x: input-side products (…, R, 2·H).
        h: the state (…, R, H).
        p: the product of h (…, R, 2·H).
        factor: multiplies the half of p for the candidate.
        only: see `gru`.
    """
    kernels = _adaptive, _adaptive_backward, {"FACTOR": factor}
    return _NextState.apply(kernels, only or p.dtype, only is None, x, p.contiguous(), h)
