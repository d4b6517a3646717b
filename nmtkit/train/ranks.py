"""The processes that train one model together (`torchrun --nproc-per-node N -m nmtkit train …`),
and all that passes between them.

Every rank holds the whole model and takes every W-th micro-batch of an update; gradients are summed
over the ranks, so all make the same update. Rank 0 alone writes and speaks. One process is the same
with nobody to talk to: the training loop knows no other case.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from nmtkit import console
from nmtkit.errors import (
    ConfigError,
    EnvironmentProblem,
    Interrupted,
    NmtkitError,
    TrainingDiverged,
)
from nmtkit.train.watch import SILENCE, Cause, Watch

T = TypeVar("T")
BUCKET = 64 << 20
"""Bytes summed in one exchange: enough for the full bandwidth, little beside the model."""
TIMEOUT = "NMTKIT_RANK_TIMEOUT"


class Ranks:
    """One process alone: rank 0 of 1."""

    rank = 0
    world = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    def device(self, wanted: str) -> str:
        """The device of this rank, for the device that the person wanted."""
        return wanted

    def share(self, items: Sequence[T]) -> list[T]:
        """The items that this rank works on: every W-th."""
        return list(items[self.rank :: self.world])

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank, in the order of ranks; each gives as many."""
        return [list(values)]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the ranks, in place; all get the same bits."""

    def first_does(self, work: Callable[[], T]) -> T:
        """Let rank 0 alone do something, however long it takes, and give every rank its result
        (a plain value).
        """
        return work()


class Group(Ranks):
    """One of several processes.

    Args:
        rank, world: this rank, and how many there are.
        address: host and port where the ranks meet.
        timeout: seconds that a rank waits for others in an exchange, and after which one without a
            sign of life is dead.
    Raises: EnvironmentProblem naming the ranks that do not come.
    """

    def __init__(self, rank: int, world: int, address: tuple[str, int], timeout: float) -> None:
        self.rank, self.world, self._timeout = rank, world, timeout
        self._told = 0
        self._gpus: Any = None
        prefix = f"nmtkit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        hosting = (
            rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        )  # torchrun hosts the store itself
        limit = timedelta(seconds=timeout)
        try:
            base = TCPStore(
                *address,
                is_master=hosting,
                wait_for_workers=False,
                timeout=limit,
                multi_tenant=True,
            )
            self._store = PrefixStore(prefix, base)
            self._store.set(f"beat/{rank}", "0 0")
            self._store.set(f"place/{rank}", f"process {os.getpid()} on {socket.gethostname()}")
            self._meet()
            self.watch = Watch(address, prefix, rank, world, timeout)
            dist.init_process_group(
                "gloo",
                store=PrefixStore("gloo", self._store),
                rank=rank,
                world_size=world,
                timeout=limit,
            )
        except RuntimeError as error:
            message = (
                f"rank {rank} of {world} cannot reach the others at {address[0]}:{address[1]}:"
                f" {str(error).splitlines()[0]}"
            )
            raise EnvironmentProblem(
                message,
                hint="start it with torchrun, with the same --rdzv-endpoint on every machine",
            ) from error

    def _meet(self) -> None:
        end = time.monotonic() + self._timeout
        missing = list(range(self.world))
        while missing := [r for r in missing if not self._store.check([f"place/{r}"])]:
            if time.monotonic() > end:
                names = ", ".join(map(str, missing))
                raise EnvironmentProblem(
                    f"of {self.world} ranks these have not come within {self._timeout:g} s:"
                    f" {names}",
                    hint="see their messages",
                )
            time.sleep(0.05)

    def device(self, wanted: str) -> str:
        """The GPU of this rank among those of its machine, else what was wanted; gradients go by
        NCCL where no two ranks share a GPU.
        """
        gpus = torch.cuda.device_count() if wanted in {"auto", "cuda"} else 0
        own = int(os.environ.get("LOCAL_RANK", self.rank)) % gpus if gpus else 0
        identity = (
            hash_of(f"{socket.gethostname()} {torch.cuda.get_device_properties(own).uuid}")
            if gpus
            else -1.0
        )
        rows = [row[0] for row in self.gather([identity])]
        if gpus:
            torch.cuda.set_device(own)
        if len(set(rows)) == self.world and -1.0 not in rows:
            self._gpus = dist.new_group(backend="nccl", timeout=timedelta(seconds=self._timeout))
        elif gpus:
            console.warn(
                f"{self.world} processes have {len(set(rows) - {-1.0})} GPUs between them:"
                " gradients go through main memory"
            )
        return f"cuda:{own}" if gpus else wanted

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """As of `Ranks`; through main memory, so no GPU is waited for."""
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.world)]
        self._exchange(lambda: dist.all_gather(rows, own))
        return [row.tolist() for row in rows]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """As of `Ranks`; in buckets of one type, each summed in one exchange."""
        for bucket in buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            group = self._gpus if flat.is_cuda else None
            self._exchange(lambda flat=flat, group=group: dist.all_reduce(flat, group=group))  # type: ignore[misc]
            for tensor, part in zip(
                bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True
            ):
                tensor.copy_(part.view_as(tensor))

    def first_does(self, work: Callable[[], T]) -> T:
        """As of `Ranks`; the result passes as JSON, and the others wait for as long as rank 0
        lives.
        """
        self._told += 1
        key = f"told/{self._told}"
        if self.first:
            result = work()
            self._stored(lambda: self._store.set(key, json.dumps(result)))
            return result
        pause = 0.001
        while not self._stored(lambda: self._store.check([key])):
            self.watch.check()
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        value: T = json.loads(self._stored(lambda: self._store.get(key)))
        return value

    def leave(self, error: BaseException | None) -> None:
        """End this rank's part: nobody goes before rank 0 has written all, nor rank 0, which may
        host the store, before all have read it.

        Args:
            error: what ends it; None = it is done. The others learn of it, unless it is one that
                all ranks come to together.
        """
        together = error is None or isinstance(error, (Interrupted, TrainingDiverged))
        with contextlib.suppress(
            RuntimeError
        ):  # rank 0 may have left already, and the store with it
            if together:
                self.watch.close()
            elif error is not None:
                self.watch.blame(_cause(self.rank, error))
                dist.destroy_process_group()  # whoever waits for this rank waits no longer
            self._store.set(f"left/{self.rank}", "")
            self._wait_until_left(
                range(1, self.world) if self.first else [0], self._timeout if together else SILENCE
            )
        with contextlib.suppress(RuntimeError):
            if (
                dist.is_initialized()
            ):  # a process that ends with its threads running ends with SIGABRT
                dist.destroy_process_group()
        self.watch.close()

    def _wait_until_left(self, awaited: Sequence[int], limit: float) -> None:
        end = time.monotonic() + limit
        lost = (
            self.watch.cause.rank
            if self.watch.cause is not None and self.watch.cause.lost
            else None
        )
        while time.monotonic() < end and not all(
            r == lost or self._store.check([f"left/{r}"]) for r in awaited
        ):
            time.sleep(0.02)

    def _exchange(self, work: Callable[[], Any]) -> None:
        self.watch.check()
        self.watch.entered += 1
        self._stored(work)

    def _stored(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except RuntimeError as error:
            raise self.watch.failed(error) from None


def _cause(rank: int, error: BaseException) -> Cause:
    """What the other ranks say of an error of this one."""
    if isinstance(error, NmtkitError):
        return Cause(rank, False, error.exit_code, error.message, error.where, error.hint)
    if isinstance(error, KeyboardInterrupt):
        return Cause(rank, False, 130, "stopped by Ctrl-C")
    return Cause(
        rank,
        False,
        1,
        f"internal error: {type(error).__name__}: {error}",
        hint="this is a fault of nmtkit; --debug shows where",
    )


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in order, in groups of one type and place of at most BUCKET bytes (or of one
    tensor).
    """
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in groups.values():
        bucket: list[Tensor] = []
        size = 0
        for tensor in group:
            if bucket and size + tensor.nbytes > BUCKET:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.nbytes
        yield bucket


def bytes_sent(parameters: int, world: int) -> float:
    """Bytes that each rank sends (and receives) to sum the gradients of one update: a ring sends
    2·(W-1)/W of them, 4 bytes a parameter.
    """
    return 2 * (world - 1) / world * parameters * 4


def hash_of(text: str) -> float:
    """A number for a text that a float64 holds exactly, the same in every process."""
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that torchrun started (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or be
    alone.

    An error of any rank ends all of them, with the exit code of that error; it is said once.

    Raises: ConfigError if the environment makes no sense; EnvironmentProblem if the ranks do not
        come together, or one is lost.
    """
    try:
        world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        address = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
        timeout = float(os.environ.get(TIMEOUT, "600"))
        if not 0 <= rank < world or (world > 1 and not all(address)) or timeout <= 0:
            raise ValueError
    except ValueError:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", TIMEOUT)
        values = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
        raise ConfigError(
            "the environment describes no group of processes",
            where=values,
            hint="start several with torchrun, or unset these",
        ) from None
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
        first_is_lost = (
            ranks.watch.cause is not None and ranks.watch.cause.lost and ranks.watch.cause.rank == 0
        )
        if (
            isinstance(error, (NmtkitError, KeyboardInterrupt))
            and not ranks.first
            and not first_is_lost
        ):
            raise SystemExit(getattr(error, "exit_code", 130)) from None  # rank 0 says it
        raise
    ranks.leave(None)
