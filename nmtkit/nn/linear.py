"""The affine map of every model, its two initialisations, and its weights laid out for a search."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Init = Literal["fan_in", "xavier"]

Precision = Literal["float32", "bfloat16"]

WIDE = 128
"""Narrower products gain nothing from bfloat16 on a CPU."""
ROWS = 128
"""Packed weights are laid out for products with about so many rows (a batch of hypotheses); they serve any number."""
FILLED = 32
"""In training products have a multiple of so many rows where oneDNN makes them ready, which for a new number takes the time of several."""


def compiled(device: torch.device) -> bool:
    """Whether products on a device are oneDNN's, which makes code for each number of rows, keeping that of some thousand products."""
    if device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return torch.is_autocast_enabled("cpu") or torch.get_float32_matmul_precision() == "medium"


class _Filled(torch.autograd.Function):
    """x (…, D) as a matrix (N, D) with zeros in its last rows, in the products' number type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = x.shape, x.dtype
        rows = x.numel() // x.size(-1)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        filled = x.new_empty(math.ceil(rows / FILLED) * FILLED, x.size(-1), dtype=dtype)
        filled[:rows].view(x.shape).copy_(x)
        filled[rows:].zero_()
        return filled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0][: ctx.shape[:-1].numel()].to(ctx.dtype).view(ctx.shape)


class _Unfilled(torch.autograd.Function):
    """The first rows of a matrix (N, D) as (…, D); its own function, for torch's gradient of a slice would clear a whole matrix first."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, shape: torch.Size) -> Tensor:
        ctx.rows = len(y)
        return y[: shape.numel()].view(*shape, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0]
        filled = grad.new_empty(ctx.rows, grad.size(-1))
        rows = grad.shape[:-1].numel()
        filled[:rows].view(grad.shape).copy_(grad)
        filled[rows:].zero_()
        return filled, None


def pack(model: nn.Module, precision: Precision = "float32") -> None:
    """Lay out the weights of a model that only translates from now on, once, as oneDNN wants them: else it does so at every product.

    That is a quarter of the time of a decoding step's products. It is done where this CPU's float32 products are oneDNN's (see
    `hardware.choose`, which must have been called), and where it multiplies bfloat16: of such a CPU oneDNN knows the long vectors. Elsewhere
    nothing changes. The weights must not change afterwards.

    Args:
        model: its float32 weights on a CPU are packed.
        precision: bfloat16 rounds the factors of wide products; sums are float32, and so are the output layer, whose scores are compared with
            one another, and all that is no product of a layer. A CPU without products of 16 bits multiplies the rounded factors as float32.
    """
    available = torch.backends.mkldnn.is_available()
    multiplies_narrow = available and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    onednn = available and (multiplies_narrow or torch.get_float32_matmul_precision() == "medium")
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, Packable) and isinstance(weight, Tensor) and weight.device.type == "cpu" and weight.dtype == torch.float32:
            narrow = precision == "bfloat16" and isinstance(module, Linear) and min(weight.shape) >= WIDE
            if narrow and not multiplies_narrow:
                module.packed = weight.detach().bfloat16().float()
            elif narrow or onednn:
                weight = weight.detach().to(torch.bfloat16 if narrow else torch.float32)
                module.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)


@contextlib.contextmanager
def inference(models: Sequence[nn.Module]) -> Iterator[None]:
    """While these models decode: without gradients, and if they are packed, what is left goes torch's default way.

    That is small batched products, which oneDNN would copy, and compile anew for every shape.
    """
    before = torch.get_float32_matmul_precision()
    if any(getattr(module, "packed", None) is not None for model in models for module in model.modules()):
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class Packable(nn.Module):
    """A module whose `weight` (out, in) `pack` may lay out anew."""

    packed: Tensor | None = None
    """In oneDNN's layout, or plain: factors that were rounded to bfloat16."""

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
        """x·Wᵀ + b, or ReLU of it: (…, in) -> (…, out); from the packed weights where there are any and no gradient is wanted.

        With packed weights of bfloat16 a ReLU's result has that type too, for the next product; x may have it.
        """
        packed = self.packed if not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") else None
        if packed is not None and not packed.is_mkldnn:
            y = F.linear(x.bfloat16().float(), packed, bias)
            return torch.relu_(y).bfloat16() if relu else y
        if packed is not None and x.dtype in (torch.float32, packed.dtype):
            y = torch.ops.mkldnn._linear_pointwise(x.to(packed.dtype), packed, bias, "relu" if relu else "none", [], "")
            return y if relu else y.float()
        fill = torch.is_grad_enabled() and x.shape[:-1].numel() % FILLED > 0 and compiled(x.device)
        y = F.linear(_Filled.apply(x) if fill else x, weight, bias)
        y = torch.relu_(y) if relu else y
        return _Unfilled.apply(y, x.shape[:-1]) if fill else y


class Linear(nn.Linear, Packable):
    """y = x·Wᵀ + b, Xavier-uniform weights, zero bias; one matrix may hold several projections of the same input.

    Args:
        d_in: width of the input.
        d_out: width of the output, all blocks together.
        bias: whether there is a bias.
        blocks: how many equal projections are stacked in the output; each is initialised as the matrix it is (d_out / blocks, d_in).
    """

    def __init__(self, d_in: int, d_out: int, bias: bool = True, blocks: int = 1) -> None:
        self.blocks = blocks
        super().__init__(d_in, d_out, bias)

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """x·Wᵀ + b, or ReLU of it: (…, d_in) -> (…, d_out)."""
        return self.affine(x, self.weight, self.bias, relu)

    def reset_parameters(self) -> None:
        """Draw new weights from torch's current generator."""
        self.draw("xavier")

    def draw(self, init: Init) -> None:
        """Draw new weights from torch's current generator.

        Args:
            init: "xavier", uniform within ±√(6 / (d_in + d_out)); "fan_in", uniform within ±1/√d_in, which keeps sublayers small beside
                what their residual connection carries.
        Source: Glorot & Bengio 2010; Xu et al. 2020, *Lipschitz constrained parameter initialization for deep Transformers*.
        """
        with torch.no_grad():
            if init == "fan_in":
                bound = 1 / math.sqrt(self.in_features)
                self.weight.uniform_(-bound, bound)
            else:
                for block in self.weight.chunk(self.blocks, dim=0):
                    nn.init.xavier_uniform_(block)
            if self.bias is not None:
                nn.init.zeros_(self.bias)
