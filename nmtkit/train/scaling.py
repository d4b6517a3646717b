"""Loss scaling for float16: without a scale of the loss, small gradients would become zero.

The scale begins at 2^16. It is halved when a gradient overflows, and doubled after 2,000 updates
without an overflow. An update that overflows is computed again with the lower scale. Until it
succeeds, Adam makes no step and the learning rate does not move; no sentence is lost.

Source: Micikevicius et al. 2018, *Mixed precision training*, §3.2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.amp import GradScaler

from nmtkit.errors import counted
from nmtkit.train.state import TrainState


def make_scaler(autocast: dict[str, Any], device: torch.device, state: TrainState) -> GradScaler:
    """Return the scaler of a training at its state; without float16 the scaler does nothing.

    Args:
        autocast: arguments of torch.autocast.
        device: of the model.
        state: the state at which training begins.
    """
    float16 = autocast["enabled"] and autocast["dtype"] == torch.float16
    scaler = GradScaler(device.type, enabled=float16)
    if float16:
        scaler.load_state_dict(state.scaler or scaler.state_dict())
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
