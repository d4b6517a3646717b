"""Gated recurrent cells: what each computes for all steps at once, and its step.

All that does not depend on the state is computed for all steps together, before the loop over time; inside it there are only products with the
state and element-wise work.

Legend: R rows, E width of inputs, H of states, G blocks of a cell's input side, N cells side by side.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn, tanh
from torch.nn import functional as F

from nmtkit.nn.linear import Linear
from nmtkit.nn.repeated import Product, Repeated, repeated

FirstStep = Literal["tanh", "linear"]
Step = Callable[[Tensor, Tensor], Tensor]


class Cell(nn.Module, abc.ABC):
    """A gated recurrent cell: one class with its input-side product, its state-side products, and a step.

    Called as torch's `nn.GRUCell` is: input (R, E) or (E), and the state or None -> the next state.

    Args:
        d_in: E.
        d_hidden: H.
    """

    blocks: ClassVar[int]
    """G: how many blocks of H numbers the input-side product has; whoever adds another input to the cell adds its product to these."""
    state_blocks: ClassVar[int] = 1
    """How many blocks of H numbers its state has; the first is what others see of it."""

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__()
        self.d_in, self.d_hidden = d_in, d_hidden

    input: Linear
    """The input-side product."""

    def input_bias(self) -> Tensor | None:
        """What is added to the input-side product (G·H)."""
        return self.input.bias

    def inputs(self, v: Tensor) -> Tensor:
        """The input-side products of any number of steps: (…, E) -> (…, G·H)."""
        return self.input.affine(v, self.input.weight, self.input_bias())

    @abc.abstractmethod
    def products(self) -> tuple[Linear, ...]:
        """The state-side products."""

    @staticmethod
    @abc.abstractmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """The next state.

        Args:
            x: input-side products of this step (…, R, G·H).
            h: the state (…, R, state_blocks·H).
            products: `products()` made ready for a loop.
        """

    def first(self, x: Tensor, step: Step) -> Tensor:
        """The state after the first input, where there was none: x (…, R, G·H) -> (…, R, state_blocks·H); by default a step from zeros."""
        return step(x, x.new_zeros(*x.shape[:-1], self.state_blocks * self.d_hidden))

    def forward(self, v: Tensor, h: Tensor | None = None) -> Tensor:
        """One step: v (R, E) or (E), h (R, state_blocks·H) or without rows, None = no history -> the next state."""
        if v.dim() == 1:
            return self(v.unsqueeze(0), None if h is None else h.unsqueeze(0)).squeeze(0)
        x = self.inputs(v)
        step = loop([self], 1, x.dtype)
        return self.first(x, step) if h is None else step(x, h)


class GRU(Cell):
    """r = σ(W_r v + U_r h), u = σ(W_u v + U_u h), h̃ = tanh(W v + U (r ⊙ h) + b), h' = (1-u) ⊙ h + u ⊙ h̃.

    The reset gate acts on the state, not on its product as in torch's GRU, whose kernels therefore cannot stand in.
    Source: Cho et al. 2014, Eqs. 5-8; Bahdanau et al. 2015, A.1.1.
    """

    blocks = 3

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__(d_in, d_hidden)
        self.input = Linear(d_in, 3 * d_hidden, bias=False, blocks=3)
        self.bias = nn.Parameter(torch.zeros(d_hidden))
        self.gates = Linear(d_hidden, 2 * d_hidden, bias=False, blocks=2)
        self.candidate = Linear(d_hidden, d_hidden, bias=False)

    def input_bias(self) -> Tensor:
        """See `Cell.input_bias`: b, for W_r v, W_u v, W v side by side."""
        return F.pad(self.bias, (2 * len(self.bias), 0))

    def products(self) -> tuple[Linear, ...]:
        """U_r and U_u in one, and U."""
        return self.gates, self.candidate

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """See `Cell.step`."""
        gates, candidate = products
        width = h.size(-1)
        of_gates, of_candidate = x.split([2 * width, width], dim=-1)
        reset, update = torch.sigmoid(of_gates + gates(h)).chunk(2, dim=-1)
        return torch.lerp(h, tanh(of_candidate + candidate(reset * h)), update)


class MGU(Cell):
    """f = σ(W_f v + U_f h + b_f), h̃ = tanh(W v + U (f ⊙ h) + b), h' = (1-f) ⊙ h + f ⊙ h̃.

    Source: Zhou et al. 2016, *Minimal gated unit for recurrent neural networks*, Eqs. 6a-6c.
    """

    blocks = 2

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__(d_in, d_hidden)
        self.input = Linear(d_in, 2 * d_hidden, blocks=2)  # W_f, W
        self.forget = Linear(d_hidden, d_hidden, bias=False)
        self.candidate = Linear(d_hidden, d_hidden, bias=False)

    def products(self) -> tuple[Linear, ...]:
        """U_f and U."""
        return self.forget, self.candidate

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """See `Cell.step`."""
        forget, candidate = products
        of_forget, of_candidate = x.chunk(2, dim=-1)
        f = torch.sigmoid(of_forget + forget(h))
        return torch.lerp(h, tanh(of_candidate + candidate(f * h)), f)


class LSTM(Cell):
    """i, f, o = σ(W v + U h + b), c̃ = tanh(W_c v + U_c h + b_c), c' = f ⊙ c + i ⊙ c̃, h' = o ⊙ tanh c'; its state is [h | c].

    Source: Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    blocks = 4
    state_blocks = 2

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__(d_in, d_hidden)
        self.input = Linear(d_in, 4 * d_hidden, blocks=4)  # of i, f, o, c̃
        self.state = Linear(d_hidden, 4 * d_hidden, bias=False, blocks=4)

    def products(self) -> tuple[Linear, ...]:
        """U of i, f, o and c̃ in one."""
        return (self.state,)

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """See `Cell.step`."""
        (state,) = products
        h, c = h.chunk(2, dim=-1)
        gates, new = (x + state(h)).split([3 * h.size(-1), h.size(-1)], dim=-1)
        i, f, o = torch.sigmoid(gates).chunk(3, dim=-1)
        c = f * c + i * tanh(new)
        return torch.cat([o * tanh(c), c], dim=-1)


class CARUCell(Cell):
    """x = W v + B, n = tanh(W_n h + B_n + x), l = σ(x) ⊙ σ(W_zh h + W_zv v + B_z), h' = (1-l) ⊙ h + l ⊙ n.

    Args:
        input_size: E.
        hidden_size: H; both are named as torch's `nn.GRUCell` has them.
        first_step: what it makes of an input without history: tanh x (the authors' code), or x.
    Source: Chan, Ke & Im 2020, *CARU: a content-adaptive recurrent unit for the transition of hidden state in NLP*, Eq. 4; the gate z
        has two biases, as in the authors' code.
    """

    blocks = 2

    def __init__(self, input_size: int, hidden_size: int, first_step: FirstStep = "tanh") -> None:
        super().__init__(input_size, hidden_size)
        self.first_step = first_step
        self.input = Linear(input_size, 2 * hidden_size, blocks=2)  # W, W_zv
        self.state = Linear(hidden_size, 2 * hidden_size, blocks=2)

    def products(self) -> tuple[Linear, ...]:
        """W_n and W_zh in one."""
        return (self.state,)

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """See `Cell.step`."""
        n, gate = CARUCell.parts(x, h, *products)
        return torch.lerp(h, n, gate)

    @staticmethod
    def parts(x: Tensor, h: Tensor, *products: Product) -> tuple[Tensor, Tensor]:
        """n and l, (…, R, H) both, from what `step` takes."""
        (state,) = products
        x, of_z = x.chunk(2, dim=-1)
        n, z = state(h).chunk(2, dim=-1)
        return tanh(x + n), torch.sigmoid(x) * torch.sigmoid(of_z + z)

    def first(self, x: Tensor, step: Step) -> Tensor:
        """See `Cell.first`: the word alone, (…, R, 2H) -> (…, R, H); of x it needs the first half only."""
        x = x[..., : self.d_hidden]
        return tanh(x) if self.first_step == "tanh" else x


def loop(cells: Sequence[Cell], times: int | Sequence[int], dtype: torch.dtype) -> Step:
    """Make cells of one kind ready for a loop, which they go through side by side.

    Args:
        cells: N of them.
        times: steps, at most; or R of each step.
        dtype: number type of the products (under autocast that of the input-side products, while states keep that of the parameters).
    Returns: (x, h) -> next h; (R, G·H), (R, state_blocks·H) for one cell, and with N in front for several.
    """
    products = [repeated(layers, times, dtype) for layers in zip(*(cell.products() for cell in cells), strict=True)]
    step = cells[0].step
    return lambda x, h: step(x, h, *products)


def inputs_loop(cell: Cell, times: int, dtype: torch.dtype) -> Product:
    """A cell's input-side product made ready for a loop in which the input depends on the state: (R, E) -> (R, G·H).

    Args:
        cell: whose.
        times: steps, at most.
        dtype: number type of the product.
    """
    if not torch.is_grad_enabled() and cell.input.packed is not None:
        return cell.inputs
    bias = cell.input_bias()
    return Repeated(cell.input.weight.to(dtype).mT, times, None if bias is None else bias.to(dtype))
