"""Label-smoothed cross-entropy over real target positions only, a chunk of positions at a time.

With V classes and smoothing ε the target distribution is q = (1-ε)·onehot(y) + ε/V (Szegedy et al. 2016; Vaswani et al. 2017 §5.4), so
loss = lse(x) - (1-ε)·x_y - ε·mean(x) and d loss / d x = softmax(x) - q. Both come from one pass over the logits of a chunk, which are
then overwritten by their gradient: memory holds one chunk of logits, however large the batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batches import Batch

CHUNK_BYTES = {"cpu": 40 << 20, "cuda": 1 << 30}  # of float32 logits
CHUNK_ROWS = 512  # at least: fewer rows make slow matrix products
Logits = Callable[[Tensor], Tensor]

# The last operation of `logits` may have its output overwritten if its own backward does not need it.
OUTPUT_NOT_KEPT = {"MmBackward0", "AddmmBackward0", "AddBackward0", "ViewBackward0", "UnsafeViewBackward0", "MkldnnLinearBackward0", "MulBackward0"}


@dataclass(frozen=True)
class Loss:
    """Sums over the N target tokens of a batch; both are 0-dimensional float64 tensors on the model's device.

    `smoothed` is what training minimises, `nll` the negative log-likelihood (its exponential per token is the perplexity).
    """

    smoothed: Tensor
    nll: Tensor


def chunk_rows(vocabulary: int, device: str) -> int:
    """Target positions whose logits are alive at once: as many as fit CHUNK_BYTES, but CHUNK_ROWS at least."""
    return max(CHUNK_ROWS, CHUNK_BYTES.get(device, 1 << 28) // 4 // vocabulary)


def real_positions(batch: Batch) -> Tensor | None:
    """Where targets are real: flat indices (N) into B·T, or None when all are."""
    assert batch.tgt_out is not None and batch.tgt_lengths is not None
    if not batch.tgt_padded:
        return None
    steps = torch.arange(batch.tgt_out.size(1), device=batch.tgt_out.device)
    return (steps < batch.tgt_lengths[:, None]).flatten().nonzero().squeeze(1)


def backward(logits_of: Logits, hidden: Tensor, batch: Batch, smoothing: float, scale: float, chunk: int) -> Loss:
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
    leaf = (flat if keep is None else flat.index_select(0, keep)).detach().requires_grad_()  # (N, D)
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
    return _chunks(logits_of, flat if keep is None else flat.index_select(0, keep), _targets(batch, keep), smoothing, None, chunk)


def _targets(batch: Batch, keep: Tensor | None) -> Tensor:
    assert batch.tgt_out is not None
    return batch.tgt_out.flatten() if keep is None else batch.tgt_out.flatten().index_select(0, keep)


def _chunks(logits_of: Logits, hidden: Tensor, targets: Tensor, smoothing: float, scale: float | None, chunk: int) -> Loss:
    """Sums over chunks; with a scale also backward through the logits into `hidden.grad` and the parameters."""
    smoothed = torch.zeros((), dtype=torch.float64, device=hidden.device)
    nll = torch.zeros_like(smoothed)
    pieces = max(1, -(-len(targets) // chunk))  # of equal size, or a last short one would make slow products
    for part, y in zip(hidden.tensor_split(pieces), targets[:, None].tensor_split(pieces), strict=True):
        with torch.set_grad_enabled(scale is not None):
            logits = logits_of(part)  # (C, D) -> (C, V)
        with torch.no_grad():
            part_smoothed, part_nll, gradient = _chunk(_overwritable(logits), y, smoothing, scale)
            smoothed += part_smoothed
            nll += part_nll
        if scale is not None:
            torch.autograd.backward(logits, gradient)
    return Loss(smoothed, nll)


def _overwritable(logits: Tensor) -> Tensor:
    """The logits' values as float32 (or float64), in their own memory where autograd lets them go."""
    values = logits.detach()
    if values.dtype not in (torch.float32, torch.float64):
        return values.float()
    if logits.grad_fn is None or logits.grad_fn.name() in OUTPUT_NOT_KEPT:
        return values
    return values.clone()


def _chunk(x: Tensor, y: Tensor, smoothing: float, scale: float | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sum of the loss, sum of the negative log-likelihood, and (in the memory of x) the gradient, for x (C, V) and y (C, 1)."""
    at_y = x.gather(-1, y).squeeze(-1)  # (C)
    mean = x.mean(-1) if smoothing else None
    if scale is None:
        lse = x.logsumexp(-1)
    else:
        # Softmax first: the largest logit m has probability exp(m - lse), which gives lse in two reductions instead of a second exponential.
        largest = x.amax(-1)
        torch.softmax(x, -1, out=x)
        lse = largest - x.amax(-1).log()
        torch.add(x.new_full((), -scale * smoothing / x.size(-1)), x, alpha=scale, out=x)
        x.scatter_add_(-1, y, x.new_full((), -scale * (1 - smoothing)).expand(y.shape))
    nll = (lse - at_y).double().sum()
    smoothed = nll if mean is None else (1 - smoothing) * nll + smoothing * (lse - mean).double().sum()
    return smoothed, nll, x if scale is not None else None
