"""Adam, and its state as named tensors for a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from nmtkit.errors import CheckpointError
from nmtkit.records import TRAIN_AGAIN
from nmtkit.settings import TrainSettings
from nmtkit.train.ema import RAW


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
    cuda = parameters[0].device.type == "cuda"
    optimizer = Adam(
        parameters,
        lr=torch.zeros((), device=parameters[0].device) if cuda else 0.0,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=all(p.device.type != "mps" for p in parameters),
        capturable=cuda,
    )
    # Before the first batches, which may take all memory.
    for p in parameters:
        step = torch.zeros((), device=p.device if optimizer.defaults["fused"] else "cpu")
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
