"""`--compile`: the forward and backward pass of training as graphs that torch.compile has made, of
any shape.

Only training is compiled: validation, search and everything that looks into a model (capture,
hooks) run the model as it is written. Every variant keeps its random numbers: on a CPU dropout's
masks are drawn by our own generator from inside the graph, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nmtkit import console
from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError
from nmtkit.models.base import Model
from nmtkit.nn.loops import keep_eager


def check_compiler(device: torch.device, backend: str = "inductor") -> None:
    """Compile and run a trifle, so that a missing compiler is found before the training begins.

    Args:
        device: that the training will use.
        backend: of torch.compile.
    Raises: ConfigError if torch.compile does not work on this machine.
    """
    try:
        torch.compile(lambda x: torch.relu(x + 1).sum(), backend=backend)(
            torch.ones(64, device=device)
        )
    # torch names no common class: what is missing may be g++, Python's headers, OpenMP or Triton
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
            type(error).__name__
        ]
        hint = (
            "install a C++ compiler (g++, or what CXX names) and Python's headers, or leave"
            " --compile out"
        )
        raise ConfigError(
            f"torch.compile does not work on this machine: {lines[0]}", where="--compile", hint=hint
        ) from error


def compile_training(model: Model, example: Batch, backend: str = "inductor") -> None:
    """Compile both verbs of a model for training; elsewhere they stay as they are.

    Args:
        model: on its device.
        example: any batch with targets, for one pass that is not compiled: what a model makes when
            first needed (tables of positions) must not be made inside a graph.
        backend: of torch.compile.
    """
    assert example.tgt_in is not None
    training = model.training
    with torch.no_grad():
        model.eval().decode(example.tgt_in, model.encode(example))
    model.train(training)
    keep_eager(model)
    for verb in ("encode", "decode"):
        setattr(model, verb, _in_training(model, getattr(model, verb), backend))
    console.say("compiling: the first updates take a minute or more")


def _in_training(model: Model, eager: Callable[..., Any], backend: str) -> Callable[..., Any]:
    compiled = torch.compile(eager, dynamic=True, backend=backend)

    def chosen(*args: Any, **named: Any) -> Any:
        return (compiled if model.training else eager)(*args, **named)

    return chosen
