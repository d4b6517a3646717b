"""torch's private functions: the one file that uses them.

A version of torch without one of them gives the same results, more slowly.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ONEDNN = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")


def has_packed_products() -> bool:
    """True if oneDNN multiplies with weights that it has laid out once."""
    known = all(hasattr(torch.ops.mkldnn, name) for name in _ONEDNN)
    return known and torch.backends.mkldnn.is_available()


def multiplies_bfloat16() -> bool:
    """True if this CPU's packed products can have factors of bfloat16."""
    return has_packed_products() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor, rows: int) -> Tensor:
    """Lay out a matrix (out, in) for `packed_product` of about this number of rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


def packed_product(x: Tensor, packed: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Return x·Wᵀ + b, or ReLU of it: (…, in) -> (…, out)."""
    after = "relu" if relu else "none"
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, after, [], "")
    return y


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of scores from the one of weights = softmax(scores), (…, S)."""
    if hasattr(torch, "_softmax_backward_data"):
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype)
    product = grad * weights
    return product - weights * product.sum(-1, keepdim=True)
