"""Gates that refine the source states with the decoder's state, by a step of CARU or of a GRU.

Legend: B sentences, K hypotheses a sentence, S source length; widths: H of the decoder's state s,
E_h of a source state h_i, W of a refined source state g_i.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn, tanh
from torch.nn import functional as F

from nmtkit.nn import gpu
from nmtkit.nn.linear import Linear

OPEN = (
    "0 keeps the state of a source word, "
    "1 replaces it with a state computed from it and the decoder's state"
)
OPEN_INVERTED = "0 keeps the decoder's state, 1 lets the source word into it"

Pullback = Callable[[Tensor], tuple[Tensor | None, ...]]


class Gate(nn.Module, abc.ABC):
    """Refines the source states h_i with the decoder's state s, all positions at once.

    Args:
        d_state: H.
        d_source: E_h.
    """

    source: Linear
    """Multiplies the source states, once per sentence."""
    state: Linear
    """Multiplies the decoder's state, once per step."""
    width: int
    """W."""
    inverted = False
    """True if the decoder's state is the history."""
    opens: str
    """How to read an open gate; the findings of analyses print it."""

    @abc.abstractmethod
    def prepare(self, h: Tensor) -> Tensor:
        """Return the products of h (B, S, E_h) that are computed once per sentence: (B, S, ·)."""

    def inner(self) -> tuple[Tensor, ...]:
        """Return the matrices that `mix` multiplies by."""
        return ()

    @abc.abstractmethod
    def mix(
        self, dtype: torch.dtype, history: Tensor, of_h: Tensor, of_s: Tensor, *inner: Tensor
    ) -> Tensor:
        """Return the refined states g. For their gradient see `with_gradient`.

        Args:
            dtype: number type of products.
            history: source states (B, 1, S, E_h); for an inverted gate the decoder's state
                (B, K, 1, H).
            of_h: from `prepare` (B, 1, S, ·).
            of_s: `state` applied to s (B, K, 1, ·).
            inner: from `inner`.
        Returns: (B, K, S, W).
        """

    def with_gradient(self, dtype: torch.dtype, *of_gate: Tensor) -> tuple[Tensor, Pullback]:
        """Return `mix`, and the function from the gradient of g to those of `of_gate`."""
        return torch.func.vjp(functools.partial(self.mix, dtype), *of_gate)

    @abc.abstractmethod
    def openness(self, of_h: Tensor, of_s: Tensor) -> Tensor:
        """Return the mean of the gate's W numbers (B, K, S); the arguments are those of `mix`."""

    def first(self, of_s: Tensor) -> Tensor | None:
        """Return the one g (B, K, 1, W) of all positions at the first step; None to use `mix`."""
        return None


class CARUGate(Gate):
    """g_i = (1-l_i) ⊙ h_i + l_i ⊙ n_i, a CARU step with history h_i and input s.

    x = W s + B, n_i = tanh(x + W_n h_i + B_n), l_i = σ(x) ⊙ σ(W_z [s|h_i] + B_z).

    Args:
        d_state: H.
        d_source: E_h, equal to W.
        linear_first: True if g_i = x for every i at the first step, as the paper prints it.
    Source: Im & Chan 2024, Eqs. 4 and 5 (CAAtt).
    """

    opens = OPEN

    def __init__(self, d_state: int, d_source: int, linear_first: bool) -> None:
        super().__init__()
        self.width, self.linear_first = d_source, linear_first
        # W_z = [W_zs | W_zh]: one half for s, one for h_i.
        self.state = Linear(d_state, 2 * d_source, blocks=2)  # W, W_zs; B, B_z
        self.source = Linear(d_source, 2 * d_source, bias=False, blocks=2)  # W_n, W_zh
        self.bias = nn.Parameter(torch.zeros(d_source))  # B_n

    def open_gates(self, content: float, update: float) -> None:
        """Raise the gate l and keep the candidate n; the arguments are `CARUCell.open_gates`'."""
        with torch.no_grad():
            self.state.bias[: self.width] += content
            self.bias.sub_(content)
            self.state.bias[self.width :] += update

    def prepare(self, h: Tensor) -> Tensor:
        """Return [2(W_n h_i + B_n) | W_zh h_i]; the factor 2 because tanh a = 2σ(2a) - 1."""
        n, z = self.source(h).to(self.bias.dtype).chunk(2, dim=-1)
        return torch.cat([2 * (n + self.bias), z], dim=-1)

    def mix(
        self, dtype: torch.dtype, history: Tensor, of_h: Tensor, of_s: Tensor, *inner: Tensor
    ) -> Tensor:
        # One half of `of_h` is doubled.
        fused = gpu.refined_states("adaptive", of_s, history, of_h, dtype, 0.5)
        if fused is not None:
            return fused
        n, gate, *_ = self._parts(of_h, of_s)
        return torch.lerp(history.expand_as(gate), n, gate)

    def _parts(self, of_h: Tensor, of_s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return n, l = w z, [(n+1)/2|z] (B, K, S, ·) and w (B, K, 1, W), in few passes over
        memory.
        """
        x, z = of_s.chunk(2, dim=-1)
        both = torch.sigmoid_(of_h + torch.cat([2 * x, z], dim=-1))
        n, z = both.chunk(2, dim=-1)
        n = n.lerp(n.new_ones(()), -1.0)  # 2n - 1
        w = torch.sigmoid(x)
        return n, z * w, both, w

    def with_gradient(self, dtype: torch.dtype, *of_gate: Tensor) -> tuple[Tensor, Pullback]:
        history, of_h, of_s = of_gate
        n, gate, both, w = self._parts(of_h, of_s)
        z = both[..., self.width :]

        def pull(grad: Tensor) -> tuple[Tensor, ...]:
            dboth = torch.empty_like(both)
            da, dz = dboth.chunk(2, dim=-1)
            dgate = (n - history).mul_(grad)
            dw = (dgate * z).sum(-2, keepdim=True)
            dz.copy_(torch.ops.aten.sigmoid_backward(dgate.mul_(w), z))
            dn = gate * grad
            da.copy_(torch.ops.aten.tanh_backward(dn, n)).mul_(0.5)
            dx, dz = dboth.sum(-2, keepdim=True).chunk(2, dim=-1)
            dx = torch.add(torch.ops.aten.sigmoid_backward(dw, w), dx, alpha=2)
            return _over_rows(grad - dn), _over_rows(dboth), torch.cat([dx, dz], dim=-1)

        return torch.lerp(history.expand_as(gate), n, gate), pull

    def openness(self, of_h: Tensor, of_s: Tensor) -> Tensor:
        x, z = of_s.chunk(2, dim=-1)
        return (torch.sigmoid(x) * torch.sigmoid(z + of_h[..., self.width :])).mean(-1)  # l

    def first(self, of_s: Tensor) -> Tensor | None:
        return of_s[..., : self.width] if self.linear_first else None  # x


class GRUGate(Gate):
    """g_i is a GRU's step with history h_i and input s (GAtt); W = E_h.

    Inverted (GAtt-Inv, GRU-Inv), s is the history and h_i the input; W = H.

    Args:
        d_state: H.
        d_source: E_h.
        inverted: True if the history is s.
    Source: Zhang, Xiong & Su 2017, *A GRU-gated attention model for neural machine translation*.
    """

    def __init__(self, d_state: int, d_source: int, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.opens = OPEN_INVERTED if inverted else OPEN
        self.width = width = d_state if inverted else d_source
        # Both sides have blocks for r and u; the input side has a third one, for the candidate.
        of_state, of_source = (2, 3) if inverted else (3, 2)
        self.state = Linear(d_state, of_state * width, bias=not inverted, blocks=of_state)
        self.source = Linear(d_source, of_source * width, bias=inverted, blocks=of_source)
        self.candidate = Linear(width, width, bias=False)

    def prepare(self, h: Tensor) -> Tensor:
        return self.source(h).to(self.candidate.weight.dtype)

    def inner(self) -> tuple[Tensor, ...]:
        return (self.candidate.weight,)

    def mix(
        self, dtype: torch.dtype, history: Tensor, of_h: Tensor, of_s: Tensor, *inner: Tensor
    ) -> Tensor:
        def product(kept: Tensor) -> Tensor:
            """Multiply r ⊙ history of every position, at every step."""
            return F.linear(kept.to(dtype), inner[0].to(dtype))

        of_input, of_history = (of_h, of_s) if self.inverted else (of_s, of_h)
        fused = gpu.refined_states("gru", of_input, history, of_history, dtype, product)
        if fused is not None:
            return fused
        gates = 2 * self.width
        reset, update = torch.sigmoid(of_h[..., :gates] + of_s[..., :gates]).chunk(2, dim=-1)
        candidate = tanh(product(reset * history) + of_input[..., gates:])
        return torch.lerp(history.expand_as(candidate), candidate, update)

    def openness(self, of_h: Tensor, of_s: Tensor) -> Tensor:
        update = slice(self.width, 2 * self.width)
        return torch.sigmoid(of_h[..., update] + of_s[..., update]).mean(-1)


def _over_rows(grad: Tensor) -> Tensor:
    """Sum over the K hypotheses: (B, K, S, ·) -> (B, 1, S, ·)."""
    return grad if grad.size(1) == 1 else grad.sum(1, keepdim=True)
