"""The distance between the contexts that a decoder reads at the steps of one sentence. (A context
here is the output of an attention.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmtkit.nn.masks import real_positions

ENDING = "_context"
NOTE = (
    "context spread: mean Euclidean distance between the contexts of two steps of "
    "a sentence, divided by their mean length (0: all steps read the same; 1.41: "
    "orthogonal contexts); mean over sentences"
)
GATED = "the contexts of a gated attention change with the decoder's state even with equal weights"


def even_weights(weights: Tensor, src_lengths: Tensor) -> Tensor:
    """Return equal weights for all real source positions.

    Args:
        weights: (B, …, S) the weights of an attention.
        src_lengths: (B) real positions of each sentence.
    """
    real = real_positions(src_lengths, weights.size(-1))  # (B, S)
    even = real.to(weights.dtype) / src_lengths[:, None]
    return even.view(len(even), *[1] * (weights.dim() - 2), -1).expand_as(weights)


def spread(contexts: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean distance between the contexts of each sentence's steps, divided by the mean
    length of these contexts.

    Args:
        contexts: (B, T, C).
        lengths: (B) real steps of each sentence.
    Returns: (B) in float64; NaN for a sentence of one step, and if all contexts are 0.
    """
    contexts = contexts.double()
    real = real_positions(lengths, contexts.size(1))
    pairs = torch.cdist(contexts, contexts, compute_mode="donot_use_mm_for_euclid_dist")
    sums = pairs.masked_fill(~real.unsqueeze(1), 0).sum(-1)
    length = (contexts.norm(dim=-1) * real).sum(-1) / lengths
    relative: Tensor = sums / (lengths - 1)[:, None] / length[:, None]
    return relative.masked_fill(~real | ~relative.isfinite(), torch.nan).nanmean(-1)
