"""Detects that another process of a training has died, and why the training ends.

Every rank sets a heartbeat in the store that all share, once a second and from a thread of its own.
So long work of one rank (a validation, a checkpoint) never looks like its death. The first rank to
find a cause writes it to the store, and all ranks end with the same cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch.distributed import Store  # type: ignore[attr-defined]

from nmtkit.errors import EnvironmentProblem, NmtkitError

BEAT = 1.0
"""Seconds between two heartbeats."""
SILENCE = 5.0
"""Seconds without a heartbeat that mean death once a connection has broken; before, it is the whole
timeout.
"""
GRACE = 15.0
"""Seconds in which a rank may end by itself once the cause is known. Then the process is ended, for
its main thread may wait in a call that never returns.
"""
CONTINUES = "the same command continues from the last checkpoint"


@dataclass(frozen=True)
class Cause:
    """Why all ranks end.

    Attributes:
        rank: the rank it began with.
        lost: that rank can no longer report it.
        code, message, where, hint: of the error.
    """

    rank: int
    lost: bool
    code: int
    message: str
    where: str | None = None
    hint: str | None = CONTINUES

    @classmethod
    def of_error(cls, rank: int, error: BaseException) -> Cause:
        """Return the cause that an error of this rank is for the other ranks."""
        if isinstance(error, NmtkitError):
            return cls(rank, False, error.exit_code, error.message, error.where, error.hint)
        if isinstance(error, KeyboardInterrupt):
            return cls(rank, False, 130, "stopped by Ctrl-C", hint=None)
        message = f"internal error: {type(error).__name__}: {error}"
        return cls(rank, False, 1, message, hint="this is a fault of nmtkit; --debug shows where")

    def error(self) -> NmtkitError:
        """Return the error to raise in another rank."""
        message = self.message if self.lost else f"rank {self.rank}: {self.message}"
        error = EnvironmentProblem(message, where=self.where, hint=self.hint)
        error.exit_code = self.code
        return error


class Liveness:
    """One rank's view of all ranks.

    Args:
        connect: opens a client of the store; a client serves one thread at a time.
        rank, world: this rank, and the number of ranks.
        timeout: seconds without a heartbeat that end the training.
    """

    def __init__(self, connect: Callable[[], Store], rank: int, world: int, timeout: float) -> None:
        self._store, self._rank, self._timeout = connect(), rank, timeout
        self._processes = [self._store.get(f"process/{r}").decode() for r in range(world)]
        # The last heartbeat of each other rank, and when it came.
        self._heard = {r: (b"", time.monotonic()) for r in range(world) if r != rank}
        self.exchanges = 0
        """How many exchanges this rank has entered."""
        self.cause: Cause | None = None
        self._known, self._closed = threading.Event(), threading.Event()
        self._connection_broke = False
        self._thread = threading.Thread(target=self._live, name="liveness", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int | None:
        """The rank that is lost, if one is."""
        return self.cause.rank if self.cause is not None and self.cause.lost else None

    def close(self) -> None:
        """End the heartbeats."""
        self._closed.set()
        self._thread.join(2 * BEAT)

    def check(self) -> None:
        """Raise the error of the cause, if there is one."""
        if self.cause is not None:
            raise self.cause.error()

    def failed(self, error: Exception) -> NmtkitError:
        """Find the cause of an exchange that failed, and return its error."""
        self._connection_broke = True
        if not self._known.wait(SILENCE + 3 * BEAT):
            # All threads are alive. A rank that has not entered the exchange does something else.
            entered = {r: int(beat.split()[1]) for r, (beat, _) in self._heard.items() if beat}
            behind = min(entered, key=entered.__getitem__, default=self._rank)
            if entered.get(behind, self.exchanges) < self.exchanges:
                self._blame_lost(behind, "does not answer, though it runs")
            else:
                message = f"the connection between the ranks broke: {error}"
                self.blame(Cause(self._rank, True, 3, message))
        assert self.cause is not None
        return self.cause.error()

    def blame(self, cause: Cause) -> None:
        """Write a cause to the store, unless it has one, and take that of the store."""
        with contextlib.suppress(RuntimeError):  # without the store every rank finds its own
            written = self._store.compare_set("cause", "", json.dumps(asdict(cause)))
            cause = Cause(**json.loads(written))
        self.cause = self.cause or cause
        self._known.set()

    def _blame_lost(self, rank: int, state: str) -> None:
        name = f"rank {rank} of {len(self._processes)} ({self._processes[rank]})"
        self.blame(Cause(rank, True, 3, f"{name} {state}"))

    def _live(self) -> None:
        """Set and read heartbeats until a cause is known; then end a process that does not end."""
        beats = 0
        while not self._closed.wait(BEAT) and self.cause is None:
            beats += 1
            try:
                self._store.set(f"beat/{self._rank}", f"{beats} {self.exchanges}")
                self._listen()
            except RuntimeError:
                self._blame_lost(0, "or its launcher is gone: the store does not answer")
        if self.cause is not None and not self._closed.wait(GRACE):
            if self._rank == 0 or self.cause.rank == 0:
                print(f"nmtkit: {self.cause.error()}", file=sys.stderr, flush=True)
            os._exit(self.cause.code)

    def _listen(self) -> None:
        if self._store.check(["cause"]):
            self.blame(Cause(**json.loads(self._store.get("cause"))))
            return
        now = time.monotonic()
        for rank, (last, _) in self._heard.items():
            if (beat := self._store.get(f"beat/{rank}")) != last:
                self._heard[rank] = (beat, now)
        silent, heard = min(self._heard.items(), key=lambda item: item[1][1])
        limit = min(SILENCE, self._timeout) if self._connection_broke else self._timeout
        if now - heard[1] > limit:
            self._blame_lost(silent, f"has died: no sign of life for {now - heard[1]:.0f} s")
