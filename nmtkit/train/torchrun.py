"""The ranks that torchrun started, according to its environment variables."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from nmtkit import console
from nmtkit.errors import ConfigError, NmtkitError
from nmtkit.train.ranks import Group, Ranks

TIMEOUT = "NMTKIT_RANK_TIMEOUT"


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Join the ranks that torchrun started; without RANK and WORLD_SIZE, be alone.

    An error of any rank ends all ranks with the exit code of that error. The error is printed once.

    Raises: ConfigError if the environment variables do not fit together; EnvironmentProblem if the
        ranks do not all start, or one is lost.
    """
    rank, world, address, timeout = _environment()
    if world == 1:
        yield Ranks()
        return
    if rank:
        console.mute()
    ranks = Group(rank, world, address, timeout)
    try:
        yield ranks
    except BaseException as error:
        ranks.leave(error)
        expected = isinstance(error, (NmtkitError, KeyboardInterrupt))
        if expected and not ranks.first and ranks.lost != 0:
            raise SystemExit(getattr(error, "exit_code", 130)) from None  # rank 0 prints it
        raise
    ranks.leave(None)


def _environment() -> tuple[int, int, tuple[str, int], float]:
    """Return rank, world, address and timeout as the environment has them."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", TIMEOUT)
    values = {name: os.environ[name] for name in names if name in os.environ}
    try:
        world = int(values.get("WORLD_SIZE", "1"))
        rank = int(values.get("RANK", "0" if world == 1 else ""))
        host, port = values.get("MASTER_ADDR", ""), int(values.get("MASTER_PORT", "0"))
        timeout = float(values.get(TIMEOUT, "600"))
        reachable = world == 1 or (host and 0 < port < 65536)
        if 0 <= rank < world and reachable and 0 < timeout < threading.TIMEOUT_MAX:
            return rank, world, (host, port), timeout
    except ValueError:
        pass
    raise ConfigError(
        "the environment variables of torch.distributed do not fit together",
        where=", ".join(f"{name}={value}" for name, value in values.items()),
        hint="start several with torchrun, or unset these",
    )
