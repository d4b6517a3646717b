"""The residual connection of sublayers, the feed-forward sublayer, and a gate between states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nmtkit.nn import gpu
from nmtkit.nn.capture import capturing, record
from nmtkit.nn.dropout import Dropout, dropout
from nmtkit.nn.linear import Linear

Norm = Literal["post", "pre"]


class Residual(nn.Module):
    """Post-norm: LN(x + Dropout(f(x))), as in the papers; pre-norm: x + Dropout(f(LN(x))).

    Args:
        width: D.
        dropout: probability of dropping an element of the sublayer's output.
        norm: post or pre.
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
        """Return what the sublayer reads: under autocast on a GPU, numbers of 16 bits."""
        if not self.pre:
            return gpu.low_precision_copy(x)
        normal = gpu.low_precision_norm(x, self.norm) if self.training else None
        return self.norm(x) if normal is None else normal

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of x and the sublayer's output y."""
        if self.training and not self.pre:
            normal = gpu.residual_norm(x, y, self.norm, self.p)
            if normal is not None:
                return normal
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
        # A matrix is written over in place; a view of one would be copied three times in backward.
        hidden = self.inner(x.flatten(0, -2), relu=True)
        return self.outer(self.dropout(hidden)).view(x.shape)


class GatedSum(Linear):
    """λ ⊙ x + (1-λ) ⊙ y, λ = σ(W [x; y] + b).

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__(2 * width, width)

    def mix(
        self,
        x: Tensor,
        y: Tensor,
        has: Tensor,
        name: str,
        finish: Callable[[Tensor], Tensor] = lambda mixed: mixed,
    ) -> Tensor:
        """Return the sum of a word's own state and of what the word has read elsewhere.

        Args:
            x, y: the state and what was read, (R, T, D).
            has: bool (R, 1), the rows that have something to read; other rows are x as it is, and
                their gate is NaN.
            name: of the gate, for `capture`.
            finish: what follows the sum.
        Returns: (R, T, D).
        """
        gate = self(torch.cat([x, y], dim=-1), sigmoid=True)
        if capturing():
            record(name, gate.mean(-1).masked_fill(~has, torch.nan))
        return torch.where(has.unsqueeze(-1), finish(y + gate * (x - y)), x)
