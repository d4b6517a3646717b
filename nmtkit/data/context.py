"""The contexts of a batch's sentences as padded tensors, each context once."""

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
"""Stands between the sentences of a concatenated context (the paper's ####): an id that no
source has, no text spells, no search produces.
"""


SAVED, SAVED_ELSEWHERE = 64, 16384
"""Contexts are cut into parts of like length where each cut saves so many positions on a CPU,
and elsewhere, where calls are dearer.
"""


@dataclass(frozen=True)
class Context:
    """The contexts of B sentences: U different ones, none of them twice.

    ids (U, M) token ids, each context ending in </s> and padded with <pad>; lengths (U); padded is
    False where none is. rows (B, J): which of them are a sentence's, in the order of the text; -1
    behind the last one. tgt_in (U, N), tgt_lengths (U), tgt_padded: their target sides as a decoder
    reads them, <s> first, where a model wants them. parts: the same contexts a few at a time, those
    of like length together, for what reads them one by one; `rows` stay those of all.
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
        """The parts, or itself where there are none (or a graph is made, of which each cut would
        be another).
        """
        return (self,) if torch.compiler.is_compiling() or not self.parts else self.parts


def stacked(states: Sequence[Tensor]) -> Tensor:
    """Vectors (U', M', D) of each of the parts of contexts as those of all (U, M, D), zeros
    behind.
    """
    longest = max(part.size(1) for part in states)
    return (
        states[0]
        if len(states) == 1
        else torch.cat([F.pad(part, (0, 0, 0, longest - part.size(1))) for part in states])
    )


def contexts(
    chosen: Sequence[Sequence[int]],
    ids: Callable[[int], NDArray[Any]],
    rule: ContextRule,
    device: torch.device | str = "cpu",
    targets: Callable[[int], NDArray[Any]] | None = None,
) -> Context | None:
    """The context tensors of a batch.

    Args:
        chosen: (B) sentences that are the context of each, by `Documents.context`.
        ids: the token ids of a sentence, </s> last.
        rule: how several sentences are joined, and whether their target sides come too.
        device: where the tensors go.
        targets: the token ids of the target side of a sentence, </s> last; needed where the rule
            wants it.
    Returns: None if no sentence has any.
    Raises: ValueError if target sides are wanted and there are none.
    """
    of_row = [
        [tuple(own)] if rule.join == "concatenate" and own else [(one,) for one in own]
        for own in chosen
    ]
    texts = {key: _joined([ids(sentence) for sentence in key]) for own in of_row for key in own}
    if not texts:
        return None
    number = {key: i for i, key in enumerate(sorted(texts, key=lambda key: -len(texts[key])))}
    ids_padded, lengths = padded([texts[key] for key in number])
    rows = np.full((len(of_row), max(map(len, of_row))), -1, np.int64)
    for row, own in enumerate(of_row):
        rows[row, : len(own)] = [number[key] for key in own]
    whole = Context(
        tensor(ids_padded, device), tensor(lengths, device), tensor(rows, device), _short(lengths)
    )
    tgt_lengths = None
    if rule.targets:
        if targets is None:
            raise ValueError("a model wants the target sides of contexts, and there are none")
        out, tgt_lengths = padded(
            [_joined([targets(sentence) for sentence in key]) for key in number]
        )
        tgt_in = tensor(shifted(out, tgt_lengths), device)
        whole = dataclasses.replace(
            whole,
            tgt_in=tgt_in,
            tgt_lengths=tensor(tgt_lengths, device),
            tgt_padded=_short(tgt_lengths),
        )
    cuts = [
        *like_length(lengths, SAVED if torch.device(device).type == "cpu" else SAVED_ELSEWHERE),
        len(lengths),
    ]
    if len(cuts) == 2:
        return whole
    return dataclasses.replace(
        whole,
        parts=tuple(
            _part(whole, slice(a, b), lengths, tgt_lengths) for a, b in itertools.pairwise(cuts)
        ),
    )


def _short(lengths: Ids) -> bool:
    return bool(lengths.min() < lengths.max())


def _part(whole: Context, own: slice, lengths: Ids, tgt_lengths: Ids | None) -> Context:
    """Some of the contexts, no wider than they are."""
    found = Context(
        whole.ids[own, : int(lengths[own].max())],
        whole.lengths[own],
        whole.rows,
        _short(lengths[own]),
    )
    if whole.tgt_in is None or whole.tgt_lengths is None or tgt_lengths is None:
        return found
    said = whole.tgt_in[own, : int(tgt_lengths[own].max())]
    return dataclasses.replace(
        found, tgt_in=said, tgt_lengths=whole.tgt_lengths[own], tgt_padded=_short(tgt_lengths[own])
    )


def _joined(sentences: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Sentences as one, `BREAK` in the place of every </s> but the last."""
    joined = np.concatenate(sentences).astype(np.int64)
    joined[:-1][joined[:-1] == EOS] = BREAK
    return joined
