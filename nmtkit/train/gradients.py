"""The gradient of one update: all its micro-batches, each with its own random numbers, in parts where memory is short.

A part is a micro-batch of its own: the update is the mean over the same pairs, but with other dropout masks than if it had been computed
whole. From which size on batches are computed in parts is therefore kept in the training's state, so that a continued training does the same.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batches import Ids, Pairs, collate
from nmtkit.errors import EnvironmentProblem
from nmtkit.models.base import Model
from nmtkit.nn.dropout import seed_dropout
from nmtkit.nn.hardware import Hardware
from nmtkit.settings import TrainSettings
from nmtkit.train import loss as losses
from nmtkit.train.guard import is_out_of_memory
from nmtkit.train.order import Order
from nmtkit.train.state import TrainState


def autocast_arguments(hardware: Hardware) -> dict[str, Any]:
    """The arguments of torch.autocast for the precision chosen."""
    return {"device_type": hardware.device, "dtype": torch.bfloat16, "enabled": hardware.precision == "bfloat16"}


def seed_everything(seed: int, step: int, micro: int) -> None:
    """Begin the random numbers of a micro-batch: a model may draw from any of the usual sources and still be continued exactly."""
    seed_dropout(seed, step, micro)
    mixed = int(np.random.SeedSequence((seed, step, micro, 1)).generate_state(1)[0])
    torch.manual_seed(mixed)
    np.random.seed(mixed)
    random.seed(mixed)


class Gradients:
    """Computes gradients of a model on batches of a training set.

    Args:
        model: in training mode, on its device; without gradients.
        store: the training set.
        order: knows the sizes of batches.
        settings: seed, label_smoothing.
        autocast: arguments of torch.autocast.
        state: holds `split_from`, which is lowered when memory does not suffice.
    """

    def __init__(self, model: Model, store: Pairs, order: Order, settings: TrainSettings, autocast: dict[str, Any], state: TrainState) -> None:
        self._model, self._store, self._order, self._settings, self._autocast = model, store, order, settings, autocast
        self._state = state
        self._device = next(model.parameters()).device
        self._chunk = losses.chunk_rows(model.vocabularies.tgt, self._device.type)

    def compute(self, update: list[Ids], step: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Add the gradient of the loss per target token of an update; when memory does not suffice, begin again in smaller parts.

        Args:
            update: the rows of its micro-batches.
            step: of the optimiser, for the random numbers.
            tokens: what the loss is divided by: the target tokens of the whole update.
        Returns: sums of the smoothed loss and of the negative log-likelihood, not divided.
        Raises: EnvironmentProblem if memory does not even hold one pair.
        """
        while True:
            parts = [part for rows in update for part in self._parts(rows)]
            sums: list[losses.Loss] = []
            try:
                for micro, rows in enumerate(parts):
                    sums.append(self._backward(rows, step, micro, tokens))
                return torch.stack([x.smoothed for x in sums]).sum(), torch.stack([x.nll for x in sums]).sum()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._split_more(parts[len(sums)])
            self._model.zero_grad(set_to_none=True)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _backward(self, rows: Ids, step: int, micro: int, tokens: int) -> losses.Loss:
        seed_everything(self._settings.seed, step, micro)
        batch = collate(self._store, rows, self._device)
        assert batch.tgt_in is not None
        with torch.autocast(**self._autocast):
            hidden, _ = self._model.decode(batch.tgt_in, self._model.encode(batch))
        return losses.backward(self._logits, hidden, batch, self._settings.label_smoothing, 1 / tokens, self._chunk)

    def _logits(self, hidden: Tensor) -> Tensor:
        with torch.autocast(**self._autocast):
            return self._model.logits(hidden)

    def _parts(self, rows: Ids) -> list[Ids]:
        """A batch as it is, or in parts that memory holds."""
        split_from = self._state.split_from
        if split_from is None or self._order.positions(rows) < split_from or len(rows) == 1:
            return [rows]
        half = len(rows) // 2
        return self._parts(rows[:half]) + self._parts(rows[half:])

    def _split_more(self, rows: Ids) -> None:
        """Note that memory does not hold a batch.

        Raises: EnvironmentProblem if it is a single pair.
        """
        positions = self._order.positions(rows)
        if len(rows) == 1:
            raise EnvironmentProblem(
                f"out of memory on a single sentence pair of {positions} positions (line {int(rows[0]) + 1} of the training set)",
                hint="a smaller model, or prepare with a lower prep.max_subwords",
            )
        self._state.split_from = positions
