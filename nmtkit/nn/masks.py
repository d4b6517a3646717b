"""Masks say what is visible: True = may be attended. None stands for "everything", so that
unpadded batches pay nothing.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

Visible = Tensor | None
"""Which positions may be attended, True = may be; None = all."""


def visible_positions(lengths: Tensor, length: int) -> Tensor:
    """Which positions of padded rows are real.

    Args:
        lengths: (B) real lengths.
        length: S, the padded length.
    Returns: bool (B, 1, S), the shape `attention` takes: every query of a row sees the same keys.
    """
    return (torch.arange(length, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(1)


def future(queries: int, keys: int, device: torch.device) -> Tensor:
    """Which keys lie in the future of a query, when the last query and the last key are the same
    position.

    Returns: bool (T, S), True = not yet to be seen. Cached: do not write to it.
    """
    if torch.compiler.is_compiling():  # of any size: nothing to keep
        return _future(queries, keys, device)
    with torch.inference_mode(
        False
    ):  # a tensor made in inference mode could not be used in training later
        return _kept_future(queries, keys, device)


def _future(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(keys - queries + 1)


_kept_future = functools.lru_cache(maxsize=64)(_future)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to scores: 0 where visible, the lowest finite number elsewhere.

    Only for masks in which every query sees something: a blind query would get uniform weights, not
    zeros.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )


def block(scores: Tensor, visible: Tensor | None, causal: bool) -> Tensor:
    """Lower scores to the lowest finite number where nothing may be attended, in place.

    Args:
        scores: (…, T, S).
        visible: bool, or additive, of a shape that broadcasts to the scores'; None = all.
        causal: query t sees keys up to t only, counted from the end.
    """
    lowest = torch.finfo(scores.dtype).min
    if visible is not None:
        scores = (
            scores.masked_fill_(~visible, lowest)
            if visible.dtype == torch.bool
            else scores.add_(visible)
        )
    if causal:
        scores = scores.masked_fill_(
            future(scores.size(-2), scores.size(-1), scores.device), lowest
        )
    return scores
