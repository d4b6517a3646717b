"""Recurrent blocks: gated cells, their run over padded sentences in both directions, additive attention.

All that does not depend on the state is computed for all steps at once, before or after a loop over time; inside the loop there are only
products with the state and element-wise work. The gradient of a matrix used at every step is one product too, after the last (`Repeated`).

Legend: B sentences, R = B·K rows, K hypotheses a sentence, S source length, T steps, E width of inputs, H of states, G blocks of a cell's
input side, A width of the alignment layer, N directions.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmtkit.nn.linear import Linear
from nmtkit.nn.masks import additive

Function = TypeVar("Function", bound=Callable[..., Any])
Product = Callable[[Tensor], Tensor]


def eager(function: Function) -> Function:
    """Keep torch.compile out of a loop over time: it would unroll it anew for every length."""
    return cast(Function, torch.compiler.disable(function))


class Repeated:
    """y = x·M + b with the same M and b at every step of a loop.

    Backward gives the gradient of each x at once; those of M and b come after all steps, from all x and all gradients of y together.

    Args:
        matrix: M (in, out), or (N, in, out) for N products at once; its number type is that of the products.
        times: how often it will be used, at most.
        bias: b (out), or (N, 1, out).
    """

    def __init__(self, matrix: Tensor, times: int, bias: Tensor | None = None) -> None:
        self._matrix, self._times, self._bias = matrix, times, bias
        self._inputs: list[Tensor] = []
        self._uses: tuple[Tensor, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """(R, in) -> (R, out), or (N, R, in) -> (N, R, out)."""
        if not (torch.is_grad_enabled() and self._matrix.requires_grad):
            return _product(x.to(self._matrix.dtype), self._matrix, self._bias)
        if not self._uses:
            self._uses = _Uses.apply(self._inputs, self._times, (*x.shape[:-1], self._matrix.size(-1)), self._matrix, self._bias)
        return _Product.apply(x, self._matrix, self._bias, self._uses[len(self._inputs)], self._inputs)


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.matmul(x, matrix)
    return torch.addmm(bias, x, matrix) if x.dim() == 2 else torch.baddbmm(bias, x, matrix)


def repeated(layers: Sequence[Linear], times: int, dtype: torch.dtype) -> Product:
    """Layers of one shape made ready for a loop: (R, in) -> (R, out) for one, (N, R, in) -> (N, R, out) for several side by side.

    Args:
        layers: N of them.
        times: steps, at most.
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
    def forward(ctx: Any, inputs: list[Tensor], times: int, shape: tuple[int, ...], matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        ctx.inputs = inputs  # filled by the uses that follow
        ctx.bias = None if bias is None else bias.shape
        ctx.set_materialize_grads(False)
        return tuple(matrix.new_empty(()).expand(shape) for _ in range(times))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        pairs = [(x, grad) for x, grad in zip(ctx.inputs, grads, strict=False) if grad is not None]
        if not pairs:
            return None, None, None, None, None
        x, grad = (torch.cat(tensors, dim=-2) for tensors in zip(*pairs, strict=True))  # (T·R, in), (T·R, out)
        bias = None if ctx.bias is None else grad.sum(-2).view(ctx.bias)
        return None, None, None, torch.matmul(x.mT, grad), bias


class _Product(torch.autograd.Function):
    """One use: the gradients of matrix and bias go to the use's place holder."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, use: Tensor, inputs: list[Tensor]) -> Tensor:
        ctx.dtype = x.dtype
        ctx.save_for_backward(matrix)
        x = x.detach().to(matrix.dtype)  # detached, or the list would hold the graph that holds the list
        inputs.append(x)
        return _product(x, matrix, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        (matrix,) = ctx.saved_tensors
        dx = torch.matmul(grads[0], matrix.mT).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return dx, None, None, grads[0], None


class _Tanh(torch.autograd.Function):
    """tanh x = 2σ(2x) - 1: on a CPU torch's sigmoid takes a ninth of its tanh's time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.sigmoid_(2 * x).mul_(2).sub_(1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grads[0], y)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent, by the faster way of x's device."""
    return _Tanh.apply(x) if x.device.type == "cpu" else torch.tanh(x)


class Cell(nn.Module, abc.ABC):
    """A gated recurrent cell: one class with its input-side product, its state-side products, and a step.

    Args:
        d_in: E.
        d_hidden: H.
    """

    blocks: ClassVar[int]
    """G: how many blocks of H numbers the input-side product has; whoever adds another input to the cell adds its product to these."""

    @abc.abstractmethod
    def inputs(self, v: Tensor) -> Tensor:
        """The input-side products of any number of steps: (…, E) -> (…, G·H)."""

    @abc.abstractmethod
    def products(self) -> tuple[Linear, ...]:
        """The state-side products."""

    @staticmethod
    @abc.abstractmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """The next state.

        Args:
            x: input-side products of this step (…, R, G·H).
            h: the state (…, R, H).
            products: `products()` made ready for a loop.
        """


class GRU(Cell):
    """r = σ(W_r v + U_r h), u = σ(W_u v + U_u h), h̃ = tanh(W v + U (r ⊙ h) + b), h' = (1-u) ⊙ h + u ⊙ h̃.

    The reset gate acts on the state, not on its product as in torch's GRU, whose kernels therefore cannot stand in.
    Source: Cho et al. 2014, Eqs. 5-8; Bahdanau et al. 2015, A.1.1.
    """

    blocks = 3

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__()
        self.input = Linear(d_in, 3 * d_hidden, bias=False, blocks=3)
        self.bias = nn.Parameter(torch.zeros(d_hidden))
        self.gates = Linear(d_hidden, 2 * d_hidden, bias=False, blocks=2)
        self.candidate = Linear(d_hidden, d_hidden, bias=False)

    def inputs(self, v: Tensor) -> Tensor:
        """W_r v, W_u v, W v + b side by side: (…, E) -> (…, 3H)."""
        return self.input.affine(v, self.input.weight, F.pad(self.bias, (2 * len(self.bias), 0)))

    def products(self) -> tuple[Linear, ...]:
        """U_r and U_u in one, and U."""
        return self.gates, self.candidate

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """See `Cell.step`."""
        gates, candidate = products
        width = h.size(-1)
        of_gates, of_candidate = x.split([2 * width, width], dim=-1)
        reset, update = torch.sigmoid(of_gates + gates(h)).chunk(2, dim=-1)
        return torch.lerp(h, tanh(of_candidate + candidate(reset * h)), update)


def loop(cells: Sequence[Cell], times: int, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """Make cells of one kind ready for a loop, which they go through side by side.

    Args:
        cells: N of them.
        times: steps, at most.
        dtype: number type of the products (under autocast that of the input-side products, while states keep that of the parameters).
    Returns: (x, h) -> next h; (R, G·H), (R, H) for one cell, (N, R, G·H), (N, R, H) for several.
    """
    products = [repeated(layers, times, dtype) for layers in zip(*(cell.products() for cell in cells), strict=True)]
    step = cells[0].step
    return lambda x, h: step(x, h, *products)


class Recurrent(nn.Module):
    """A cell that reads sentences forwards, or one that does and one that reads them backwards.

    Args:
        cell: the kind of cell.
        d_in: E.
        d_hidden: H.
        bidirectional: N = 2 instead of 1.
    """

    def __init__(self, cell: type[Cell], d_in: int, d_hidden: int, bidirectional: bool) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        self.forwards = cell(d_in, d_hidden)
        self.backwards = cell(d_in, d_hidden) if bidirectional else None

    @eager
    def forward(self, v: Tensor, lengths: Tensor, padded: bool = True) -> tuple[Tensor, Tensor]:
        """Read sentences; padding leaves a state as it is.

        Args:
            v: inputs (B, S, E).
            lengths: (B), the real ones.
            padded: False where no sentence is padded.
        Returns: states (B, S, N·H), at each position those of the directions side by side, in the products' number type (they go into
            further products); the last state of each direction (N, B, H).
        """
        batch, steps, _ = v.shape
        v = v.transpose(0, 1)  # (S, B, E)
        mirror = _mirror(lengths, steps) if padded else None
        cells, x = [self.forwards], [self.forwards.inputs(v)]
        if self.backwards is not None:
            cells.append(self.backwards)
            x.append(self.backwards.inputs(_mirrored(v, mirror)))
        low, dtype = x[0].dtype, next(self.parameters()).dtype
        shape = (len(cells), batch) if len(cells) > 1 else (batch,)
        with torch.autocast(v.device.type, enabled=False):
            step = loop(cells, steps, low)
            h = v.new_zeros(*shape, self.d_hidden, dtype=dtype)
            states = []
            real = _real(lengths, steps) if padded else [None] * steps
            for x_t, here in zip((torch.stack(x, dim=1) if len(x) > 1 else x[0]).to(dtype).unbind(0), real, strict=True):
                new = step(x_t, h)
                h = new if here is None else torch.where(here, new, h)
                states.append(h)
            found = torch.stack(states).view(steps, len(cells), batch, -1).unbind(1)  # N times (S, B, H)
        sides = [found[0], *(_mirrored(side, mirror) for side in found[1:])]
        return torch.cat([side.to(low).transpose(0, 1) for side in sides], dim=-1), h.view(len(cells), batch, -1)


def _real(lengths: Tensor, steps: int) -> list[Tensor | None]:
    """For each step which sentences are not padded there, bool (B, 1); None = all (not asked on a GPU, which would have to be waited for)."""
    masks = torch.arange(steps, device=lengths.device)[:, None, None] < lengths[:, None]  # (S, B, 1)
    whole = min(steps, int(lengths.min())) if lengths.device.type == "cpu" else 0
    return [None] * whole + list(masks[whole:].unbind(0))


def _mirror(lengths: Tensor, steps: int) -> Tensor:
    """Where each position of (S·B) rows finds its mirror image: the real part of a sentence is turned round, padding stays."""
    t = torch.arange(steps, device=lengths.device).unsqueeze(1)  # (S, 1)
    image = torch.where(t < lengths, lengths - 1 - t, t)  # (S, B)
    return (image * len(lengths) + torch.arange(len(lengths), device=lengths.device)).flatten()


def _mirrored(x: Tensor, mirror: Tensor | None) -> Tensor:
    """(S, B, …) with every sentence turned round."""
    return x.flip(0) if mirror is None else x.flatten(0, 1).index_select(0, mirror).view(x.shape)


class AdditiveAttention(nn.Module):
    """α = softmax(vᵀ tanh(W s + U h_i)) over the source positions i.

    Args:
        d_query: width of s.
        d_source: width of h_i.
        width: A.
    Source: Bahdanau et al. 2015, A.1.2; no biases.
    """

    def __init__(self, d_query: int, d_source: int, width: int) -> None:
        super().__init__()
        self.query = Linear(d_query, width, bias=False)
        self.key = Linear(d_source, width, bias=False)
        self.score = Linear(width, 1, bias=False)

    def keys(self, states: Tensor) -> Tensor:
        """U h_i, once per sentence: (B, S, d_source) -> (B, S, A); doubled (see `_Scores`), and in the parameters' number type."""
        return 2 * self.key(states).to(self.score.weight.dtype)

    def loop(self, keys: Tensor, visible: Tensor | None, times: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Make the attention ready for a loop.

        Args:
            keys: from `keys`.
            visible: bool (B, 1, S), the real source positions; None = all.
            times: steps, at most.
            dtype: number type of the product with the state.
        Returns: s (R, d_query) -> weights (B, K, S); uniform where nothing is visible.
        """
        query = repeated([self.query], times, dtype)
        mask = None if visible is None else additive(visible, keys.dtype)

        def attend(s: Tensor) -> Tensor:
            scores = _Scores.apply(query(s).to(keys.dtype).view(len(keys), -1, keys.size(2)), keys, self.score.weight[0])
            return torch.softmax(scores if mask is None else scores + mask, dim=-1)

        return attend


class _Scores(torch.autograd.Function):
    """2 vᵀσ(2q + 2k) = vᵀ tanh(q + k) + Σv, and the softmax does not see Σv.

    The (B, K, S, A) numbers in between are computed again in backward, not kept for every step.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        """q (B, K, A), keys = 2k (B, S, A), v (A) -> (B, K, S)."""
        ctx.save_for_backward(q, keys, v)
        return torch.matmul(_sigmoid_of_sum(q, keys), v).mul_(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        q, keys, v = ctx.saved_tensors
        grad = grads[0]  # (B, K, S)
        sigma = _sigmoid_of_sum(q, keys)  # (B, K, S, A)
        dv = torch.mv(sigma.view(-1, len(v)).t(), grad.flatten()).mul_(2)
        slope = sigma.addcmul_(sigma, sigma, value=-1).mul_(2 * v)  # d score / d 2k = 2vσ(1-σ)
        dq = torch.matmul(grad.unsqueeze(2), slope).squeeze(2).mul_(2)
        slope.mul_(grad.unsqueeze(3))
        return dq, slope.squeeze(1) if slope.size(1) == 1 else slope.sum(1), dv


def _sigmoid_of_sum(q: Tensor, keys: Tensor) -> Tensor:
    """σ(2q + 2k), (B, K, S, A)."""
    return torch.sigmoid_(keys.unsqueeze(1) + 2 * q.unsqueeze(2))
