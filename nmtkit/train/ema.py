"""`train.ema`: an exponential moving average of the weights, for validation and translation.

After update t the average is a ← d·a + (1-d)·w with d = min(ema, (1+t)/(10+t)), so that the first
averages are not those of random weights. Marian's --exponential-smoothing begins in the same way.

The weights in a checkpoint are the averages, so every stage reads the averages. The weights that
training updates ("raw") are among the tensors of the optimiser.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nmtkit.models.base import Model

RAW = "raw/"
"""Prefix of the names of the weights that training updates."""


class Averages:
    """The averages of a model's parameters; without a decay there are none.

    Args:
        model: on its device. Its weights are those of a checkpoint, or new.
        decay: d; 0 = no averages.
        moments: tensors of the optimiser from a checkpoint. If they have raw weights, the weights
            of the model become the averages, and the model gets the raw weights.
    """

    def __init__(self, model: Model, decay: float, moments: Mapping[str, Tensor]) -> None:
        self._parameters, self._decay = dict(model.named_parameters()), decay
        raw = {key.removeprefix(RAW): moments[key] for key in moments if key.startswith(RAW)}
        self._tensors: dict[str, Tensor] = {}
        with torch.no_grad():
            if decay:
                self._tensors = {n: p.detach().clone() for n, p in self._parameters.items()}
            for name, tensor in raw.items():
                self._parameters[name].copy_(tensor)

    @torch.no_grad()
    def update(self, step: int, finite: Tensor) -> None:
        """Add the weights after an update to the averages.

        Args:
            step: of the update, from 1.
            finite: a bool tensor; if it is false, the update was skipped and the averages stay.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        share = finite * (1 - decay)
        averages = [*self._tensors.values()]
        # Only this line takes memory. If it lacks memory, nothing has changed yet.
        differences = torch._foreach_sub([self._parameters[n] for n in self._tensors], averages)
        torch._foreach_mul_(differences, share)
        torch._foreach_add_(averages, differences)

    @contextlib.contextmanager
    def in_model(self) -> Iterator[dict[str, Tensor]]:
        """Put the averages into the model for the body.

        Yields: the raw weights, with their names in a checkpoint; {} without averages.
        """
        self._swap()
        try:
            yield {RAW + name: tensor for name, tensor in self._tensors.items()}
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, tensor in self._tensors.items():
            parameter = self._parameters[name]
            self._tensors[name], parameter.data = parameter.data, tensor
