"""Stops a training on a signal, after the step at hand."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from nmtkit import console


class Abandoned(Exception):
    """A validation was broken off because of a signal; it is repeated after resuming."""


class Stop:
    """Notes a signal that asks to stop: SIGTERM, SIGINT, SIGUSR1. A second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.signal = 0
        """The number of the signal; 0 if there was none."""

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals in the body, in the main thread (other threads cannot catch any)."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                before[number] = signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

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
