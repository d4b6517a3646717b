"""The affine map of every model, and its two initialisations."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

Init = Literal["fan_in", "xavier"]


class Linear(nn.Linear):
    """y = x·Wᵀ + b, Xavier-uniform weights, zero bias; one matrix may hold several projections of the same input.

    Args:
        d_in: width of the input.
        d_out: width of the output, all blocks together.
        bias: whether there is a bias.
        blocks: how many equal projections are stacked in the output; each is initialised as the matrix it is (d_out / blocks, d_in).
    """

    def __init__(self, d_in: int, d_out: int, bias: bool = True, blocks: int = 1) -> None:
        self.blocks = blocks
        super().__init__(d_in, d_out, bias)

    def reset_parameters(self) -> None:
        """Draw new weights from torch's current generator."""
        self.draw("xavier")

    def draw(self, init: Init) -> None:
        """Draw new weights from torch's current generator.

        Args:
            init: "xavier", uniform within ±√(6 / (d_in + d_out)); "fan_in", uniform within ±1/√d_in, which keeps sublayers small beside
                what their residual connection carries.
        Source: Glorot & Bengio 2010; Xu et al. 2020, *Lipschitz constrained parameter initialization for deep Transformers*.
        """
        with torch.no_grad():
            if init == "fan_in":
                bound = 1 / math.sqrt(self.in_features)
                self.weight.uniform_(-bound, bound)
            else:
                for block in self.weight.chunk(self.blocks, dim=0):
                    nn.init.xavier_uniform_(block)
            if self.bias is not None:
                nn.init.zeros_(self.bias)
