"""Reasons to end a training: its budget, early stopping (`train.patience`), or a signal."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from nmtkit import console
from nmtkit.errors import counted
from nmtkit.settings import TrainSettings
from nmtkit.train.state import TrainState, Window

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals that ask a training to stop."""


class Abandoned(Exception):
    """A signal ended a validation, which is repeated after resuming."""


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    """Handle the signals in the body; only the main thread can do so."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class Stop:
    """Notes a signal that asks to stop. A second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.signal = 0
        """The number of the signal; 0 if there was none."""

    def listening(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the main thread catches the signals."""
        return handled_by(self._receive)

    def check(self) -> None:
        """Raise Abandoned after a signal."""
        if self.signal:
            raise Abandoned

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.signal:
            self.signal = number
            console.warn(
                f"{signal.Signals(number).name}: finishing this step, then saving (Ctrl-C again"
                " stops at once)"
            )


def reason_to_end(state: TrainState, s: TrainSettings) -> str | None:
    """Return the reason to end and the setting that allows more, or None."""
    at_step = f"at step {state.step:,}"
    if state.step >= s.max_steps:
        return f"{at_step} of {s.max_steps:,}; raise train.max_steps to go on"
    if s.max_minutes and state.seconds >= 60 * s.max_minutes:
        return f"{s.max_minutes:g} min of training done {at_step}; raise train.max_minutes to go on"
    if s.patience and state.since_best >= s.patience:
        return (
            f"no new best in {counted(state.since_best, 'validation')} {at_step}; raise"
            " train.patience to go on"
        )
    rate = s.lr * state.plateau.factor
    if s.schedule == "plateau" and s.min_lr and rate <= s.min_lr:
        return f"learning rate down to {rate:g} {at_step}; lower train.min_lr to go on"
    return None


def seconds_left(state: TrainState, s: TrainSettings, window: Window) -> float:
    """Return the training time left, at the speed of the updates in `window`."""
    left = (s.max_steps - state.step) * window.seconds / max(1, window.steps)
    return min(left, 60 * s.max_minutes - state.seconds) if s.max_minutes else left
