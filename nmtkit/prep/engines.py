"""Where the tasks of prep run: in this process, in processes of this machine, or on a cluster. An
engine has an Executor of the standard library, which many cluster libraries offer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, ClassVar

import nmtkit
from nmtkit import console, environment, trust
from nmtkit.errors import (
    ConfigError,
    EnvironmentProblem,
    NmtkitError,
    counted,
    first_line,
    imported,
    nearest,
    summary,
)
from nmtkit.parallel import processes
from nmtkit.records import Record, load
from nmtkit.user_classes import load_object, place_of

CONNECT_SECONDS = 20
AUTO = "auto"


class SchedulerFile(Record):
    """The scheduler file of Dask; only its address is read."""

    again: ClassVar[str] = "name the file that `dask scheduler --scheduler-file` has written"
    address: str


class InProcess(Executor):
    """Does every task in this process when it is submitted."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass
class Engine:
    """An Executor, and how to replace it when it has lost a process.

    Args:
        executor: does the tasks.
        another: makes another Executor; None if the Executor replaces lost processes itself.
        lost: the error of a task whose process was lost.
        ahead: the number of tasks that are submitted at a time.
    """

    executor: Executor
    another: Callable[[], Executor] | None = None
    lost: type[Exception] = BrokenExecutor
    ahead: int = 1000

    def renew(self) -> bool:
        """Replace an Executor that has lost a process.

        Returns: True if all tasks that were submitted are lost.
        """
        if self.another is None:
            return False
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.executor = self.another()
        return True

    def close(self) -> None:
        """End the processes, and drop tasks that have not begun."""
        try:
            self.executor.shutdown(wait=True, cancel_futures=True)
        except TypeError:  # Dask's cancels anyway
            self.executor.shutdown(wait=False)


@contextlib.contextmanager
def opened(name: str, address: str | None, jobs: int) -> Iterator[Engine]:
    """Open the engine that the options name.

    Args:
        name: local, dask, ray, or package.module:function.
        address: of the cluster; None or "auto": one on this machine, or as the library chooses.
        jobs: processes, for an engine on this machine.
    Raises: ConfigError for an unknown engine; EnvironmentProblem if its library is not installed or
        nobody answers at the address.
    """
    address = None if address == AUTO else address
    with contextlib.ExitStack() as stack:
        if name in ENGINES:
            engine = ENGINES[name](address, jobs, stack)
        elif ":" in name:
            engine = _users(name, address, jobs)
        else:
            otherwise = f"known: {', '.join(ENGINES)}, and package.module:function"
            hint = nearest(name, ENGINES, otherwise)
            raise ConfigError(f"unknown engine '{name}'", "--engine", hint)
        stack.callback(engine.close)
        yield engine


def _local(address: str | None, jobs: int, stack: contextlib.ExitStack) -> Engine:
    """Use processes of this machine, or only this process if jobs is 1."""
    if address is not None:
        hint = "leave it out, or name an engine: --engine dask"
        raise ConfigError("the local engine has no address", "--address", hint)
    if jobs <= 1:
        return Engine(InProcess(), ahead=1)
    return Engine(processes(jobs), lambda: processes(jobs), ahead=2 * jobs)


def _dask(address: str | None, jobs: int, stack: contextlib.ExitStack) -> Engine:
    """Connect to a scheduler, or start one with workers on this machine."""
    distributed = imported("distributed", "dask", "--engine")
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # prep reports what is lost
    if address is not None and ":" not in address and not Path(address).is_file():
        hint = "give tcp://HOST:PORT, or the scheduler file that Dask has written"
        message = f"{address} is no file, and no address of a Dask scheduler"
        raise ConfigError(message, "--address", hint)
    try:
        if address is None:
            with _without_interrupts():
                cluster = distributed.LocalCluster(
                    n_workers=jobs,
                    threads_per_worker=1,
                    dashboard_address=":0",
                    silence_logs=logging.CRITICAL,
                )
            client = distributed.Client(stack.enter_context(cluster))
        else:
            scheduler = address
            if Path(address).is_file():
                scheduler = load(SchedulerFile, Path(address)).address
            asyncio.run(asyncio.wait_for(_greet(distributed, scheduler), 2 * CONNECT_SECONDS))
            client = distributed.Client(scheduler, timeout=CONNECT_SECONDS)
    except NmtkitError:
        raise
    except Exception as error:  # if the server is no scheduler, it may have any class
        raise _no_answer("Dask scheduler", address, error) from error
    stack.enter_context(client)
    if not client.scheduler_info(n_workers=-1)["workers"]:
        console.say(f"Dask: waiting for the first worker, dashboard {client.dashboard_link}")
        client.wait_for_workers(1)
    # A worker that cannot import the function of a task ends, and its scheduler waits for another.
    versions = client.run(eval, "__import__('nmtkit').__version__", on_error="return")
    for worker, version in versions.items():
        if version != nmtkit.__version__:
            raise other_version(worker, version)
    console.say(f"Dask: {counted(len(versions), 'worker')}, dashboard {client.dashboard_link}")
    return Engine(client.get_executor(pure=False), lost=distributed.KilledWorker)


async def _greet(distributed: Any, address: str) -> None:
    """Connect to a scheduler once, because Dask's client waits forever for a server that does not
    answer.
    """
    options = distributed.Security().get_connection_args("client")
    stream = await distributed.comm.connect(address, timeout=CONNECT_SECONDS, **options)
    await stream.close()


def other_version(worker: str, version: object) -> EnvironmentProblem:
    """Return the error for a worker with another version of nmtkit.

    Args:
        worker: the name of the worker.
        version: of the worker's nmtkit, or the error of importing nmtkit.
    """
    ours = nmtkit.__version__
    message = f"the worker {worker} does not have nmtkit {ours}: {version}"
    hint = f"install nmtkit {ours} for every worker, and start the workers again"
    return EnvironmentProblem(message, "--engine", hint)


def _reach(address: str) -> None:
    """Connect to HOST:PORT once, because Ray itself tries for minutes and prints each attempt.

    Raises: ValueError if the address has another form; OSError if nobody answers.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"'{address}' has not the form HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block Ctrl-C. Processes and threads that start inside never receive it."""
    resource_tracker.ensure_running()  # later, its start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Keep our handler of SIGTERM, the signal of batch systems, because Ray replaces it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # only the main thread may set one
            signal.signal(signal.SIGTERM, before)


def _no_answer(server: str, address: str | None, error: Exception) -> EnvironmentProblem:
    hint = "start it first, or check the address (auto: one on this machine)"
    return EnvironmentProblem(
        f"no {server} answers: {first_line(error)}", f"--address {address}", hint
    )


class _RayExecutor(Executor):
    """An Executor of Ray's tasks. A task whose worker is lost runs again, at most three times."""

    def __init__(self, ray: Any) -> None:
        self._run = ray.remote(max_retries=3)(_call)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        result: Future[Any] = Future()

        def finish(outcome: Future[Any]) -> None:
            error = outcome.exception()
            if error is None:
                result.set_result(outcome.result())
            else:  # Ray wraps the error of a task
                result.set_exception(getattr(error, "cause", None) or error)

        self._run.remote(function, args, kwargs).future().add_done_callback(finish)
        return result


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _ray(address: str | None, jobs: int, stack: contextlib.ExitStack) -> Engine:
    """Connect to a cluster, or start one on this machine."""
    ray = imported("ray", "ray", "--engine")
    address = address or os.environ.get("RAY_ADDRESS")
    # "local" starts a new cluster: one that another prep has started would end with that prep.
    options: dict[str, Any] = {"address": address or "local"}
    if address is None:
        options["num_cpus"] = jobs
        # Ray's default of 15 leaves its workers a thirtieth of a core beside any other process.
        environment.set_default("RAY_worker_niceness", "0")
    try:
        if address is not None and address != AUTO and "://" not in address:
            _reach(address)
        with _keeping_sigterm():
            ray.init(**options, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        raise _no_answer("Ray cluster", address, error) from error
    stack.callback(_keeping_sigterm()(ray.shutdown))
    console.say(f"Ray: {counted(int(ray.cluster_resources().get('CPU', 0)), 'core')}")
    return Engine(_RayExecutor(ray), lost=ray.exceptions.RayError)


ENGINES = {"local": _local, "dask": _dask, "ray": _ray}


def _users(name: str, address: str | None, jobs: int) -> Engine:
    """Get an Executor from a function of the user's module."""
    form = "define function(address, jobs) in it, which returns a concurrent.futures.Executor"
    trust.allow([name])
    function = load_object(name, "engine", "--engine", form)
    try:
        executor = function(address, jobs)
    except NmtkitError:
        raise
    except Exception as error:  # whatever the function does
        hint = f"{form} (--debug shows the traceback)"
        raise ConfigError(f"{name} failed: {summary(error)}", place_of(function), hint) from error
    if not isinstance(executor, Executor):
        hint = f"return a concurrent.futures.Executor (it returned {type(executor).__name__})"
        raise ConfigError(f"{name} returned no Executor", "--engine", hint)
    return Engine(executor)
