"""What goes wrong in a long training: being told to stop, numbers that are not finite, memory
that does not suffice.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit import console
from nmtkit.errors import EnvironmentProblem, TrainingDiverged
from nmtkit.files import UNWRITABLE
from nmtkit.train.state import TrainState

IN_A_ROW = 5
SHARE = 0.01
AT_LEAST = 10  # skipped updates before the share counts
PAUSES = (0, 2, 4, 8, 16, 30)
"""Seconds before each further attempt to write a checkpoint: a network disk may be away for a
minute.
"""


class Stop:
    """Whether someone asked the training to stop (SIGTERM, SIGINT, SIGUSR1); a second Ctrl-C
    ends at once.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.number = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        """Catch the signals while the body runs (in the main thread; elsewhere signals cannot be
        caught).
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self.number, self.requested = number, signal.Signals(number).name
            console.warn(
                f"{self.requested}: finishing this step, then saving (Ctrl-C again stops at once)"
            )


def pauses(error: EnvironmentProblem) -> tuple[int, ...]:
    """How often, and after how many seconds, to try again what could not be written; what
    waiting does not mend (a full disk) once, at once.
    """
    number = getattr(error.__cause__, "errno", None)
    return PAUSES[:1] if number is None or number in UNWRITABLE else PAUSES


class Abandoned(Exception):
    """A validation was broken off because the training was told to stop; it is done again after
    resuming.
    """


def check_finite(state: TrainState, loss: float, norm: float) -> bool:
    """Decide over an update whose loss and gradient norm are known, and count.

    Args:
        state: counts skipped updates; `state.step` is the update's.
        loss: per token.
        norm: of the gradient.
    Returns: whether to make the update.
    Raises: TrainingDiverged after 5 updates in a row, or more than 1 % of them, that had to be
        skipped.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        state.skipped_in_row = 0
        state.norms = [*state.norms[-19:], norm]
        return True
    state.skipped += 1
    state.skipped_in_row += 1
    console.warn(
        f"step {state.step}: loss {loss:.4g}, gradient norm {norm:.4g}: update skipped"
        f" ({state.skipped} so far)"
    )
    if state.skipped_in_row >= IN_A_ROW:
        raise TrainingDiverged(
            f"loss or gradient not finite in {state.skipped_in_row} updates in a row, up to step"
            f" {state.step}"
        )
    if state.skipped >= AT_LEAST and state.skipped > SHARE * state.step:
        raise TrainingDiverged(
            f"loss or gradient not finite in {state.skipped} of {state.step} updates"
        )
    return False


@contextlib.contextmanager
def finding_first_bad(model: nn.Module) -> Iterator[list[str]]:
    """Watch a forward pass: the list's first entry is the first module whose output is not
    finite.
    """
    bad: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if (
                isinstance(output, Tensor)
                and output.is_floating_point()
                and not bool(torch.isfinite(output).all())
            ):
                bad.append(name)

        return hook

    handles = [
        module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name
    ]
    try:
        with torch.compiler.set_stance(
            "force_eager"
        ):  # hooks are called by the model as it is written
            yield bad
    finally:
        for handle in handles:
            handle.remove()


def bad_weights_or_gradients(model: nn.Module) -> str | None:
    """The first parameter that is not finite, else the first whose gradient is not."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"weight {name}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return f"gradient of {name}"
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on the GPU or the CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
