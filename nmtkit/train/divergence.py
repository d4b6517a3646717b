"""Losses and gradients that are not finite: skipped updates, the end of a training, the cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit import console, files
from nmtkit.data.padding import Ids
from nmtkit.errors import TrainingDiverged
from nmtkit.models import checkpoints
from nmtkit.run import System
from nmtkit.train.state import TrainState

IN_A_ROW = 5
SHARE = 0.01
AT_LEAST = 10  # skipped updates before the share counts


def check_finite(state: TrainState, step: int, loss: float, norm: float) -> bool:
    """True if an update was made; else count it as skipped.

    Args:
        state: counts skipped updates.
        step: of the update; `state.step` may be later.
        loss: per token.
        norm: of the gradient.
    Raises: TrainingDiverged if 5 updates in a row were skipped, or at least 10 and more than 1 %.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        state.skipped_in_row = 0
        state.norms = [*state.norms[-19:], norm]
        return True
    state.skipped += 1
    state.skipped_in_row += 1
    console.warn(
        f"step {step}: loss {loss:.4g}, gradient norm {norm:.4g}: update skipped"
        f" ({state.skipped} so far)"
    )
    in_a_row, skipped = state.skipped_in_row, state.skipped
    if in_a_row >= IN_A_ROW:
        raise TrainingDiverged(
            f"loss or gradient not finite in {in_a_row} updates in a row, up to step {step}"
        )
    if skipped >= AT_LEAST and skipped > SHARE * step:
        raise TrainingDiverged(f"loss or gradient not finite in {skipped} of {step} updates")
    return False


def first_not_finite(model: nn.Module, compute: Callable[[], object]) -> str:
    """Call `compute` and return the name of the first tensor of a model that is not finite: the
    output of a module, else a weight, else a gradient, else the loss. The model keeps the hooks,
    because the training ends.
    """
    wrong = []

    def check(name: str, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and not bool(torch.isfinite(tensor).all()):
            wrong.append(name)

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(
                lambda module, inputs, output, name=name: check(f"output of {name}", output)
            )
    with torch.compiler.set_stance("force_eager"):  # a compiled model calls no hooks
        compute()
    for name, parameter in model.named_parameters():
        check(f"weight {name}", parameter)
    for name, parameter in model.named_parameters():
        check(f"gradient of {name}", parameter.grad)
    return [*wrong, "loss"][0]


def write_report(
    error: TrainingDiverged,
    system: System,
    state: TrainState,
    cause: str,
    update: list[Ids],
    rate: float,
) -> TrainingDiverged:
    """Write diverged.json and return the error with the facts that help to find its cause.

    Args:
        error: from `check_finite`.
        cause: from `first_not_finite`.
        update, rate: the batches and the learning rate of the update.
    """
    path = system.path / "diverged.json"
    names = [checkpoint.name for checkpoint in checkpoints.find_checkpoints(system)]
    report = {
        "step": state.step,
        "first_not_finite": cause,
        "lr": rate,
        "rows": [rows.tolist() for rows in update],
        "gradient_norms_before": state.norms,
        "skipped": state.skipped,
        "last_checkpoint": names[-1] if names else None,
    }
    files.write_json(path, report)
    last = f"the last good checkpoint is {names[-1]}" if names else "there is no checkpoint yet"
    return TrainingDiverged(
        f"{error.message}; first not finite: {cause}",
        where=f"{path} (batch rows, learning rate {rate:.3g}, gradient norms)",
        hint=f"lower train.lr or set train.clip_norm=1, with --force to begin anew; {last}",
    )
