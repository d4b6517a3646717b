"""Dropout whose random numbers are cheap on a CPU and belong to one micro-batch, so that a resumed training repeats them exactly.

On a CPU torch draws one Bernoulli number at a time, a sixth of a training step; here 16 random bits an element come from
numpy's SFC64 in blocks. On a GPU torch's own kernels are used.
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


def _dropped(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """A mask (True = drop) and the factor for what is kept."""
    global _bits
    if _bits is None:
        _bits = np.random.SFC64(np.random.SeedSequence(torch.initial_seed()))
    count = shape.numel()
    level = round(p * _LEVELS)
    words = _bits.random_raw((count + 3) // 4).view(np.int16)[:count]
    return torch.from_numpy(words).lt(level - _LEVELS // 2).view(shape), _LEVELS / (_LEVELS - level)


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped, ctx.scale = _dropped(x.shape, p)
        ctx.save_for_backward(dropped)
        return (x * ctx.scale).masked_fill_(dropped, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dropped,) = ctx.saved_tensors
        return (grads[0] * ctx.scale).masked_fill_(dropped, 0), None


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1/(1-p) (for training; callers skip it in evaluation)."""
    if p == 0:
        return x
    if x.device.type == "cpu":
        return _CpuDropout.apply(x, p)
    return torch.dropout(x, p, True)


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
