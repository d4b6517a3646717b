"""Copies of weights in 16 bits and sums of gradients, made for all parameters at once.

Autocast copies a weight at its first product, and autograd adds a gradient to the earlier ones when
it is complete. A GPU needs more time to start so many small kernels than to run them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nmtkit.nn.linear import Linear


@contextlib.contextmanager
def parameters_at_once(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """For one forward and backward pass: linear layers multiply by copies of their weights, and the
    new gradients of all parameters are added at the end.

    Args:
        model: its parameters have gradients, to which those of the pass are added.
        dtype: of the copies, of 16 bits; None = without copies.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    sums = [p.grad for p in parameters]
    with _copies(model, dtype) as copies:
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
        finally:
            gradients = [p.grad for p in parameters]
            for parameter, total in zip(parameters, sums, strict=True):
                parameter.grad = total
    _add(sums, gradients)
    _add([weight.grad for weight in copies], [copy.grad for copy in copies.values()])


@contextlib.contextmanager
def _copies(model: nn.Module, dtype: torch.dtype | None) -> Iterator[dict[Tensor, Tensor]]:
    """Let linear layers use copies of their parameters; yield those of weights by weight."""
    layers = [m for m in model.modules() if isinstance(m, Linear) and m.weight.grad is not None]
    layers = layers if dtype is not None else []
    weights = list(dict.fromkeys(layer.weight for layer in layers))  # layers may share one
    biases = list(dict.fromkeys(layer.bias for layer in layers if layer.bias is not None))
    copies = [torch.empty_like(x, dtype=dtype, requires_grad=False) for x in (*weights, *biases)]
    with torch.no_grad():
        if copies:
            torch._foreach_copy_(copies, [*weights, *biases])
    copy_of = dict(zip((*weights, *biases), copies, strict=True))
    for layer in layers:
        layer.copies = copy_of[layer.weight].requires_grad_(), copy_of.get(layer.bias)
    try:
        yield {weight: copy_of[weight] for weight in weights}
    finally:
        for layer in layers:
            layer.copies = None


@torch.no_grad()
def _add(sums: list[Tensor | None], gradients: list[Tensor | None]) -> None:
    """Add gradients to sums, where there are any."""
    pairs = [
        (a, b) for a, b in zip(sums, gradients, strict=True) if a is not None and b is not None
    ]
    if not pairs:
        return
    totals, new = map(list, zip(*pairs, strict=True))
    if new[0].dtype != totals[0].dtype:
        narrow, new = new, [torch.empty_like(total) for total in totals]
        torch._foreach_copy_(new, narrow)
    torch._foreach_add_(totals, new)
