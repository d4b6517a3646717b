"""The gradient of one update: all its micro-batches, each with its own random numbers, in parts
where memory is short.

A part is a micro-batch of its own: the update is the mean over the same pairs, but with other
dropout masks than if it had been computed whole. From which size on batches are computed in parts
is therefore kept in the training's state, so that a continued training does the same.

Several processes take turns with the micro-batches, whose random numbers go by their place in the
update and not by who computes them: the update is the same whatever the number of processes. Where
an update has fewer micro-batches than there are processes, they are cut into pieces; the update is
then the mean over the same pairs, again with other dropout masks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
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
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState

HELD = 2**53
"""More positions than any batch has: memory held all."""


def autocast_arguments(hardware: Hardware) -> dict[str, Any]:
    """The arguments of torch.autocast for the precision chosen."""
    return {
        "device_type": hardware.device,
        "dtype": torch.bfloat16,
        "enabled": hardware.precision == "bfloat16",
    }


def seed_everything(seed: int, step: int, micro: int) -> None:
    """Begin the random numbers of a micro-batch: a model may draw from any of the usual sources
    and still be continued exactly.
    """
    seed_dropout(seed, step, micro)
    mixed = int(np.random.SeedSequence((seed, step, micro, 1)).generate_state(1)[0])
    torch.manual_seed(mixed)
    np.random.seed(mixed)
    random.seed(mixed)


def pieces(batches: int, ranks: int) -> int:
    """How many pieces each of an update's batches is cut into: 1 where every rank has one, else
    what takes least time.

    The time is that of the rank with most pieces, a twentieth more for each piece of a batch, since
    short ones are slower for their length.
    """
    if batches >= ranks:
        return 1
    return min(
        range(1, ranks + 1),
        key=lambda count: math.ceil(batches * count / ranks) / count * (1 + count / 20),
    )


class Gradients:
    """Computes gradients of a model on batches of a training set.

    Args:
        model: in training mode, on its device; without gradients.
        store: the training set.
        order: knows the sizes of batches.
        settings: seed, label_smoothing.
        autocast: arguments of torch.autocast.
        state: holds `split_from`, which is lowered when memory does not suffice.
        ranks: the processes that share the work.
    """

    def __init__(
        self,
        model: Model,
        store: Pairs,
        order: Order,
        settings: TrainSettings,
        autocast: dict[str, Any],
        state: TrainState,
        ranks: Ranks | None = None,
    ) -> None:
        self._model, self._store, self._order, self._settings, self._autocast = (
            model,
            store,
            order,
            settings,
            autocast,
        )
        self._state, self._ranks = state, ranks or Ranks()
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device = next(model.parameters()).device
        self._chunk = losses.chunk_rows(model.vocabularies.tgt, self._device.type)

    def compute(self, update: list[Ids], step: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the loss per target token of an update; when memory does not
        suffice, begin again in smaller parts.

        Each rank computes its share of the parts; the gradients, the same in all, are then those of
        the whole update.

        Args:
            update: the rows of its micro-batches.
            step: of the optimiser, for the random numbers.
            tokens: what the loss is divided by: the target tokens of the whole update.
        Returns: sums of the smoothed loss and of the negative log-likelihood, not divided.
        Raises: EnvironmentProblem if memory does not even hold one pair.
        """
        while True:
            sums, too_big = self.add(
                self._ranks.share(list(enumerate(self.parts(update)))), step, tokens
            )
            # What only one rank knows must be known to all before they wait for each other in the
            # sum.
            rows = self._ranks.gather([too_big, *(p.grad is not None for p in self._parameters)])
            smallest = min(int(row[0]) for row in rows)
            if smallest == HELD:
                used = [
                    p
                    for p, *has in zip(self._parameters, *(row[1:] for row in rows), strict=True)
                    if any(has)
                ]
                for p in used:
                    if p.grad is None:
                        p.grad = torch.zeros_like(p)
                self._ranks.sum([sums, *(p.grad for p in used if p.grad is not None)])
                smoothed, nll = sums.unbind()
                return smoothed, nll
            self._state.split_from = smallest
            self._model.zero_grad(set_to_none=True)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def add(self, parts: Sequence[tuple[int, Ids]], step: int, tokens: int) -> tuple[Tensor, int]:
        """Add the gradients of some parts of an update in this process.

        Args:
            parts: number in the update, which its random numbers go by, and rows.
            step, tokens: as of `compute`.
        Returns: sums (2) of the smoothed loss and of the negative log-likelihood; positions of the
            part that memory did not hold, else HELD.
        """
        sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        for micro, rows in parts:
            try:
                loss = self._backward(rows, step, micro, tokens)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return sums, self._too_big(rows)
            sums += torch.stack([loss.smoothed, loss.nll])
        return sums, HELD

    def parts(self, update: list[Ids]) -> list[Ids]:
        """What an update is computed in: its micro-batches, cut where there are fewer of them
        than ranks, and where memory is short.
        """
        count = pieces(len(update), self._ranks.world)
        cut = [piece for rows in update for piece in np.array_split(rows, min(count, len(rows)))]
        return [part for rows in cut for part in self._parts(rows)]

    def _backward(self, rows: Ids, step: int, micro: int, tokens: int) -> losses.Loss:
        seed_everything(self._settings.seed, step, micro)
        batch = collate(self._store, rows, self._device, self._model.context_rule)
        assert batch.tgt_in is not None
        with torch.autocast(**self._autocast):
            hidden, _ = self._model.decode(batch.tgt_in, self._model.encode(batch))
        return losses.backward(
            self._logits, hidden, batch, self._settings.label_smoothing, 1 / tokens, self._chunk
        )

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

    def _too_big(self, rows: Ids) -> int:
        """The positions of a batch that memory does not hold.

        Raises: EnvironmentProblem if it is a single pair.
        """
        positions = self._order.positions(rows)
        if len(rows) == 1:
            raise EnvironmentProblem(
                f"out of memory on a single sentence pair of {positions} positions (line"
                f" {int(rows[0]) + 1} of the training set)",
                hint="a smaller model, or prepare with a lower prep.max_subwords",
            )
        return positions
