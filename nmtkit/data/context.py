"""The contexts of a batch's sentences as padded tensors, each different context once."""

from __future__ import annotations

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

    ids (U, M): token ids; each context ends in </s>, with <pad> behind. lengths (U). padded: if any
    context has <pad>. rows (B, J): the contexts of each sentence, in the order of the text, then
    -1. tgt_in (U, N), tgt_lengths (U), tgt_padded: the target sides as a decoder reads them, <s>
    first, for a model that wants them. parts: the same contexts cut into groups of like length, for
    models that read each context alone; the `rows` of a part are those of the whole.
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
    concatenate = rule.join == "concatenate"
    keys = [
        [tuple(sentences)] if concatenate and sentences else [(sentence,) for sentence in sentences]
        for sentences in of_rows
    ]
    texts = {key: _joined(key, ids) for of_row in keys for key in of_row}
    if not texts:
        return None
    # The longest first, so that contexts of like length are neighbours.
    number = {key: i for i, key in enumerate(sorted(texts, key=lambda key: -len(texts[key])))}
    rows = np.full((len(keys), max(map(len, keys))), -1, np.int64)
    for row, of_row in zip(rows, keys, strict=True):
        row[: len(of_row)] = [number[key] for key in of_row]
    row_numbers = tensor(rows, device)
    array, lengths = padded([texts[key] for key in number])
    src = tensor(array, device), tensor(lengths, device), lengths
    tgt = None
    if rule.targets:
        if targets is None:
            raise ValueError("a model wants the target sides of contexts, and there are none")
        array, counts = padded([_joined(key, targets) for key in number])
        tgt = tensor(shifted(array, counts), device), tensor(counts, device), counts

    def some(which: slice, parts: tuple[Context, ...] = ()) -> Context:
        src_ids, src_lengths, src_padded = _narrow(*src, which)
        tgt_in, tgt_lengths, tgt_padded = _narrow(*tgt, which) if tgt else (None, None, False)
        return Context(
            src_ids, src_lengths, row_numbers, src_padded, tgt_in, tgt_lengths, tgt_padded, parts
        )

    starts = like_length(lengths, SAVED if str(row_numbers.device) == "cpu" else SAVED_ELSEWHERE)
    edges = itertools.pairwise([*starts, len(lengths)])
    parts = tuple(some(slice(*edge)) for edge in edges) if len(starts) > 1 else ()
    return some(slice(None), parts)


def _narrow(ids: Tensor, lengths: Tensor, counts: Ids, which: slice) -> tuple[Tensor, Tensor, bool]:
    """Return some rows, no wider than the longest of them, their lengths, and if any is padded."""
    longest = int(counts[which].max())
    return ids[which, :longest], lengths[which], bool(counts[which].min() < longest)


def _joined(sentences: Sequence[int], ids: Callable[[int], NDArray[Any]]) -> NDArray[np.int64]:
    """Return sentences as one, `BREAK` in the place of every </s> but the last."""
    joined = np.concatenate([ids(sentence) for sentence in sentences]).astype(np.int64)
    joined[:-1][joined[:-1] == EOS] = BREAK
    return joined
