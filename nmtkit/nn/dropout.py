"""Dropout whose random numbers begin anew in each micro-batch: a resumed training repeats them."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from nmtkit.nn import cpu

SEEDS = 64
"""Seeds of kernels that are drawn at once: a GPU needs as much time to draw one."""
_seeds: list[Tensor] = []


def seed_dropout(seed: int, step: int, micro: int = 0) -> None:
    """Begin the random numbers of one micro-batch; they depend on the three numbers alone.

    Args:
        seed: of the training.
        step: of the optimiser.
        micro: index of the micro-batch within the step.
    """
    forget_seeds()
    sequence = np.random.SeedSequence((seed, step, micro))
    cpu.seed_masks(sequence)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def seed_everything(seed: int, step: int, micro: int) -> None:
    """Seed all usual sources of random numbers for a micro-batch, so that a model may draw from any
    of them and a resumed training is still exact.
    """
    seed_dropout(seed, step, micro)
    mixed = int(np.random.SeedSequence((seed, step, micro, 1)).generate_state(1)[0])
    # torch.manual_seed would also note for each kind of device who called it, which takes longer.
    torch.default_generator.manual_seed(mixed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(mixed)
    np.random.seed(mixed)
    random.seed(mixed)


def new_seed(device: torch.device) -> Tensor:
    """Return the seed of a kernel, the first of two numbers, from the device's generator."""
    if torch.compiler.is_compiling():  # a list would change in the graph
        return torch.randint(2**31, (2,), device=device)
    if not _seeds or _seeds[-1].device != device:
        # Pairs begin at multiples of 16 bytes: Triton compiles a kernel anew for other places.
        _seeds[:] = torch.randint(2**31, (SEEDS, 2), device=device).unbind()
    return _seeds.pop()


def forget_seeds() -> None:
    """Draw the next seed anew."""
    _seeds.clear()


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
