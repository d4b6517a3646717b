"""Additive attention: weights over source positions, from a state and the key of each position.

Legend: B sentences, R = B·K rows, K hypotheses a sentence, S source length, A width of the
alignment layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmtkit.nn import gpu
from nmtkit.nn.capture import changed
from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import in_one_graph, loop_product
from nmtkit.nn.masks import Visible, additive

SITE = "attention"
"""The name of the weights in `capture`; a decoder has only one additive attention."""

Scale = Tensor | float | None
"""N of L1(exp(Nx)), a number or one for each sentence (B, 1, 1); None = 1, the usual softmax."""


class AdditiveAttention(nn.Module):
    """α = softmax(N·e), e_i = vᵀ tanh(W s + U h_i) over the source positions i.

    If bounded, e_i = tanh(w s + u h_i), with vectors w and u in place of the matrices.

    Args:
        d_query: width of s.
        d_source: width of h_i.
        width: A.
        bias: True if W s has a bias.
        bounded: True if A = 1, and v is the number 1 instead of a parameter.
    Source: Bahdanau et al. 2015, A.1.2, without biases. Im & Chan 2024 for the bounded form (their
        printed alignment) and for N.
    """

    def __init__(
        self, d_query: int, d_source: int, width: int, bias: bool = False, bounded: bool = False
    ) -> None:
        super().__init__()
        width = 1 if bounded else width
        self.query = Linear(d_query, width, bias)
        self.key = Linear(d_source, width, bias=False)
        self.score = None if bounded else Linear(width, 1, bias=False)

    @property
    def v(self) -> Tensor:
        """Return v (A)."""
        return self.query.weight.new_ones(1) if self.score is None else self.score.weight[0]

    def prepare(self, states: Tensor) -> Tensor:
        """Return U h_i, once per sentence: (B, S, d_source) -> (B, S, A).

        The result is doubled (see `_Scores`) and has the number type of the parameters.
        """
        return 2 * self.key(states).to(self.query.weight.dtype)

    def loop(
        self,
        keys: Tensor,
        visible: Visible,
        times: int,
        dtype: torch.dtype,
        scale: Scale = None,
    ) -> Callable[[Tensor], Tensor]:
        """Make the attention ready for a loop.

        Args:
            keys: from `prepare`.
            visible: bool (B, 1, S), the real source positions; None = all.
            times: steps, at most.
            dtype: number type of the product with the state.
            scale: N.
        Returns: s (R, d_query) -> weights (B, K, S); uniform where nothing is visible.
        """
        query, v = loop_product([self.query], times, dtype), self.v
        mask = None if visible is None else additive(visible, keys.dtype)

        def attend(s: Tensor) -> Tensor:
            q = query(s).view(len(keys), -1, keys.size(2))  # (B, K, A)
            scores = gpu.additive_scores(q, keys, v, 0.5)
            if scores is None:
                scores = _Scores.apply(self, q.to(keys.dtype), keys, v)
            return normalise(scores.to(keys.dtype), mask, scale)

        return attend

    @in_one_graph
    def step(self, q: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        """Return the scores 2 vᵀσ(2q + 2k); see `_Scores`."""
        return torch.matmul(_sigmoid_of_sum(q, keys), v).mul_(2)

    @in_one_graph
    def step_gradients(
        self, grad: Tensor, q: Tensor, keys: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, keys and v from that of the scores (B, K, S)."""
        sigma = _sigmoid_of_sum(q, keys)  # (B, K, S, A)
        dv = torch.mv(sigma.view(-1, len(v)).t(), grad.flatten()).mul_(2)
        slope = sigma.addcmul_(sigma, sigma, value=-1).mul_(2 * v)  # d score / d 2k = 2vσ(1-σ)
        dq = torch.matmul(grad.unsqueeze(2), slope).squeeze(2).mul_(2)
        slope.mul_(grad.unsqueeze(3))
        return dq, slope.squeeze(1) if slope.size(1) == 1 else slope.sum(1), dv


def normalise(scores: Tensor, mask: Visible, scale: Scale) -> Tensor:
    """L1(exp(N·e)) = softmax(N·e), stable for any size of N·e, in at least 32 bits.

    Args:
        scores: e (B, K, S).
        mask: from `masks.additive` (B, 1, S), None = all positions are real.
        scale: N.
    Returns: weights (B, K, S), after the changes of an open `capture`.
    Source: Im & Chan 2024, L1(exp(Nx)).
    """
    if scale is not None:
        scores = scores * scale
    return changed(SITE, torch.softmax(scores if mask is None else scores + mask, dim=-1))


class _Scores(torch.autograd.Function):
    """2 vᵀσ(2q + 2k) = vᵀ tanh(q + k) + Σv; the constant Σv does not change the softmax.

    Backward computes the (B, K, S, A) sigmoids again: storing them for every step of a loop would
    take too much memory.
    """

    @staticmethod
    def forward(ctx: Any, attention: AdditiveAttention, *tensors: Tensor) -> Tensor:
        """q (B, K, A), keys = 2k (B, S, A), v (A) -> (B, K, S)."""
        ctx.attention = attention
        ctx.save_for_backward(*tensors)
        return attention.step(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.attention.step_gradients(*grads, *ctx.saved_tensors)


def _sigmoid_of_sum(q: Tensor, keys: Tensor) -> Tensor:
    """σ(2q + 2k), (B, K, S, A)."""
    return torch.sigmoid_(keys.unsqueeze(1) + 2 * q.unsqueeze(2))
