"""Products with one matrix at every step of a loop over time: the gradient of the matrix is one product too, after the last step.

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
    """Mark a module's loop over time for `keep_eager`; torch's own decorator would load its compiler, which takes seconds, at every start."""
    method.eager = True  # type: ignore[attr-defined]
    return method


def keep_eager(model: nn.Module) -> None:
    """Keep torch.compile out of the loops over time that are marked so: it would unroll them anew for every length."""
    for module in model.modules():
        for name in {name for part in type(module).__mro__ for name, method in vars(part).items() if getattr(method, "eager", False)}:
            setattr(module, name, torch.compiler.disable(getattr(module, name)))


class Repeated:
    """y = x·M + b with the same M and b at every step of a loop.

    Backward gives the gradient of each x at once; those of M and b come after all steps, from all x and all gradients of y together.

    Args:
        matrix: M (in, out), or (N, in, out) for N products at once; its number type is that of the products.
        times: how often it will be used, at most; or R of each use, where that changes (uses may be left out).
        bias: b (out), or (N, 1, out).
    """

    def __init__(self, matrix: Tensor, times: int | Sequence[int], bias: Tensor | None = None) -> None:
        self._matrix, self._times, self._bias = matrix, times, bias
        self._inputs: dict[int, Tensor] = {}
        self._uses: Iterator[tuple[int, Tensor]] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(R, in) -> (R, out), or (N, R, in) -> (N, R, out)."""
        if not (torch.is_grad_enabled() and self._matrix.requires_grad):
            return _product(x.to(self._matrix.dtype), self._matrix, self._bias)
        if self._uses is None:
            rows = [x.size(-2)] * self._times if isinstance(self._times, int) else self._times
            self._uses = enumerate(_Uses.apply(self._inputs, rows, self._matrix, self._bias))
        number, use = next((number, use) for number, use in self._uses if use.size(-2) == x.size(-2))
        return _Product.apply(x, self._matrix, self._bias, use, number, self._inputs)


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.matmul(x, matrix)
    return torch.addmm(bias, x, matrix) if x.dim() == 2 else torch.baddbmm(bias, x, matrix)


def repeated(layers: Sequence[Linear], times: int | Sequence[int], dtype: torch.dtype) -> Product:
    """Layers of one shape made ready for a loop: (R, in) -> (R, out) for one, (N, R, in) -> (N, R, out) for several side by side.

    Args:
        layers: N of them.
        times: steps, at most; or R of each.
        dtype: number type of the products.
    """
    if not torch.is_grad_enabled() and all(layer.packed is not None for layer in layers):
        return layers[0] if len(layers) == 1 else lambda x: torch.stack([layer(own) for layer, own in zip(layers, x, strict=True)])
    weights, biases = [layer.weight for layer in layers], [layer.bias.to(dtype) for layer in layers if layer.bias is not None]
    weight = weights[0] if len(layers) == 1 else torch.stack(weights)
    bias = None if not biases else biases[0] if len(layers) == 1 else torch.stack(biases).unsqueeze(1)
    return Repeated(weight.to(dtype).mT, times, bias)


class _Uses(torch.autograd.Function):
    """A place holder for every use of a matrix; together they bring the gradients of all uses to one place."""

    @staticmethod
    def forward(ctx: Any, inputs: dict[int, Tensor], rows: Sequence[int], matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        ctx.inputs = inputs  # filled by the uses that follow
        ctx.bias = None if bias is None else bias.shape
        ctx.set_materialize_grads(False)
        return tuple(matrix.new_empty(()).expand(*matrix.shape[:-2], count, matrix.size(-1)) for count in rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        pairs = [(ctx.inputs[number], grad) for number, grad in enumerate(grads) if grad is not None]
        if not pairs:
            return None, None, None, None
        x, grad = (torch.cat(tensors, dim=-2) for tensors in zip(*pairs, strict=True))  # (T·R, in), (T·R, out)
        bias = None if ctx.bias is None else grad.sum(-2).view(ctx.bias)
        return None, None, torch.matmul(x.mT, grad), bias


class _Product(torch.autograd.Function):
    """One use: the gradients of matrix and bias go to the use's place holder."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, use: Tensor, number: int, inputs: dict[int, Tensor]) -> Tensor:
        ctx.dtype = x.dtype
        ctx.save_for_backward(matrix)
        x = x.detach().to(matrix.dtype)  # detached, or the list would hold the graph that holds the list
        inputs[number] = x
        return _product(x, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        (matrix,) = ctx.saved_tensors
        dx = torch.matmul(grads[0], matrix.mT).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return dx, None, None, grads[0], None, None
