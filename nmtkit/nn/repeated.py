"""Products with one matrix at every step of a loop over time.

The gradient of the matrix is one product too, after the last step.

Legend: R rows, N products side by side, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nmtkit.nn.linear import Linear

Function = TypeVar("Function", bound=Callable[..., Any])
Product = Callable[[Tensor], Tensor]


def eager(method: Function) -> Function:
    """Mark a module's loop over time for `keep_eager`.

    torch's own decorator would load its compiler, which takes seconds, at every start.
    """
    method.eager = True  # type: ignore[attr-defined]
    return method


def keep_eager(model: nn.Module) -> None:
    """Keep torch.compile out of loops marked so: it would unroll them for every length."""
    for module in model.modules():
        for name in dir(type(module)):
            if getattr(getattr(type(module), name), "eager", False):
                setattr(module, name, torch.compiler.disable(getattr(module, name)))


class Repeated:
    """y = x·M + b with the same M and b at every step of a loop.

    Backward gives the gradient of each x at once; those of M and b come after all steps, from all x
    and all gradients of y together.

    Args:
        matrix: M (in, out), or (N, in, out) for N products at once; of the products' number type.
        times: how often it will be used, at most; or R of each use (uses may be left out).
        bias: b (out), or (N, 1, out).
    """

    def __init__(
        self, matrix: Tensor, times: int | Sequence[int], bias: Tensor | None = None
    ) -> None:
        self.matrix, self._times, self._bias = matrix, times, bias
        self.inputs: dict[int, Tensor] = {}
        self._uses: Iterator[tuple[int, Tensor]] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(R, in) -> (R, out), or (N, R, in) -> (N, R, out)."""
        if not (torch.is_grad_enabled() and self.matrix.requires_grad):
            return self.product(x)
        rows = x.size(-2)
        if self._uses is None:
            times = [rows] * self._times if isinstance(self._times, int) else self._times
            self._uses = enumerate(_Uses.apply(self.inputs, times, self.matrix, self._bias))
        number, use = next(pair for pair in self._uses if pair[1].size(-2) == rows)
        return _Product.apply(x, self, use, number)

    def product(self, x: Tensor) -> Tensor:
        """Multiply once."""
        x, matrix, bias = x.to(self.matrix.dtype), self.matrix, self._bias
        if bias is None:
            return torch.matmul(x, matrix)
        return torch.addmm(bias, x, matrix) if x.dim() == 2 else torch.baddbmm(bias, x, matrix)


def repeated(layers: Sequence[Linear], times: int | Sequence[int], dtype: torch.dtype) -> Product:
    """Make layers of one shape ready for a loop.

    Args:
        layers: N of them.
        times: steps, at most; or R of each.
        dtype: number type of the products.
    Returns: (R, in) -> (R, out) of one layer, (N, R, in) -> (N, R, out) of several side by side.
    """
    first = layers[0]
    if not torch.is_grad_enabled() and first.packed is not None:
        if len(layers) == 1:
            return first
        return lambda x: torch.stack([layer(rows) for layer, rows in zip(layers, x, strict=True)])
    weight: Tensor = first.weight
    bias: Tensor | None = first.bias
    if len(layers) > 1:
        weight = torch.stack([layer.weight for layer in layers])
        bias = None if bias is None else torch.stack([layer.bias for layer in layers]).unsqueeze(1)
    return Repeated(weight.to(dtype).mT, times, None if bias is None else bias.to(dtype))


class _Uses(torch.autograd.Function):
    """A place holder for every use of a matrix; together they collect the gradients of all uses."""

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
        return tuple(matrix.new_empty(()).expand(*shape, rows, width) for rows in times)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        pairs = [
            (ctx.inputs[number], grad) for number, grad in enumerate(grads) if grad is not None
        ]
        if not pairs:
            return None, None, None, None
        x, grad = (torch.cat(tensors, dim=-2) for tensors in zip(*pairs, strict=True))  # (T·R, ·)
        bias = None if ctx.bias is None else grad.sum(-2).view(ctx.bias)
        return None, None, torch.matmul(x.mT, grad), bias


class _Product(torch.autograd.Function):
    """One use: the gradients of matrix and bias go to the use's place holder."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, repeated: Repeated, use: Tensor, number: int) -> Tensor:
        ctx.dtype, ctx.matrix = x.dtype, repeated.matrix
        # Detached, or the list would hold the graph that holds the list.
        x = repeated.inputs[number] = x.detach().to(repeated.matrix.dtype)
        return repeated.product(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        needed = ctx.needs_input_grad[0]
        dx = torch.matmul(grads[0], ctx.matrix.mT).to(ctx.dtype) if needed else None
        return dx, None, grads[0], None
