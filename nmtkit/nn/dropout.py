"""Dropout with random numbers of its own for each micro-batch: a resumed training repeats them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nmtkit.nn import cpu


def seed_dropout(seed: int, step: int, micro: int = 0) -> None:
    """Begin the random numbers of one micro-batch; they depend on the three numbers alone.

    Args:
        seed: of the training.
        step: of the optimiser.
        micro: index of the micro-batch within the step.
    """
    sequence = np.random.SeedSequence((seed, step, micro))
    cpu.seed_masks(sequence)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1/(1-p), also in evaluation."""
    if p == 0:
        return x
    return cpu.dropout(x, p) if x.device.type == "cpu" else torch.dropout(x, p, True)


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
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
