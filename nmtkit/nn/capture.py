"""Reading attention weights and gates out of a forward pass, without flags in the models.

    with capture() as seen:
        model.decode(tgt_in, model.encode(batch))
    seen["decoder.0.cross"]   # a list of tensors, one a call

Outside `capture` a site costs one comparison. Analyses find sites in any model by their names:

    encoder.0.attention       (B, H, K·T, S): the weights of an attention; H = 1 without heads. The
                              first number is the layer, from 0. An attention from the target to the
                              source is found by its shape, whatever its name
    NAME.local, NAME.global   groups of heads of one attention: to summaries of neighbourhoods, and
                              to the positions themselves
    NAME_context              (B, T, C): the output of an attention, its heads side by side
    NAME_gate                 (B, S) while encoding, (B, T, S) or (B, T) while decoding: how open a
                              gate is, the mean over its numbers; NaN where the gate has no effect.
                              (B, T) at step t counts for the word that step t reads
    NAME.gate                 (B, S) while encoding, (B, T) while decoding: the share of its own
                              state that a word keeps when it reads other sentences, the mean over
                              the gate's numbers; NaN where the word has no context. (B, T) at step
                              t counts for the word that step t writes
    NAME_mixture              (levels, layers): the share of each encoder level in what a decoder
                              layer reads
    context.NAME              the same for the U different contexts of a batch, recorded by a
                              module that reads the source too

The attribute `opens` of a module says in a sentence what its open gate does; `analyze gates` prints
it.

A capture may also change attention weights before the model uses them, to measure their effect
(`analyze importance`). A model's attention gets the weights to use from `changed`, and then records
them:

    with capture({"decoder.0.cross": uniform}):
        hidden, _ = model.decode(tgt_in, memory)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

Change = Callable[[Tensor], Tensor]
"""The weights (B, H, K·T, S) of an attention, or (B, K·T, S) without heads -> the weights to use; K
rows of targets a sentence.
"""

CONTEXT = "context."
"""The prefix of the sites that read contexts apart from the source."""

_seen: dict[str, list[Tensor]] | None = None
_prefix = ""
_changes: Mapping[str, Change] = {}


@contextmanager
def capture(changes: Mapping[str, Change] | None = None) -> Iterator[dict[str, list[Tensor]]]:
    """Collect what the models record while the context is open.

    Args:
        changes: name of an attention -> what is applied to its weights before they are used and
            recorded.
    Yields: name of the site -> the tensors recorded there, in order, detached. Captures do not
        nest: only the inner one collects.
    """
    global _seen, _changes
    outer = _seen, _changes
    _seen, _changes = {}, changes or {}
    try:
        yield _seen
    finally:
        _seen, _changes = outer


def capturing() -> bool:
    """True if a capture is open: a site need not compute what nobody records."""
    return _seen is not None


def changing() -> bool:
    """True if the open capture changes weights."""
    return bool(_changes)


def changed(name: str, weights: Tensor) -> Tensor:
    """Return the weights that an attention uses: as the open capture changes them."""
    change = _changes.get(_prefix + name)
    return weights if change is None else change(weights)


def record(name: str, tensor: Tensor) -> None:
    """Hand a tensor to the open capture, if there is one.

    Args:
        name: the site, for example "encoder.0.attention".
        tensor: attention weights are (B, H, K·T, S), with K rows of targets a sentence.
    """
    if _seen is not None:
        _seen.setdefault(_prefix + name, []).append(tensor.detach())


@contextmanager
def recorded_as_context() -> Iterator[None]:
    """Put CONTEXT before the names recorded inside, for a module that reads the source too."""
    global _prefix
    if not capturing():  # nothing that a compiled graph would have to keep
        yield
        return
    _prefix = CONTEXT
    try:
        yield
    finally:
        _prefix = ""
