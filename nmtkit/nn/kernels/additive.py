"""Scores of additive attention, forward and backward, without storing a sentence's S·A sums.

Legend: B sentences, each with one query, S source length, A width of the alignment layer.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

NARROWEST = 16


@triton.jit
def _part(q, keys, v, sentence, s, a, length, width, factor):
    """Return v, tanh(q + factor·k) of some positions and columns, where the keys k are, and which
    of them there are.
    """
    columns = a < width
    real = (s < length)[:, None] & columns[None, :]
    at = (sentence * length + s)[:, None] * width + a[None, :]
    key = tl.load(keys + at, mask=real, other=0.0).to(tl.float32)
    query = tl.load(q + sentence * width + a, mask=columns, other=0.0).to(tl.float32)
    weight = tl.load(v + a, mask=columns, other=0.0).to(tl.float32)
    sums = query[None, :] + factor * key
    return weight[None, :], 2.0 * tl.sigmoid(2.0 * sums) - 1.0, at, real


@triton.jit
def _scores(q, keys, v, out, length, width, factor, S: tl.constexpr, A: tl.constexpr):
    """A program computes S positions of a sentence."""
    sentence = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1) * S + tl.arange(0, S)
    scores = tl.zeros((S,), tl.float32)
    for first in range(0, width, A):
        a = first + tl.arange(0, A)
        weight, tanh, _, _ = _part(q, keys, v, sentence, s, a, length, width, factor)
        scores += tl.sum(weight * tanh, 1)
    tl.store(out + sentence * length + s, scores, mask=s < length)


@triton.jit
def _gradients(
    q, keys, v, grad, dq, dkeys, dv, length, width, factor, S: tl.constexpr, A: tl.constexpr
):  # fmt: skip
    """A program computes A columns of a sentence."""
    sentence = tl.program_id(0).to(tl.int64)
    a = tl.program_id(1) * A + tl.arange(0, A)
    of_query, of_v = tl.zeros((A,), tl.float32), tl.zeros((A,), tl.float32)
    for first in range(0, length, S):
        s = first + tl.arange(0, S)
        weight, tanh, at, real = _part(q, keys, v, sentence, s, a, length, width, factor)
        of_score = tl.load(grad + sentence * length + s, mask=s < length, other=0.0)[:, None]
        of_sum = of_score * weight * (1.0 - tanh * tanh)
        tl.store(dkeys + at, (factor * of_sum).to(dkeys.dtype.element_ty), mask=real)
        of_query += tl.sum(of_sum, 0)
        of_v += tl.sum(of_score * tanh, 0)
    at = sentence * width + a
    tl.store(dq + at, of_query.to(dq.dtype.element_ty), mask=a < width)
    tl.store(dv + at, of_v, mask=a < width)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, v: Tensor, factor: float) -> Tensor:
        sentences, length, width = keys.shape
        out = torch.empty(sentences, length, dtype=torch.float32, device=q.device)
        grid = sentences, triton.cdiv(length, 16)
        _scores[grid](q, keys, v, out, length, width, factor, S=16, A=128)
        ctx.save_for_backward(q, keys, v)
        ctx.factor = factor
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs = q, keys, v = ctx.saved_tensors
        sentences, length, width = keys.shape
        dq, dkeys = torch.empty_like(q), torch.empty_like(keys)
        dv = torch.empty(sentences, width, dtype=torch.float32, device=q.device)
        results = gradients[0].contiguous(), dq, dkeys, dv
        grid = sentences, triton.cdiv(width, 64)
        _gradients[grid](*inputs, *results, length, width, ctx.factor, S=32, A=64)
        return dq, dkeys, dv.sum(0).to(v.dtype), None


def fits(q: Tensor, keys: Tensor) -> bool:
    """True if the kernels compute scores of queries (R, A) and keys (B, S, A)."""
    return len(q) == len(keys) and q.size(-1) >= NARROWEST


def scores(q: Tensor, keys: Tensor, v: Tensor, factor: float) -> Tensor:
    """Return vᵀ tanh(q + factor·k), (B, S).

    Args:
        q: (B, A).
        keys: (B, S, A).
        v: (A).
    """
    inputs = (x.contiguous() for x in (q, keys, v))
    return _Scores.apply(*inputs, factor)
