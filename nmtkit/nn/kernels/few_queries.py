"""Attention of few queries to many keys, without gradients: a step of a search.

A program computes one head of the queries of a sentence. It reads each key and each value once, and
none of a block that the mask hides from all queries: a search's buffers are longer than its past.
Scores and sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

QUERIES = 16
"""The most queries of a sentence: the fewest rows of a product."""
BLOCK, WARPS = 32, 2
"""Keys of a block, and groups of 32 threads of a program."""
HIDDEN = tl.constexpr(-1.0e30)
UNSEEN = tl.constexpr(-6.0e4)
"""A mask of any number type adds less than this to hide a key."""
VARIABLE = ["queries", "keys", "m_group", "m_query"]
"""Arguments for whose values no kernel of its own is compiled."""


@triton.jit
def _load(x, places, row, inside, width, C: tl.constexpr):
    """Return some rows of x, (places, C); those that are not inside, and channels from `width` on,
    are 0.
    """
    channels = tl.arange(0, C)[None, :]
    real = inside[:, None] & (channels < width)
    return tl.load(x + places[:, None].to(tl.int64) * row + channels, mask=real, other=0.0)


@triton.jit(do_not_specialize=VARIABLE)
def _attend(
    q, k, v, mask, out, queries, keys, scale, q_group, q_head, q_row, k_group, k_head, k_row,
    v_group, v_head, v_row, m_group, m_query,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    group, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    rows = tl.arange(0, ROWS)
    real = rows < queries
    query = _load(q + group * q_group + head * q_head, rows, q_row, real, WIDTH, C)
    k += group * k_group + head * k_head
    v += group * v_group + head * v_head
    highest = tl.full([ROWS], HIDDEN, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    context = tl.zeros([ROWS, C], tl.float32)
    for start in range(0, keys, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < keys
        seen = real[:, None] & inside[None, :]
        if MASKED:
            places = mask + group * m_group + rows[:, None] * m_query + columns[None, :]
            added = tl.load(places, mask=seen, other=HIDDEN).to(tl.float32)
        else:
            added = tl.where(seen, 0.0, HIDDEN)
        if tl.max(added) > UNSEEN:
            key = _load(k, columns, k_row, inside, WIDTH, C)
            value = _load(v, columns, v_row, inside, WIDTH, C)
            scores = tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale
            scores = tl.maximum(scores + added * 1.4426950408889634, HIDDEN)
            higher = tl.maximum(highest, tl.max(scores, 1))
            weights, shrink = tl.exp2(scores - higher[:, None]), tl.exp2(highest - higher)
            total, highest = total * shrink + tl.sum(weights, 1), higher
            context *= shrink[:, None]
            context += tl.dot(weights.to(value.dtype), value, input_precision="tf32x3")
    channels = tl.arange(0, C)[None, :]
    places = out + ((group * queries + rows[:, None]) * HEADS + head) * WIDTH + channels
    tl.store(
        places,
        (context / total[:, None]).to(out.dtype.element_ty),
        mask=real[:, None] & (channels < WIDTH),
    )


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if `attend` computes with these tensors."""
    last = all(x.stride(-1) == 1 for x in (q, k, v))
    return last and q.size(2) <= QUERIES and q.dtype.itemsize <= 4 and v.size(3) == q.size(3) <= 128


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q·kᵀ/√C + mask)·v, (B, H, T, C).

    Args:
        q: (B, H, T, C); k, v: (B, H, S, C).
        mask: (B, 1 or T, S) of numbers; every query sees a key; None = all.
    """
    groups, heads, queries, width = q.shape
    out = q.new_empty(groups, queries, heads, width)
    keys = k.size(2)
    strides = (0, 0)
    if mask is not None:
        mask = mask.expand(groups, -1, -1)
        mask = mask if mask.stride(2) == 1 else mask.contiguous()
        strides = mask.stride(0), mask.stride(1) if mask.size(1) > 1 else 0
    _attend[(groups * heads,)](
        q,
        k,
        v,
        mask if mask is not None else q,
        out,
        queries,
        keys,
        width**-0.5 * 1.4426950408889634,  # of scores to base 2
        *(stride for x in (q, k, v) for stride in x.stride()[:3]),
        *strides,
        WIDTH=width,
        HEADS=heads,
        C=max(16, triton.next_power_of_2(width)),
        MASKED=mask is not None,
        ROWS=QUERIES,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return out.transpose(1, 2)
