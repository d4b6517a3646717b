"""Gated attention: at every step the decoder's state refines each source state before it is attended to; keys and values are the refined ones.

What depends on the source alone is computed once per sentence. What a step makes of every source position, (B, K, S, W) numbers several times
over, is not kept for the backward pass but computed again there.

Legend: B sentences, R = B·K rows, K hypotheses a sentence, S source length, H width of the decoder's state s, E_h of a source state h_i,
W of a refined one g_i, A of the alignment layer, T steps.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, tanh
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmtkit.nn.alignment import AdditiveAttention, normalise
from nmtkit.nn.capture import capturing, changing
from nmtkit.nn.linear import Linear
from nmtkit.nn.masks import additive
from nmtkit.nn.repeated import repeated

Project = Callable[[Tensor, Tensor], Tensor]
PIECE = 1 << 20
"""Numbers (B, K, S, W) of a search's step that are worked on at once."""


OPEN = "0 leaves a source word as it was read, 1 puts in its place what the decoder's state makes of it"
OPEN_INVERTED = "0 keeps the decoder's state, 1 lets the source word into it"


class Gate(nn.Module, abc.ABC):
    """How a decoder's state s refines the source states h_i, all side by side.

    Args:
        d_state: H.
        d_source: E_h.
    """

    source: Linear
    """Products of the source states, once per sentence."""
    state: Linear
    """Products of the decoder's state, once a step."""
    width: int
    """W."""
    opens: str
    """What an open gate does, for people."""

    def prepare(self, h: Tensor) -> Tensor:
        """What h (B, S, E_h) gives once per sentence: (B, S, ·)."""
        return self.source(h)

    def inner(self) -> tuple[Tensor, ...]:
        """Weights of products inside `mix`."""
        return ()

    @abc.abstractmethod
    def mix(self, dtype: torch.dtype, h: Tensor, of_h: Tensor, s: Tensor, of_s: Tensor, *inner: Tensor) -> Tensor:
        """The refined states g.

        Args:
            dtype: number type of products.
            h: source states (B, 1, S, E_h).
            of_h: from `prepare` (B, 1, S, ·).
            s: the decoder's state (B, K, 1, H).
            of_s: `state` of it (B, K, 1, ·).
            inner: from `inner`.
        Returns: (B, K, S, W).
        """

    @abc.abstractmethod
    def openness(self, h: Tensor, of_h: Tensor, of_s: Tensor) -> Tensor:
        """The gate that lets the new in, mean over its W numbers (for `capture`): as for `mix` -> (B, K, S)."""

    def first(self, of_s: Tensor) -> Tensor | None:
        """What g is at every position of the first step (B, K, W), where that is another equation; None = the same one."""
        return None


class CARUGate(Gate):
    """g_i = (1-l_i) ⊙ h_i + l_i ⊙ n_i, a CARU step with history h_i and input s.

    x = W s + B, n_i = tanh(x + W_n h_i + B_n), l_i = σ(x) ⊙ σ(W_z [s|h_i] + B_z).

    Args:
        d_state: H.
        d_source: E_h, which is W too.
        linear_first: at the first step g_i = x for every i, as printed.
    Source: Im & Chan 2024, Eqs. 4 and 5 (CAAtt).
    """

    def __init__(self, d_state: int, d_source: int, linear_first: bool) -> None:
        super().__init__()
        self.width, self.linear_first = d_source, linear_first
        self.opens = OPEN
        self.state = Linear(d_state, 2 * d_source, blocks=2)  # W and the half of W_z that meets s; B and B_z
        self.source = Linear(d_source, 2 * d_source, bias=False, blocks=2)  # W_n and the other half of W_z
        self.bias = nn.Parameter(torch.zeros(d_source))  # B_n

    def prepare(self, h: Tensor) -> Tensor:
        """See `Gate.prepare`: 2(W_n h_i + B_n) and W_zh h_i side by side; doubled, for tanh a = 2σ(2a) - 1."""
        products = self.source(h).to(self.bias.dtype)
        return torch.cat([2 * (products[..., : self.width] + self.bias), products[..., self.width :]], dim=-1)

    def mix(self, dtype: torch.dtype, h: Tensor, of_h: Tensor, s: Tensor, of_s: Tensor, *inner: Tensor) -> Tensor:
        """See `Gate.mix`."""
        x, z = of_s.chunk(2, dim=-1)
        return _Mix.apply(h, of_h, torch.cat([2 * x, z], dim=-1), torch.sigmoid(x))

    def openness(self, h: Tensor, of_h: Tensor, of_s: Tensor) -> Tensor:
        """See `Gate.openness`: mean of l."""
        x, z = of_s.chunk(2, dim=-1)
        return (torch.sigmoid(x) * torch.sigmoid(z + of_h[..., self.width :])).mean(-1)

    def first(self, of_s: Tensor) -> Tensor | None:
        """See `Gate.first`: x."""
        return of_s[..., : self.width] if self.linear_first else None


class _Mix(torch.autograd.Function):
    """g = h + l (n - h), where n = 2u - 1, l = w z and [u|z] = σ(a + b), in as few passes over (B, K, S, W) numbers as there can be."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        """h (B, 1, S, W), a (B, 1, S, 2W), b (B, K, 1, 2W), w = σ(x) (B, K, 1, W) -> (B, K, S, W)."""
        both = torch.sigmoid_(a + b)
        n, z = both.chunk(2, dim=-1)
        torch.add(n.new_tensor(-1.0), n, alpha=2, out=n)
        gate = z * w
        ctx.save_for_backward(h, both, w, gate)
        return torch.lerp(h.expand_as(gate), n, gate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        h, both, w, gate = ctx.saved_tensors
        grad = grads[0]
        n, z = both.chunk(2, dim=-1)
        dboth = torch.empty_like(both)
        da, dz = dboth.chunk(2, dim=-1)
        dgate = (n - h).mul_(grad)
        dw = torch.mul(dgate, z, out=da).sum(-2, keepdim=True)
        dz.copy_(torch.ops.aten.sigmoid_backward(dgate.mul_(w), z))
        dn = gate * grad
        torch.mul(torch.ops.aten.tanh_backward(dn, n), 0.5, out=da)
        return _over_rows(grad - dn), _over_rows(dboth), dboth.sum(-2, keepdim=True), dw


def _over_rows(grad: Tensor) -> Tensor:
    """Sum over the K rows of a sentence: (B, K, S, ·) -> (B, 1, S, ·)."""
    return grad if grad.size(1) == 1 else grad.sum(1, keepdim=True)


class GRUGate(Gate):
    """g_i is a GRU's step with history h_i and input s (GAtt), or inverted with history s and input h_i (GAtt-Inv, GRU-Inv; W = H).

    Args:
        d_state: H.
        d_source: E_h.
        inverted: which of the two is the history.
    Source: Zhang, Xiong & Su 2017, *A GRU-gated attention model for neural machine translation*.
    """

    def __init__(self, d_state: int, d_source: int, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.width = d_state if inverted else d_source
        self.opens = OPEN_INVERTED if inverted else OPEN
        self.state = Linear(d_state, (2 if inverted else 3) * self.width, bias=not inverted, blocks=2 if inverted else 3)
        self.source = Linear(d_source, (3 if inverted else 2) * self.width, bias=inverted, blocks=3 if inverted else 2)
        self.candidate = Linear(self.width, self.width, bias=False)

    def prepare(self, h: Tensor) -> Tensor:
        """See `Gate.prepare`: its side of the gates r and u, and of the candidate where h is the input."""
        return self.source(h).to(self.candidate.weight.dtype)

    def inner(self) -> tuple[Tensor, ...]:
        """See `Gate.inner`: U of the candidate."""
        return (self.candidate.weight,)

    def mix(self, dtype: torch.dtype, h: Tensor, of_h: Tensor, s: Tensor, of_s: Tensor, *inner: Tensor) -> Tensor:
        """See `Gate.mix`; here the candidate's product is of every position at every step."""
        (weight,) = inner
        history, new = (s, of_h) if self.inverted else (h, of_s)
        gates = 2 * self.width
        reset, update = torch.sigmoid(of_h[..., :gates] + of_s[..., :gates]).chunk(2, dim=-1)
        candidate = tanh(F.linear((reset * history).to(dtype), weight.to(dtype)) + new[..., gates:])
        return torch.lerp(history.expand_as(candidate), candidate, update)

    def openness(self, h: Tensor, of_h: Tensor, of_s: Tensor) -> Tensor:
        """See `Gate.openness`: mean of the update gate."""
        return torch.sigmoid((of_h[..., : 2 * self.width] + of_s[..., : 2 * self.width])[..., self.width :]).mean(-1)


class GatedAttention(nn.Module):
    """c = Σ α_i g_i with α = softmax(N·e(g_i, s)) and g_i what the gate makes of h_i and s.

    Args:
        gate: refines the source states.
        attention: of s to the refined states.
    """

    recompute = True
    """Whether the backward pass computes a step's numbers of every source position again instead of keeping them."""

    def __init__(self, gate: Gate, attention: AdditiveAttention) -> None:
        super().__init__()
        self.gate, self.attention = gate, attention

    def prepare(self, h: Tensor) -> Tensor:
        """What `loop` needs of source states (B, S, E_h), once per sentence: (B, S, ·)."""
        return self.gate.prepare(h)

    def loop(
        self, h: Tensor, of_h: Tensor, visible: Tensor | None, times: int, dtype: torch.dtype, scale: Tensor | float | None = None
    ) -> Callable[[Tensor, bool], tuple[Tensor, Tensor, Tensor | None]]:
        """Make the attention ready for a loop.

        Args:
            h: source states (B, S, E_h).
            of_h: `prepare` of them.
            visible: bool (B, 1, S), the real source positions; None = all.
            times: steps, at most.
            dtype: number type of the products.
            scale: N of each sentence (B, 1, 1), or of all; None = 1.
        Returns: s (R, H) and whether this is the first step of all -> context (R, W), weights (B, K, S), and, where somebody captures, how open
            the gate is (B, K, S), NaN where it has no say; else None.
        """
        state, query = (repeated([layer], times, dtype) for layer in (self.gate.state, self.attention.query))
        wide, h, of_h = of_h.dtype, h.to(of_h.dtype).unsqueeze(1), of_h.unsqueeze(1)
        key, v, inner = self.attention.key.weight.to(dtype), self.attention.v, self.gate.inner()
        mask = None if visible is None else additive(visible, wide)

        def attend(s: Tensor, first: bool) -> tuple[Tensor, Tensor, Tensor | None]:
            of_s = state(s).to(wide).view(len(h), -1, 1, self.gate.state.out_features)
            context = self.gate.first(of_s.squeeze(2)) if first else None
            if context is not None:
                alpha = normalise(s.new_zeros(*context.shape[:2], h.size(2)), mask, None)
                if changing():  # Σ α_i g with one g for all i is g only as long as the weights sum to one
                    context = context * alpha.sum(-1, keepdim=True)
                return context.flatten(0, 1), alpha, alpha * torch.nan if capturing() else None
            rows, q = (x.to(wide).view(*of_s.shape[:3], -1) for x in (s, query(s)))
            of_gate = (h, of_h, rows, of_s, *inner)
            if torch.is_grad_enabled():
                look = _Look.apply if self.recompute else _look
                context, alpha = look(self.gate, F.linear, mask, scale, key, v, q, *of_gate)
            else:
                context, alpha = self._in_pieces(mask, scale, key, v, q, *of_gate)
            return context.flatten(0, 1), alpha, self.gate.openness(h, of_h, of_s) if capturing() else None

        return attend

    def _in_pieces(
        self, mask: Tensor | None, scale: Tensor | float | None, key: Tensor, v: Tensor, q: Tensor, h: Tensor, of_h: Tensor, *more: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`_look` without gradients, a few sentences at a time: what many hypotheses make of long sources would not fit into memory, or caches."""
        linear = self.attention.key
        project: Project = F.linear if linear.packed is None or key.dtype != torch.float32 else lambda x, _: linear(x)
        size = len(q) if changing() else max(1, PIECE // (q.size(1) * h.size(2) * self.gate.width))
        found = []
        for start in range(0, len(q), size):
            rows = slice(start, start + size)
            own, of_s = (x[rows] for x in more[:2])
            n = scale[rows] if isinstance(scale, Tensor) else scale
            hidden = None if mask is None else mask[rows]
            found.append(_look(self.gate, project, hidden, n, key, v, q[rows], h[rows], of_h[rows], own, of_s, *more[2:]))
        return found[0] if len(found) == 1 else (torch.cat([c for c, _ in found]), torch.cat([alpha for _, alpha in found]))


def _look(
    gate: Gate, project: Project, mask: Tensor | None, scale: Tensor | float | None, key: Tensor, v: Tensor, q: Tensor, *of_gate: Tensor
) -> tuple[Tensor, Tensor]:
    """One step: scores of the refined states, weights, and their mean.

    Args:
        gate: whose `mix` gets `of_gate`.
        project: multiplies with `key`.
        mask, scale: see `normalise`.
        key: the keys' matrix (A, W) in the number type of products.
        v: (A).
        q: the query (B, K, 1, A).
    Returns: context (B, K, W), weights (B, K, S).
    """
    g = gate.mix(key.dtype, *of_gate)  # (B, K, S, W)
    low = g.to(key.dtype)
    scores = torch.sigmoid(torch.add(2 * q, project(low, key), alpha=2)) @ (2 * v)  # vᵀ tanh(W g + q) + Σv; the softmax does not see Σv
    alpha = normalise(scores, mask, scale)
    return torch.matmul(alpha.unsqueeze(2).to(low.dtype), low).squeeze(2).to(g.dtype), alpha


class _Look(torch.autograd.Function):
    """`_look`, of which only the weights and what came in are kept for backward."""

    @staticmethod
    def forward(
        ctx: Any, gate: Gate, project: Project, mask: Tensor | None, scale: Tensor | float | None, key: Tensor, v: Tensor, q: Tensor, *of_gate: Tensor
    ) -> tuple[Tensor, Tensor]:
        context, alpha = _look(gate, project, mask, scale, key, v, q, *of_gate)
        ctx.gate, ctx.scale = gate, scale
        ctx.save_for_backward(alpha, key, v, q, *of_gate)
        ctx.set_materialize_grads(False)
        return context, alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        alpha, key, v, q, *of_gate = ctx.saved_tensors
        of_gate = [x.detach().requires_grad_(needed) for x, needed in zip(of_gate, ctx.needs_input_grad[7:], strict=True)]
        with torch.enable_grad():
            mixed = ctx.gate.mix(key.dtype, *of_gate)
        g = mixed.detach()
        low = g.to(key.dtype)  # (B, K, S, W)
        dcontext, dalpha = grads
        if dcontext is None:
            dcontext = g.new_zeros(*alpha.shape[:2], g.size(-1))
        of_context = torch.matmul(low, dcontext.to(low.dtype).unsqueeze(-1)).squeeze(-1).to(alpha.dtype)
        dalpha = of_context if dalpha is None else dalpha + of_context
        dscores = torch._softmax_backward_data(dalpha, alpha, -1, alpha.dtype)
        dscores = 2 * (dscores if ctx.scale is None else dscores * ctx.scale)  # (B, K, S)
        sigma = torch.sigmoid_(torch.add(2 * q, F.linear(low, key), alpha=2))  # (B, K, S, A)
        dv = torch.mv(sigma.flatten(0, 2).t(), dscores.flatten())
        slope = sigma.addcmul_(sigma, sigma, value=-1).mul_(2 * v).mul_(dscores.unsqueeze(-1))
        dq = slope.sum(2, keepdim=True)
        slope = slope.to(low.dtype).flatten(0, 2)
        dkey = torch.mm(slope.t(), low.flatten(0, 2))
        dg = torch.mm(slope, key).view(low.shape).to(g.dtype)
        dg.addcmul_(alpha.unsqueeze(-1), dcontext.unsqueeze(2))
        wanted = [x for x in of_gate if x.requires_grad]
        found = iter(torch.autograd.grad(mixed, wanted, dg, allow_unused=True))
        return None, None, None, None, dkey, dv, dq, *(next(found) if x.requires_grad else None for x in of_gate)
