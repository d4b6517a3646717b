"""16-bit copies of weights, and sums of gradients, for all parameters at once.

Autocast starts a kernel to copy each weight, and autograd starts a kernel to add each gradient. A
GPU needs more time to start such a small kernel than to run it. Here a few kernels work on all
parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator

import torch
from torch import Tensor, nn

from nmtkit.nn import private
from nmtkit.nn.linear import Linear


@contextlib.contextmanager
def multi_tensor_pass(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Let linear layers multiply by copies of their weights during a forward and backward pass, and
    add the new gradients of all parameters at the end.

    Args:
        model: its parameters have gradients, to which the new gradients are added.
        dtype: of the copies, of 16 bits; None = without copies.
    """
    sums: dict[Tensor, Tensor] = {p: p.grad for p in model.parameters() if p.grad is not None}
    with _copies(model, sums, dtype) as copies:
        for parameter in sums:
            parameter.grad = None
        try:
            yield
        finally:
            gradients = [p.grad for p in sums]
            for parameter, total in sums.items():
                parameter.grad = total
    _add(zip(sums.values(), gradients, strict=True))
    _add((sums[weight], copy.grad) for weight, copy in copies.items())


@contextlib.contextmanager
def _copies(
    model: nn.Module, trained: Container[Tensor], dtype: torch.dtype | None
) -> Iterator[dict[Tensor, Tensor]]:
    """Let linear layers use copies of their parameters; yield weight -> copy."""
    linear = [m for m in model.modules() if isinstance(m, Linear) and dtype is not None]
    # A hook gets the gradient of the weight itself.
    layers = [m for m in linear if m.weight in trained and not private.has_hooks(m.weight)]
    parameters = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    copy_of = {p: torch.empty_like(p, dtype=dtype, requires_grad=False) for p in parameters}
    if copy_of:
        with torch.no_grad():
            torch._foreach_copy_(list(copy_of.values()), list(copy_of))
    for layer in layers:
        layer.copies = copy_of[layer.weight].requires_grad_(), copy_of.get(layer.bias)
    try:
        yield {layer.weight: copy_of[layer.weight] for layer in layers}
    finally:
        for layer in layers:
            layer.copies = None


@torch.no_grad()
def _add(pairs: Iterable[tuple[Tensor, Tensor | None]]) -> None:
    """Add to each sum its gradient, where there is one."""
    both = [(total, new) for total, new in pairs if new is not None]
    if not both:
        return
    totals, new = map(list, zip(*both, strict=True))
    if new[0].dtype != totals[0].dtype:
        narrow, new = new, [torch.empty_like(total) for total in totals]
        torch._foreach_copy_(new, narrow)
    torch._foreach_add_(totals, new)
