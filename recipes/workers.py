"""Processes that run side by side, for recipes with PARALLEL and for the queue in verdict/."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

STOPPED = 75
"""Exit code of nmtkit after a signal: everything is saved, and the same command continues."""


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals of `kill`, of Ctrl-C, and of a terminal that is closed."""


def on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    """Set the handler of STOP_SIGNALS; with nohup SIGHUP stays ignored."""
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


class Workers:
    """Processes that run at the same time, each in a session of its own."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []
        self.code = 0
        """0; or why no further process may start: the exit code of a process, or STOPPED."""

    def listen(self) -> None:
        """Stop all processes after a signal."""
        on_stop(self._stop)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process, with options of subprocess.Popen."""
        self.running.append(subprocess.Popen(command, start_new_session=True, **options))
        if self.code:  # the signal came while it was started
            self.running[-1].send_signal(signal.SIGTERM)
        return self.running[-1]

    def next_ended(
        self, meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Wait for a process to end; return it and its exit code, STOPPED if it was killed.

        Args:
            meanwhile: is called ten times a second.
        """
        while True:
            for worker in self.running:
                if worker.poll() is not None:
                    self.running.remove(worker)
                    return worker, worker.returncode if worker.returncode >= 0 else STOPPED
            meanwhile()
            time.sleep(0.1)

    def stop(self, code: int) -> None:
        """Ask all processes to stop, and start no more; `code` is the exit code of the reason."""
        self.code = self.code or code
        for worker in self.running:
            worker.send_signal(signal.SIGTERM)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # stderr may be a terminal that is closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        self.stop(STOPPED)
