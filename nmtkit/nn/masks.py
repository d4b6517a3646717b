"""Masks: True = may be attended. None = all positions, so unpadded batches cost nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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


def real_positions(lengths: Tensor, length: int) -> Tensor:
    """Return bool (B, S), True at the real positions of rows.

    Args:
        lengths: (B) real lengths.
        length: S, the padded length.
    """
    return torch.arange(length, device=lengths.device) < lengths.unsqueeze(1)


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
    return real_positions(lengths, length).unsqueeze(1)


def future(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return bool (T, S), True where a key is in the future of a query and must not be seen.

    The last query and the last key are the same position.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(keys - queries + 1)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask as numbers to add to scores: 0 where visible, else the lowest finite number.

    Use this only if every query sees a key: a query without keys would get uniform weights.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )


def masked_softmax(scores: Tensor, hidden: Tensor, dim: int) -> Tensor:
    """Return the softmax over the scores that are not hidden; uniform weights if all are."""
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim)


def _past(queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return additive(~future(queries, keys, device), dtype)


def beyond_sentence(packing: Packing, shift: int) -> Tensor:
    """Return which positions of a packed batch have no position `shift` further on in their
    sentence, bool (N, 1).
    """
    length = packing.positions.size(1)
    return _once(_beyond_sentence, packing.cells, packing.offsets, length, shift)


def _beyond_sentence(cells: Tensor, offsets: Tensor, length: int, shift: int) -> Tensor:
    place = cells % length + shift
    return ((place < 0) | (place >= offsets.diff()[cells // length])).unsqueeze(1)


# All layers of a model use the same masks.
@functools.lru_cache(maxsize=32)
def _kept(make: Callable[..., Tensor], *arguments: Any) -> Tensor:
    # A mask made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        return make(*arguments)


def forget() -> None:
    """Forget the masks of earlier batches."""
    _kept.cache_clear()


def _once(make: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return make(*arguments), made once for all layers; a compiled graph does so by itself."""
    return make(*arguments) if torch.compiler.is_compiling() else _kept(make, *arguments)


def mask_of(
    visible: Visible, causal: bool, q: Tensor, k: Tensor, dtype: torch.dtype
) -> Tensor | None:
    """Return the numbers to add to scores, with the lowest where nothing may be attended.

    Layers share a mask: never change it, or `visible`.

    Args:
        visible: bool, or from `additive`, (…, 1 or T, S); None = all.
        causal: True if no query sees its `future`.
        q, k: queries (…, T, C) and keys (…, S, C).
        dtype: of the scores.
    Returns: (…, 1 or T, S); None if every query sees all keys.
    """
    mask = visible
    if visible is not None and visible.dtype == torch.bool:
        mask = _once(additive, visible, dtype)
    if causal:
        past = _once(_past, q.size(-2), k.size(-2), dtype, q.device)
        mask = past if mask is None else torch.minimum(mask, past)
    return mask
