"""The step of an update: gradients of all its batches, clipping, Adam.

In float16 the loss is scaled: without a scale, small gradients would become zero. The scale begins
at 2^16. It is halved when a gradient overflows, and doubled after 2,000 updates without an
overflow. An update that overflows is computed again with the lower scale. Until it succeeds, Adam
makes no step and the learning rate does not move; no sentence is lost.

Source: Micikevicius et al. 2018, *Mixed precision training*, §3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.amp import GradScaler

from nmtkit import console
from nmtkit.errors import counted
from nmtkit.train.gradients import Gradients
from nmtkit.train.graphs import Graphs
from nmtkit.train.optimizer import make_optimizer, set_rate, step_if
from nmtkit.train.prefetch import PreparedUpdate
from nmtkit.train.state import TrainState


class OptimizerStep:
    """Makes the steps of a training.

    Args:
        gradients: of the model; overflows are counted in their state.
    """

    def __init__(self, gradients: Gradients) -> None:
        self.model, self.gradients, self.state = gradients.model, gradients, gradients.state
        self.optimizer = make_optimizer(self.model, gradients.settings)
        self.scaler = make_scaler(gradients)
        self._finish: Callable[[Tensor], Tensor] = self._clipped_step
        if gradients.graphs is not None:
            self._finish = Graphs(self._clipped_step, "the optimiser's steps")

    def step(self, update: PreparedUpdate, rate: float) -> Tensor:
        """Compute the gradients of all batches, then make a step of Adam if they are finite.

        All ranks decide alike, because the gradients and losses are sums over the ranks.

        Args:
            update: its batches.
            rate: the learning rate.
        Returns: (3) the smoothed loss, the negative log-likelihood and the norm of the gradient.
        """
        set_rate(self.optimizer, rate)
        losses = self._gradient(update)
        scaled = self.scaler.is_enabled()
        # A graph writes the sums of the next update over these.
        sums = self._scaled_step(update, losses) if scaled else self._finish(losses).clone()
        if self.gradients.graphs is None:  # else gradients stay in their places
            self.optimizer.zero_grad(set_to_none=True)
        return sums

    def _gradient(self, update: PreparedUpdate) -> Tensor:
        """Compute the gradient of an update, times the scale of the loss.

        Returns: (2) the smoothed loss and the negative log-likelihood.
        """
        state, split_before = self.state, self.state.split_from
        divisor = update.tokens / self.scaler.get_scale()
        losses = self.gradients.compute(update.rows, state.step, divisor, update.share)
        if state.split_from != split_before:
            warn_of_parts(state)
        return losses

    def _clipped_step(self, losses: Tensor) -> Tensor:
        """Clip the gradients and make a step of Adam, if losses and gradients are finite.

        Returns: (3) the losses, and the norm of the gradients before.
        """
        sums = self._clip(losses)
        step_if(self.optimizer, finite(sums))
        return sums

    def _clip(self, losses: Tensor) -> Tensor:
        """Clip the gradients; return the losses, and the norm of the gradients before (3)."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if limit := self.gradients.settings.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
        return torch.cat([losses, norm.to(losses.dtype)[None]])

    def _scaled_step(self, update: PreparedUpdate, losses: Tensor) -> Tensor:
        """Return `_clipped_step` for float16.

        It waits for the numbers, because it may have to compute the update again.
        """
        while True:
            self.scaler.unscale_(self.optimizer)
            sums = self._clip(losses)
            if not overflowed(self.scaler, *sums[::2].tolist()):
                break
            self.state.overflows += 1
            self.optimizer.zero_grad(set_to_none=True)
            losses = self._gradient(update)
        if finite(sums):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        return sums


def finite(sums: Tensor) -> Tensor:
    """Return true if the smoothed loss and the norm are finite.

    Args:
        sums: (3) of `OptimizerStep.step`.
    """
    return torch.isfinite(sums[::2]).all()


def warn_of_parts(state: TrainState) -> None:
    """Warn that large batches are computed in parts."""
    console.warn(
        f"memory does not hold a batch of {state.split_from:,} positions: batches from that size on"
        " are computed in parts; the update is that of the same pairs, but with other dropout masks"
    )


def make_scaler(gradients: Gradients) -> GradScaler:
    """Return the scaler of a training at its state; without float16 the scaler does nothing."""
    device, autocast = gradients.device, gradients.autocast
    float16 = autocast["enabled"] and autocast["dtype"] == torch.float16
    scaler = GradScaler(device.type, enabled=float16)
    if float16:
        scaler.load_state_dict(gradients.state.scaler or scaler.state_dict())
        scaler.scale(torch.zeros((), device=device))  # the first call makes its tensors
    return scaler


def overflowed(scaler: GradScaler, loss: float, norm: float) -> bool:
    """True if a gradient overflowed; the scale is then lower.

    If the loss is not finite, or the scale is 1 already, the scale is not the cause.

    Args:
        scaler: after `unscale_`.
        loss: of the update.
        norm: of its gradient.
    """
    if math.isfinite(norm) or not math.isfinite(loss) or scaler.get_scale() <= 1:
        return False
    scaler.update()
    return True


def describe_overflows(scaler: GradScaler, state: TrainState, before: int) -> str:
    """Return a line of the log about an update that overflowed; before: overflows before it."""
    times = counted(state.overflows - before, "time")
    return (
        f"step {state.step:,}: the gradient overflowed in float16 and was computed again"
        f" ({times}, {state.overflows:,} so far); loss scale now {scaler.get_scale():,g}"
    )
