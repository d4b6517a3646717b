"""All the ways of computing that make a CPU faster than torch's plain operations.

`tests/benchmarks/tricks.py` measures a training with and without each; one that saves less than 5 %
is removed.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.nn import private
from nmtkit.nn.masks import Sight, additive

SHORT = 128 * 128
"""Up to this number of scores a head, attention as its equation is faster in training than torch's
kernel.
"""
MANY = 16
"""In a search, torch's kernel is faster from this number of queries."""
FILLED = 32
"""In training, the number of rows of bfloat16 products is a multiple of this."""
PACKED = 128
"""Packed weights serve any number of rows; about this number is fastest (a batch of hypotheses)."""
LEVELS = 1 << 16
"""Values of a random number of 16 bits, one an element of a dropout mask: p is exact to 2^-17."""

LINE = 16
"""Numbers in a line of a CPU's cache."""
FEW, TALL = 128, 2048
"""Up to FEW rows, int8 products with up to TALL outputs are faster without packed weights."""
TINY = torch.tensor(1e-30)
"""A row of zeros has this distance between its levels of int8."""

_bits: np.random.SFC64 | None = None


def seed_masks(sequence: np.random.SeedSequence) -> None:
    """Start the random numbers of `dropout` from a seed."""
    global _bits
    _bits = np.random.SFC64(sequence)


def _draw_mask(x: Tensor, p: float) -> Tensor:
    """Draw 1 (keep) or 0 (drop) for each element of x, in x's type.

    torch draws one number at a time, which takes a tenth of a training step.
    """
    if _bits is None:
        seed_masks(np.random.SeedSequence(torch.initial_seed()))
    assert _bits is not None
    words = _bits.random_raw((x.numel() + 3) // 4).view(np.int16)[: x.numel()]  # -2^15 … 2^15-1
    mask = torch.empty(x.shape, dtype=x.dtype)
    return torch.ge(
        torch.from_numpy(words).view(x.shape), round(p * LEVELS) - LEVELS // 2, out=mask
    )


_mask_of_graph = torch.library.custom_op(
    "nmtkit::dropout_mask",
    _draw_mask,
    mutates_args=(),
    schema="(Tensor x, float p) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
"""One operation of a compiled graph. A call outside a graph would import torch's compiler."""


@_mask_of_graph.register_fake
def _(x: Tensor, p: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


def dropout(x: Tensor, p: float) -> Tensor:
    """Drop elements with probability p, rounded to 16 bits, and scale the other elements."""
    draw = _mask_of_graph if torch.compiler.is_compiling() else _draw_mask
    kept = x * draw(x.detach(), p)
    return kept.mul_(LEVELS / (LEVELS - round(p * LEVELS)))


def writes_attention_out(q: Tensor, k: Tensor) -> bool:
    """True if attention of q (B, H, T, C) to k (B, H, S, C) is faster as its equation than in
    torch's kernel.
    """
    if q.device.type != "cpu":
        return False
    # A compiled graph uses the equation for all lengths: a choice by length would compile a graph
    # for each length.
    if torch.compiler.is_compiling():
        return True
    if torch.is_grad_enabled():
        return q.size(2) * k.size(2) <= SHORT
    return q.size(2) < MANY


def reads_at_once(x: Tensor) -> bool:
    """True if Python may read numbers of x without waiting for a device."""
    return x.device.type == "cpu"


def factor(x: Tensor) -> Tensor:
    """Return x (B, H, T, C) in a layout that a matrix product does not copy.

    A search's cache has such a layout, in which all heads of all sentences are equally far apart.
    """
    if not torch.is_grad_enabled() and x.stride(0) == x.size(1) * x.stride(1):
        return x
    return x.contiguous()


def buffer(like: Tensor, groups: int, heads: int, entries: int, width: int) -> Tensor:
    """Return an empty buffer for the keys or values of a search, (G, H, E, C).

    On a CPU the layout is (E, G, H, C): a step writes one block, and the entries so far fill their
    memory without gaps. The distance between two entries is not a power of two, because then all
    entries of a head would share a few lines of the CPU's caches.

    Args:
        like: a tensor with the device and number type of the buffer.
        groups, heads, entries, width: G, H, E, C.
    """
    if like.device.type != "cpu":
        return like.new_empty(groups, heads, entries, width)
    distance = groups * heads * width + LINE
    place = like.new_empty(entries * distance)
    return place.as_strided((groups, heads, entries, width), (heads * width, width, distance, 1))


def search_mask(visible: Sight, like: Tensor) -> Sight:
    """Return a mask of which every query sees a key: in a search on a CPU as numbers to add to
    scores (`masks.additive`), since every layer of every step would compute them.
    """
    searches = not torch.is_grad_enabled() and like.device.type == "cpu"
    return additive(visible, like.dtype) if searches and isinstance(visible, Tensor) else visible


def row_multiple(device: torch.device) -> int:
    """Return the number of which the rows of products should be a multiple; 1 = any number.

    oneDNN compiles a bfloat16 product anew for each number of rows, which takes as long as several
    products. Multiples leave few different numbers.
    """
    compiled = device.type == "cpu" and torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    return FILLED if compiled and not torch.compiler.is_compiling() else 1


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Return x·Wᵀ + b, or ReLU of it, (…, in) -> (…, out).

    The product is computed with zero rows appended: see `row_multiple`.
    """
    multiple, rows = row_multiple(x.device), x.shape[:-1]
    missing = -rows.numel() % multiple if multiple > 1 else 0
    if missing:
        x = torch.cat([x.flatten(0, -2), x.new_zeros(missing, x.size(-1))])
    y = F.linear(x, weight, bias)
    y = torch.relu_(y) if relu else y
    # split, not a slice: the backward pass of a slice first fills its whole gradient with zeros.
    return y.split([rows.numel(), missing])[0].view(*rows, -1) if missing else y


class Int8:
    """A matrix of int8, for products with activations of int8.

    A CPU without such products multiplies the same whole numbers as float32.

    Args:
        weight: float32 (out, in) on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self._scale = distances(weight).squeeze(1)  # (out)
        levels = (weight / self._scale[:, None]).round_()
        self._fast = private.multiplies_int8()
        self._levels = levels.to(torch.int8).t() if self._fast else levels.t()  # (in, out)
        self._packed = private.pack_int8(self._levels.t()) if self._fast else self._levels
        self._few = FEW if len(levels) <= TALL else 0

    def linear(self, x: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        """Return x·Wᵀ + b, or ReLU of it, float32: (…, in) -> (…, out).

        Each row of x has levels of its own, so a result does not depend on other rows.
        """
        rows = x.float().reshape(-1, x.size(-1))
        distance = distances(rows)  # (R, 1)
        y = self._scaled((rows / distance).round_())
        y = y.mul_(distance) if bias is None else torch.addcmul(bias, y, distance, out=y)
        y = torch.relu_(y) if relu else y
        return y.view(*x.shape[:-1], -1 if x.numel() else y.size(-1))

    def _scaled(self, levels: Tensor) -> Tensor:
        """Return (levels·Wᵀ)·scale, rounded once: (R, in) -> (R, out)."""
        if not self._fast:
            return torch.mm(levels, self._levels).mul_(self._scale)
        signed = levels.to(torch.int8, memory_format=torch.contiguous_format)
        if 0 < signed.size(0) <= self._few:
            return private.int8_sums(signed, self._levels) * self._scale
        return private.int8_product(signed, self._packed, self._scale)


def distances(x: Tensor) -> Tensor:
    """Return the distance between the levels of int8 of each row, (R, N) -> (R, 1): its largest
    number, whatever its sign, is level 127.
    """
    return torch.add(TINY, x.abs().amax(-1, keepdim=True), alpha=1 / 127)


Packed = Tensor | Int8


def pack(weight: Tensor, precision: str) -> Packed | None:
    """Lay out a matrix (out, in) once, in the form that oneDNN multiplies fastest.

    Args:
        weight: float32.
        precision: of the factors, float32, bfloat16 or int8; a CPU without products of the last
            two multiplies the rounded factors as float32.
    Returns: None on a GPU, or if this CPU's float32 products are not oneDNN's (see
        `hardware.choose`).
    """
    if weight.device.type != "cpu":
        return None
    if precision == "int8":
        return Int8(weight)
    narrow = precision == "bfloat16"
    if narrow and not private.multiplies_bfloat16():
        return weight.bfloat16().float()
    medium = torch.get_float32_matmul_precision() == "medium" and private.has_packed_products()
    if medium or private.multiplies_bfloat16():
        return private.pack(weight.bfloat16() if narrow else weight, PACKED)
    return None


def packed_linear(x: Tensor, packed: Packed, bias: Tensor | None, relu: bool) -> Tensor:
    """Return x·Wᵀ + b, or ReLU of it, with a matrix from `pack`: (…, in) -> (…, out).

    With bfloat16 factors the result of a ReLU is bfloat16 too, for the next product; x may be.
    """
    if isinstance(packed, Int8):
        return packed.linear(x, bias, relu)
    if not packed.is_mkldnn:
        y = F.linear(x.bfloat16().float(), packed, bias)
        return torch.relu_(y).bfloat16() if relu else y
    y = private.packed_product(x.to(packed.dtype), packed, bias, relu)
    return y if relu else y.float()


def keep_big_blocks() -> bool:
    """Make glibc's allocator keep big blocks: blocks from the system are cleared at each step.

    Returns: True if this system has that allocator.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD; each returns 1 if it is accepted.
    return all([mallopt(-3, 1 << 30), mallopt(-1, 2**31 - 1), mallopt(-2, 64 << 20)])
