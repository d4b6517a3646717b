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
from nmtkit.nn import cpu
from nmtkit.nn.hardware import widest

CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}  # of float32 logits
CHUNK_ROWS = 512  # the minimum: products of fewer rows are slow
Logits = Callable[[Tensor], Tensor]

# A smaller probability may have lost digits to underflow; its logarithm is computed another way.
UNDERFLOW = 1e-30


@dataclass(frozen=True)
class Loss:
    """Sums over the N target tokens of a batch, 0-dimensional tensors of its device's
    `widest` type.

    Attributes:
        smoothed: what training minimises.
        nll: the negative log-likelihood; the perplexity is its exponential per token.
    """

    smoothed: Tensor
    nll: Tensor


def chunk_rows(vocabulary: int, device: str) -> int:
    """Return the maximum number of target positions that have logits at once."""
    return max(CHUNK_ROWS, CHUNK_BYTES.get(device, 1 << 28) // 4 // vocabulary)


def backward(
    logits_of: Logits, hidden: Tensor, batch: Batch, smoothing: float, scale: float, chunk: int
) -> Loss:
    """Return the loss of a batch, and add its gradient to the gradient of every parameter.

    Args:
        logits_of: `model.logits`, (N, D) -> (N, V).
        hidden: (B, T, D) from `model.decode`, with its graph.
        batch: holds tgt_out.
        smoothing: ε.
        scale: factor of the gradient: 1 / target tokens of the whole update.
        chunk: maximum number of target positions with logits at once (`chunk_rows`).
    Returns: sums without the scale.
    """
    real, targets = _real_positions(batch)
    flat = hidden.flatten(0, 1)  # (B, T, D) -> (B·T, D)
    leaf = (flat if real is None else flat.index_select(0, real)).detach().requires_grad_()
    loss = _chunks(logits_of, leaf, targets, smoothing, scale, chunk)
    gradient = leaf.grad  # (N, D)
    if real is not None and gradient is not None:
        gradient = torch.zeros_like(flat).index_copy_(0, real, gradient)
    torch.autograd.backward(flat, gradient)
    return loss


@torch.no_grad()
def evaluate(logits_of: Logits, hidden: Tensor, batch: Batch, smoothing: float, chunk: int) -> Loss:
    """Return the loss of a batch without gradients; arguments as of `backward`."""
    real, targets = _real_positions(batch)
    flat = hidden.flatten(0, 1)
    rows = flat if real is None else flat.index_select(0, real)
    return _chunks(logits_of, rows, targets, smoothing, None, chunk)


def _real_positions(batch: Batch) -> tuple[Tensor | None, Tensor]:
    """Return the real positions (N) as indices into B·T, None for all, and their targets (N)."""
    assert batch.tgt_out is not None
    targets = batch.tgt_out.flatten()
    if not batch.tgt_padded:
        return None, targets
    real = batch.real
    if real is None:  # a batch that was not made by `collate`
        assert batch.tgt_lengths is not None
        steps = torch.arange(batch.tgt_out.size(1), device=targets.device)
        real = (steps < batch.tgt_lengths[:, None]).flatten().nonzero().squeeze(1)
    return real, targets.index_select(0, real)


def _chunks(
    logits_of: Logits,
    hidden: Tensor,
    targets: Tensor,
    smoothing: float,
    scale: float | None,
    chunk: int,
) -> Loss:
    """Return sums over chunks; with a scale, also add gradients to `hidden` and the parameters."""
    smoothed = torch.zeros((), dtype=widest(hidden.device), device=hidden.device)
    nll = torch.zeros_like(smoothed)
    # Chunks of equal size, because products of a short last chunk would be slow.
    count = max(1, -(-len(targets) // chunk))
    chunks = zip(hidden.tensor_split(count), targets[:, None].tensor_split(count), strict=True)
    for part, y in chunks:
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
    """Return sums of the loss and of the negative log-likelihood, and the gradient times scale.

    x: logits (C, V); y: targets (C, 1).
    """
    wide = x if x.dtype == torch.float64 else x.float()
    at_y = wide.gather(-1, y).squeeze(-1)  # (C)
    mean = wide.mean(-1) if smoothing else at_y
    # A GPU would be waited for in the check for underflow below.
    lse = wide.logsumexp(-1) if scale is None or not cpu.reads_at_once(x) else None
    gradient: Tensor | None = None
    if scale is not None:
        # In the memory of the logits' copy: new memory costs as much time as the exponentials.
        gradient = torch.softmax(wide, -1, out=None if wide is x else wide)
        p = gradient.gather(-1, y).squeeze(-1)
        if lse is None:  # x_y - log p(y) saves a pass of exponentials, unless p(y) underflows
            lse = at_y - p.log() if bool((p >= UNDERFLOW).all()) else x.to(p.dtype).logsumexp(-1)
        gradient = _minus_target(gradient, y, smoothing, scale).to(x.dtype)
    assert lse is not None
    nll = smoothed = (lse - at_y).to(widest(x.device)).sum()
    if smoothing:
        uniform = (lse - mean).to(widest(x.device)).sum()
        smoothed = (1 - smoothing) * nll + smoothing * uniform
    return smoothed, nll, gradient


def _minus_target(softmax: Tensor, y: Tensor, smoothing: float, scale: float) -> Tensor:
    """Return scale · (softmax - q) in the memory of softmax (C, V)."""
    uniform = softmax.new_full((), -scale * smoothing / softmax.size(-1))
    torch.add(uniform, softmax, alpha=scale, out=softmax)
    at_y = softmax.new_full((), -scale * (1 - smoothing))
    return softmax.scatter_add_(-1, y, at_y.expand(y.shape))
