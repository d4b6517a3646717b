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
    keys = [_keys(sentences, rule) for sentences in of_rows]
    texts = {key: _joined(key, ids) for of_row in keys for key in of_row}
    if not texts:
        return None
    # The longest first, so that contexts of like length are neighbours.
    number = {key: i for i, key in enumerate(sorted(texts, key=lambda key: -len(texts[key])))}
    rows = np.full((len(keys), max(map(len, keys))), -1, np.int64)
    for row, of_row in zip(rows, keys, strict=True):
        row[: len(of_row)] = [number[key] for key in of_row]
    row_numbers = tensor(rows, device)
    src, tgt = _Side.of([texts[key] for key in number], device), None
    if rule.targets:
        if targets is None:
            raise ValueError("a model wants the target sides of contexts, and there are none")
        tgt = _Side.of([_joined(key, targets) for key in number], device, decoder_input=True)

    def some(which: slice, parts: tuple[Context, ...] = ()) -> Context:
        of_src, lengths, is_padded = src.some(which)
        of_tgt, tgt_lengths, tgt_padded = tgt.some(which) if tgt else (None, None, False)
        return Context(
            of_src, lengths, row_numbers, is_padded, of_tgt, tgt_lengths, tgt_padded, parts
        )

    saved = SAVED if torch.device(device).type == "cpu" else SAVED_ELSEWHERE
    starts = like_length(src.counts, saved)
    edges = itertools.pairwise([*starts, len(number)])
    parts = tuple(some(slice(*edge)) for edge in edges) if len(starts) > 1 else ()
    return some(slice(None), parts)


def _keys(sentences: Sequence[int], rule: ContextRule) -> list[tuple[int, ...]]:
    """Return the contexts of a sentence, each as the numbers of its sentences."""
    if rule.join == "concatenate" and sentences:
        return [tuple(sentences)]
    return [(sentence,) for sentence in sentences]


@dataclass(frozen=True)
class _Side:
    """One side of all contexts: padded ids (U, M), lengths (U), and the lengths on the CPU."""

    ids: Tensor
    lengths: Tensor
    counts: Ids

    @classmethod
    def of(cls, texts: list[Ids], device: torch.device | str, decoder_input: bool = False) -> _Side:
        ids, counts = padded(texts)
        ids = shifted(ids, counts) if decoder_input else ids
        return cls(tensor(ids, device), tensor(counts, device), counts)

    def some(self, which: slice) -> tuple[Tensor, Tensor, bool]:
        """Return some rows, no wider than their longest, their lengths, and if any is padded."""
        counts = self.counts[which]
        longest = int(counts.max())
        return self.ids[which, :longest], self.lengths[which], bool(counts.min() < longest)


def _joined(sentences: Sequence[int], ids: Callable[[int], NDArray[Any]]) -> Ids:
    """Return sentences as one, `BREAK` in the place of every </s> but the last."""
    joined = np.concatenate([ids(sentence) for sentence in sentences]).astype(np.int64)
    joined[:-1][joined[:-1] == EOS] = BREAK
    return joined
