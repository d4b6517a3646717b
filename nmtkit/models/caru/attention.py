"""Gated attention: at every step the decoder's state refines the source states, then attends.

Keys and values are the refined source states. Products of the source states alone are computed once
per sentence. A step computes several tensors (B, K, S, W), one vector for every source position.
The backward pass computes these tensors again instead of storing them.

Legend: B sentences, R = B·K rows, K hypotheses a sentence, S source length, H width of the
decoder's state s, E_h of a source state h_i, W of a refined one g_i, A of the alignment layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmtkit.models.caru.gates import Gate
from nmtkit.nn import gpu
from nmtkit.nn.alignment import AdditiveAttention, Scale, normalise
from nmtkit.nn.capture import capturing, changing
from nmtkit.nn.loops import in_one_graph, loop_product
from nmtkit.nn.masks import Visible, additive
from nmtkit.nn.private import softmax_backward

NUMBERS_AT_ONCE, ELSEWHERE = 1 << 20, 1 << 26
"""Size of (B, K, S, W) that a step of a search computes at once: on a CPU, where it stays in the
caches, and on other devices.
"""
Attended = tuple[Tensor, Tensor, Tensor | None]
"""Context (R, W), weights (B, K, S), and openness: in a capture how open the gate is (B, K, S), NaN
where the gate has no effect; otherwise None."""
Attend = Callable[[Tensor, bool], Attended]
"""Attends from s (R, H); True at the first step."""


class GatedAttention(nn.Module):
    """c = Σ α_i g_i with α = softmax(N·e(g_i, s)) and g_i = gate(h_i, s).

    Args:
        gate: refines the source states.
        attention: attends from s to the refined states.
    """

    def __init__(self, gate: Gate, attention: AdditiveAttention) -> None:
        super().__init__()
        self.gate, self.attention = gate, attention

    def prepare(self, h: Tensor) -> Tensor:
        """Return products of source states (B, S, E_h) for `loop`, once per sentence: (B, S, ·)."""
        return self.gate.prepare(h)

    def loop(
        self,
        h: Tensor,
        of_h: Tensor,
        visible: Visible,
        times: int,
        dtype: torch.dtype,
        scale: Scale = None,
    ) -> Attend:
        """Make the attention ready for a loop.

        Args:
            h: source states (B, S, E_h).
            of_h: `prepare` of them.
            visible: bool (B, 1, S), the real source positions; None = all.
            times: maximum number of steps.
            dtype: number type of the products.
            scale: N.
        """
        gate, wide = self.gate, of_h.dtype
        state = loop_product([gate.state], times, dtype)
        query = loop_product([self.attention.query], times, dtype)
        h, of_h = h.to(wide).unsqueeze(1), of_h.unsqueeze(1)
        mask = None if visible is None else additive(visible, wide)
        fixed = mask, scale, self.attention.key.weight.to(dtype), self.attention.v

        def attend(s: Tensor, first: bool) -> Attended:
            of_s = state(s).to(wide).view(len(h), -1, 1, gate.state.out_features)
            alike = gate.first(of_s) if first else None  # the one g of all positions
            if alike is not None:
                context = alike.squeeze(2)  # (B, K, W)
                alpha = normalise(context.new_zeros(*context.shape[:2], h.size(2)), mask, None)
                if changing():  # Σ α_i g is g only as long as the weights sum to one
                    context = context * alpha.sum(-1, keepdim=True)
                return context.flatten(0, 1), alpha, alpha * torch.nan if capturing() else None
            q, states = (x.to(wide).view(*of_s.shape[:3], -1) for x in (query(s), s))
            history = states if gate.inverted else h
            arguments = *fixed, q, history, of_h, of_s, *gate.inner()
            if capturing() or not torch.is_grad_enabled():
                context, alpha = self._some_sentences_at_a_time(*arguments)
            elif gpu.refines(h, q.size(1), gate.width):
                context, alpha = _WithKernels.apply(gate, *arguments)
            else:
                context, alpha = _Recomputed.apply(self, *arguments)
            openness = gate.openness(of_h, of_s) if capturing() else None
            return context.flatten(0, 1), alpha, openness

        return attend

    @in_one_graph
    def step(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        """Return context and weights; see `refine_and_attend`."""
        return refine_and_attend(self.gate, *arguments)

    @in_one_graph
    def step_gradients(
        self,
        of_results: tuple[Tensor, Tensor],
        alpha: Tensor,
        scale: Scale,
        key: Tensor,
        v: Tensor,
        q: Tensor,
        *of_gate: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of `key` and of all arguments after it.

        Args:
            of_results: the gradients of context and weights.
            alpha: the weights.
            scale, key, v, q, of_gate: see `refine_and_attend`.
        """
        # dx is the gradient of x, low is g in the number type of products.
        g, pull = self.gate.with_gradient(key.dtype, *of_gate)
        low = g.to(key.dtype)  # (B, K, S, W)
        # Through c = Σ α_i g_i and α = softmax(N·e) to the scores e.
        dcontext, dalpha = of_results
        of_context = torch.matmul(low, dcontext.to(low.dtype).unsqueeze(-1)).squeeze(-1)
        dscores = softmax_backward(dalpha + of_context.to(alpha.dtype), alpha)
        dscores = dscores if scale is None else dscores * scale  # (B, K, S)
        dkey, dv, dq, dg = _score_gradients(dscores, low, key, v, q)
        dg = dg.to(g.dtype).addcmul_(alpha.unsqueeze(-1), dcontext.unsqueeze(2))
        return dkey, dv, dq, *pull(dg)

    def _some_sentences_at_a_time(self, *arguments: Any) -> tuple[Tensor, ...]:
        """Return `refine_and_attend`, a few sentences at a time.

        The refined states of long sources for many hypotheses would not fit into memory.
        """
        _, _, key, _, q, _, of_h, *_ = arguments
        linear = self.attention.key
        packed = linear.packed is not None and key.dtype == torch.float32
        project = (lambda x, _: linear(x)) if packed else F.linear
        numbers = q.size(1) * of_h.size(2) * self.gate.width
        # A change of weights sees the whole batch.
        most = NUMBERS_AT_ONCE if q.device.type == "cpu" else ELSEWHERE
        at_once = len(q) if changing() else max(1, most // numbers)
        results = []
        for start in range(0, len(q), at_once):
            # Tensors of more than two axes have sentences first.
            sentences = [
                x[start : start + at_once] if isinstance(x, Tensor) and x.dim() > 2 else x
                for x in arguments
            ]
            results.append(refine_and_attend(self.gate, *sentences, project=project))
        return tuple(map(torch.cat, zip(*results, strict=True)))


def refine_and_attend(
    gate: Gate,
    mask: Visible,
    scale: Scale,
    key: Tensor,
    v: Tensor,
    q: Tensor,
    *of_gate: Tensor,
    project: Callable[[Tensor, Tensor], Tensor] = F.linear,
) -> tuple[Tensor, Tensor]:
    """Refine the source states, and attend to them: one step.

    Args:
        gate: its `mix` gets the tensors `of_gate`.
        mask, scale: see `normalise`.
        key: the keys' matrix (A, W) in the number type of products.
        v: (A).
        q: the query (B, K, 1, A).
        project: multiplies with `key`.
    Returns: context (B, K, W), weights (B, K, S).
    """
    g = gate.mix(key.dtype, *of_gate)  # (B, K, S, W)
    low = g.to(key.dtype)
    product = project(low, key)  # (B, K, S, A)
    scores = gpu.additive_scores(q.squeeze(2), product.squeeze(1), v, 1.0)
    if scores is None:
        # vᵀ tanh(W g + q) + Σv; the constant Σv does not change the softmax.
        scores = torch.sigmoid(torch.add(2 * q, product, alpha=2)) @ (2 * v)
    alpha = normalise(scores, mask, scale)
    return torch.matmul(alpha.unsqueeze(2).to(low.dtype), low).squeeze(2).to(q.dtype), alpha


class _Recomputed(torch.autograd.Function):
    """`refine_and_attend` that stores only its arguments and the weights for backward."""

    @staticmethod
    def forward(ctx: Any, attention: GatedAttention, *arguments: Any) -> tuple[Tensor, Tensor]:
        context, alpha = attention.step(*arguments)
        _, ctx.scale, *tensors = arguments
        ctx.attention = attention
        ctx.save_for_backward(alpha, *tensors)
        return context, alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        alpha, *tensors = ctx.saved_tensors
        gradients = ctx.attention.step_gradients(grads, alpha, ctx.scale, *tensors)
        return None, None, None, *gradients


class _WithKernels(torch.autograd.Function):
    """`refine_and_attend` by kernels, computed again in backward, which reads what they keep."""

    @staticmethod
    def forward(
        ctx: Any, gate: Gate, mask: Visible, scale: Scale, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.fixed = fixed = gate, mask, scale
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        with torch.enable_grad():  # kernels serve trainings alone
            return tuple(x.detach() for x in refine_and_attend(*fixed, *tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad():
            results = refine_and_attend(*ctx.fixed, *inputs)
        learnt = [x for x in inputs if x.requires_grad]
        used = [pair for pair in zip(results, grads, strict=True) if pair[1] is not None]
        results, grads = zip(*used, strict=True)
        of_learnt = iter(torch.autograd.grad(results, learnt, grads))
        return None, None, None, *(next(of_learnt) if x.requires_grad else None for x in inputs)


def _score_gradients(
    dscores: Tensor, low: Tensor, key: Tensor, v: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of W, v, q and g from those of e = vᵀ tanh(a), a = W g + q.

    tanh(a) = 2σ(2a) - 1. What has the size of σ is given back here, before the gate's gradients.
    """
    dscores = 2 * dscores
    sigma = torch.sigmoid_(torch.add(2 * q, F.linear(low, key), alpha=2))  # (B, K, S, A)
    dv = torch.mv(sigma.flatten(0, 2).t(), dscores.flatten())
    slope = sigma.addcmul_(sigma, sigma, value=-1).mul_(2 * v).mul_(dscores.unsqueeze(-1))
    dq = slope.sum(2, keepdim=True)
    slope = slope.to(low.dtype).flatten(0, 2)
    dkey = torch.mm(slope.t(), low.flatten(0, 2))
    return dkey, dv, dq, torch.mm(slope, key).view(low.shape)
