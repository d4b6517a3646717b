"""`--compile`: the forward and backward pass of training as graphs of torch.compile, for any shape.

Validation, search, capture and hooks are not compiled. Every variant keeps its random numbers: on a
CPU the graph draws dropout masks with nmtkit's own generator, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from nmtkit import console
from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError, first_line
from nmtkit.models.base import Model, target_states
from nmtkit.nn import private
from nmtkit.nn.loops import compile_steps


def check_compiler(device: torch.device) -> None:
    """Compile a small function, so that a missing compiler is found before the training begins.

    Args:
        device: of the training.
    Raises: ConfigError if torch.compile does not work on this machine, or nmtkit does not use it on
        this device.
    """
    if device.type == "mps":
        hint = "leave --compile out"
        raise ConfigError("nothing is compiled for an Apple GPU", where="--compile", hint=hint)
    try:
        torch.compile(lambda x: torch.relu(x + 1).sum())(torch.ones(64, device=device))
    # The errors have no common class: g++, Python's headers, OpenMP or Triton may be missing.
    except Exception as error:
        raise ConfigError(
            f"torch.compile does not work on this machine: {first_line(error)}",
            where="--compile",
            hint="install a C++ compiler (g++, or what CXX names) and Python's headers, or leave"
            " --compile out",
        ) from error


def compile_training(model: Model, example: Batch, backend: str = "inductor") -> None:
    """Compile `encode` and `decode` of a model for training.

    Args:
        model: on its device.
        example: a batch with targets, for a first pass that is not compiled: in it a model makes
            tables of positions, which must not be part of a graph.
        backend: of torch.compile.
    """
    training = model.training
    with torch.no_grad():
        target_states(model.eval(), example)
    model.train(training)
    private.keep_sizes_apart()
    in_training = partial(_in_training, model, backend)
    compile_steps(model, in_training)
    for verb in ("encode", "decode"):
        setattr(model, verb, in_training(getattr(model, verb)))
    console.say("compiling: the first updates take a minute or more")


def _in_training(model: Model, backend: str, eager: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(eager, dynamic=True, backend=backend)

    def method(*args: Any, **named: Any) -> Any:
        return (compiled if model.training else eager)(*args, **named)

    return method
