"""The content-adaptive recurrent unit.

Legend: R rows, E width of inputs, H of states.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, tanh

from nmtkit.nn.cells import Cell, Step
from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import Product

FirstStep = Literal["tanh", "linear"]


class CARUCell(Cell):
    """h' = (1-l) ⊙ h + l ⊙ n, n = tanh(W_n h + B_n + x), l = σ(x) ⊙ z, x = W v + B.

    z = σ(W_zh h + W_zv v + B_z).

    Args:
        input_size: E.
        hidden_size: H; both are named as torch's `nn.GRUCell` has them.
        first_step: what it makes of an input without history: tanh x (the authors' code), or x.
    Source: Chan, Ke & Im 2020, *CARU: a content-adaptive recurrent unit for the transition of
        hidden state in NLP*, Eq. 4; the gate z has two biases, as in the authors' code.
    """

    blocks = 2  # W, W_zv
    state: Linear
    state_side = {"state": 2}  # W_n and W_zh
    biased = ("input", "state")

    def __init__(self, input_size: int, hidden_size: int, first_step: FirstStep = "tanh") -> None:
        super().__init__(input_size, hidden_size)
        self.first_step = first_step

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        return torch.lerp(h, *CARUCell.parts(x, h, *products))

    @staticmethod
    def parts(x: Tensor, h: Tensor, state: Product) -> tuple[Tensor, Tensor]:
        """Return n and l, (…, R, H) both, from what `step` takes."""
        x, of_z = x.chunk(2, dim=-1)
        n, z = state(h).chunk(2, dim=-1)
        return tanh(x + n), torch.sigmoid(x) * torch.sigmoid(of_z + z)

    def first(self, x: Tensor, step: Step) -> Tensor:
        """See `Cell.first`; it needs x alone, the first half: (…, R, 2H) -> (…, R, H)."""
        x = x[..., : self.d_hidden]
        return tanh(x) if self.first_step == "tanh" else x
