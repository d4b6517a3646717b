"""`train.deterministic`: on a GPU, only algorithms that give the same bits every time.

A training on a CPU always has the same bits. A training on a GPU has the same bits with the same
GPU, torch, number of processes and seed. The setting cannot control the order in which NCCL sums
the gradients of several processes, nor a user's own model that reads the clock or draws its own
random numbers.
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
"""Read when CUDA starts. Without one of the values below cuBLAS may sum in another order each time
(cuBLAS manual, "Results Reproducibility").
"""
WORKSPACES = (":4096:8", ":16:8")
SETTING = "train.deterministic"

_fills: Any = torch.utils.deterministic


def describe(wanted: bool, device: str) -> str:
    """Return the end of the log's line about the hardware; device: cpu or cuda."""
    if not wanted:
        return ""
    if device == "cuda":
        return ", deterministic algorithms"
    return f", deterministic as every CPU training ({SETTING} changes nothing here)"


@contextlib.contextmanager
def deterministic(wanted: bool, device: str) -> Iterator[None]:
    """Use deterministic algorithms in the body, if the setting is on and the device is a GPU.

    Args:
        wanted: the setting.
        device: auto, cpu, cuda or mps.
    Raises: ConfigError for mps, if the environment has another workspace of cuBLAS, or if CUDA has
        started without a workspace; EnvironmentProblem as `pick_device`.
    """
    place = pick_device(device).type if wanted else ""
    if place == "mps":
        message = "an Apple GPU has no deterministic algorithms here"
        raise ConfigError(message, where=SETTING, hint=f"--set {SETTING}=false")
    if place != "cuda":
        yield
        return
    _set_workspace()
    cudnn = torch.backends.cudnn
    algorithms = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    flags = cudnn.deterministic, cudnn.benchmark, _fills.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True)
        # Filling new memory costs time and only shows errors; a test trains every variant with it.
        cudnn.deterministic, cudnn.benchmark, _fills.fill_uninitialized_memory = True, False, False
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark, _fills.fill_uninitialized_memory = flags


@contextlib.contextmanager
def without_form_refused() -> Iterator[None]:
    """Turn torch's error about an operation without a deterministic form into a user error.

    Raises: ConfigError naming the operation.
    """
    try:
        yield
    except RuntimeError as error:
        match = re.match(r"(\S+) does not have a deterministic implementation", str(error))
        if match is None:
            raise
        raise ConfigError(
            f"the model uses {match[1]}, which has no deterministic form on a GPU",
            where=SETTING,
            hint="--set train.deterministic=false, or write the model without this operation",
        ) from error


def _set_workspace() -> None:
    """Set the workspace of cuBLAS for the rest of this process: CUDA reads the value once, and the
    next training of this process must find the same value.
    """
    value = os.environ.get(WORKSPACE)
    if value is not None and value not in WORKSPACES:
        raise ConfigError(
            f"{WORKSPACE} is '{value}' in the environment, with which cuBLAS may sum in another"
            " order each time",
            where=SETTING,
            hint=f"unset it, or set it to {WORKSPACES[0]}",
        )
    if value is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            f"CUDA has started without {WORKSPACE}",
            where=SETTING,
            hint=f"set it to {WORKSPACES[0]} before this process starts",
        )
    environment.set_default(WORKSPACE, WORKSPACES[0])
