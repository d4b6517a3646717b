"""The contexts of the sentences of a batch, padded or in one row. The padded form stores equal
contexts once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.arrays import Array
from nmtkit.data.documents import ContextRule
from nmtkit.data.packing import Copies, filled, in_one_row, segments, shifted_row
from nmtkit.data.padding import Ids, joined, like_length, padded, shifted
from nmtkit.text.vocabulary import BOS, EOS, PAD

Form = Literal["plain", "begin", "source"]
"""How a packed batch holds contexts: unchanged; after <s>; or before the source, as one text."""
IdsOf = Callable[[int], Array]
"""Returns the ids of a sentence by its number."""
BREAK = BOS
"""Separates the sentences of a concatenated context (#### in the paper). No source has this id, no
text spells it, no search produces it.
"""
SAVED, SAVED_ELSEWHERE = 64, 16384
"""Contexts are cut into parts of similar length while each cut saves at least this number of
positions: the first on a CPU, the second on other devices, where each call costs more.
"""


@dataclass(frozen=True)
class Context:
    """The U different contexts of B sentences.

    Attributes:
        ids: (U, M), token ids; each context ends in </s>, then <pad>.
        lengths: (U), </s> included.
        rows: (B, J), the contexts of each sentence as rows of `ids`, in text order, then -1.
        padded: True if any context has <pad>.
        tgt_in, tgt_lengths, tgt_padded: the target sides as decoder input, <s> first, for a model
            that reads them.
        parts: the same contexts in groups of similar length, for models that read each context
            alone; every part has the `rows` of the whole.
        copies, tgt_copies: for a packed batch, what its rows of sources and targets read. Then
            `ids` is (1, M): the first context of every sentence, then the second of every sentence,
            …; a sentence that lacks a context has one <pad> there. `tgt_in` (1, N) is like `ids`;
            `lengths` and `rows` are empty.
    """

    ids: Tensor
    lengths: Tensor
    rows: Tensor
    padded: bool
    tgt_in: Tensor | None = None
    tgt_lengths: Tensor | None = None
    tgt_padded: bool = False
    parts: tuple[Context, ...] = ()
    copies: Copies | None = None
    tgt_copies: Copies | None = None

    @property
    def has(self) -> Tensor:
        """True for each sentence that has a context, (B, 1); in a packed batch for each of its
        source positions, (1, S).
        """
        return self.rows[:, :1] >= 0 if self.copies is None else self.copies.has[:1]

    def of_like_length(self) -> tuple[Context, ...]:
        """Return the parts; the whole alone if it has none, or torch.compile traces the model."""
        return (self,) if torch.compiler.is_compiling() or not self.parts else self.parts


def stacked(states: Sequence[Tensor]) -> Tensor:
    """Return the vectors of all contexts (U, M, D) from those of each part (U', M', D)."""
    if len(states) == 1:
        return states[0]
    longest = max(part.size(1) for part in states)
    return torch.cat([F.pad(part, (0, 0, 0, longest - part.size(1))) for part in states])


def contexts(
    of_rows: Sequence[Sequence[int]],
    ids: IdsOf,
    rule: ContextRule,
    targets: IdsOf,
    device: torch.device | str = "cpu",
) -> Context | None:
    """Return the context tensors of a batch, or None if no sentence has a context.

    Args:
        of_rows: (B) the sentences that are the context of each sentence, from `Documents.context`.
        ids: the token ids of a sentence, </s> last.
        rule: how several sentences are joined, and whether their target sides are read too.
        targets: the token ids of the target side of a sentence, </s> last, for a rule that reads
            them.
        device: of the model that reads them; the tensors are on the CPU.
    """
    keys = [_keys(sentences, rule) for sentences in of_rows]
    texts = {key: _joined(key, ids) for of_row in keys for key in of_row}
    if not texts:
        return None
    # Longest first, so that contexts of similar length are neighbours.
    order = sorted(texts, key=lambda key: -len(texts[key]))
    sides = [padded([texts[key] for key in order])]
    if rule.targets:
        tgt_out, lengths = padded([_joined(key, targets) for key in order])
        sides.append((shifted(tgt_out, lengths), lengths))
    number = {key: i for i, key in enumerate(order)}
    rows = torch.from_numpy(padded([[number[key] for key in of_row] for of_row in keys], -1)[0])
    least = SAVED if torch.device(device).type == "cpu" else SAVED_ELSEWHERE
    starts = like_length(sides[0][1], least)
    whole = _slice_of(sides, rows)
    if len(starts) == 1:
        return whole
    edges = itertools.pairwise([*starts, len(order)])
    parts = tuple(_slice_of(sides, rows, slice(*edge)) for edge in edges)
    return dataclasses.replace(whole, parts=parts)


def with_source(context: Sequence[int], ids: IdsOf, sentence: int) -> Array:
    """Return the ids of the context of a sentence and of the sentence, as one text."""
    return _joined([*context, sentence], ids)


def packed_contexts(
    of_rows: Sequence[Sequence[int]],
    sides: Sequence[IdsOf],
    rule: ContextRule,
    lengths: Sequence[Ids],
    multiple: int,
    few_shapes: bool = False,
    form: Form = "plain",
) -> Context | None:
    """Return the contexts of a packed batch (see `Context.copies`), or None if no sentence has a
    context.

    Args:
        of_rows, rule: as of `contexts`.
        sides: return the token ids of a source and of a target, </s> last.
        lengths: of the sentences in the rows of sources and of targets, sentences of <pad> last.
        multiple: the positions of J contexts are a multiple of 2·J times this number.
        few_shapes: J is the maximum of the rule; for the other sizes see `packing.segments`.
        form: plain or begin.
    """
    keys = [_keys(sentences, rule) for sentences in of_rows]
    most = max(map(len, keys))
    if not most:
        return None
    allowed = 1 if rule.join == "concatenate" else rule.size
    count = allowed if few_shapes else most  # J
    keys += [[] for _ in range(max(map(len, lengths)) - len(keys))]  # the sentences of <pad>
    slots = [of_sentence[copy : copy + 1] for copy in range(count) for of_sentence in keys]
    has = np.array([bool(slot) for slot in slots]).reshape(count, -1)  # (J, R)
    texts = [
        [_joined(slot[0], ids) if slot else [PAD] for slot in slots]
        for ids in sides[: 1 + rule.targets]
    ]
    if form == "begin":
        texts[0] = [np.append(BOS, text) for text in texts[0]]
    of_sides = list(map(joined, texts))
    # Rows of one size make fewer shapes.
    size = max(filled(of_texts, 2 * count * multiple) for _, of_texts in of_sides)
    rows = [in_one_row(*of_side, size) for of_side in of_sides]
    number = max(len(of_texts) for _, of_texts in rows)
    copies = []
    for (_, of_texts), of_sentences in zip(rows, lengths, strict=False):
        queries = np.pad(of_sentences, (0, len(keys) - len(of_sentences)))
        of_texts = np.pad(of_texts, (0, number - len(of_texts)))
        where = segments(of_texts, np.tile(queries, count), few_shapes)
        copies.append(Copies(where, torch.from_numpy(has.repeat(queries, axis=1))))
    ids, none = torch.from_numpy(rows[0][0][None]), torch.zeros(0, dtype=torch.int64)
    context = Context(ids, none, none, padded=True, copies=copies[0])
    if not rule.targets:
        return context
    inputs = torch.from_numpy(shifted_row(*rows[1])[None])
    return dataclasses.replace(context, tgt_in=inputs, tgt_copies=copies[1])


def _keys(sentences: Sequence[int], rule: ContextRule) -> list[tuple[int, ...]]:
    """Return the contexts of a sentence; each is a tuple of sentence numbers."""
    if rule.join == "concatenate" and sentences:
        return [tuple(sentences)]
    return [(sentence,) for sentence in sentences]


def _joined(sentences: Sequence[int], ids: IdsOf) -> Ids:
    """Return the ids of joined sentences: `BREAK` replaces every </s> but the last."""
    if len(sentences) == 1:
        return np.asarray(ids(sentences[0]), np.int64)
    joined = np.concatenate([ids(sentence) for sentence in sentences]).astype(np.int64)
    joined[:-1][joined[:-1] == EOS] = BREAK
    return joined


def _slice_of(sides: list[tuple[Ids, Ids]], rows: Tensor, part: slice = slice(None)) -> Context:
    """Return a slice of the contexts, no wider than its longest context.

    Args:
        sides: padded ids (U, M) and lengths (U) of the sources, then of any targets.
        rows: `Context.rows`.
    """
    values: list[Any] = []
    for ids, all_lengths in sides:
        lengths = all_lengths[part]
        longest = int(lengths.max())
        values += torch.from_numpy(ids[part, :longest]), torch.from_numpy(lengths)
        values.append(bool(lengths.min() < longest))
    src, src_lengths, src_padded, *of_targets = values
    return Context(src, src_lengths, rows, src_padded, *of_targets)
