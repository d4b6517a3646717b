"""The ranks of a training (`torchrun --nproc-per-node N -m nmtkit train …`) and their exchanges.

Every rank holds the whole model and takes every W-th micro-batch of an update. Gradients are summed
over the ranks, so all ranks make the same update. Only rank 0 writes and logs. A single process is
a group of one, so the training loop has one case only.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    explained,
    first_line,
)
from nmtkit.train.stop import handled_by
from nmtkit.user_classes import fault_of_user

T = TypeVar("T")
BEAT = 1.0
"""Seconds between two heartbeats of a rank."""
SILENCE = 5.0
"""Seconds without a heartbeat after which a rank is dead, once an exchange has failed."""
GRACE = 15.0
"""Seconds in which a rank may end by itself after the cause is known."""

CONTINUES = "the same command continues from the last checkpoint"
INTERFACES = (
    "if this is at every start, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface of"
    " the network between the machines"
)
MEETING = (
    "give every rank the same MASTER_ADDR and MASTER_PORT (torchrun: --rdzv-endpoint), a port that"
    " no other program uses"
)


@dataclass(frozen=True)
class Cause:
    """The error of one rank that ends all ranks.

    Attributes:
        rank: the rank with the error.
        message, code, where, hint: of the error.
        lost: True if that rank can no longer report the error.
    """

    rank: int
    message: str
    lost: bool = True
    code: int = EnvironmentProblem.exit_code
    where: str | None = None
    hint: str | None = CONTINUES

    @classmethod
    def of_error(cls, rank: int, error: BaseException) -> Cause:
        """Return the cause that an error of this rank is for the other ranks."""
        known = fault_of_user(error) or explained(error)
        code = known.exit_code or 1  # a broken pipe is no success here
        return cls(rank, known.message, False, code, known.where, known.hint)

    def error(self) -> NmtkitError:
        """Return the error to raise in another rank."""
        message = self.message if self.lost else f"rank {self.rank}: {self.message}"
        error = EnvironmentProblem(message, where=self.where, hint=self.hint)
        error.exit_code = self.code
        return error


class Ranks:
    """A single process: rank 0 of 1.

    Attributes:
        before_exit: is called, in another thread, before the process ends without its main thread.
    """

    rank = 0
    world = 1
    before_exit: Callable[[], object] = staticmethod(lambda: None)

    @property
    def first(self) -> bool:
        """True for rank 0, which writes and logs."""
        return self.rank == 0

    def device(self, wanted: str) -> str:
        """Return the device of this rank; `wanted`: the option --device."""
        return wanted

    def share(self, items: Sequence[T]) -> list[T]:
        """Return the items that this rank works on: every W-th."""
        return list(items[self.rank :: self.world])

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the numbers of every rank, in the order of ranks; each rank has equally many."""
        return [list(values)]

    def gather_values(self, value: T) -> list[T]:
        """Return a plain value of every rank, in the order of ranks."""
        return [value]

    def begin_sum(self, tensor: Tensor) -> Callable[[], object]:
        """Begin to sum a tensor over the ranks, in place; all ranks get the same bits.

        Returns: waits for the sum.
        """
        return lambda: None

    def first_does(self, work: Callable[[], T]) -> T:
        """Do `work` on rank 0 only and return its result, a plain value, on every rank."""
        return work()


class Group(Ranks):
    """One of several processes.

    Args:
        rank, world: this rank, and the number of ranks.
        address: host and port where the ranks meet.
        timeout: seconds that a rank waits for other ranks in an exchange, and after which a rank
            without a heartbeat is dead.
    Raises: EnvironmentProblem naming the ranks that do not start.
    """

    def __init__(self, rank: int, world: int, address: tuple[str, int], timeout: float) -> None:
        self.rank, self.world, self._limit = rank, world, timedelta(seconds=timeout)
        self.cause: Cause | None = None
        self._exchanges = 0  # the same on all ranks whenever they exchange something
        self._gpus: Any = None
        self._address = address
        self._closed = threading.Event()
        self._beats = 0
        try:
            # Python runs its own handlers only between two calls of the store.
            with handled_by(signal.SIG_DFL):
                self._join()
        except RuntimeError as error:
            raise EnvironmentProblem(
                f"rank {rank} of {world} cannot reach the others at {address[0]}:{address[1]}:"
                f" {first_line(error)}",
                hint=MEETING,
            ) from error
        except NmtkitError as error:
            self.leave(error)
            raise

    def _join(self) -> None:
        """Find the other ranks and start the heartbeats."""
        rank = self.rank
        # Another program at this port may never answer.
        self._gone = Cause(0, f"{':'.join(map(str, self._address))} does not answer", hint=MEETING)
        threading.Thread(target=self._watch, daemon=True).start()
        # torchrun may host the store itself.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._store = self._connect(hosting=rank == 0 and not agent)
        self._beats += 1  # the time limit of `_watch` begins again
        self._store.set(f"beat/{rank}", "0 0")
        self._store.set(f"process/{rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._processes = self._meet()
        self._gone = Cause(
            0, f"{self._processes[0]} or its launcher is gone: the store does not answer"
        )
        threading.Thread(target=self._beat, args=[self._connect()], daemon=True).start()
        gloo = PrefixStore("gloo", self._store)
        self._succeed(
            lambda: dist.init_process_group(
                "gloo", store=gloo, rank=rank, world_size=self.world, timeout=self._limit
            )
        )

    def _connect(self, hosting: bool = False) -> PrefixStore:
        store = TCPStore(
            *self._address,
            is_master=hosting,
            wait_for_workers=False,
            timeout=self._limit,
            multi_tenant=True,
        )
        return PrefixStore(f"nmtkit/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def _meet(self) -> list[str]:
        """Wait for all ranks, and return how each is named."""
        keys = [f"process/{r}" for r in range(self.world)]
        try:
            self._store.wait(keys, self._limit)
        except RuntimeError:
            missing = [str(r) for r, key in enumerate(keys) if not self._store.check([key])]
            raise EnvironmentProblem(
                f"of {self.world} ranks, these have not started after"
                f" {self._limit.total_seconds():g} s: {', '.join(missing)}",
                hint="see the messages of these ranks",
            ) from None
        return [
            f"rank {r} of {self.world} ({self._store.get(key).decode()})"
            for r, key in enumerate(keys)
        ]

    def _beat(self, store: PrefixStore) -> None:
        """Set heartbeats in a thread of its own, whose client of the store is `store`.

        A heartbeat holds its number and the number of exchanges that the main thread has begun. If
        a rank has no heartbeat, another cause is known, or the store is gone, end the process
        unless the main thread does: it may wait for a GPU that waits for the dead rank. Time in
        which this process itself is suspended does not count.
        """
        cause, limit = self._gone, self._limit.total_seconds()
        keys = [f"beat/{r}" for r in range(self.world)]
        beats, silences = [b""] * self.world, [0.0] * self.world
        with contextlib.suppress(RuntimeError):
            for self._beats in itertools.count():
                store.set(keys[self.rank], f"{self._beats} {self._exchanges}")
                before, beats = beats, store.multi_get(keys)
                for rank, silence in enumerate(silences):
                    silence = silence + BEAT if beats[rank] == before[rank] else 0.0
                    silences[rank] = silence
                    if silence > limit and not store.check([f"left/{rank}"]):
                        store.compare_set("cause", "", json.dumps(asdict(self._dead(rank))))
                if store.check(["cause"]):
                    cause = self._gone = Cause(**json.loads(store.get("cause")))
                    break
                if self._closed.wait(BEAT):
                    return
        if not self._closed.wait(GRACE):
            self._exit(cause)

    def _watch(self) -> None:
        """End the process if the store stops answering, because its calls have no time limit. Time
        in which this process itself is suspended does not count.
        """
        beats, silence = 0, 0.0
        while silence < self._limit.total_seconds() + GRACE:
            if self._closed.wait(BEAT):
                return
            silence = silence + BEAT if beats == self._beats else 0.0
            beats = self._beats
        self._exit(self._gone)

    def _exit(self, cause: Cause) -> None:
        """End the process, whose main thread may be in a call that never returns."""
        self.before_exit()
        if not self._closed.wait(SILENCE):  # else the main thread ends the process
            if 0 in {self.rank, cause.rank}:
                console.put(f"nmtkit: {cause.error()}", file=sys.stderr)
            os._exit(cause.code)

    def device(self, wanted: str) -> str:
        """Return the GPU of this rank on its machine, or without a GPU the wanted device.

        If no two ranks share a GPU, NCCL sums the gradients.

        Raises: ConfigError for mps.
        """
        if wanted == "mps":
            message = "several processes cannot share an Apple GPU"
            raise ConfigError(message, where="--device mps", hint="--device cpu, or one process")
        gpus = torch.cuda.device_count() if wanted in {"auto", "cuda"} else 0
        number, identity = 0, ""
        if gpus:
            number = int(os.environ.get("LOCAL_RANK", self.rank)) % gpus
            torch.cuda.set_device(number)
            uuid = torch.cuda.get_device_properties(number).uuid
            identity = f"{socket.gethostname()} {uuid}"
        different = set(self.gather_values(identity)) - {""}
        if len(different) == self.world:
            # If a rank hangs, Gloo's timeout ends the training and names the rank; NCCL's would
            # abort the process.
            self._gpus = dist.new_group(backend="nccl", timeout=2 * self._limit)
            # NCCL begins with its first sum, and takes memory that torch may hold later.
            self.begin_sum(torch.zeros(1, device=f"cuda:{number}"))()
        elif gpus:
            console.warn(
                f"{self.world} processes have {len(different)} GPUs between them:"
                " gradients go through main memory"
            )
        return f"cuda:{number}" if gpus else wanted

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        # In main memory, so that no rank waits for its GPU.
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.world)]
        self._exchange(lambda: dist.all_gather(rows, mine))
        return [row.tolist() for row in rows]

    def gather_values(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.world
        self._exchange(lambda: dist.all_gather_object(values, value))
        return values

    def begin_sum(self, tensor: Tensor) -> Callable[[], object]:
        group = self._gpus if tensor.is_cuda else None
        begin = functools.partial(dist.all_reduce, tensor, group=group, async_op=True)
        return functools.partial(self._succeed, self._exchange(begin).wait)

    def first_does(self, work: Callable[[], T]) -> T:
        key = f"result/{self._exchanges}"
        if self.first:
            result = work()
            self._exchange(lambda: self._store.set(key, json.dumps(result)))
            return result
        value: T = json.loads(self._exchange(lambda: self._result(key)))
        return value

    def _result(self, key: str) -> bytes:
        """Return a result of rank 0; wait for it as long as rank 0 lives."""
        while not self._store.check([key]):
            if self._store.check(["cause"]):
                raise self._blamed(self._dead(0))
            time.sleep(0.02)
        return self._store.get(key)

    def leave(self, error: BaseException | None) -> None:
        """End the work of this rank.

        No rank ends before rank 0 has written everything. Rank 0, which may host the store, ends
        when all ranks have read everything.

        Args:
            error: ends the training; None if it is done. The other ranks get the error too, unless
                all ranks have the same error at the same time.
        """
        together = error is None or isinstance(error, (Interrupted, TrainingDiverged))
        with contextlib.suppress(RuntimeError):  # the store is gone if rank 0 has left already
            if error is not None and not together:
                self._blamed(Cause.of_error(self.rank, error))
                _disconnect()  # ends the waiting of other ranks for this one
            self._store.set(f"left/{self.rank}", "")
            awaited = range(1, self.world) if self.first else [0]
            self._store.wait(
                [f"left/{r}" for r in awaited if r != self.lost],
                self._limit if together else timedelta(seconds=SILENCE),
            )
        with contextlib.suppress(RuntimeError):
            _disconnect()  # else its running threads would end the process by SIGABRT
        self._closed.set()

    @property
    def lost(self) -> int | None:
        """The rank that is lost, if any."""
        return self.cause.rank if self.cause and self.cause.lost else None

    def _exchange(self, work: Callable[[], T]) -> T:
        """Do the next exchange and return its result."""
        self._exchanges += 1
        return self._succeed(work)

    def _succeed(self, work: Callable[[], T]) -> T:
        """Return the result of an exchange; if it fails, raise the error that caused it."""
        try:
            return work()
        except RuntimeError as error:
            try:
                cause = self._find_dead(error)
            except RuntimeError:
                cause = self._gone
            raise self._blamed(cause) from None

    def _find_dead(self, error: Exception) -> Cause:
        """Watch the heartbeats for a while, or until another rank has written the cause; return the
        cause. A rank that lives but does not answer has begun fewer exchanges than this rank.
        """
        keys = [f"beat/{r}" for r in range(self.world)]
        before = self._store.multi_get(keys)
        end = time.monotonic() + SILENCE
        while time.monotonic() < end and not self._store.check(["cause"]):
            time.sleep(0.1)
        beats = self._store.multi_get(keys)
        for rank, beat in enumerate(beats):
            if beat == before[rank]:
                return self._dead(rank)
        begun = [int(beat.split()[1]) for beat in beats]
        rank = begun.index(min(begun))
        if begun[rank] < begun[self.rank]:
            return Cause(rank, f"{self._processes[rank]} lives but does not answer")
        message = f"the connection to a rank broke: {first_line(error)}"
        return Cause(self.rank, message, hint=f"{CONTINUES}; {INTERFACES}")

    def _dead(self, rank: int) -> Cause:
        return Cause(rank, f"{self._processes[rank]} has died: no sign of life")

    def _blamed(self, cause: Cause) -> NmtkitError:
        """Return the error that ends all ranks, by the first cause that a rank wrote."""
        with contextlib.suppress(RuntimeError):  # without the store every rank has its own cause
            text = json.dumps(asdict(cause))
            cause = Cause(**json.loads(self._store.compare_set("cause", "", text)))
        self.cause = self.cause or cause
        return self.cause.error()


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
