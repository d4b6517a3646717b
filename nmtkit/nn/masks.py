"""Masks: True = may be attended. None = all positions, so unpadded batches cost nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from nmtkit.data.packing import Packing, Segments

Visible = Tensor | None
"""True where a position may be attended; None = all."""
Sight = Visible | Segments
"""What a query may attend to: in a packed batch, the keys of its own sentence."""


def packing_of(visible: Sight) -> Packing | None:
    """Return where the queries' sentences lie; None if the batch is not packed."""
    return visible.queries if isinstance(visible, Segments) else None


def own_sentence(packing: Packing | None) -> Segments | None:
    """Return what positions see of their own side of a packed batch; None if it is not packed."""
    return None if packing is None else Segments(packing, packing)


def visible_positions(lengths: Tensor, length: int, padded: bool = True) -> Visible:
    """Return a mask of the real positions of rows.

    Args:
        lengths: (B) real lengths.
        length: S, the padded length.
        padded: False if no row is padded.
    Returns: bool (B, 1, S), the shape `attention` takes: every query of a row sees the same keys;
        None if no row is padded.
    """
    if not padded:
        return None
    return (torch.arange(length, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(1)


def future(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return bool (T, S), True where a key is in the future of a query and must not be seen.

    The last query and the last key are the same position.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(keys - queries + 1)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask as numbers to add to scores: 0 where visible, else the lowest finite number.

    Use this only if every query sees a key: a query without keys would get uniform weights, not
    zeros.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )


def hide(scores: Tensor, visible: Visible, causal: bool) -> Tensor:
    """Lower scores to the lowest finite number where nothing may be attended, in place.

    Args:
        scores: (…, T, S).
        visible: bool, or from `additive`; its shape broadcasts to that of the scores. None = all.
        causal: True if no query sees its `future`.
    """
    mask = visible
    if visible is not None and visible.dtype == torch.bool:
        mask = additive(visible, scores.dtype)
    if causal:
        past = ~future(scores.size(-2), scores.size(-1), scores.device)
        past = additive(past, scores.dtype)
        mask = past if mask is None else torch.minimum(mask, past)
    return scores if mask is None else scores.add_(mask)  # filling would need a backward pass
