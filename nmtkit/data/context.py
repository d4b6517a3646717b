"""The contexts of a batch's sentences as padded tensors, each context once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.data.documents import ContextRule
from nmtkit.data.padding import padded, shifted, tensor
from nmtkit.data.vocabulary import BOS, EOS

BREAK = BOS
"""Stands between the sentences of a concatenated context (the paper's ####): an id that no source has, no text spells, no search produces."""


@dataclass(frozen=True)
class Context:
    """The contexts of B sentences: U different ones, none of them twice.

    ids (U, M) token ids, each context ending in </s> and padded with <pad>; lengths (U); padded is False where none is.
    rows (B, J): which of them are a sentence's, in the order of the text; -1 behind the last one.
    tgt_in (U, N), tgt_lengths (U), tgt_padded: their target sides as a decoder reads them, <s> first, where a model wants them.
    """

    ids: Tensor
    lengths: Tensor
    rows: Tensor
    padded: bool
    tgt_in: Tensor | None = None
    tgt_lengths: Tensor | None = None
    tgt_padded: bool = False


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
        targets: the token ids of the target side of a sentence, </s> last; needed where the rule wants it.
    Returns: None if no sentence has any.
    Raises: ValueError if target sides are wanted and there are none.
    """
    of_row = [[tuple(own)] if rule.join == "concatenate" and own else [(one,) for one in own] for own in chosen]
    number = {key: i for i, key in enumerate(dict.fromkeys(key for own in of_row for key in own))}
    if not number:
        return None
    ids_padded, lengths = padded([_joined([ids(sentence) for sentence in key]) for key in number])
    rows = np.full((len(of_row), max(map(len, of_row))), -1, np.int64)
    for row, own in enumerate(of_row):
        rows[row, : len(own)] = [number[key] for key in own]
    short = bool(lengths.min() < ids_padded.shape[1])
    sources = Context(tensor(ids_padded, device), tensor(lengths, device), tensor(rows, device), short)
    if not rule.targets:
        return sources
    if targets is None:
        raise ValueError("a model wants the target sides of contexts, and there are none")
    out, tgt_lengths = padded([_joined([targets(sentence) for sentence in key]) for key in number])
    tgt_in, short = tensor(shifted(out, tgt_lengths), device), bool(tgt_lengths.min() < out.shape[1])
    return dataclasses.replace(sources, tgt_in=tgt_in, tgt_lengths=tensor(tgt_lengths, device), tgt_padded=short)


def _joined(sentences: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Sentences as one, `BREAK` in the place of every </s> but the last."""
    joined = np.concatenate(sentences).astype(np.int64)
    joined[:-1][joined[:-1] == EOS] = BREAK
    return joined
