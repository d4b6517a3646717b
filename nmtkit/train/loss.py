"""Label-smoothed cross-entropy over real target positions only, a chunk of positions at a time.

With V classes and smoothing ε the target distribution is q = (1-ε)·onehot(y) + ε/V (Szegedy et al.
2016; Vaswani et al. 2017 §5.4), so loss = lse(x) - (1-ε)·x_y - ε·mean(x) and d loss / d x =
softmax(x) - q. Both come from one softmax per chunk, which becomes the gradient in its own memory:
only a chunk of logits and its gradient are alive, however large the batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.nn import cpu, gpu
from nmtkit.nn.hardware import widest
from nmtkit.text.vocabulary import PAD

CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}  # of float32 logits
CHUNK_ROWS = 512  # the minimum: products of fewer rows are slow
Logits = Callable[[Tensor], Tensor]

PRODUCTS = ("AddmmBackward0", "MmBackward0")
"""Operations whose backward pass does not read their result."""
# A smaller probability may have lost digits to underflow; its logarithm is computed another way.
UNDERFLOW = 1e-30


def chunk_rows(vocabulary: int, device: str) -> int:
    """Return the maximum number of target positions that have logits at once."""
    return max(CHUNK_ROWS, CHUNK_BYTES.get(device, 1 << 28) // 4 // vocabulary)


def backward(
    logits_of: Logits,
    hidden: Tensor,
    batch: Batch,
    smoothing: float,
    scale: float | Tensor,
    chunk: int,
) -> Tensor:
    """Return the loss of a batch, and add its gradient to the gradient of every parameter.

    Args:
        logits_of: `model.logits`, (N, D) -> (N, V).
        hidden: (B, T, D) from `model.decode`, with its graph.
        batch: holds tgt_out.
        smoothing: ε.
        scale: factor of the gradient: 1 / target tokens of the whole update. If it is a tensor, the
            logits of <pad> are computed too, and count nothing: for graphs, which have one shape.
        chunk: maximum number of target positions with logits at once (`chunk_rows`).
    Returns: sums (2) over the target tokens without the scale, in the device's `widest` type: the
        smoothed loss, which training minimises, and the negative log-likelihood, whose exponential
        per token is the perplexity.
    """
    if isinstance(scale, Tensor):
        assert batch.tgt_out is not None
        real, targets = None, batch.tgt_out.flatten()
    else:
        real, targets = _real_positions(batch)
    flat = hidden.flatten(0, 1)  # (B, T, D) -> (B·T, D)
    leaf = (flat if real is None else flat.index_select(0, real)).detach().requires_grad_()
    loss = _chunks(logits_of, leaf, targets, smoothing, scale, chunk)
    gradient = leaf.grad  # (N, D)
    if real is not None and gradient is not None:
        gradient = torch.zeros_like(flat).index_copy_(0, real, gradient)
    _backward(flat, gradient)
    return loss


@torch.no_grad()
def evaluate(logits_of: Logits, hidden: Tensor, batch: Batch, chunk: int) -> Tensor:
    """Return the negative log-likelihood of a batch without gradients; arguments as of
    `backward`.
    """
    real, targets = _real_positions(batch)
    flat = hidden.flatten(0, 1)
    rows = flat if real is None else flat.index_select(0, real)
    return _chunks(logits_of, rows, targets, 0, None, chunk)[1]


def _real_positions(batch: Batch) -> tuple[Tensor | None, Tensor]:
    """Return the real positions (N) as indices into B·T, None for all, and their targets (N)."""
    assert batch.tgt_out is not None
    targets = batch.tgt_out.flatten()
    if not batch.tgt_padded:
        return None, targets
    real = batch.real
    if real is None:  # a batch that was not made by `collate`
        real = (targets != PAD).nonzero().squeeze(1)
    return real, targets.index_select(0, real)


def _chunks(
    logits_of: Logits,
    hidden: Tensor,
    targets: Tensor,
    smoothing: float,
    scale: float | Tensor | None,
    chunk: int,
) -> Tensor:
    """Return sums (2) over chunks; with a scale, add gradients to `hidden` and the parameters."""
    losses = torch.zeros(2, dtype=widest(hidden.device), device=hidden.device)
    # Chunks of equal size, because products of a short last chunk would be slow.
    count = max(1, -(-len(targets) // chunk))
    chunks = zip(hidden.tensor_split(count), targets[:, None].tensor_split(count), strict=True)
    for part, y in chunks:
        with torch.set_grad_enabled(scale is not None):
            logits = logits_of(part)  # (C, D) -> (C, V)
        with torch.no_grad():
            of_part, gradient = _chunk_loss(logits, y, smoothing, scale)
            losses += of_part
        if scale is not None:
            _backward(logits, gradient)
    return losses


class _Gradient(torch.autograd.Function):
    """A number with a given gradient for x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def _backward(x: Tensor, gradient: Tensor | None) -> None:
    """Do as `torch.autograd.backward(x, gradient)`, which would import sympy for half a second."""
    number: Tensor = _Gradient.apply(x, gradient)  # type: ignore[no-untyped-call]
    number.backward()  # type: ignore[no-untyped-call]


def _chunk_loss(
    logits: Tensor, y: Tensor, smoothing: float, scale: float | Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return `chunk_loss`, by a kernel where there is one; it may overwrite the logits."""
    x = logits.detach()
    if scale is None or not gpu.computes_loss(x):
        return chunk_loss(x, y, smoothing, scale)
    if type(logits.grad_fn).__name__ not in PRODUCTS:
        x = x.clone()
    return gpu.loss(x, y, smoothing, scale).to(widest(x.device)).sum(0), x


def chunk_loss(
    x: Tensor, y: Tensor, smoothing: float, scale: float | Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return sums (2) of the loss and of the negative log-likelihood, and the gradient times scale.

    x: logits (C, V); y: targets (C, 1). A target <pad> has no loss if the scale is a tensor.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    if scale is not None and cpu.reads_at_once(x):
        at_y, mean, p = _by_softmax(wide, x, y, smoothing)
    else:
        p = torch.log_softmax(wide, -1, out=None if wide is x else wide)
        at_y = p.gather(-1, y)
        mean = p.mean(-1, keepdim=True) if smoothing else at_y
        p = p if scale is None else p.exp_()
    if isinstance(scale, Tensor):
        real = y != PAD  # (C, 1)
        at_y, mean, scale = at_y * real, mean * real, (scale * real).to(p.dtype)
    nll = smoothed = -at_y.to(widest(x.device)).sum()
    if smoothing:
        smoothed = (1 - smoothing) * nll - smoothing * mean.to(widest(x.device)).sum()
    losses = torch.stack([smoothed, nll])
    return losses, None if scale is None else _minus_target(p, x, y, smoothing, scale)


def _by_softmax(
    wide: Tensor, x: Tensor, y: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p(y) and the mean of log p over all classes (C, 1), and p (C, V).

    This has one pass of exponentials, which take most of a CPU's time, and not two. A GPU would be
    waited for in the check for underflow.
    """
    x_y = wide.gather(-1, y)
    mean = wide.mean(-1, keepdim=True) if smoothing else x_y
    # In the memory of the logits' copy: new memory costs as much time as the exponentials.
    p = torch.softmax(wide, -1, out=None if wide is x else wide)
    p_y = p.gather(-1, y)
    if bool((p_y >= UNDERFLOW).all()):
        lse = x_y - p_y.log()
    else:
        lse = x.to(p.dtype).logsumexp(-1, keepdim=True)
    return x_y - lse, mean - lse, p


def _minus_target(
    p: Tensor, x: Tensor, y: Tensor, smoothing: float, scale: float | Tensor
) -> Tensor:
    """Return scale · (p - q), with the number type of the logits x; changes p (C, V)."""
    p.scatter_add_(-1, y, p.new_full((), smoothing - 1).expand(y.shape))
    # A GPU writes numbers of 16 bits at once.
    out = p if cpu.reads_at_once(p) or p.dtype == x.dtype else torch.empty_like(x)
    if isinstance(scale, Tensor):
        uniform = scale * (-smoothing / p.size(-1))
        return torch.addcmul(uniform, p, scale, out=out).to(x.dtype)
    uniform = p.new_full((), -scale * smoothing / p.size(-1))
    return torch.add(uniform, p, alpha=scale, out=out).to(x.dtype)
