"""CUDA graphs of batches: a GPU repeats the kernels of an earlier batch of the same shape.

The host needs more time to start the kernels of a small model than the GPU needs to run them. A
replay starts all of them at once. The first batch of a shape is computed kernel by kernel, which
also makes what lasts, like tables of positions and compiled kernels. The second one is recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batches import Batch, with_tensors
from nmtkit.nn.recording import OutOfMemory, Pool, try_to_record

SHAPES = 256
"""Shapes that get a graph; further ones are computed kernel by kernel."""
Shape = tuple[torch.Size, ...]
Compute = Callable[[Batch, Tensor], Tensor]


@dataclass(frozen=True)
class Recorded:
    """A recorded computation.

    Attributes:
        replay: computes again.
        result: the tensor that it writes.
        inputs: the tensors of the batch that it reads, in the order of `tensors_of`.
        scale: the scale that it reads.
    """

    replay: Callable[[], object]
    result: Tensor
    inputs: list[Tensor]
    scale: Tensor


class Graphs:
    """A computation that adds the gradients of batches, recorded for each shape.

    Args:
        compute: adds the gradients of a batch times a scale (a number on the device) to gradients
            that stay in their places, and returns a tensor. It must not wait for the device.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._recorded: dict[Shape, Recorded] = {}
        # Graphs share the tensors that they read: only one of them runs at a time.
        self._inputs: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        self._computed: set[Shape] = set()
        self._most = SHAPES
        self._pool = Pool()

    def clear(self) -> None:
        """Give back the memory of all graphs."""
        self._recorded.clear()
        self._inputs.clear()
        self._pool = Pool()

    def __call__(self, batch: Batch, scale: Tensor) -> Tensor:
        """Return what `compute` returns, valid until the next call."""
        batch = copied_fields(batch)
        inputs = tensors_of(batch)
        shape = tuple(tensor.shape for tensor in inputs)
        known = self._recorded.get(shape)
        if known is None and shape in self._computed and len(self._recorded) < self._most:
            known = self._record(shape, batch, scale)
        if known is None:
            result = self._compute(batch, scale)
            self._computed.add(shape)
            return result
        torch._foreach_copy_(known.inputs, inputs)
        known.scale.copy_(scale)
        known.replay()
        return known.result

    def _record(self, shape: Shape, batch: Batch, scale: Tensor) -> Recorded | None:
        tensors = tensors_of(batch)
        inputs = []
        for i, tensor in enumerate(tensors):
            key = i, tensor.shape, tensor.dtype
            if key not in self._inputs:
                self._inputs[key] = torch.empty_like(tensor)
            inputs.append(self._inputs[key])
        torch._foreach_copy_(inputs, tensors)
        copies, scale = iter(inputs), scale.clone()
        batch = with_tensors(batch, lambda _: next(copies))
        count = len(self._recorded)
        graphs = f"{count} CUDA graphs and no more" if count else "no CUDA graphs"
        otherwise = f"{graphs}; the host starts each kernel of other batches"
        try:
            recorded = try_to_record(lambda: self._compute(batch, scale), self._pool, otherwise)
        except OutOfMemory:
            self.clear()
            return None
        if recorded is None:
            self._most = count
            return None
        known = self._recorded[shape] = Recorded(*recorded, inputs, scale)
        return known


class Repeated:
    """A computation on tensors that stay in their places, recorded when it is done a second time.

    Args:
        compute: returns a tensor for a tensor of always the same shape. It must not wait for the
            device.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self._compute, self._pool = compute, Pool()
        self._calls = 0
        self._input = torch.empty(0)
        self._graph: tuple[Callable[[], object], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return what `compute` returns."""
        self._calls += 1
        if self._calls == 2:
            self._input = x.clone()
            otherwise = "no CUDA graph of the optimiser's step"
            with suppress(OutOfMemory):
                self._graph = try_to_record(
                    lambda: self._compute(self._input), self._pool, otherwise
                )
        if self._graph is None:
            return self._compute(x)
        self._input.copy_(x)
        self._graph[0]()
        return self._graph[1].clone()


def copied_fields(batch: Batch) -> Batch:
    """Return a batch without the fields that a graph does not copy. No model with graphs reads
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


def tensors_of(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch."""
    tensors: list[Tensor] = []
    with_tensors(batch, lambda tensor: tensors.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return tensors
