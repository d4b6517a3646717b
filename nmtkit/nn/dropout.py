"""Dropout whose random numbers are cheap on a CPU and belong to one micro-batch, so that a resumed training repeats them exactly.

On a CPU torch draws one Bernoulli number at a time on one thread, a sixth of a training step; here 16 random bits an element come
from numpy's SFC64 in blocks, and the mask is a factor of 0 or 1, several times faster to apply than a bool mask. On a GPU torch's
own kernels are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LEVELS = 1 << 16  # 16 bits an element: the probability is exact to 2^-17, and the scale fits the probability really used
_bits: np.random.SFC64 | None = None


def seed_dropout(seed: int, step: int, micro: int = 0) -> None:
    """Begin the random numbers of one micro-batch; they depend on the three numbers alone.

    Args:
        seed: of the training.
        step: of the optimiser.
        micro: index of the micro-batch within the step.
    """
    global _bits
    sequence = np.random.SeedSequence((seed, step, micro))
    _bits = np.random.SFC64(sequence)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def draw(x: Tensor, p: float) -> tuple[Tensor, float]:
    """A mask for x (1 = keep, 0 = drop, of x's type) and the factor for what is kept."""
    global _bits
    if _bits is None:
        _bits = np.random.SFC64(np.random.SeedSequence(torch.initial_seed()))
    count = x.numel()
    level = round(p * _LEVELS)
    words = _bits.random_raw((count + 3) // 4).view(np.int16)[:count]  # uniform over -2^15 … 2^15-1
    mask = torch.empty(x.shape, dtype=x.dtype)
    torch.ge(torch.from_numpy(words).view(x.shape), level - _LEVELS // 2, out=mask)
    return mask, _scale(p)


@torch.library.custom_op("nmtkit::dropout_mask", mutates_args=(), schema="(Tensor x, float p) -> Tensor", tags=torch.Tag.nondeterministic_seeded)
def _mask(x: Tensor, p: float) -> Tensor:
    """`draw` as one operation of a compiled graph, which knows its result's shape and nothing else of it."""
    return draw(x, p)[0]


@_mask.register_fake
def _(x: Tensor, p: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


def _scale(p: float) -> float:
    """The factor of `draw` for what is kept."""
    return _LEVELS / (_LEVELS - round(p * _LEVELS))


class _Dropped(torch.autograd.Function):
    """Dropout(x) on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        mask, ctx.scale = draw(x, p)
        ctx.save_for_backward(mask)
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return (grads[0] * mask).mul_(ctx.scale), None


class _AddedDropped(torch.autograd.Function):
    """x + Dropout(y) on a CPU, in one pass over memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, p: float) -> Tensor:
        mask, ctx.scale = draw(y, p)
        ctx.save_for_backward(mask)
        return torch.addcmul(x, y, mask, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return grads[0], (grads[0] * mask).mul_(ctx.scale), None


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1/(1-p) (for training; callers skip it in evaluation)."""
    if p == 0:
        return x
    if x.device.type == "cpu":
        return x * _mask(x.detach(), p) * _scale(p) if torch.compiler.is_compiling() else _Dropped.apply(x, p)
    return torch.dropout(x, p, True)


def add_dropout(x: Tensor, y: Tensor, p: float) -> Tensor:
    """x + dropout(y, p), for tensors of one shape; the sum has x's type (under autocast y is narrower)."""
    if p and y.device.type == "cpu" and not torch.compiler.is_compiling():
        return _AddedDropped.apply(x, y.to(x.dtype), p)
    return x + dropout(y, p)


class Dropout(nn.Module):
    """Inverted dropout in training, nothing in evaluation.

    Args:
        p: probability of dropping an element, 0 <= p < 1.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """(…) -> (…)."""
        return dropout(x, self.p) if self.training and self.p else x

    def extra_repr(self) -> str:
        """The probability, for printing a model."""
        return f"p={self.p}"
