"""Reading attention weights and gates out of a forward pass, without flags in the models.

    with capture() as seen:
        model.decode(tgt_in, model.encode(batch))
    seen["decoder.0.cross"]   # a list of tensors, one a call

A pass outside `capture` pays one comparison a site. What sites are called, so that analyses find them in any model:

    encoder.0.attention       the first number is the layer, from 0
    NAME.local, NAME.global   groups of heads of one attention, to summaries of neighbourhoods and to the positions themselves
    NAME_gate                 (B, T, S) or (B, T): how open a gate is, mean over its numbers, NaN where it has no say
    NAME_mixture              (levels, layers): what share of each level of the encoder a decoder layer reads
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_seen: dict[str, list[Tensor]] | None = None


@contextmanager
def capture() -> Iterator[dict[str, list[Tensor]]]:
    """Collect what the models record while the context is open.

    Yields: name of the site -> the tensors recorded there, in order, detached; captures do not nest, the inner one collects.
    """
    global _seen
    outer, _seen = _seen, {}
    try:
        yield _seen
    finally:
        _seen = outer


def capturing() -> bool:
    """Whether anybody is listening (so that a site may skip making what it would record)."""
    return _seen is not None


def record(name: str, tensor: Tensor) -> None:
    """Hand a tensor to the open capture, if there is one.

    Args:
        name: the site, for example "encoder.0.attention".
        tensor: what to keep; attention weights are (B, H, T, S).
    """
    if _seen is not None:
        _seen.setdefault(name, []).append(tensor.detach())
