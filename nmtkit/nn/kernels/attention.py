"""Attention within the sentences of a packed row.

A program computes one head of a block of queries. It reads the keys from the first position of the
block's first sentence to the last position of its last sentence, and hides those of other
sentences. So short sentences share a block: a kernel that gives each sentence blocks of its own
computes several times as many scores. Scores and sums are float32.

Source: Dao 2023, *FlashAttention-2: faster attention with better parallelism and work
partitioning*.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmtkit.data.packing import Packing
from nmtkit.nn.dropout import new_seed
from nmtkit.nn.kernels.random import dropout_factors

BLOCK = 64
"""Queries, and keys, of a block. It is half as many with dropout, whose random numbers take
registers, and for heads wider than 64, which need more than the 99 KiB of shared memory that many
GPUs have.
"""
HIDDEN = tl.constexpr(-1.0e30)
VARIABLE = ["length", "key_length", "queries", "keys"]
"""Arguments for whose values no kernel of its own is compiled."""


@triton.jit
def _load(x, rows, row, width, C: tl.constexpr):
    """Return some rows of x, (rows, C); channels from `width` on are 0."""
    channels = tl.arange(0, C)[None, :]
    return tl.load(
        x + rows[:, None].to(tl.int64) * row + channels, mask=channels < width, other=0.0
    )


@triton.jit
def _store(x, values, rows, count, row, width, C: tl.constexpr):
    channels = tl.arange(0, C)[None, :]
    real = (rows < count)[:, None] & (channels < width)
    tl.store(
        x + rows[:, None].to(tl.int64) * row + channels, values.to(x.dtype.element_ty), mask=real
    )


@triton.jit
def _bounds(cells, length, offsets, rows):
    """Return where the sentences of some positions begin and end on the other side."""
    sentence = tl.load(cells + rows) // length
    return tl.load(offsets + sentence), tl.load(offsets + sentence + 1)


@triton.jit
def _reach(
    cells, length, offsets, queries, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the rows of a program's queries, those to read, where their sentences begin and end on
    the other side, and the first and the last key of all of them.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    read = tl.minimum(rows, queries - 1)
    begin, end = _bounds(cells, length, offsets, read)
    stop = tl.max(end, 0)
    if CAUSAL:
        stop = tl.minimum(stop, tl.max(read, 0) + 1)
    # Dropout draws for four neighbouring keys at once.
    return rows, read, begin, end, tl.min(begin, 0) // 4 * 4, stop


@triton.jit
def _pair(k, v, columns, keys, k_row, v_row, width, C: tl.constexpr):
    """Return keys and values, both (keys, C); those after the last one are any."""
    clamped = tl.minimum(columns, keys - 1)
    return _load(k, clamped, k_row, width, C), _load(v, clamped, v_row, width, C)


@triton.jit
def _scores(q, k, rows, columns, begin, end, factor, CAUSAL: tl.constexpr):
    """Return q·k times a factor, (queries, keys), and HIDDEN where a query sees no key."""
    seen = (columns[None, :] >= begin[:, None]) & (columns[None, :] < end[:, None])
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * factor, HIDDEN)


@triton.jit(do_not_specialize=VARIABLE)
def _forward(
    q, k, v, out, sums, cells, offsets, seed, length, queries, keys, scale, p, q_row, q_head,
    k_row, k_head, v_row, v_head,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    rows, read, begin, end, first, stop = _reach(cells, length, offsets, queries, CAUSAL, BLOCK)
    query = _load(q + head * q_head, read, q_row, WIDTH, C)
    highest = tl.full([BLOCK], HIDDEN, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    context = tl.zeros([BLOCK, C], tl.float32)
    for start in range(first, stop, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        key, value = _pair(
            k + head * k_head, v + head * v_head, columns, keys, k_row, v_row, WIDTH, C
        )
        scores = _scores(query, key, read, columns, begin, end, scale, CAUSAL)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, shrink = tl.exp2(scores - higher[:, None]), tl.exp2(highest - higher)
        total, highest = total * shrink + tl.sum(weights, 1), higher
        if DROPS:
            weights *= dropout_factors(tl.load(seed) + head, read, start, keys, p, BLOCK)
        context *= shrink[:, None]
        context += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    some = highest > HIDDEN  # a sentence of <pad> may have no keys
    context = tl.where(some[:, None], context / total[:, None], 0.0)
    _store(out + head * WIDTH, context, rows, queries, HEADS * WIDTH, WIDTH, C)
    log_total = tl.where(some, highest + tl.log2(total), 0.0)
    tl.store(sums + head * queries + rows, log_total, mask=rows < queries)


@triton.jit(do_not_specialize=VARIABLE)
def _backward_queries(
    q, k, v, out, d_out, sums, centres, dq, d_row, cells, offsets, seed, length, queries, keys,
    scale, p, q_row, q_head, k_row, k_head, v_row, v_head,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    rows, read, begin, end, first, stop = _reach(cells, length, offsets, queries, CAUSAL, BLOCK)
    query = _load(q + head * q_head, read, q_row, WIDTH, C)
    gradient = _load(d_out + head * WIDTH, read, HEADS * WIDTH, WIDTH, C)
    context = _load(out + head * WIDTH, read, HEADS * WIDTH, WIDTH, C)
    centre = tl.sum(gradient.to(tl.float32) * context.to(tl.float32), 1)
    tl.store(centres + head * queries + rows, centre, mask=rows < queries)
    sums_of_rows = tl.load(sums + head * queries + read)[:, None]
    result = tl.zeros([BLOCK, C], tl.float32)
    for start in range(first, stop, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        key, value = _pair(
            k + head * k_head, v + head * v_head, columns, keys, k_row, v_row, WIDTH, C
        )
        scores = _scores(query, key, read, columns, begin, end, scale, CAUSAL)
        d_weights = tl.dot(gradient, tl.trans(value), input_precision="ieee")
        if DROPS:
            d_weights *= dropout_factors(tl.load(seed) + head, read, start, keys, p, BLOCK)
        d_scores = tl.exp2(scores - sums_of_rows) * (d_weights - centre[:, None])
        result += tl.dot(d_scores.to(key.dtype), key, input_precision="ieee")
    result *= scale * tl.log(2.0)
    _store(dq + head * WIDTH, result, rows, queries, d_row, WIDTH, C)


@triton.jit(do_not_specialize=VARIABLE)
def _backward_keys(
    q, k, v, d_out, sums, centres, dk, dv, d_row, cells, offsets, key_cells, key_offsets, seed,
    length, key_length, queries, keys, scale, p, q_row, q_head, k_row, k_head, v_row, v_head,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(1), tl.program_id(0) * BLOCK
    columns = first + tl.arange(0, BLOCK)
    from_query, to_query = _bounds(key_cells, key_length, offsets, tl.minimum(columns, keys - 1))
    key, value = _pair(k + head * k_head, v + head * v_head, columns, keys, k_row, v_row, WIDTH, C)
    d_key, d_value = tl.zeros([BLOCK, C], tl.float32), tl.zeros([BLOCK, C], tl.float32)
    begin_query = tl.min(from_query, 0)
    if CAUSAL:
        begin_query = tl.maximum(begin_query, first)
    for start in range(begin_query, tl.max(to_query, 0), BLOCK):
        rows = start + tl.arange(0, BLOCK)
        read = tl.minimum(rows, queries - 1)
        begin, end = _bounds(cells, length, key_offsets, read)
        end = tl.where(rows < queries, end, 0)
        query = _load(q + head * q_head, read, q_row, WIDTH, C)
        gradient = _load(d_out + head * WIDTH, read, HEADS * WIDTH, WIDTH, C)
        scores = _scores(query, key, read, columns, begin, end, scale, CAUSAL)
        weights = tl.exp2(scores - tl.load(sums + head * queries + read)[:, None])
        d_weights, used = tl.dot(gradient, tl.trans(value), input_precision="ieee"), weights
        if DROPS:
            factors = dropout_factors(tl.load(seed) + head, read, first, keys, p, BLOCK)
            d_weights, used = d_weights * factors, weights * factors
        d_value += tl.dot(tl.trans(used.to(value.dtype)), gradient, input_precision="ieee")
        centre = tl.load(centres + head * queries + read)[:, None]
        d_scores = (weights * (d_weights - centre)).to(key.dtype)
        d_key += tl.dot(tl.trans(d_scores), query, input_precision="ieee")
    d_key *= scale * tl.log(2.0)
    _store(dk + head * WIDTH, d_key, columns, keys, d_row, WIDTH, C)
    _store(dv + head * WIDTH, d_value, columns, keys, d_row, WIDTH, C)


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
    out, sums = _empty(q), _sums(q)
    values = (out, sums, cells, key_offsets, seed, lengths[0])
    _launch(_forward, q, (q, k, v), values, causal, p)
    return out, sums


@_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty(q), _sums(q)


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
    """Return the gradients as `_beside` makes them."""
    cells, offsets, key_cells, key_offsets = places
    gradients = _beside(q, k)
    dq, dk, dv = _apart(*gradients)
    centres, d_out, states = torch.empty_like(sums), d_out.contiguous(), (q, k, v)
    of_queries = (out, d_out, sums, centres, dq, dq.stride(0), cells, key_offsets, seed, lengths[0])
    _launch(_backward_queries, q, states, of_queries, causal, p)
    of_keys = (d_out, sums, centres, dk, dv, dk.stride(0), cells, offsets, key_cells, key_offsets)
    _launch(_backward_keys, k, states, (*of_keys, seed, *lengths), causal, p)
    return gradients


@_gradients.register_fake
def _(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _beside(q, k)


def _beside(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
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


def _empty(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _sums(q: Tensor) -> Tensor:
    return q.new_empty((q.size(1), q.size(0)), dtype=torch.float32)


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
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
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
    result: tuple[Tensor, ...] = _Parts.apply(x)
    return result


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
    context: Tensor = _attention(q, k, v, places, lengths, causal, p, seed)[0]
    return context
