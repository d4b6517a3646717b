"""Gradients summed over the ranks while the backward pass still computes.

The gradients of all parameters are views of a few buckets, the last parameter first: about the
order of the backward pass. In the last micro-batch of an update a bucket travels as soon as its
gradients are complete. All ranks send the buckets in the same order. Numbers that the host needs at
once travel in main memory, so that no host waits for its GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from nmtkit.nn import private
from nmtkit.train.ranks import Ranks

BUCKET = 25 << 20
"""Bytes summed in one exchange: enough for the full bandwidth, and few enough for an early start of
the first exchange.
"""
LOSSES = 2
"""Numbers at the end of each bucket; those of the last bucket are the sums of the losses."""


class GradientSums:
    """The sums over ranks of a model's gradients; a single process sums nothing.

    Args:
        parameters: on their device.
        ranks: the processes.
        dtype: the type in which the gradients travel. bfloat16 halves the bytes and rounds the sums
            to 8 bits. The losses travel as float32.
        replayed: True if CUDA graphs add to the gradients. Then gradients keep their memory (in a
            single process, too), every parameter has one, and all of them travel after the last
            graph, because torch calls no hooks in a graph.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        ranks: Ranks,
        dtype: torch.dtype,
        replayed: bool,
    ) -> None:
        self._ranks, self._replayed = ranks, replayed
        self._travel = ranks.world > 1
        self._parameters = list(reversed(parameters)) if self._travel or replayed else []
        self._flats: list[Tensor] = []
        self._views: list[Tensor] = []
        self._bucket_of: list[int] = []
        for number, bucket in enumerate(buckets(self._parameters)):
            sizes = [parameter.numel() for parameter in bucket]
            flat = bucket[0].new_zeros(sum(sizes) + LOSSES)
            parts = torch.split(flat, [*sizes, LOSSES])
            self._views += [part.view_as(p) for part, p in zip(parts, bucket, strict=False)]
            self._bucket_of += [number] * len(bucket)
            self._flats.append(flat)
        # Made here, because `finish` cannot recover from a lack of memory.
        rounds = self._travel and dtype == torch.bfloat16
        self._rounded = [flat[:-LOSSES].bfloat16() for flat in self._flats] if rounds else []
        self._nodes: list[Node] = []
        for i, parameter in enumerate([] if replayed else self._parameters):
            self._nodes.append(get_gradient_edge(parameter).node)
            added = partial(self._added, i)
            parameter.register_post_accumulate_grad_hook(added)  # type: ignore[no-untyped-call]
        self._used: set[int] = set()
        # Gradients that each bucket still lacks; empty while no bucket may travel.
        self._lacks: list[int] = []
        self._waits: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Set all gradients to zero."""
        self._used = set(range(len(self._parameters))) if self._replayed else set()
        for flat in self._flats:
            flat.zero_()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    def overlap(self, hidden: Tensor) -> None:
        """Let buckets travel during the backward pass from these hidden states, the last pass."""
        if self._nodes:
            hidden.register_hook(self._count)  # type: ignore[no-untyped-call]

    def finish(self, losses: Tensor, numbers: Sequence[float]) -> tuple[Tensor, list[list[float]]]:
        """Send the remaining buckets, and wait for all buckets.

        A parameter that has a gradient on no rank has none afterwards.

        Args:
            losses: (2), to be summed.
            numbers: for the hosts of all ranks; equally many on each rank.
        Returns: the sums of the losses; the numbers of every rank.
        """
        if not self._travel:
            return losses, self._ranks.gather(numbers)
        self._lacks = []
        self._flats[-1][-LOSSES:] = losses
        while len(self._waits) < len(self._flats):
            self._send()
        if self._rounded:
            self._waits.append(self._ranks.begin_sum(self._flats[-1][-LOSSES:]))
        # One gather: the numbers, then for each parameter whether this rank has its gradient.
        used = [i in self._used for i in range(len(self._parameters))]
        rows = self._ranks.gather([*numbers, *used])
        for wait in self._waits:
            wait()
        self._waits = []
        of_ranks = zip(*(row[len(numbers) :] for row in rows), strict=True)
        for parameter, used_by in zip(self._parameters, of_ranks, strict=True):
            if not any(used_by):
                parameter.grad = None
        losses = self._flats[-1][-LOSSES:].to(losses.dtype, copy=True)
        return losses, [row[: len(numbers)] for row in rows]

    def _count(self, _: Tensor) -> None:
        """Count the gradients that each bucket lacks; called before the first gradient is ready."""
        self._lacks = [0] * len(self._flats)
        for node, bucket in zip(self._nodes, self._bucket_of, strict=True):
            self._lacks[bucket] += private.will_run(node)
        self._send_complete()

    def _added(self, i: int, _: Tensor) -> None:
        """Note that the backward pass has added to the gradient of a parameter."""
        self._used.add(i)
        if self._lacks:
            self._lacks[self._bucket_of[i]] -= 1
            self._send_complete()

    def _send_complete(self) -> None:
        # The last bucket waits for the losses.
        while (sent := len(self._waits)) < len(self._flats) - 1 and not self._lacks[sent]:
            self._send()

    def _send(self) -> None:
        number = len(self._waits)
        flat = self._flats[number]
        if not self._rounded:
            self._waits.append(self._ranks.begin_sum(flat))
            return
        gradients = flat[:-LOSSES]
        rounded = self._rounded[number].copy_(gradients)
        wait = self._ranks.begin_sum(rounded)
        self._waits.append(lambda: (wait(), gradients.copy_(rounded)))


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors in order, in groups of one type and device of at most BUCKET bytes.

    A larger tensor is a group alone.
    """
    for _, group in itertools.groupby(tensors, lambda tensor: (tensor.dtype, tensor.device)):
        bucket: list[Tensor] = []
        for tensor in group:
            if bucket and sum(t.nbytes for t in bucket) + tensor.nbytes > BUCKET:
                yield bucket
                bucket = []
            bucket.append(tensor)
        yield bucket
