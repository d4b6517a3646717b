"""Attention within the sentences of a packed row, as an operator of torch with its gradient.

flash_attention.py has the kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from nmtkit.data.packing import Packing
from nmtkit.nn.dropout import new_seed
from nmtkit.nn.kernels.flash_attention import backward_keys, backward_queries, forward

BLOCK = 64
"""Queries, and keys, of a block. It is half as many with dropout, whose random numbers take
registers, and for heads wider than 64, which need more than the 99 KiB of shared memory that many
GPUs have.
"""


def _context_memory(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return memory for the results of `_attention` of q (T, H, C)."""
    sums = q.new_empty((q.size(1), q.size(0)), dtype=torch.float32)
    return torch.empty_like(q, memory_format=torch.contiguous_format), sums


@torch.library.custom_op(
    "nmtkit::row_attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor[] places, SymInt[] lengths, bool causal,"
    " float p, Tensor seed) -> (Tensor, Tensor)",
)
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: list[Tensor],
    lengths: list[int],
    causal: bool,
    p: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the context (T, H, C), and log₂ Σ 2^score (H, T) for the backward pass.

    Args:
        places: cells and offsets of the queries' and of the keys' `Packing`.
        lengths: L of both.
        seed: of the dropout.
    """
    cells, _, _, key_offsets = places
    out, sums = _context_memory(q)
    values = (out, sums, cells, key_offsets, seed, lengths[0])
    _launch(forward, q, (q, k, v), values, causal, p)
    return out, sums


@_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _context_memory(q)


@torch.library.custom_op(
    "nmtkit::row_attention_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums, Tensor d_out, Tensor[] places,"
    " SymInt[] lengths, bool causal, float p, Tensor seed) -> (Tensor, Tensor)",
)
def _gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    d_out: Tensor,
    places: list[Tensor],
    lengths: list[int],
    causal: bool,
    p: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients as `_gradient_memory` makes them."""
    cells, offsets, key_cells, key_offsets = places
    gradients = _gradient_memory(q, k)
    dq, dk, dv = _apart(*gradients)
    centres, d_out, states = torch.empty_like(sums), d_out.contiguous(), (q, k, v)
    of_queries = (out, d_out, sums, centres, dq, dq.stride(0), cells, key_offsets, seed, lengths[0])
    _launch(backward_queries, q, states, of_queries, causal, p)
    of_keys = (d_out, sums, centres, dk, dv, dk.stride(0), cells, offsets, key_cells, key_offsets)
    _launch(backward_keys, k, states, (*of_keys, seed, *lengths), causal, p)
    return gradients


@_gradients.register_fake
def _(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _gradient_memory(q, k)


def _gradient_memory(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return memory for gradients, side by side as in the product that made the states.

    Returns: (T, 3, H, C) and nothing if one product made all; else (T, 1, H, C) and (S, 2, H, C).
    """
    parts = 3 if q.stride(0) == 3 * q[0].numel() and q.size(0) == k.size(0) else 1
    return q.new_empty(q.size(0), parts, *q.shape[1:]), k.new_empty(
        k.size(0), 3 - parts, *k.shape[1:]
    )


def _apart(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of queries, keys and values."""
    return (*first.unbind(1), *second.unbind(1))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *states, places, ctx.lengths, ctx.causal, ctx.p, seed = inputs
    ctx.save_for_backward(*states, *output, *places, seed)


def _backward(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Any, ...]:
    *states, a, b, c, d, seed = ctx.saved_tensors
    values = ([a, b, c, d], ctx.lengths, ctx.causal, ctx.p, seed)
    gradients = _gradients(*states, d_out, *values)
    return *_apart(*gradients), [None] * 4, None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep)


def _launch(
    kernel: Any,
    blocks_of: Tensor,
    states: tuple[Tensor, ...],
    values: tuple[Any, ...],
    causal: bool,
    p: float,
) -> None:
    """Start a program for each block of positions of a tensor, and each head."""
    states = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in states)
    q, k, _ = states
    width = q.size(-1)
    block = BLOCK if width <= 64 and not p else BLOCK // 2
    kernel[(triton.cdiv(blocks_of.size(0), block), q.size(1))](
        *states,
        *values,
        q.size(0),
        k.size(0),
        (width**-0.5) * 1.4426950408889634,  # of scores to base 2
        p,
        *(stride for x in states for stride in x.stride()[:2]),
        WIDTH=width,
        HEADS=q.size(1),
        C=max(16, triton.next_power_of_2(width)),
        CAUSAL=causal,
        DROPS=p > 0,
        BLOCK=block,
    )


def fits(q: Tensor, v: Tensor) -> bool:
    """True if `within_sentences` takes queries and values (…, C)."""
    return q.dtype.itemsize == 2 and q.size(-1) == v.size(-1) <= 128


class _Parts(torch.autograd.Function):
    """`parts` and its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x.unbind(2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first = gradients[0]
        shape = (*first.shape[:2], len(gradients), *first.shape[2:])
        strides = torch.empty(shape, device="meta").stride()
        start, memory = first.storage_offset(), first.untyped_storage().data_ptr()
        places = [(g.untyped_storage().data_ptr(), g.storage_offset()) for g in gradients]
        wanted = [(memory, start + i * strides[2]) for i in range(len(gradients))]
        as_wanted = all(g.stride()[1:] == (strides[1], *strides[3:]) for g in gradients)
        if len(first) == 1 and as_wanted and places == wanted:
            return first.as_strided(shape, strides, start)
        return torch.stack(gradients, 2)


def parts(x: Tensor) -> tuple[Tensor, ...]:
    """Return x (R, T, n, H, C) as n tensors (R, T, H, C); gradients that lie side by side, as those
    of `within_sentences`, are not copied.
    """
    return _Parts.apply(x)


def within_sentences(
    q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, causal: bool, p: float
) -> Tensor:
    """Return attention within sentences, (T, H, C).

    Args:
        q: (T, H, C).
        k, v: (S, H, C).
        queries, keys: where the sentences lie in T and in S.
        causal: True if no query sees later keys.
        p: dropout on the weights.
    """
    places = [queries.cells, queries.offsets, keys.cells, keys.offsets]
    lengths = [queries.positions.size(1), keys.positions.size(1)]
    seed = new_seed(q.device) if p else queries.cells
    return _attention(q, k, v, places, lengths, causal, p, seed)[0]
