"""`train.deterministic`: on a GPU only what gives the same bits every time. On a CPU a training has
the same bits anyway, and nothing is changed.

The same bits need the same GPU, torch, number of processes and seed. What this does not reach: the
order in which NCCL sums the gradients of several processes (its choice, by the machine), and code
of a model of one's own that draws from the clock or from its own random numbers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.deterministic

from nmtkit import environment
from nmtkit.errors import ConfigError
from nmtkit.nn.hardware import pick_device

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Read when CUDA starts; without one of the values below, cuBLAS may sum in another order each
time (cuBLAS manual, "Results Reproducibility").
"""
WORKSPACES = (":4096:8", ":16:8")
SETTING = "train.deterministic"

_fills: Any = torch.utils.deterministic


def describe(wanted: bool, device: str) -> str:
    """What the line about the hardware says of it.

    Args:
        wanted: the setting.
        device: cpu or cuda.
    """
    if not wanted:
        return ""
    return (
        ", deterministic algorithms"
        if device == "cuda"
        else f", deterministic as every CPU training ({SETTING} changes nothing here)"
    )


@contextlib.contextmanager
def deterministic(wanted: bool, device: str) -> Iterator[None]:
    """Have torch use deterministic algorithms in the body, if the setting says so and the device is
    a GPU; afterwards all is as before.

    Args:
        wanted: the setting.
        device: auto, cpu or cuda.
    Raises: ConfigError if the environment has cuBLAS do otherwise, or CUDA has started without it;
        EnvironmentProblem as `pick_device`.
    """
    if not wanted or pick_device(device).type != "cuda":
        yield
        return
    with _workspace(), _flags():
        yield


@contextlib.contextmanager
def without_form_refused() -> Iterator[None]:
    """Say what torch says of an operation that has no deterministic form as an error for people,
    which the run's history then records.

    Raises: ConfigError naming the operation.
    """
    try:
        yield
    except RuntimeError as error:
        found = re.match(r"(\S+) does not have a deterministic implementation", str(error))
        if found is None:
            raise
        hint = "--set train.deterministic=false, or write the model without this operation"
        raise ConfigError(
            f"the model uses {found[1]}, which has no deterministic form on a GPU",
            where=SETTING,
            hint=hint,
        ) from error


@contextlib.contextmanager
def _workspace() -> Iterator[None]:
    given = os.environ.get(WORKSPACE)
    if given is not None and given not in WORKSPACES:
        message = (
            f"{WORKSPACE} is '{given}' in the environment, with which cuBLAS may sum in another"
            " order each time"
        )
        raise ConfigError(message, where=SETTING, hint=f"unset it, or set it to {WORKSPACES[0]}")
    if given is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"CUDA has started without {WORKSPACE}",
            where=SETTING,
            hint=f"set it to {WORKSPACES[0]} before this process starts",
        )
    environment.set_default(WORKSPACE, WORKSPACES[0])
    try:
        yield
    finally:
        # CUDA that has started goes on with it, and the next training in this process must find it.
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            environment.take_back(WORKSPACE)


@contextlib.contextmanager
def _flags() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    others = cudnn.deterministic, cudnn.benchmark, _fills.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True)
        # Filling memory that is about to be written costs time and shows errors only; a test trains
        # every variant with it, to the same bits.
        cudnn.deterministic, cudnn.benchmark, _fills.fill_uninitialized_memory = True, False, False
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark, _fills.fill_uninitialized_memory = others
