"""Batches: the padded or packed tensors of sentence pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.context import Context, Form, IdsOf, contexts, packed_contexts, with_source
from nmtkit.data.documents import ContextRule
from nmtkit.data.packing import Segments, in_one_row, segments, shifted_row
from nmtkit.data.padding import (
    Ids,
    Sentences,
    as_rows,
    joined,
    padded,
    rounded,
    rounded_steps,
    shifted,
)
from nmtkit.data.pairs import Pairs

T = TypeVar("T")

LONGEST_READ = 1024
"""The most subwords of a sentence that analyses and validations read (see `short_rows`)."""


@dataclass(frozen=True)
class Batch:
    """Padded token ids of B sentence pairs (or of B sources alone).

    Attributes:
        src: (B, S), each row ends in </s>. A word i that training leaves out (`train.word_dropout`)
            has the id ~i, which is below 0.
        src_lengths, tgt_lengths: (B), </s> included.
        rows: (B), line numbers in the set.
        tgt_in: (B, T), each row starts with <s>; words left out as in `src`.
        tgt_out: (B, T), each row ends in </s>.
        src_padded, tgt_padded: True if any row has padding; known without a device sync.
        spans: (B, c), the number of tokens of each consecutive part of a source, then zeros; only
            zeros if the parts of a source are not known. None if the set has no parts.
        context: other sentences of the documents, for a model that reads them.
        real: (N), the positions of `tgt_out` that are not padding, as indices into B·T. None if
            there is no padding, or if the host does not know the positions.
        segments: where the sentences are in the packed form, for a model that `reads_packed`. Then
            `src` is (1, S), `tgt_in` and `tgt_out` are (1, T), and contexts have `copies`. None if
            each sentence has its own row.
        prepared: the result of `Model.prepare`; None before.
    """

    src: Tensor
    src_lengths: Tensor
    rows: Tensor
    tgt_in: Tensor | None = None
    tgt_out: Tensor | None = None
    tgt_lengths: Tensor | None = None
    src_padded: bool = True
    tgt_padded: bool = True
    spans: Tensor | None = None
    context: Context | None = None
    real: Tensor | None = None
    segments: Segments | None = None
    prepared: Any = None


def collate(
    store: Pairs,
    rows: Ids,
    device: torch.device | str = "cpu",
    rule: ContextRule | None = None,
    translated: IdsOf | None = None,
    few_shapes: bool = False,
) -> Batch:
    """Return a batch of pairs of a set.

    Args:
        store: the prepared set.
        rows: (B) pair numbers.
        device: of the tensors.
        rule: which other sentences are the context of each sentence; None = no context.
        translated: returns the target ids of a sentence, </s> last, for a rule that reads the
            targets of the context; None = the targets of the set.
        few_shapes: add padding, and rows of padding, so that few shapes occur; not with a rule.
    """
    assert not (few_shapes and rule)
    context = None
    if rule is not None:
        sentences = [store.documents.context(int(i), rule) for i in rows]
        context = contexts(sentences, store.src, rule, translated or store.tgt, device)
    spans = None if store.spans is None else [store.spans[int(i)] for i in rows]
    sides = [(as_rows(*side), side[1]) for side in store.sides(np.asarray(rows))]
    if few_shapes:
        sides = [rounded(*sides[0], 1), rounded(*sides[1], 0)]
    batch = _source_batch(*sides[0], spans, context, few_shapes)
    batch = dataclasses.replace(batch, rows=torch.tensor(rows))
    return on_device(_with_targets(batch, *sides[1]), device)


def short_rows(store: Pairs, rule: ContextRule | None, rows: Ids, most: int = LONGEST_READ) -> Ids:
    """Return the rows whose sentences, and the sentences of their contexts, have at most `most`
    subwords on both sides: the time and memory of attention grow with the square of the length.

    Args:
        store, rule: as of `collate`.
        rows: pair numbers.
    """
    long = np.maximum(store.src_lengths, store.tgt_lengths) > most
    if rule is None or not long.any():
        return rows[~long[rows]]
    return np.array(
        [i for i in rows.tolist() if not long[[i, *store.documents.context(i, rule)]].any()],
        dtype=np.int64,
    )


def on_device(value: T, device: torch.device | str) -> T:
    """Return a batch, contexts or tensors on a device. The copy to a CUDA GPU is asynchronous."""
    device = torch.device(device)
    return value if device.type == "cpu" else _in_one_copy(value, device)


def _in_one_copy(value: T, device: torch.device) -> T:
    tensors: dict[int, Tensor] = {}  # by id: a tensor that occurs twice is copied once
    with_tensors(value, lambda tensor: tensors.setdefault(id(tensor), tensor))
    # All tensors of a batch are integers or bools, which int32 holds exactly. Compiled graphs need
    # tensors that begin at multiples of 16 bytes.
    sizes = [-(-tensor.numel() // 16) * 16 for tensor in tensors.values()]
    cuda = device.type == "cuda"
    flat = torch.zeros(sum(sizes), dtype=torch.int32, device="cpu", pin_memory=cuda)
    for part, original in zip(torch.split(flat, sizes), tensors.values(), strict=True):
        part[: original.numel()] = original.flatten()
    on_gpu = flat.to(device, non_blocking=cuda)
    kinds = {original.dtype for original in tensors.values()}
    parts = {kind: torch.split(on_gpu.to(kind), sizes) for kind in kinds}
    copies = {
        key: parts[original.dtype][i][: original.numel()].view_as(original)
        for i, (key, original) in enumerate(tensors.items())
    }
    copied: T = with_tensors(value, lambda tensor: copies[id(tensor)])
    return copied


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch, or a part of one, with all tensors in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        parts = [with_tensors(part, change) for part in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, (Batch, Context)):
        fields = {name: with_tensors(part, change) for name, part in vars(value).items()}
        return dataclasses.replace(value, **fields)
    return value


def collate_packed(
    store: Pairs,
    rows: Ids,
    device: torch.device | str = "cpu",
    multiple: int = 1,
    few_shapes: bool = False,
    rule: ContextRule | None = None,
    form: Form = "plain",
    prepare: Callable[[Batch], Batch] = lambda batch: batch,
) -> Batch:
    """Return a batch of pairs in packed form (see `Batch.segments`).

    Args:
        store, rows, device, rule: as of `collate`.
        multiple: the number of positions of each side is a multiple of this.
        few_shapes: round up the number of sentences, and the length of the longest.
        form: of the contexts.
        prepare: the model's preparation of the batch on the CPU.
    """
    rows = np.asarray(rows, dtype=np.int64)
    sides, context = store.sides(rows), None
    of_rows = [store.documents.context(int(i), rule) for i in rows] if rule else []
    if rule and form == "source":
        read = zip(of_rows, rows.tolist(), strict=True)
        sides[0] = joined([with_source(sentences, store.src, i) for sentences, i in read])
    (src, src_lengths), (tgt, tgt_lengths) = (in_one_row(*side, multiple) for side in sides)
    if rule and form != "source":
        lengths, ids = (src_lengths, tgt_lengths), (store.src, store.tgt)
        context = packed_contexts(of_rows, ids, rule, lengths, multiple, few_shapes, form)
    spans = None if store.spans is None else [store.spans[int(i)] for i in rows]
    where = segments(src_lengths, tgt_lengths, few_shapes)
    batch = Batch(
        src=torch.from_numpy(src[None]),
        src_lengths=torch.from_numpy(src_lengths[: len(rows)]),
        rows=torch.from_numpy(rows.copy()),
        tgt_in=torch.from_numpy(shifted_row(tgt, tgt_lengths)[None]),
        tgt_out=torch.from_numpy(tgt[None]),
        tgt_lengths=torch.from_numpy(tgt_lengths[: len(rows)]),
        real=torch.arange(int(tgt_lengths[: len(rows)].sum())),
        spans=_span_sizes(spans, few_shapes, len(where.keys.positions)),
        context=context,
        segments=where,
    )
    return on_device(prepare(batch), device)


def with_targets(batch: Batch, targets: Sentences) -> Batch:
    """Return a batch of sources with targets; K neighbouring targets belong to one source.

    Args:
        batch: B sources.
        targets: token ids of B·K targets, </s> last.
    """
    return _with_targets(batch, *padded(targets))


def without_targets(batch: Batch) -> Batch:
    """Return a batch of the same sources without targets."""
    return dataclasses.replace(
        batch, tgt_in=None, tgt_out=None, tgt_lengths=None, tgt_padded=True, real=None
    )


def _with_targets(batch: Batch, tgt_out: Ids, tgt_lengths: Ids) -> Batch:
    real = np.flatnonzero(np.arange(tgt_out.shape[1]) < tgt_lengths[:, None])
    arrays = shifted(tgt_out, tgt_lengths), tgt_out, tgt_lengths, real
    tensors = on_device(tuple(map(torch.from_numpy, arrays)), batch.src.device)
    is_padded = len(real) < tgt_out.size
    return dataclasses.replace(
        batch,
        tgt_in=tensors[0],
        tgt_out=tensors[1],
        tgt_lengths=tensors[2],
        tgt_padded=is_padded,
        real=tensors[3] if is_padded else None,
    )


def source_batch(
    sentences: Sentences,
    device: torch.device | str = "cpu",
    spans: Sentences | None = None,
    context: Context | None = None,
    few_shapes: bool = False,
) -> Batch:
    """Return a batch of sources alone, for translation; rows are 0, 1, 2, …

    Args:
        sentences: token ids of each sentence, </s> last; at least one sentence.
        device: of the tensors.
        spans: number of tokens of each part of each sentence, if known (see `Batch`).
        context: the context of the sentences, on the CPU, if a model reads it.
        few_shapes: round up S, the padded length.
    """
    src, lengths = padded(sentences)
    src = rounded_steps(src) if few_shapes else src
    return on_device(_source_batch(src, lengths, spans, context), device)


def _source_batch(
    src: Ids,
    lengths: Ids,
    spans: Sentences | None,
    context: Context | None,
    few_shapes: bool = False,
) -> Batch:
    return Batch(
        torch.from_numpy(src),
        torch.from_numpy(lengths),
        torch.arange(len(src)),
        src_padded=bool(lengths.min() < src.shape[1]),
        spans=_span_sizes(spans, few_shapes),
        context=context,
    )


def _span_sizes(spans: Sentences | None, few_shapes: bool, rows: int = 0) -> Tensor | None:
    """Return `Batch.spans`.

    Args:
        spans: of each sentence, if they are known.
        few_shapes: round up the number of rows.
        rows: the number of rows, if it is known.
    """
    if spans is None:
        return None
    sizes, counts = padded([np.asarray(tokens, dtype=np.int64) for tokens in spans], 0)
    if few_shapes or rows:
        sizes, _ = rounded(sizes, counts, 0, rows)
    return torch.from_numpy(sizes) if counts.any() else None
