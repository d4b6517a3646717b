"""The Triton kernels of attention within the sentences of a packed row.

A program computes one head of a block of queries. It reads the keys from the first position of the
block's first sentence to the last position of its last sentence, and hides those of other
sentences. So short sentences share a block: a kernel that gives each sentence blocks of its own
computes several times as many scores. Scores and sums are float32.

Source: Dao 2023, *FlashAttention-2: faster attention with better parallelism and work
partitioning*.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nmtkit.nn.kernels.random import dropout_factors

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
    """Return keys and values, both (keys, C); rows after the last key are arbitrary."""
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
def forward(
    q, k, v, out, sums, cells, offsets, seed, length, queries, keys, scale, p, q_row, q_head,
    k_row, k_head, v_row, v_head,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the context of a block of queries, and log₂ Σ 2^score of each query."""
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
def backward_queries(
    q, k, v, out, d_out, sums, centres, dq, d_row, cells, offsets, seed, length, queries, keys,
    scale, p, q_row, q_head, k_row, k_head, v_row, v_head,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradient of a block of queries, and gradient·context of each query."""
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
def backward_keys(
    q, k, v, d_out, sums, centres, dk, dv, d_row, cells, offsets, key_cells, key_offsets, seed,
    length, key_length, queries, keys, scale, p, q_row, q_head, k_row, k_head, v_row, v_head,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, CAUSAL: tl.constexpr,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a block of keys and of their values; `backward_queries` goes first."""
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
