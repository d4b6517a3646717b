"""The affine map of every model, its two initialisations, and its weights laid out for a search."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmtkit.nn import cpu, gpu

Init = Literal["fan_in", "xavier"]

Precision = Literal["float32", "bfloat16", "float16", "int8"]

WIDE = 128
"""Narrower products gain nothing from bfloat16 or int8 on a CPU."""
NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The number types of 16 bits."""


def pack(model: nn.Module, precision: Precision = "float32") -> None:
    """Lay out the weights of a model that only translates: do not change them afterwards.

    Args:
        model: its float32 weights on a CPU are packed, where that is faster (see `cpu.pack`).
        precision: of the factors of wide products; sums and other products stay float32. bfloat16
            and float16 leave the output layer float32, since its scores are compared with one
            another; int8 includes it. A GPU computes its products of 16 bits in torch's autocast
            (see `inference`).
    """
    packed: dict[tuple[int, str], cpu.Packed | None] = {}  # layers may share weights
    for layer in _packable([model]):
        weight = layer.weight
        if weight.dtype != torch.float32:
            continue
        if weight.device.type != "cpu":
            layer.narrow = NARROW.get(precision)
            if isinstance(layer, Linear):
                layer.keep_copies(layer.narrow)
        key = id(weight), precision if _is_rounded(layer, precision) else "float32"
        if key not in packed:
            packed[key] = cpu.pack(weight.detach(), key[1])
        layer.packed = packed[key]


def rounds(models: Sequence[nn.Module], precision: Precision) -> bool:
    """True if `pack` rounds the weights of a layer of these models."""
    return any(_is_rounded(x, precision) or x.narrow is not None for x in _packable(models))


def _packable(models: Sequence[nn.Module]) -> list[Packable]:
    return [m for model in models for m in model.modules() if isinstance(m, Packable)]


def _is_rounded(layer: Packable, precision: Precision) -> bool:
    """True if a precision below float32 on a CPU rounds the weights of a layer."""
    kinds = {"int8": Packable, "bfloat16": Linear}
    return isinstance(layer, kinds.get(precision, ())) and min(layer.weight.shape) >= WIDE


@contextlib.contextmanager
def product_precision_restored() -> Iterator[None]:
    """Restore torch's precision of float32 products at the end, whether it was set by torch's newer
    settings or by its older function, which cannot read the newer ones.
    """
    backends: Any = torch.backends
    newer: dict[Any, Any] = {}
    for part in (backends.cuda, backends.mkldnn):
        matmul: Any = getattr(part, "matmul", None)
        if hasattr(matmul, "fp32_precision"):
            newer[matmul] = matmul.fp32_precision
    older: str | None = None
    with contextlib.suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)  # which sets the newer ones, too
        for matmul, value in newer.items():
            matmul.fp32_precision = value


@contextlib.contextmanager
def inference(models: Sequence[nn.Module]) -> Iterator[None]:
    """Decode with these models: no gradients, torch's default path for what is not packed, and on
    a GPU products of the precision of `pack`.

    The default path serves small batched products. oneDNN would copy their factors, and compile a
    product anew for every shape.
    """
    layers = _packable(models)
    narrow = next((layer for layer in layers if layer.narrow is not None), None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(product_precision_restored())
        if any(layer.packed is not None for layer in layers):
            torch.set_float32_matmul_precision("highest")
        stack.enter_context(torch.inference_mode())
        if narrow is not None:
            # autocast rounds a weight once, for a whole batch.
            stack.enter_context(torch.autocast(narrow.weight.device.type, narrow.narrow))
        yield


class Packable(nn.Module):
    """A module whose `weight` (out, in) `pack` may lay out anew."""

    weight: Tensor
    packed: cpu.Packed | None = None
    """The weights as `pack` has laid them out."""
    narrow: torch.dtype | None = None
    """Number type of products on a GPU, if `pack` has set one."""

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
        """Return x·Wᵀ + b, or ReLU of it: (…, in) -> (…, out); without gradients from packed
        weights.
        """
        trains = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if self.packed is not None and not trains and x.dtype.itemsize <= 4:
            return cpu.packed_linear(x, self.packed, bias, relu)
        return cpu.linear(x, weight, bias, relu)


class Linear(nn.Linear, Packable):
    """y = x·Wᵀ + b, Xavier-uniform weights, zero bias; one matrix may hold several projections of
    the same input.

    Args:
        d_in: width of the input.
        d_out: width of the output, all blocks together.
        bias: whether there is a bias.
        blocks: how many equal projections are stacked in the output; each is initialised as the
            matrix it is (d_out / blocks, d_in).
    """

    copies: tuple[Tensor, Tensor | None] | None = None
    """Weight and bias in 16 bits, inside `multi_tensor_pass` and after `pack`."""

    def __init__(self, d_in: int, d_out: int, bias: bool = True, blocks: int = 1) -> None:
        self.blocks = blocks
        super().__init__(d_in, d_out, bias)

    def forward(self, x: Tensor, relu: bool = False, sigmoid: bool = False) -> Tensor:
        """x·Wᵀ + b, or ReLU or σ of it: (…, d_in) -> (…, d_out)."""
        weight, constant = self.weight, None
        # A compiled graph would be compiled anew for new copies.
        copies = None if torch.compiler.is_compiling() else self.copies
        if copies and torch.is_autocast_enabled(x.device.type):
            weight, constant = copies
        if torch.is_grad_enabled():
            y = gpu.affine(x, weight, self.bias, constant, relu, sigmoid)
            if y is not None:
                return y
            constant = None
        y = self.affine(x, weight, self.bias if constant is None else constant, relu)
        return torch.sigmoid(y) if sigmoid else y

    def keep_copies(self, dtype: torch.dtype | None) -> None:
        """Keep copies of this number type, so that no search rounds weights; None = no copies."""
        self.copies = None
        if dtype is not None:
            bias = None if self.bias is None else self.bias.detach().to(dtype)
            self.copies = self.weight.detach().to(dtype), bias

    def reset_parameters(self) -> None:
        """Draw new weights from torch's current generator."""
        self.draw("xavier")

    def draw(self, init: Init) -> None:
        """Draw new weights from torch's current generator.

        Args:
            init: "xavier", uniform within ±√(6 / (d_in + d_out)); "fan_in", uniform within
                ±1/√d_in, which keeps sublayers small beside what their residual connection carries.
        Source: Glorot & Bengio 2010; Xu et al. 2020, *Lipschitz constrained parameter
            initialization for deep Transformers*.
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
