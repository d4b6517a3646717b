"""Attention over short sentences on a CPU: a softmax for short rows, and attention of several queries, forwards and backwards written out.

There the same products as the plain ones, but heads are read where they lie inside the projection's output instead of being gathered
into blocks of their own first (and their gradients scattered back): a third of attention's time in training went into these copies.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.nn.dropout import draw
from nmtkit.nn.masks import block

SHORT_ROW = 16
"""torch's softmax over a CPU's rows shorter than its vectors goes number by number: of 15 numbers it takes 12 times as long as of 16."""


def softmax_(scores: Tensor) -> Tensor:
    """Softmax over the last axis; scores (…, S), of 32 bits or more, may be written over."""
    if scores.device.type != "cpu" or scores.requires_grad:
        return scores.softmax(-1)
    if scores.size(-1) >= SHORT_ROW:
        return torch.softmax(scores, -1, out=scores)
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    return scores.div_(scores.sum(-1, keepdim=True))


def softmax_gradient(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient of a softmax's input, from that of its output `weights` (…, S), on a CPU."""
    if weights.size(-1) >= SHORT_ROW:
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype)
    product = grad * weights
    return product.addcmul_(weights, product.sum(-1, keepdim=True), value=-1)


class ShortAttention(torch.autograd.Function):
    """`attention` for q (B, T, H, C), k (B, H, S, C), v (B, H, S, C'), of 32 bits or more: (B, T, H, C')."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool, p: float) -> Tensor:
        """Weights are kept for the backward pass, heads first: (H, B, T, S)."""
        batch, queries, heads, width = q.shape
        keys = k.size(2)
        ctx.scale = 1 / math.sqrt(width)
        weights = q.new_empty(heads, batch, queries, keys)
        for h, scores in enumerate(weights):
            torch.baddbmm(scores, q[:, :, h], k[:, h].transpose(1, 2), beta=0, alpha=ctx.scale, out=scores)
        softmax_(block(weights, visible, causal))
        if visible is not None and visible.dtype == torch.bool:
            weights.masked_fill_(~visible, 0)  # a blind query has uniform weights up to here
        mask, ctx.dropped = draw(weights, p) if p else (None, 1.0)
        used = weights if mask is None else (weights * mask).mul_(ctx.dropped)
        context = v.new_empty(heads, batch, queries, v.size(3))
        for h, out in enumerate(context):
            torch.bmm(used[h], v[:, h], out=out)
        ctx.save_for_backward(q, k, v, weights, mask)
        return context.permute(1, 2, 0, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients in the layout that costs one copy when autograd joins them with their neighbours'."""
        q, k, v, weights, mask = ctx.saved_tensors
        grad = grads[0]  # (B, T, H, C')
        used = weights if mask is None else (weights * mask).mul_(ctx.dropped)
        dweights = torch.empty_like(weights)
        dv = v.new_empty(v.size(1), v.size(0), *v.shape[2:])  # (H, B, S, C')
        for h in range(len(weights)):
            torch.bmm(grad[:, :, h], v[:, h].transpose(1, 2), out=dweights[h])
            torch.bmm(used[h].transpose(1, 2), grad[:, :, h], out=dv[h])
        if mask is not None:
            dweights.mul_(mask).mul_(ctx.dropped)
        dscores = softmax_gradient(dweights, weights)
        dq = q.new_empty(q.size(2), q.size(0), q.size(1), q.size(3))  # (H, B, T, C)
        dk = k.new_empty(k.size(1), k.size(0), *k.shape[2:])  # (H, B, S, C)
        for h, scores in enumerate(dscores):
            torch.baddbmm(dq[h], scores, k[:, h], beta=0, alpha=ctx.scale, out=dq[h])
            torch.baddbmm(dk[h], scores.transpose(1, 2), q[:, :, h], beta=0, alpha=ctx.scale, out=dk[h])
        return dq.permute(1, 2, 0, 3), dk.transpose(0, 1), dv.transpose(0, 1), None, None, None
