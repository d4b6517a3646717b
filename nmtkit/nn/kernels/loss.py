"""Label-smoothed cross-entropy of logits, which its gradient replaces in memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmtkit.text.vocabulary import PAD

BLOCK = 4096
"""Classes of a row that a program reads at once."""


# A chunk's targets may begin anywhere. A recording of a graph cannot load another kernel.
@triton.jit(do_not_specialize=["classes"], do_not_specialize_on_alignment=["targets"])
def _loss(
    logits, row, targets, losses, scale, classes, smoothing,
    PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute a row, as in train/loss.py: its two losses, and its gradient times scale."""
    at = tl.program_id(0).to(tl.int64)
    logits += at * row
    target = tl.load(targets + at)
    highest, total, sums = -1.0e38, 0.0, 0.0
    for start in range(0, classes, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < classes, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher), 0)
        sums += tl.sum(tl.where(columns < classes, x, 0.0), 0)
        highest = higher
    log_total = highest + tl.log(total)
    real = target != PAD
    nll = log_total - tl.load(logits + target).to(tl.float32)
    smoothed = (1 - smoothing) * nll
    if smoothing > 0:  # a class that a model forbids has a logit of -inf
        smoothed += smoothing * (log_total - sums / classes)
    tl.store(losses + 2 * at, tl.where(real, smoothed, 0.0))
    tl.store(losses + 2 * at + 1, tl.where(real, nll, 0.0))
    factor = tl.where(real, tl.load(scale).to(tl.float32), 0.0)
    tl.debug_barrier()  # the row is read in all threads before it is written
    for start in range(0, classes, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < classes, other=-float("inf")).to(tl.float32)
        wanted = smoothing / classes + tl.where(columns == target, 1 - smoothing, 0.0)
        gradient = (tl.exp(x - log_total) - wanted) * factor
        tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=columns < classes)


def loss_and_gradient(logits: Tensor, targets: Tensor, smoothing: float, scale: Tensor) -> Tensor:
    """Return the losses of each row, float32 (N, 2): smoothed, and negative log-likelihood.

    Args:
        logits: (N, V), of at most 32 bits; replaced by the gradient of the smoothed loss, times
            `scale`.
        targets: (N). A target <pad> has no loss and no gradient.
        smoothing: ε.
        scale: a number on the device.
    """
    losses = torch.empty(len(logits), 2, dtype=torch.float32, device=logits.device)
    torch.autograd.graph.increment_version(logits)
    values = (logits, logits.stride(0), targets, losses, scale, logits.size(1), smoothing)
    _loss[(len(logits),)](*values, PAD=PAD, BLOCK=BLOCK, num_warps=8)
    return losses
