"""Gated recurrent cells: what each computes for all steps at once, and its step.

All that does not depend on the state is computed for all steps together, before the loop over time;
inside it there are only products with the state and element-wise work. Legend: R rows, E width of
inputs, H of states, G blocks of a cell's input side, N cells side by side.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn, tanh
from torch.nn import functional as F

from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import Product, loop_product

Step = Callable[[Tensor, Tensor], Tensor]


class Cell(nn.Module, abc.ABC):
    """A gated recurrent cell, called as torch's `nn.GRUCell` is.

    A subclass says what its products are, and has a `step`.

    Args:
        d_in: E.
        d_hidden: H.
    """

    input: Linear
    """The input-side product; another input of the cell adds its product to this one."""
    blocks: ClassVar[int]
    """G: how many blocks of H numbers the input-side product has."""
    state_side: ClassVar[dict[str, int]]
    """The products with the state: their names, and how many blocks of H numbers each has."""
    biased: ClassVar[tuple[str, ...]] = ("input",)
    """Which products have a bias."""
    state_blocks: ClassVar[int] = 1
    """How many blocks of H numbers the state has; the first is what a model sees of it."""

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        for name, blocks in {"input": self.blocks, **self.state_side}.items():
            width = d_in if name == "input" else d_hidden
            setattr(self, name, Linear(width, blocks * d_hidden, name in self.biased, blocks))

    def input_bias(self) -> Tensor | None:
        """Return what is added to the input-side product (G·H)."""
        return self.input.bias

    def inputs(self, v: Tensor) -> Tensor:
        """Return the input-side products of any number of steps: (…, E) -> (…, G·H)."""
        return self.input.affine(v, self.input.weight, self.input_bias())

    @staticmethod
    @abc.abstractmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """Return the next state.

        Args:
            x: input-side products of this step (…, R, G·H).
            h: the state (…, R, state_blocks·H).
            products: the state side made ready for a loop.
        """

    def first(self, x: Tensor, step: Step) -> Tensor:
        """Return the state after the first input, by default a step from zeros.

        Args:
            x: (…, R, G·H).
            step: of the loop.
        Returns: (…, R, state_blocks·H).
        """
        return step(x, x.new_zeros(*x.shape[:-1], self.state_blocks * self.d_hidden))

    def forward(self, v: Tensor, h: Tensor | None = None) -> Tensor:
        """One step.

        Args:
            v: (R, E) or (E).
            h: (R, state_blocks·H), or without rows; None = no history.
        Returns: the next state.
        """
        if v.dim() == 1:
            return self(v.unsqueeze(0), None if h is None else h.unsqueeze(0)).squeeze(0)
        x = self.inputs(v)
        step = cell_step([self], 1, x.dtype)
        return self.first(x, step) if h is None else step(x, h)


class GRU(Cell):
    """h' = (1-u) ⊙ h + u ⊙ h̃, u = σ(W_u v + U_u h), h̃ = tanh(W v + U (r ⊙ h) + b).

    r = σ(W_r v + U_r h). The reset gate acts on the state, not on its product as in torch's GRU,
    whose kernels therefore cannot stand in.
    Source: Cho et al. 2014, Eqs. 5-8; Bahdanau et al. 2015, A.1.1.
    """

    blocks = 3  # W_r, W_u, W
    state_side = {"gates": 2, "candidate": 1}  # U_r and U_u, U
    biased = ()

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__(d_in, d_hidden)
        self.bias = nn.Parameter(torch.zeros(d_hidden))

    def input_bias(self) -> Tensor:
        return F.pad(self.bias, (2 * len(self.bias), 0))

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        gates, candidate = products
        of_gates, of_candidate = x.split([2 * h.size(-1), h.size(-1)], dim=-1)
        reset, update = torch.sigmoid(of_gates + gates(h)).chunk(2, dim=-1)
        return torch.lerp(h, tanh(of_candidate + candidate(reset * h)), update)


class MGU(Cell):
    """h' = (1-f) ⊙ h + f ⊙ h̃, f = σ(W_f v + U_f h + b_f), h̃ = tanh(W v + U (f ⊙ h) + b).

    Source: Zhou et al. 2016, *Minimal gated unit for recurrent neural networks*, Eqs. 6a-6c.
    """

    blocks = 2  # W_f, W
    state_side = {"forget": 1, "candidate": 1}  # U_f, U

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        forget, candidate = products
        of_forget, of_candidate = x.chunk(2, dim=-1)
        f = torch.sigmoid(of_forget + forget(h))
        return torch.lerp(h, tanh(of_candidate + candidate(f * h)), f)


class LSTM(Cell):
    """h' = o ⊙ tanh c', c' = f ⊙ c + i ⊙ c̃, i, f, o = σ(W v + U h + b); the state is [h | c].

    c̃ = tanh(W_c v + U_c h + b_c).
    Source: Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    blocks = 4  # of i, f, o, c̃
    state_side = {"state": 4}
    state_blocks = 2

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        h, c = h.chunk(2, dim=-1)
        gates, new = (x + products[0](h)).split([3 * h.size(-1), h.size(-1)], dim=-1)
        i, f, o = torch.sigmoid(gates).chunk(3, dim=-1)
        c = f * c + i * tanh(new)
        return torch.cat([o * tanh(c), c], dim=-1)


def cell_step(cells: Sequence[Cell], times: int | Sequence[int], dtype: torch.dtype) -> Step:
    """Make cells of one kind ready for a loop, which they go through side by side.

    Args:
        cells: N of them.
        times: steps, at most; or R of each step.
        dtype: number type of the products (under autocast that of the input-side products, while
            states keep that of the parameters).
    Returns: (x, h) -> next h, (R, G·H) and (R, state_blocks·H) of one cell; of several, N in front.
    """
    layers = [[getattr(cell, name) for cell in cells] for name in cells[0].state_side]
    products = [loop_product(side, times, dtype) for side in layers]
    step = cells[0].step
    return lambda x, h: step(x, h, *products)


def cell_inputs(cell: Cell, times: int, dtype: torch.dtype) -> Product:
    """Make a cell's input side (R, E) -> (R, G·H) ready for a loop.

    For an input that depends on the state; see `loop_product`.
    """
    return loop_product([cell.input], times, dtype, cell.input_bias())
