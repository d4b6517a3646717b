"""Whether the other processes of a training are alive, and what ended it if one is not.

Every rank leaves a sign of life in the store that they share, once a second and from a thread of
its own, so that long work in one rank (a validation, a checkpoint) is never taken for its death.
Whoever finds a cause first writes it down, and all give the same one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from nmtkit.errors import EnvironmentProblem, NmtkitError

BEAT = 1.0
"""Seconds between two signs of life."""
SILENCE = 5.0
"""Seconds without one that mean death once a connection has broken; before, it is the whole
timeout.
"""
GRACE = 15.0
"""Seconds in which a rank may end by itself once the cause is known; after, it is ended (it may
wait in a call that never returns).
"""
CONTINUES = "the same command continues from the last checkpoint"


@dataclass(frozen=True)
class Cause:
    """Why all ranks end: the rank it began with, and the error that they all give."""

    rank: int
    lost: bool
    """Whether that rank can no longer speak for itself."""
    code: int
    message: str
    where: str | None = None
    hint: str | None = None

    def error(self) -> NmtkitError:
        """The error to raise in another rank."""
        error = EnvironmentProblem(
            self.message if self.lost else f"rank {self.rank}: {self.message}",
            where=self.where,
            hint=self.hint,
        )
        error.exit_code = self.code
        return error


class Watch:
    """One rank's view of all ranks.

    Args:
        address: host and port of the store.
        prefix: of its keys.
        rank, world: this rank, and how many there are.
        timeout: seconds of silence, or of waiting for others, that end the training.
    """

    def __init__(
        self, address: tuple[str, int], prefix: str, rank: int, world: int, timeout: float
    ) -> None:
        # A client of its own: a store's client serves one thread at a time.
        self._store = PrefixStore(
            prefix,
            TCPStore(
                *address,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
            ),
        )
        self._rank, self._timeout = rank, timeout
        self._others = [r for r in range(world) if r != rank]
        self.entered = 0
        """Exchanges that this rank has entered."""
        self.cause: Cause | None = None
        self._known, self._closed = threading.Event(), threading.Event()
        self._doubt = False
        self._places = {r: self._store.get(f"place/{r}").decode() for r in range(world)}
        self._heard = dict.fromkeys(self._others, (b"", time.monotonic()))
        self._thread = threading.Thread(target=self._live, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give no more signs of life."""
        self._closed.set()
        self._thread.join(2 * BEAT)

    def check(self) -> None:
        """Raise the error of the cause, if there is one."""
        if self.cause is not None:
            raise self.cause.error()

    def failed(self, error: Exception) -> NmtkitError:
        """What to raise after an exchange has failed: find out whose fault it was."""
        self._doubt = True
        if not self._known.wait(SILENCE + 3 * BEAT):
            behind = {
                r: int(beat.split()[1])
                for r, (beat, _) in self._heard.items()
                if beat and int(beat.split()[1]) < self.entered
            }
            if behind:
                self.blame(
                    self._lost(
                        min(behind, key=behind.__getitem__), "does not answer, though it runs"
                    )
                )
            else:
                self.blame(
                    Cause(
                        self._rank,
                        True,
                        3,
                        f"the connection between the ranks broke: {error}",
                        hint=CONTINUES,
                    )
                )
        assert self.cause is not None
        return self.cause.error()

    def blame(self, cause: Cause) -> None:
        """Write a cause down for all, unless there is one already."""
        with contextlib.suppress(
            RuntimeError
        ):  # where the store is gone every rank finds out by itself
            cause = Cause(
                **json.loads(self._store.compare_set("cause", "", json.dumps(asdict(cause))))
            )
        self.cause = self.cause or cause
        self._known.set()

    def _lost(self, rank: int, what: str) -> Cause:
        return Cause(
            rank,
            True,
            3,
            f"rank {rank} of {len(self._others) + 1} ({self._places[rank]}) {what}",
            hint=CONTINUES,
        )

    def _live(self) -> None:
        beats = 0
        while not self._closed.wait(BEAT) and self.cause is None:
            beats += 1
            try:
                self._store.set(f"beat/{self._rank}", f"{beats} {self.entered}")
                self._listen()
            except RuntimeError:
                self.blame(self._lost(0, "or its launcher is gone: the store does not answer"))
        if self.cause is not None and not self._closed.wait(GRACE):
            if self._rank == 0 or self.cause.rank == 0:
                print(f"nmtkit: {self.cause.error()}", file=sys.stderr, flush=True)
            os._exit(self.cause.code)

    def _listen(self) -> None:
        if self._store.check(["cause"]):
            self.blame(Cause(**json.loads(self._store.get("cause"))))
            return
        now = time.monotonic()
        for rank in self._others:
            beat = self._store.get(f"beat/{rank}")
            if beat != self._heard[rank][0]:
                self._heard[rank] = (beat, now)
        silent = {rank: now - since for rank, (_, since) in self._heard.items()}
        longest = max(silent, key=silent.__getitem__)
        if silent[longest] > (min(SILENCE, self._timeout) if self._doubt else self._timeout):
            self.blame(
                self._lost(longest, f"has died: no sign of life for {silent[longest]:.0f} s")
            )
