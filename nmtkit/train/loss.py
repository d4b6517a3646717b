"""Label-smoothed cross-entropy over real target positions only, a chunk of positions at a time.

With V classes and smoothing ε the target distribution is q = (1-ε)·onehot(y) + ε/V (Szegedy et al.
2016; Vaswani et al. 2017 §5.4), so loss = lse(x) - (1-ε)·x_y - ε·mean(x) and d loss / d x =
softmax(x) - q. Both come from one softmax per chunk, which becomes the gradient in its own memory:
only a chunk of logits and its gradient are alive, however large the batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batches import Batch

CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}  # of float32 logits
CHUNK_ROWS = 512  # at least: fewer rows make slow matrix products
Logits = Callable[[Tensor], Tensor]

# Below this a probability is taken for lost to underflow, and the logarithm is computed otherwise.
UNDERFLOW = 1e-30


@dataclass(frozen=True)
class Loss:
    """Sums over the N target tokens of a batch; both are 0-dimensional float64 tensors on the
    model's device.

    `smoothed` is what training minimises, `nll` the negative log-likelihood (its exponential per
    token is the perplexity).
    """

    smoothed: Tensor
    nll: Tensor


def chunk_rows(vocabulary: int, device: str) -> int:
    """Target positions whose logits are alive at once: as many as fit CHUNK_BYTES, but
    CHUNK_ROWS at least.
    """
    return max(CHUNK_ROWS, CHUNK_BYTES.get(device, 1 << 28) // 4 // vocabulary)


def real_positions(batch: Batch) -> Tensor | None:
    """Where targets are real: flat indices (N) into B·T, or None when all are."""
    assert batch.tgt_out is not None and batch.tgt_lengths is not None
    if not batch.tgt_padded:
        return None
    steps = torch.arange(batch.tgt_out.size(1), device=batch.tgt_out.device)
    return (steps < batch.tgt_lengths[:, None]).flatten().nonzero().squeeze(1)


def backward(
    logits_of: Logits, hidden: Tensor, batch: Batch, smoothing: float, scale: float, chunk: int
) -> Loss:
    """The loss of a batch, and its gradient in every parameter.

    Args:
        logits_of: `model.logits`, (N, D) -> (N, V).
        hidden: (B, T, D) from `model.decode`, with its graph.
        batch: holds tgt_out.
        smoothing: ε.
        scale: factor of the gradient, one over the target tokens of the whole update.
        chunk: target positions whose logits are alive at once, at most (`chunk_rows`).
    Returns: sums, not scaled.
    """
    keep = real_positions(batch)
    flat = hidden.flatten(0, 1)  # (B, T, D) -> (B·T, D)
    leaf = (
        (flat if keep is None else flat.index_select(0, keep)).detach().requires_grad_()
    )  # (N, D)
    loss = _chunks(logits_of, leaf, _targets(batch, keep), smoothing, scale, chunk)
    assert leaf.grad is not None
    gradient = leaf.grad if keep is None else torch.zeros_like(flat).index_copy_(0, keep, leaf.grad)
    torch.autograd.backward(flat, gradient)
    return loss


@torch.no_grad()
def evaluate(logits_of: Logits, hidden: Tensor, batch: Batch, smoothing: float, chunk: int) -> Loss:
    """The loss of a batch without gradients; arguments and result as of `backward`."""
    keep = real_positions(batch)
    flat = hidden.flatten(0, 1)
    return _chunks(
        logits_of,
        flat if keep is None else flat.index_select(0, keep),
        _targets(batch, keep),
        smoothing,
        None,
        chunk,
    )


def _targets(batch: Batch, keep: Tensor | None) -> Tensor:
    assert batch.tgt_out is not None
    return (
        batch.tgt_out.flatten() if keep is None else batch.tgt_out.flatten().index_select(0, keep)
    )


def _chunks(
    logits_of: Logits,
    hidden: Tensor,
    targets: Tensor,
    smoothing: float,
    scale: float | None,
    chunk: int,
) -> Loss:
    """Sums over chunks; with a scale also backward through the logits into `hidden.grad` and the
    parameters.
    """
    smoothed = torch.zeros((), dtype=torch.float64, device=hidden.device)
    nll = torch.zeros_like(smoothed)
    pieces = max(
        1, -(-len(targets) // chunk)
    )  # of equal size, or a last short one would make slow products
    for part, y in zip(
        hidden.tensor_split(pieces), targets[:, None].tensor_split(pieces), strict=True
    ):
        with torch.set_grad_enabled(scale is not None):
            logits = logits_of(part)  # (C, D) -> (C, V)
        with torch.no_grad():
            part_smoothed, part_nll, gradient = _chunk(logits.detach(), y, smoothing, scale)
            smoothed += part_smoothed
            nll += part_nll
        if scale is not None:
            torch.autograd.backward(logits, gradient)
    return Loss(smoothed, nll)


def _chunk(
    x: Tensor, y: Tensor, smoothing: float, scale: float | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sum of the loss, sum of the negative log-likelihood, and the gradient times scale, for
    logits x (C, V) and targets y (C, 1).
    """
    wide = x if x.dtype == torch.float64 else x.float()
    at_y = wide.gather(-1, y).squeeze(-1)  # (C)
    gradient: Tensor | None = None
    if scale is None:
        lse = wide.logsumexp(-1)
    else:
        gradient = wide.softmax(-1)
        p = gradient.gather(-1, y).squeeze(-1)
        # log p(y) gives lse without a second pass of exponentials; a GPU makes that pass faster
        # than it answers the question.
        lse = wide.logsumexp(-1) if x.is_cuda or bool((p < UNDERFLOW).any()) else at_y - p.log()
        torch.add(
            gradient.new_full((), -scale * smoothing / x.size(-1)),
            gradient,
            alpha=scale,
            out=gradient,
        )
        gradient.scatter_add_(
            -1, y, gradient.new_full((), -scale * (1 - smoothing)).expand(y.shape)
        )
        gradient = gradient.to(x.dtype)
    nll = (lse - at_y).double().sum()
    smoothed = (
        (1 - smoothing) * nll + smoothing * (lse - wide.mean(-1)).double().sum()
        if smoothing
        else nll
    )
    return smoothed, nll, gradient
