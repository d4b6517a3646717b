"""The step of an update: the gradients of all its batches, clipping, Adam.

In float16 the loss is scaled: without a scale, small gradients would become zero. The scale begins
at 2^16. It is halved when a gradient overflows, and doubled after 2,000 updates without an
overflow. An update that overflows is computed again with the lower scale. Until it succeeds, Adam
makes no step and the learning rate does not move; no sentence is lost.

Source: Micikevicius et al. 2018, *Mixed precision training*, §3.2.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import AdamW

from nmtkit import console
from nmtkit.errors import CheckpointError, counted
from nmtkit.records import TRAIN_AGAIN
from nmtkit.settings import TrainSettings
from nmtkit.train.ema import RAW
from nmtkit.train.gradients import Gradients
from nmtkit.train.graphs import Graphs
from nmtkit.train.prefetch import PreparedUpdate
from nmtkit.train.state import TrainState


class OptimizerStep:
    """Makes the steps of a training.

    Args:
        gradients: of the model; their state counts overflows.
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

        All ranks decide alike, because gradients and losses are sums over the ranks.

        Args:
            update: its batches.
            rate: the learning rate.
        Returns: (3) the smoothed loss, the negative log-likelihood and the norm of the gradient.
        """
        set_rate(self.optimizer, rate)
        losses = self._gradient(update)
        if self.scaler.is_enabled():
            sums = self._scaled_step(update, losses)
        else:
            sums = self._finish(losses).clone()  # a graph writes its next result over this one
        if self.gradients.graphs is None:  # graphs need the gradients in their places
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

        Returns: (3) the losses, and the norm of the gradients before clipping.
        """
        sums = self._clip(losses)
        step_if(self.optimizer, finite(sums))
        return sums

    def _clip(self, losses: Tensor) -> Tensor:
        """Clip the gradients; return the losses and the norm before clipping (3)."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if limit := self.gradients.settings.clip_norm:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
        return torch.cat([losses, norm.to(losses.dtype)[None]])

    def _scaled_step(self, update: PreparedUpdate, losses: Tensor) -> Tensor:
        """Do as `_clipped_step`, in float16.

        This waits for the device, because the update may have to be computed again. If the loss is
        not finite, or the scale is 1 already, the scale is not the cause.
        """
        while True:
            self.scaler.unscale_(self.optimizer)
            sums = self._clip(losses)
            loss, _, norm = sums.tolist()
            if math.isfinite(norm) or not math.isfinite(loss) or self.scaler.get_scale() <= 1:
                break
            self.scaler.update()  # halves the scale
            self.state.overflows += 1
            self.optimizer.zero_grad(set_to_none=True)
            losses = self._gradient(update)
        if finite(sums):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        return sums

    def describe_overflows(self, before: int) -> str:
        """Return a line of the log about an update that overflowed; before: overflows before it."""
        state, times = self.state, counted(self.state.overflows - before, "time")
        return (
            f"step {state.step:,}: the gradient overflowed in float16 and was computed again"
            f" ({times}, {state.overflows:,} so far); loss scale now {self.scaler.get_scale():,g}"
        )


def finite(sums: Tensor) -> Tensor:
    """Return true if the smoothed loss and the norm are finite.

    Args:
        sums: (3) of `OptimizerStep.step`.
    """
    return torch.isfinite(sums[::2]).all()


def warn_of_parts(state: TrainState) -> None:
    """Warn that large batches are computed in parts."""
    console.warn(
        f"a batch of {state.split_from:,} positions does not fit into memory: batches of this size"
        " or more are computed in parts; updates have the same pairs, but other dropout masks"
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


class Adam(AdamW):
    """torch's AdamW without its decorators, which import torch's compiler: that takes a second."""

    add_param_group = inspect.unwrap(AdamW.add_param_group)
    zero_grad = inspect.unwrap(AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(AdamW.step))


def make_optimizer(model: nn.Module, settings: TrainSettings) -> AdamW:
    """Return Adam over all parameters, in one fused kernel except on an Apple GPU.

    Weight decay, if any, is decoupled (Loshchilov & Hutter 2019). The learning rate is set at each
    step; on a GPU it is a tensor, which a recorded step reads.
    """
    parameters = list(_parameters(model).values())
    device = parameters[0].device
    cuda, fused = device.type == "cuda", device.type != "mps"
    optimizer = Adam(
        parameters,
        lr=torch.zeros((), device=device) if cuda else 0.0,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=fused,
        capturable=cuda,
    )
    # Made here, because the first batches may take all memory.
    for p in parameters:
        step = torch.zeros((), device=device if fused else "cpu")
        moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        optimizer.state[p] = {"step": step, **moments}
    return optimizer


def set_rate(optimizer: AdamW, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def step_if(optimizer: AdamW, finite: Tensor) -> None:
    """Make a step if `finite` (a bool tensor) is true.

    A fused kernel decides on the device: it reads the number that torch's GradScaler sets.
    """
    if optimizer.defaults["fused"]:
        optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif finite:
        optimizer.step()


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def optimizer_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Return `exp_avg/NAME`, `exp_avg_sq/NAME`, and `step/NAME`, the updates of a parameter."""
    return {
        f"{kind}/{name}": tensor
        for name, parameter in _parameters(model).items()
        for kind, tensor in optimizer.state[parameter].items()
    }


def put_optimizer_tensors(
    model: nn.Module, optimizer: AdamW, tensors: Mapping[str, Tensor], where: object = None
) -> None:
    """Set an optimiser to the state of a checkpoint.

    Raises: CheckpointError if the tensors do not fit the model.
    """
    places = optimizer_tensors(model, optimizer)
    stored = {key: tensor for key, tensor in tensors.items() if not key.startswith(RAW)}
    shapes = [{key: t.shape for key, t in of.items()} for of in (places, stored)]
    if shapes[0] != shapes[1]:
        message = "the optimiser's state is incomplete, or of another model"
        raise CheckpointError(message, where=where, hint=TRAIN_AGAIN)
    for key, place in places.items():
        place.copy_(stored[key])
