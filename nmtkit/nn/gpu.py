"""Kernels for training and searching on a GPU, where torch comes with Triton.

A function returns None where no kernel fits. `tests/benchmarks/kernels.py` measures each kernel
beside torch's operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.data.packing import Packing, Segments, segments
from nmtkit.errors import first_line

_kernels: ModuleType | None = None
"""The package `nmtkit.nn.kernels`, if its kernels work."""
_recurrent_fail = False
"""True if the kernels of recurrent models do not work."""


def load_kernels(device: torch.device) -> str:
    """Load the kernels for trainings on a device, if it can have kernels.

    Returns: a warning if they fail on this machine, otherwise "".
    """
    global _kernels, _recurrent_fail
    if not _has_kernels(device):
        return ""
    try:
        from nmtkit.nn import kernels  # Triton, whose import takes a second

        _try(kernels, device)
        _kernels, _recurrent_fail = kernels, True
        _try_recurrent(kernels, device)
        _recurrent_fail = False
    except ImportError:  # torch for Windows comes without Triton
        return ""
    # The errors have no common class: a C compiler or Python's headers may be missing.
    except Exception as error:
        failed = "kernels of recurrent models" if _kernels else "kernels"
        reason = first_line(error)
        return f"nmtkit's {failed} do not work here, torch's are slower: {reason}"
    return ""


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _try(kernels: ModuleType, device: torch.device) -> None:
    """Run the kernels of all models once."""
    one = torch.ones(1, device=device)
    kernels.loss.loss_and_gradient(one[None], one.long(), 0.0, one)
    where = segments(np.ones(1, np.int64), np.ones(1, np.int64)).queries
    where = Packing(*(tensor.to(device) for tensor in where))
    narrow = torch.float16
    q = torch.ones(1, 1, 64, dtype=narrow, device=device, requires_grad=True)
    context = kernels.attention.within_sentences(q, q, q, where, where, True, 0.0)
    layer = nn.LayerNorm(64, device=device)
    wide, _ = kernels.norm.residual_norm(context, context, layer, 0.0, True, narrow)
    kernels.affine.biased(wide[0], layer.bias).sum().backward()


def _try_recurrent(kernels: ModuleType, device: torch.device) -> None:
    """Run the kernels of recurrent models once."""
    x = torch.ones(1, 3, device=device, requires_grad=True)
    narrow = x[:, :2].to(torch.float16)
    kernels.cells.gru(x, x[:, :1], narrow, lambda kept: kept)[0].sum().backward()
    kernels.cells.adaptive(x[:, :2], x[:, :1], narrow)[0].sum().backward()
    keys, v = torch.ones(1, 1, 64, device=device), torch.ones(64, device=device, requires_grad=True)
    kernels.additive.scores(keys[0], keys, v, 1.0).sum().backward()
    kernels.affine.biased(keys[0], v, sigmoid=True).sum().backward()


def _for(x: Tensor) -> ModuleType | None:
    """Return the kernels if they compute with x."""
    return _kernels if x.device.type != "cpu" and x.dtype.itemsize <= 4 else None


def _in_training(x: Tensor) -> ModuleType | None:
    """Return the kernels if they compute a training step with x, outside of compiled graphs."""
    return _for(x) if torch.is_grad_enabled() and not torch.compiler.is_compiling() else None


def _of_recurrent(x: Tensor) -> ModuleType | None:
    """Return the kernels if they compute a training step of a recurrent model with x."""
    return None if _recurrent_fail else _in_training(x)


def attends_in_rows(dtype: torch.dtype) -> bool:
    """True if a kernel computes attention within the sentences of a row of this number type."""
    return _kernels is not None and dtype.itemsize == 2


def unbind_parts(x: Tensor) -> tuple[Tensor, ...]:
    """Return x (R, T, n, H, C) as n tensors (R, T, H, C)."""
    kernels = _in_training(x)
    return x.unbind(2) if kernels is None else kernels.attention.parts(x)


def row_attention(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, causal: bool, p: float
) -> Tensor | None:
    """Return attention within sentences, (T, H, C), as `attention` does.

    Args:
        q, k, v: (T or S, H, C).
    """
    kernels = _for(q)
    if kernels is None or not kernels.attention.fits(q, v):
        return None
    return kernels.attention.within_sentences(q, k, v, *segments, causal, p)


@functools.cache
def _few_queries(device: torch.device) -> ModuleType | None:
    """Return the kernel of the steps of a search; None if it does not work on a device."""
    if not _has_kernels(device):
        return None
    try:
        from nmtkit.nn.kernels import few_queries

        q = torch.ones(1, 1, 1, 64, device=device)
        few_queries.attend(q, q, q, None)
    except Exception:  # as of `load_kernels`; torch's kernels serve
        return None
    return few_queries


def search_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return softmax(q·kᵀ/√C + mask)·v of few queries without gradients, (B, H, T, C).

    Args:
        q: (B, H, T, C); k, v: (B, H, S, C).
        mask: (B, 1 or T, S), numbers to add to scores; None = none.
    """
    by_head = mask is not None and mask.dim() == 4
    compiling = torch.compiler.is_compiling()
    if q.device.type == "cpu" or torch.is_grad_enabled() or compiling or by_head:
        return None
    kernel = _few_queries(q.device)
    return kernel.attend(q, k, v, mask) if kernel and kernel.fits(q, k, v) else None


def affine(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    constant: Tensor | None,
    relu: bool,
    sigmoid: bool,
) -> Tensor | None:
    """Return x·Wᵀ + b, or ReLU or σ of it, with gradients: (…, in) -> (…, out).

    Args:
        constant: a copy of the bias without a gradient, if there is one.
    """
    kernels = _of_recurrent(x) if sigmoid else _in_training(x)
    if kernels is None or bias is None or not (bias.requires_grad and kernels.affine.fits(bias)):
        return None
    rows = x.reshape(-1, x.size(-1))
    if relu and constant is not None and x.dtype == weight.dtype == constant.dtype:
        result = kernels.affine.relu_of_affine(rows, weight, bias, constant)
    else:
        product = F.linear(rows, weight, bias.detach() if constant is None else constant)
        result = kernels.affine.biased(product, bias, sigmoid)
        result = torch.relu_(result) if relu else result
    return result.view(*x.shape[:-1], len(bias))


def residual_norm(x: Tensor, y: Tensor, norm: nn.LayerNorm, p: float) -> Tensor | None:
    """Return LN(x + Dropout(y)), float32 (…, D), with a copy for `low_precision_copy`."""
    kernels = _for(x)
    if kernels is None or not _plain(norm) or not kernels.norm.fits(x, y):
        return None
    narrow_type = _narrow_type(x)
    if narrow_type is None and x.dtype != torch.float32:  # which the result would have
        return None
    result, rounded = kernels.norm.residual_norm(x, y, norm, p, True, narrow_type)
    # A later change in place would leave the copy behind.
    result.in_16_bits = rounded, result._version
    return result


def low_precision_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor | None:
    """Return LN(x) in 16 bits, (…, D), for products under autocast."""
    kernels = _for(x)
    narrow = _narrow_type(x) if kernels else None
    if kernels is None or narrow is None or not _plain(norm) or not kernels.norm.fits(x):
        return None
    return kernels.norm.residual_norm(x, None, norm, 0.0, False, narrow)[1]


def _plain(norm: nn.LayerNorm) -> bool:
    """True if a kernel computes what the layer does; torch.compile makes its own kernels."""
    has_parameters = norm.bias is not None and norm.weight is not None
    return type(norm) is nn.LayerNorm and has_parameters and not torch.compiler.is_compiling()


def with_low_precision_copy(x: Tensor) -> Tensor:
    """Return x with a copy of 16 bits, if several products under autocast read x."""
    kind = _narrow_type(x) if _in_training(x) else None  # tensors of a search have no versions
    if kind not in (None, x.dtype):
        x.in_16_bits = x.to(kind), x._version  # type: ignore[attr-defined]
    return x


def low_precision_copy(x: Tensor) -> Tensor:
    """Return the copy of 16 bits that `residual_norm`, `with_low_precision_copy` or
    `recurrent_step` made of x for products; else x.
    """
    rounded, version = getattr(x, "in_16_bits", (None, 0))
    return rounded if rounded is not None and version == x._version else x


def _narrow_type(x: Tensor) -> torch.dtype | None:
    """Return the type of 16 bits of products under autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def product_type(x: Tensor) -> torch.dtype:
    """Return the type of products of x, of 16 bits under autocast."""
    return _narrow_type(x) or x.dtype


def recurrent_step(
    cell: str, x: Tensor, h: Tensor, state: Callable[[Tensor], Tensor], *others: Any
) -> Tensor | None:
    """Return the next state of a cell (…, R, H), with a copy of it for `low_precision_copy`.

    Args:
        cell: the name of its function in kernels/cells.py.
        x: input-side products (…, R, G·H).
        h: the state (…, R, H).
        state: multiplies h.
        others: further products.
    """
    kernels = _of_recurrent(h)
    if kernels is None or not kernels.cells.fits(x, h):
        return None
    new, copy = getattr(kernels.cells, cell)(x, h, state(h), *others)
    new.in_16_bits = copy, new._version
    return new


def refines(h: Tensor, queries: int, width: int) -> bool:
    """True if kernels compute steps of a cell for all positions of a sentence, in training.

    Args:
        queries: of a sentence.
        width: of the cell's states.
    """
    kernels = _of_recurrent(h)
    return kernels is not None and queries == 1 and width <= kernels.cells.WIDEST


def refined_states(
    cell: str, x: Tensor, h: Tensor, p: Tensor, dtype: torch.dtype, *others: Any
) -> Tensor | None:
    """Return a step of a cell for all positions of a sentence, (B, 1, S, H), if it `refines`.

    Args:
        cell, others: see `recurrent_step`.
        x: input-side products (B, 1, S or 1, G·H).
        h: the state, and p its product, (B, 1, S or 1, ·).
        dtype: number type of the result.
    """
    kernels = _of_recurrent(h)
    if kernels is None or not refines(h, max(t.size(1) for t in (x, h, p)), h.size(-1)):
        return None
    positions = max(t.size(2) for t in (x, h, p))
    x, h, p = (t.expand(-1, -1, positions, -1) for t in (x, h, p))
    return getattr(kernels.cells, cell)(x, h.contiguous(), p, *others, only=dtype)[1]


def additive_scores(q: Tensor, keys: Tensor, v: Tensor, factor: float) -> Tensor | None:
    """Return vᵀ tanh(q + factor·k), with gradients: (B, 1, S).

    Args:
        q: (B, 1, A).
        keys: (B, S, A).
        v: (A).
    """
    kernels = _of_recurrent(keys)
    if kernels is None or not kernels.additive.fits(q.flatten(0, 1), keys):
        return None
    return kernels.additive.scores(q.squeeze(1), keys, v, factor).unsqueeze(1)


def computes_loss(logits: Tensor) -> bool:
    """True if `loss` computes with logits (N, V)."""
    return _for(logits) is not None and logits.is_contiguous()


def loss(logits: Tensor, targets: Tensor, smoothing: float, scale: float | Tensor) -> Tensor:
    """Return the losses of rows (N, 2), smoothed and not; the gradient replaces the logits.

    Args:
        logits: (N, V).
        targets: (N).
        smoothing: ε.
        scale: factor of the gradient.
    """
    kernels = _for(logits)
    assert kernels is not None
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, device=logits.device)
    return kernels.loss.loss_and_gradient(logits, targets, smoothing, scale)
