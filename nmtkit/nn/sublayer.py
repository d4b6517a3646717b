"""The residual connection around every sublayer, and the feed-forward sublayer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.nn.dropout import Dropout
from nmtkit.nn.linear import Linear

Norm = Literal["post", "pre"]


class Residual(nn.Module):
    """Post-norm: LN(x + Dropout(f(x))), as in the papers; pre-norm: x + Dropout(f(LN(x))).

    Args:
        width: D.
        dropout: probability of dropping an element of the sublayer's output.
        norm: where the layer norm stands.
    Source: Vaswani et al. 2017, §5.4 (post); Wang et al. 2019 (pre).
    """

    def __init__(self, width: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a sublayer (…, D) -> (…, D) to x (…, D) inside the residual connection."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class FeedForward(nn.Module):
    """W₂ · Dropout(ReLU(W₁x + b₁)) + b₂.

    Args:
        width: D.
        inner: width of the hidden layer.
        dropout: probability of dropping a hidden unit.
    Source: Vaswani et al. 2017, Eq. 2.
    """

    def __init__(self, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = Linear(width, inner)
        self.outer = Linear(inner, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) -> (…, D)."""
        return self.outer(self.dropout(torch.relu_(self.inner(x))))
