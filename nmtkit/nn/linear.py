"""The affine map of every model, with the initialisation all papers here are trained with."""

from __future__ import annotations

import torch
from torch import nn


class Linear(nn.Linear):
    """y = x·Wᵀ + b, Xavier-uniform weights, zero bias; one matrix may hold several projections of the same input.

    Args:
        d_in: width of the input.
        d_out: width of the output, all blocks together.
        bias: whether there is a bias.
        blocks: how many equal projections are stacked in the output; each is initialised as the matrix it is (d_out / blocks, d_in).
    Source: Glorot & Bengio 2010; Vaswani et al. 2017 (the papers' code).
    """

    def __init__(self, d_in: int, d_out: int, bias: bool = True, blocks: int = 1) -> None:
        self.blocks = blocks
        super().__init__(d_in, d_out, bias)

    def reset_parameters(self) -> None:
        """Draw new weights from torch's current generator."""
        with torch.no_grad():
            for block in self.weight.chunk(self.blocks, dim=0):
                nn.init.xavier_uniform_(block)
            if self.bias is not None:
                nn.init.zeros_(self.bias)
