"""How different from each other the contexts are that a decoder reads at the steps of one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.nn.capture import Change
from nmtkit.score.resampling import Resampling, estimate
from nmtkit.tables.table import Column, Estimate

ENDING = "_context"
NOTE = (
    "context spread: mean Euclidean distance between the contexts of two steps of a sentence, divided by their mean length (0: all steps read "
    "the same; 1.41: they stand at right angles); mean over sentences"
)
GATED = "a gated attention's contexts change with the decoder's state whatever its weights are"


def column(key: str = "context_spread", what: str = "context spread") -> Column:
    """A column of a table that shows it."""
    return Column(key, f"{what} [95%]", decimals=3, interval=True)


def evenly(site: str, src_lengths: Tensor) -> Change:
    """The change of weights that makes an attention read all real source positions alike.

    Args:
        site: the attention that is changed.
        src_lengths: real positions of each sentence (B).
    """

    def change(name: str, weights: Tensor) -> Tensor:
        if name != site:
            return weights
        real = torch.arange(weights.size(-1), device=weights.device) < src_lengths[:, None]  # (B, S)
        even = real.to(weights.dtype) / src_lengths[:, None]
        return even.view(len(even), *[1] * (weights.dim() - 2), -1).expand_as(weights)

    return change


def distances(contexts: Tensor, lengths: Tensor) -> Tensor:
    """The mean distance of each step's context to those of the other steps of its sentence, divided by the mean length of the sentence's contexts.

    Args:
        contexts: (B, T, C).
        lengths: real steps of each sentence (B).
    Returns: (B, T) in float64, NaN behind the end and where a sentence has one step only or contexts of no length.
    """
    contexts = contexts.double()
    real = torch.arange(contexts.size(1), device=lengths.device) < lengths[:, None]
    apart = torch.cdist(contexts, contexts, compute_mode="donot_use_mm_for_euclid_dist").masked_fill(~real.unsqueeze(1), 0).sum(-1)
    length = (contexts.norm(dim=-1) * real).sum(-1) / lengths
    found: Tensor = apart / (lengths - 1)[:, None] / length[:, None]
    return found.masked_fill(~real | ~found.isfinite(), torch.nan)


def spread(contexts: Tensor, lengths: Tensor) -> Tensor:
    """The mean of `distances` over the steps of each sentence, which is that over all pairs of steps: (B)."""
    return distances(contexts, lengths).nanmean(-1)


def mean(values: Sequence[float] | NDArray[np.float64], draws: Resampling) -> Estimate:
    """The mean over the sentences that have a value, and its interval over resamples of all sentences."""
    numbers = np.asarray(values, dtype=np.float64)
    known = np.isfinite(numbers)
    if not known.any():
        return Estimate(None)
    sums, counts = draws.sums(np.stack([np.where(known, numbers, 0.0), known], axis=1)).T
    with np.errstate(invalid="ignore"):
        return estimate(float(numbers[known].mean()), sums / counts)
