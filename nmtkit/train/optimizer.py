"""Adam, and its state as named tensors for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from nmtkit.errors import CheckpointError
from nmtkit.settings import TrainSettings


def make_optimizer(model: nn.Module, settings: TrainSettings) -> AdamW:
    """Adam over all parameters in one fused kernel; weight decay, if any, is decoupled (Loshchilov
    & Hutter 2019).

    Args:
        model: its parameters, tied ones once.
        settings: betas, epsilon, weight_decay; the learning rate is set at each step.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    return AdamW(
        parameters,
        lr=0.0,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _names(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def optimizer_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """The moments of every parameter: `exp_avg/NAME`, `exp_avg_sq/NAME`, and `step/NAME`, the
    updates it had.
    """
    return {
        f"{kind}/{name}": tensor
        for name, p in _names(model).items()
        for kind, tensor in optimizer.state.get(p, {}).items()
    }


def put_optimizer_tensors(
    model: nn.Module, optimizer: AdamW, tensors: Mapping[str, Tensor], where: object = None
) -> None:
    """Set an optimiser to the state of a checkpoint.

    Raises: CheckpointError if the tensors do not fit the model.
    """
    names = _names(model)
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        parameter = names.get(name)
        if parameter is None or (kind != "step" and parameter.shape != tensor.shape):
            raise CheckpointError(
                f"the optimiser's state is of another model: {key}",
                where=where,
                hint="train again with --force",
            )
        optimizer.state[parameter][kind] = tensor.to(
            torch.float32 if kind == "step" else parameter.dtype
        ).to(parameter.device)
