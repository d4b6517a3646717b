"""The residual connection around every sublayer, and the feed-forward sublayer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from nmtkit.nn.dropout import Dropout, dropout
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
        self.p = dropout
        self.pre = norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a sublayer (…, D) -> (…, D) to x (…, D) inside the residual connection."""
        return self.leave(x, sublayer(self.enter(x)))

    def enter(self, x: Tensor) -> Tensor:
        """What the sublayer reads."""
        return self.norm(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """x and the sublayer's output y together."""
        total = x + (dropout(y, self.p) if self.training else y)
        return total if self.pre else self.norm(total)


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
        hidden = self.inner(x.flatten(0, -2), relu=True)  # a matrix: written over in place; a view of one would be copied three times in backward
        return self.outer(self.dropout(hidden)).view(x.shape)
