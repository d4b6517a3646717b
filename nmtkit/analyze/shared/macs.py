"""Parameters and multiply-accumulates of a model, counted through the two verbs alone.

torch's FLOP counter sees every matrix product, batched product, convolution and fused attention that is executed (2 FLOPs a
multiply-accumulate). It does not see element-wise work: softmax, layer norm, activations, gates, dropout, embedding look-ups, and
it knows no formula for matrix-vector products and for the fused attention of CPUs; for these it is given one here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.data.batches import Batch
from nmtkit.data.context import contexts as collate_contexts
from nmtkit.models.base import Model
from nmtkit.nn.capture import capture
from nmtkit.nn.dropout import seed_dropout
from nmtkit.text.vocabulary import BOS, EOS, SPECIALS

_ROWS = 2  # a batch, but a cheap one: the count is per token


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """FLOPs of q·kᵀ and weights·v, (B, H, T, C) each."""
    batch, heads, steps, width = query
    return 2 * batch * heads * steps * key[2] * (width + value[3])


def _attention_backward(_grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """Two gradients a product; recomputing the weights is not counted, so that a fused kernel counts like the products written out."""
    return 2 * _attention(query, key, value)


def _vector(matrix: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * matrix.numel()


def _added_vector(_: torch.Size, matrix: torch.Size, *__: Any, **___: Any) -> int:
    return 2 * matrix.numel()


_FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward: _attention_backward,
    torch.ops.aten.mv: _vector,
    torch.ops.aten.addmv: _added_vector,
}


@dataclass(frozen=True)
class Parameters:
    """Trainable numbers, tied ones once: those with one row a token of a vocabulary (embeddings, output layer), and the rest."""

    total: int
    embeddings: int

    @property
    def rest(self) -> int:
        """The layers."""
        return self.total - self.embeddings


@dataclass(frozen=True)
class Macs:
    """Multiply-accumulates for sentences of `src_length` source and `tgt_length` target tokens (ends of sentence included).

    train: forward and backward, per target token. encode: reading the source, per source token. step: one decoding step with
    state, one hypothesis, mean over the steps of a sentence, with the output layer.
    """

    src_length: int
    tgt_length: int
    train: float
    encode: float
    step: float


def count_parameters(model: Model) -> Parameters:
    """Count the parameters of a model.

    Args:
        model: any; a parameter whose first axis is as long as a vocabulary counts as embedding.
    """
    sizes = {model.vocabularies.src, model.vocabularies.tgt}
    found = list(model.parameters())
    return Parameters(sum(p.numel() for p in found), sum(p.numel() for p in found if p.dim() and p.size(0) in sizes))


def count_macs(model: Model, src_length: int, tgt_length: int, contexts: float = 0.0, spans: Sequence[int] = ()) -> Macs:
    """Count the multiply-accumulates of a model by running it.

    Args:
        model: on the CPU; it is left in the mode it was in, without gradients.
        src_length, tgt_length: tokens of the sentences it is run on, ends included.
        contexts: of a model that reads context, how many context sentences, as long as the others, a sentence has; none are shared, and the
            count is on the line between that with none and that with as many as the model takes.
        spans: tokens of each of the parts that the source is cut into, for a model that reads these; empty: not known.
    """
    parts = torch.tensor([spans] * _ROWS) if spans else None
    none = _counts(model, replace(random_batch(model, src_length, tgt_length), spans=parts))
    if model.context_rule is not None and contexts:
        most = model.context_rule.size
        all_of_them = _counts(model, replace(random_batch(model, src_length, tgt_length, contexts=most), spans=parts))
        none = tuple(a + contexts / most * (b - a) for a, b in zip(none, all_of_them, strict=True))
    train, encode, step = none
    return Macs(src_length, tgt_length, train / (_ROWS * tgt_length), encode / (_ROWS * src_length), step / (_ROWS * tgt_length))


def _counts(model: Model, batch: Batch) -> tuple[float, ...]:
    """Multiply-accumulates of an update on a batch, of reading it, and of decoding it step by step."""
    was_training = model.training
    assert batch.tgt_out is not None
    try:
        model.train()
        seed_dropout(0, 0, 0)
        train = _macs(lambda: _update(model, batch))
        model.zero_grad(set_to_none=True)
        model.eval()
        with torch.no_grad():
            encode = _macs(lambda: model.encode(batch))
            memory = model.encode(batch)
            with capture():  # attention of a single query as the products that it is
                step = _macs(lambda: _steps(model, memory, *batch.tgt_out.shape))
    finally:
        model.train(was_training)
    return train, encode, step


def random_batch(model: Model, src_length: int, tgt_length: int, rows: int = _ROWS, contexts: int = 0) -> Batch:
    """Random sentences of equal length, so that nothing is padded; of a model that reads context, with so many context sentences each."""
    generator = torch.Generator().manual_seed(1)

    def ids(size: int, length: int) -> Tensor:
        return torch.randint(len(SPECIALS), max(size, len(SPECIALS) + 1), (rows, length), generator=generator).clamp_max(size - 1)

    src, tgt_out = ids(model.vocabularies.src, src_length), ids(model.vocabularies.tgt, tgt_length)
    tgt_in = torch.cat([torch.full((rows, 1), BOS), tgt_out[:, :-1]], dim=1)
    lengths = (torch.full((rows,), n, dtype=torch.long) for n in (src_length, tgt_length))
    batch = Batch(src, next(lengths), torch.arange(rows), tgt_in, tgt_out, next(lengths), src_padded=False, tgt_padded=False)
    if model.context_rule is None or not contexts:
        return batch
    others = random_batch(model, src_length, tgt_length, rows * contexts)
    assert others.tgt_out is not None
    texts = [side.index_fill(1, torch.tensor([side.size(1) - 1]), EOS).numpy() for side in (others.src, others.tgt_out)]
    chosen = [range(row * contexts, (row + 1) * contexts) for row in range(rows)]
    return replace(batch, context=collate_contexts(chosen, texts[0].__getitem__, model.context_rule, targets=texts[1].__getitem__))


def _update(model: Model, batch: Batch) -> None:
    """Forward and backward at every target position; the loss itself has no products."""
    assert batch.tgt_in is not None
    hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
    logits = model.logits(hidden)
    torch.autograd.backward(logits, torch.ones_like(logits))


def _steps(model: Model, memory: dict[str, Any], rows: int, count: int) -> None:
    """Decode `count` positions one by one, as search does."""
    state: dict[str, Any] | None = {}
    last = torch.full((rows, 1), BOS)
    for _ in range(count):
        hidden, state = model.decode(last, memory, state)
        model.logits(hidden[:, -1])
        last = torch.full((rows, 1), len(SPECIALS) if model.vocabularies.tgt > len(SPECIALS) else 0)


def _macs(work: Any) -> int:
    with FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        work()
    return int(counter.get_total_flops()) // 2
