"""torch's private functions: the one file that uses them.

A version of torch without one of them gives the same results, more slowly.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

_ONEDNN = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
_ONEDNN_INT8 = ("qlinear_prepack", "qlinear_pointwise")


def has_packed_products() -> bool:
    """True if oneDNN multiplies with weights that it has laid out once."""
    known = all(hasattr(torch.ops.mkldnn, name) for name in _ONEDNN)
    return known and torch.backends.mkldnn.is_available()


def multiplies_bfloat16() -> bool:
    """True if this CPU's packed products can have factors of bfloat16."""
    return has_packed_products() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor, rows: int) -> Tensor:
    """Lay out a matrix (out, in) for `packed_product` of about this number of rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def packed_product(x: Tensor, packed: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Return x·Wᵀ + b, or ReLU of it: (…, in) -> (…, out)."""
    after = "relu" if relu else "none"
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, after, [], "")


def multiplies_int8() -> bool:
    """True if oneDNN multiplies int8 by instructions of this CPU that sum in 32 bits.

    Older instructions sum in 16 bits, which can overflow.
    """
    known = all(hasattr(torch.ops.onednn, name) for name in _ONEDNN_INT8)
    known = known and hasattr(torch, "_int_mm")
    sums_in_32_bits = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return known and torch.backends.mkldnn.is_available() and bool(sums_in_32_bits())


def pack_int8(weight: Tensor) -> Tensor:
    """Lay out a matrix of int8 (out, in) for `int8_product`."""
    return torch.ops.onednn.qlinear_prepack(weight, None)


def int8_product(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """Return (x·Wᵀ)·scale, float32: (R, in) -> (R, out).

    Args:
        x: int8 (R, in), overwritten.
        packed: from `pack_int8`.
        scale: float32 (out).
    """
    # The kernel reads numbers of 0 … 255, of which 128 is zero.
    unsigned = x.view(torch.uint8).bitwise_xor_(128)
    zeros = torch.zeros(len(scale), dtype=torch.int32)
    return torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, 128, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


def int8_sums(x: Tensor, weight: Tensor) -> Tensor:
    """Return x·W in int32: int8 (R, in), (in, out) -> (R, out); a shorter call than
    `int8_product`.
    """
    return torch._int_mm(x, weight)


def relu_of_affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ReLU(x·Wᵀ + b), (N, in) -> (N, out), without gradients; in one kernel on a GPU."""
    if hasattr(torch, "_addmm_activation"):
        return torch._addmm_activation(bias, x, weight.t())
    return torch.addmm(bias, x, weight.t()).relu_()


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of scores from the one of weights = softmax(scores), (…, S)."""
    if hasattr(torch, "_softmax_backward_data"):
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype)
    product = grad * weights
    return product - weights * product.sum(-1, keepdim=True)


def will_run(node: Node) -> bool:
    """True if the backward pass that runs now comes to this node, or torch cannot say."""
    says = getattr(torch._C, "_will_engine_execute_node", lambda _: True)
    return bool(says(node))


def has_hooks(x: Tensor) -> bool:
    """True if torch calls something with the gradient of a parameter."""
    return bool(x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None))


def keep_sizes_apart() -> None:
    """Let torch.compile take sizes that are equal by chance for different ones: else other batches
    need other graphs.
    """
    with suppress(ImportError):
        from torch.fx.experimental import _config

        if hasattr(_config, "use_duck_shape"):
            _config.use_duck_shape = False


def end_allocations(pool: Any) -> None:
    """Let the GPU's allocator serve a pool no longer, if a recording that failed left it so."""
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is not None:
        with suppress(RuntimeError):  # torch has ended it
            end(torch.cuda.current_device(), pool)
