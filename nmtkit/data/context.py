"""The contexts of a batch's sentences as padded tensors, each different context once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmtkit.data.documents import ContextRule
from nmtkit.data.padding import Ids, like_length, padded, shifted, tensor
from nmtkit.text.vocabulary import BOS, EOS

BREAK = BOS
"""Separates the sentences of a concatenated context (#### in the paper). No source has this id, no
text spells it, no search produces it.
"""
SAVED, SAVED_ELSEWHERE = 64, 16384
"""Contexts are cut into parts of like length while each cut saves so many positions, on a CPU and
on other devices, where calls cost more.
"""


@dataclass(frozen=True)
class Context:
    """The U different contexts of B sentences.

    Attributes:
        ids: (U, M), token ids; each context ends in </s>, with <pad> behind.
        lengths: (U).
        rows: (B, J), the contexts of each sentence, in the order of the text, then -1.
        padded: True if any context has <pad>.
        tgt_in, tgt_lengths, tgt_padded: the target sides as a decoder reads them, <s> first, for a
            model that wants them.
        parts: the same contexts cut into groups of like length, for models that read each context
            alone; the `rows` of a part are those of the whole.
    """

    ids: Tensor
    lengths: Tensor
    rows: Tensor
    padded: bool
    tgt_in: Tensor | None = None
    tgt_lengths: Tensor | None = None
    tgt_padded: bool = False
    parts: tuple[Context, ...] = ()

    def of_like_length(self) -> tuple[Context, ...]:
        """Return the parts; itself if there are none or torch.compile traces the model."""
        return (self,) if torch.compiler.is_compiling() or not self.parts else self.parts


def stacked(states: Sequence[Tensor]) -> Tensor:
    """Join the vectors (U', M', D) of each part of the contexts to those of all (U, M, D)."""
    if len(states) == 1:
        return states[0]
    longest = max(part.size(1) for part in states)
    return torch.cat([F.pad(part, (0, 0, 0, longest - part.size(1))) for part in states])


def contexts(
    of_rows: Sequence[Sequence[int]],
    ids: Callable[[int], NDArray[Any]],
    rule: ContextRule,
    device: torch.device | str = "cpu",
    targets: Callable[[int], NDArray[Any]] | None = None,
) -> Context | None:
    """Return the context tensors of a batch, or None if no sentence has a context.

    Args:
        of_rows: (B) the sentences that are the context of each sentence, by `Documents.context`.
        ids: the token ids of a sentence, </s> last.
        rule: how several sentences are joined, and whether their target sides are read too.
        device: where the tensors go.
        targets: the token ids of the target side of a sentence, </s> last, if the rule wants them.
    Raises: ValueError if target sides are wanted and there are none.
    """
    keys = [_keys(sentences, rule) for sentences in of_rows]
    texts = {key: _joined(key, ids) for of_row in keys for key in of_row}
    if not texts:
        return None
    # The longest first, so that contexts of like length are neighbours.
    order = sorted(texts, key=lambda key: -len(texts[key]))
    sides = [padded([texts[key] for key in order])]
    if rule.targets:
        sides.append(_decoder_inputs(order, targets))
    number = {key: i for i, key in enumerate(order)}
    rows, _ = padded([[number[key] for key in of_row] for of_row in keys], -1)
    return _with_parts(sides, tensor(rows, device))


def _keys(sentences: Sequence[int], rule: ContextRule) -> list[tuple[int, ...]]:
    """Return the contexts of a sentence, each as the numbers of its sentences."""
    if rule.join == "concatenate" and sentences:
        return [tuple(sentences)]
    return [(sentence,) for sentence in sentences]


def _joined(sentences: Sequence[int], ids: Callable[[int], NDArray[Any]]) -> Ids:
    """Return sentences as one, `BREAK` in the place of every </s> but the last."""
    joined = np.concatenate([ids(sentence) for sentence in sentences]).astype(np.int64)
    joined[:-1][joined[:-1] == EOS] = BREAK
    return joined


def _decoder_inputs(
    order: list[tuple[int, ...]], targets: Callable[[int], NDArray[Any]] | None
) -> tuple[Ids, Ids]:
    """Return the target sides of contexts as a decoder reads them, padded, and their lengths."""
    if targets is None:
        raise ValueError("a model wants the target sides of contexts, and there are none")
    tgt_out, lengths = padded([_joined(key, targets) for key in order])
    return shifted(tgt_out, lengths), lengths


def _with_parts(sides: list[tuple[Ids, Ids]], rows: Tensor) -> Context:
    """Return contexts and their parts of like length.

    Args:
        sides: padded ids (U, M) and lengths (U) of the sources, and perhaps of the targets.
        rows: of the batch, on its device.
    """
    lengths = sides[0][1]
    starts = like_length(lengths, SAVED if rows.is_cpu else SAVED_ELSEWHERE)
    whole = _some(sides, rows, slice(None))
    if len(starts) == 1:
        return whole
    edges = itertools.pairwise([*starts, len(lengths)])
    parts = tuple(_some(sides, rows, slice(*edge)) for edge in edges)
    return dataclasses.replace(whole, parts=parts)


def _some(sides: list[tuple[Ids, Ids]], rows: Tensor, which: slice) -> Context:
    """Return some contexts, no wider than the longest of them."""
    tensors: list[Any] = []
    for ids, all_lengths in sides:
        lengths = all_lengths[which]
        longest = int(lengths.max())
        tensors += [tensor(array, rows.device) for array in (ids[which, :longest], lengths)]
        tensors.append(bool(lengths.min() < longest))
    src, src_lengths, src_padded, *targets = tensors
    return Context(src, src_lengths, rows, src_padded, *targets)
