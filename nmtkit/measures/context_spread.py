"""The distance between the contexts that a decoder reads at the steps of one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nmtkit.arrays import Floats
from nmtkit.nn.masks import real_positions
from nmtkit.score.resampling import Resampling, ratios
from nmtkit.tables.table import Estimate

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
        weights: of the attention, (B, …, S); src_lengths: real positions of each sentence (B).
    """
    real = real_positions(src_lengths, weights.size(-1))  # (B, S)
    even = real.to(weights.dtype) / src_lengths[:, None]
    return even.view(len(even), *[1] * (weights.dim() - 2), -1).expand_as(weights)


def distances(contexts: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean distance of each step's context to the contexts of its sentence's other
    steps.

    It is divided by the mean length of the sentence's contexts.

    Args:
        contexts: (B, T, C).
        lengths: real steps of each sentence (B).
    Returns: (B, T) in float64; NaN behind the end, in a sentence of one step, for empty contexts.
    """
    contexts = contexts.double()
    real = real_positions(lengths, contexts.size(1))
    pairs = torch.cdist(contexts, contexts, compute_mode="donot_use_mm_for_euclid_dist")
    sums = pairs.masked_fill(~real.unsqueeze(1), 0).sum(-1)
    length = (contexts.norm(dim=-1) * real).sum(-1) / lengths
    relative: Tensor = sums / (lengths - 1)[:, None] / length[:, None]
    return relative.masked_fill(~real | ~relative.isfinite(), torch.nan)


def spread(contexts: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean of `distances` over the steps of each sentence: (B)."""
    return distances(contexts, lengths).nanmean(-1)


def mean(values: Sequence[float] | Floats, draws: Resampling) -> Estimate:
    """Return the mean over the sentences with a value, with its interval over all sentences."""
    numbers = np.asarray(values, dtype=np.float64)
    known = np.isfinite(numbers)
    return ratios(np.where(known, numbers, 0.0)[:, None], known[:, None], draws)[0]
