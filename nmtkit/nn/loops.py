"""Python loops over time: products with the same matrix at every step, and torch.compile.

Legend: R rows, N products side by side, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmtkit.nn import gpu
from nmtkit.nn.linear import Linear

Function = TypeVar("Function", bound=Callable[..., Any])
Product = Callable[[Tensor], Tensor]


def eager(method: Function) -> Function:
    """Mark a module's loop over time for `compile_steps`.

    torch's own decorator would load its compiler, which takes seconds, at every start.
    """
    method.compiled = False  # type: ignore[attr-defined]
    return method


def in_one_graph(method: Function) -> Function:
    """Mark a module's computation of a step inside such a loop for `compile_steps`."""
    method.compiled = True  # type: ignore[attr-defined]
    return method


def compile_steps(model: nn.Module, in_training: Callable[[Function], Function]) -> None:
    """Keep torch.compile out of marked loops, which it would unroll for every length; compile
    their marked steps.

    Args:
        in_training: compiles a method for training.
    """
    for module in model.modules():
        for name in dir(type(module)):
            compiled = getattr(getattr(type(module), name), "compiled", None)
            if compiled is not None:
                wrap = in_training if compiled else torch.compiler.disable
                setattr(module, name, wrap(getattr(module, name)))


class LoopProduct:
    """y = x·M + b with the same M and b at every step of a loop.

    Backward computes the gradient of each x step by step, but those of M and b after all steps, in
    one product of all x and all gradients of y.

    Args:
        matrix: M (in, out), or (N, in, out) for N products at once; of the products' number type.
        times: the maximum number of uses; or R of each use (uses may be left out).
        bias: b (out), or (N, 1, out).
    """

    def __init__(
        self, matrix: Tensor, times: int | Sequence[int], bias: Tensor | None = None
    ) -> None:
        self._matrix, self._times, self._bias = matrix, times, bias
        self._inputs: dict[int, Tensor] = {}
        self._uses: Iterator[tuple[int, Tensor]] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(R, in) -> (R, out), or (N, R, in) -> (N, R, out)."""
        matrix, bias = self._matrix, self._bias
        x = gpu.low_precision_copy(x).to(matrix.dtype)
        if torch.is_grad_enabled() and matrix.requires_grad:
            if self._uses is None:
                rows, times = x.size(-2), self._times
                times = [rows] * times if isinstance(times, int) else times
                self._uses = enumerate(_Uses.apply(self._inputs, times, matrix, bias))
            # The next use with this number of rows: its bias takes the gradient of y to `_Uses`.
            number, bias = next(use for use in self._uses if use[1].size(-2) == x.size(-2))
            self._inputs[number] = x.detach()
            matrix = matrix.detach()
        if bias is None:
            return torch.matmul(x, matrix)
        return torch.addmm(bias, x, matrix) if x.dim() == 2 else torch.baddbmm(bias, x, matrix)


class _Uses(torch.autograd.Function):
    """The bias of every use of a matrix, zero if it has none; they collect the gradients of y."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: dict[int, Tensor],
        times: Sequence[int],
        matrix: Tensor,
        bias: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.inputs = inputs  # filled by the uses that follow
        ctx.bias = None if bias is None else bias.shape
        ctx.set_materialize_grads(False)
        shape, width = matrix.shape[:-2], matrix.size(-1)
        start = matrix.new_zeros(()) if bias is None else bias.clone()
        return tuple(start.expand(*shape, rows, width) for rows in times)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        used = [(ctx.inputs[i], grad) for i, grad in enumerate(grads) if grad is not None]
        if not used:
            return None, None, None, None
        x, grad = (torch.cat(tensors, dim=-2) for tensors in zip(*used, strict=True))  # (T·R, ·)
        bias = None if ctx.bias is None else grad.sum(-2).view(ctx.bias)
        return None, None, torch.matmul(x.mT, grad), bias


def loop_product(
    layers: Sequence[Linear],
    times: int | Sequence[int],
    dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Product:
    """Make layers of one shape ready for a loop.

    Args:
        layers: N of them.
        times: steps, at most; or R of each.
        dtype: number type of the products.
        bias: in place of a single layer's own.
    Returns: (R, in) -> (R, out) of one layer, (N, R, in) -> (N, R, out) of several side by side.
    """
    first, single = layers[0], len(layers) == 1
    bias = first.bias if bias is None else bias
    if not torch.is_grad_enabled() and first.packed is not None:
        if single:
            return lambda x: first.affine(x, first.weight, bias)
        return lambda x: torch.stack([layer(rows) for layer, rows in zip(layers, x, strict=True)])
    weight: Tensor = first.weight
    if not single:
        weight = torch.stack([layer.weight for layer in layers])
        bias = None if bias is None else torch.stack([layer.bias for layer in layers]).unsqueeze(1)
    return LoopProduct(weight.to(dtype).mT, times, None if bias is None else bias.to(dtype))
