"""CUDA graphs of batches and of the optimiser's step: a GPU replays the kernels of an earlier batch
of the same shape.

The host needs more time to start the kernels of a small model than the GPU needs to run them. A
replay starts all kernels at once. The first batch of a shape is computed kernel by kernel, which
also makes tables of positions and compiled kernels. The second batch is recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmtkit import console
from nmtkit.data.batches import Batch, with_tensors
from nmtkit.nn.recording import OutOfMemory, Pool, try_to_record

SHAPES = 256
"""The maximum number of shapes with a graph; other shapes are computed kernel by kernel."""
FAILURES = 8
"""After this many recordings in a row that lack memory, the training records no more."""
Shape = tuple[torch.Size, ...]


@dataclass(frozen=True)
class Recorded:
    """A recorded computation.

    Attributes:
        replay: repeats the computation.
        result: the tensor that the computation writes.
        inputs: the tensors that the computation reads, in the order of `tensors_of`.
    """

    replay: Callable[[], object]
    result: Tensor
    inputs: list[Tensor]


class Graphs:
    """A computation that is recorded for each shape of its arguments.

    Args:
        compute: returns a tensor for tensors, or batches of tensors. Other tensors that it changes
            must keep their memory. It must not wait for the device.
        work: the name of the computation in a warning.
    """

    def __init__(self, compute: Callable[..., Tensor], work: str) -> None:
        self._compute, self._work = compute, work
        self._recorded: dict[Shape, Recorded] = {}
        # Graphs share the tensors that they read, because only one graph runs at a time.
        self._inputs: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        self._computed: set[Shape] = set()
        self._most, self._failures = SHAPES, 0
        self._pool = Pool()

    def clear(self) -> None:
        """Give back the memory of all graphs."""
        self._recorded.clear()
        self._inputs.clear()
        self._pool = Pool()

    def __call__(self, *arguments: Any) -> Tensor:
        """Return what `compute` returns, valid until the next call."""
        tensors = tensors_of(arguments)
        shape = tuple(tensor.shape for tensor in tensors)
        known = self._recorded.get(shape)
        if known is None and shape in self._computed and len(self._recorded) < self._most:
            known = self._record(shape, tensors, arguments)
        if known is None:
            result = self._compute(*arguments)
            self._computed.add(shape)
            return result
        torch._foreach_copy_(known.inputs, tensors)
        known.replay()
        return known.result

    def _record(self, shape: Shape, tensors: list[Tensor], arguments: Any) -> Recorded | None:
        inputs = self._lasting_copies(tensors)
        copies = iter(inputs)
        arguments = with_tensors(arguments, lambda _: next(copies))
        count = len(self._recorded)
        graphs = f"{count} CUDA graphs and no more" if count else "no CUDA graphs"
        otherwise = f"{graphs}; the host starts each kernel of {'other ' * bool(count)}{self._work}"
        try:
            recorded = try_to_record(lambda: self._compute(*arguments), self._pool, otherwise)
        except OutOfMemory:
            self._failures += 1
            if self._failures == FAILURES:
                self._most = 0
                console.warn(f"too little memory for CUDA graphs of {self._work}: slower updates")
            self.clear()
            return None
        if recorded is None:
            self._most = count
            return None
        self._failures = 0
        known = self._recorded[shape] = Recorded(*recorded, inputs)
        return known

    def _lasting_copies(self, tensors: list[Tensor]) -> list[Tensor]:
        """Copy tensors into the inputs of graphs, and return the inputs."""
        inputs = []
        for i, tensor in enumerate(tensors):
            key = i, tensor.shape, tensor.dtype
            if key not in self._inputs:
                self._inputs[key] = torch.empty_like(tensor)
            inputs.append(self._inputs[key])
        torch._foreach_copy_(inputs, tensors)
        return inputs


def copied_fields(batch: Batch) -> Batch:
    """Return a batch without the fields that a graph does not copy: no model with graphs reads
    them, and the loss counts no <pad>.
    """
    packed, none = batch.segments is not None, batch.src_lengths[:0]
    return dataclasses.replace(
        batch,
        src_lengths=none if packed else batch.src_lengths,
        rows=none,
        tgt_lengths=none,
        src_padded=True,
        tgt_padded=True,
        real=None,
    )


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in batches and tuples."""
    tensors: list[Tensor] = []
    with_tensors(value, lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return tensors
