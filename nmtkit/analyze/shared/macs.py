"""Parameters and multiply-accumulates of any model, counted while it encodes and decodes.

torch's FLOP counter sees every matrix product, batched product, convolution and fused attention
that is executed (2 FLOPs a multiply-accumulate). It does not see element-wise work: softmax, layer
norm, activations, gates, dropout, embedding look-ups. It has no formula for matrix-vector products:
this file adds it. Attention is computed without fused kernels while it is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.data.batches import Batch
from nmtkit.data.context import contexts as collate_contexts
from nmtkit.models.base import Model
from nmtkit.nn.capture import capture
from nmtkit.nn.dropout import seed_dropout
from nmtkit.text.vocabulary import BOS, EOS, SPECIALS
from nmtkit.translate.forced import pair_batch

_ROWS = 2  # a small batch is cheap, and the count is per token


def _matrix_vector(*sizes: Any, **_: Any) -> int:
    """Return the FLOPs of a matrix (the last but one argument) times a vector."""
    return 2 * int(sizes[-2].numel())


_FORMULAS = {
    torch.ops.aten.mv: _matrix_vector,
    torch.ops.aten.addmv: _matrix_vector,
}


@dataclass(frozen=True)
class Parameters:
    """Trainable numbers of a model, tied ones once.

    Attributes:
        total: all.
        embeddings: those with one row for each token of a vocabulary (embeddings, output layer).
    """

    total: int
    embeddings: int

    @property
    def rest(self) -> int:
        """The parameters of the layers."""
        return self.total - self.embeddings


@dataclass(frozen=True)
class Macs:
    """Multiply-accumulates for sentences of one length.

    Attributes:
        src_length, tgt_length: tokens of source and target, </s> included.
        train: forward and backward, per target token.
        encode: reading the source, per source token.
        step: one decoding step of one hypothesis with state, output layer included; the mean over
            the steps of a sentence.
    """

    src_length: int
    tgt_length: int
    train: float
    encode: float
    step: float

    def search(self, beam: int) -> float:
        """Return the multiply-accumulates of the search for one sentence."""
        return self.encode * self.src_length + beam * self.step * self.tgt_length


def count_parameters(model: Model) -> Parameters:
    """Return the parameters of a model; one whose first axis is a vocabulary is an embedding."""
    vocabularies = {model.vocabularies.src, model.vocabularies.tgt}
    parameters = list(model.parameters())
    embeddings = [p.numel() for p in parameters if p.dim() and p.size(0) in vocabularies]
    return Parameters(sum(p.numel() for p in parameters), sum(embeddings))


def count_macs(
    model: Model, src_length: int, tgt_length: int, contexts: float = 0.0, spans: Sequence[int] = ()
) -> Macs:
    """Return the multiply-accumulates of a model, which is run for this.

    Args:
        model: on the CPU; its mode stays, it gets no gradients.
        src_length, tgt_length: tokens of the sentences, </s> included.
        contexts: context sentences of a sentence, for a model that reads context; each has
            src_length tokens, and no two sentences share one. The count is linear between none
            and as many as the model takes.
        spans: tokens of each part of the source, for a model that reads parses; empty: not known.
    """
    parts = torch.tensor([spans] * _ROWS) if spans else None
    counts = _counts(model, replace(random_batch(model, src_length, tgt_length), spans=parts))
    if model.context_rule is not None and contexts:
        most = model.context_rule.size
        batch = random_batch(model, src_length, tgt_length, contexts=most)
        with_most = _counts(model, replace(batch, spans=parts))
        counts += contexts / most * (with_most - counts)
    train, encode, step = (
        counts / (_ROWS * np.array([tgt_length, src_length, tgt_length]))
    ).tolist()
    return Macs(src_length, tgt_length, train, encode, step)


def _counts(model: Model, batch: Batch) -> Any:
    """Return the multiply-accumulates (3) of an update, of encoding, of decoding by steps."""
    was_training = model.training
    assert batch.tgt_out is not None
    rows, steps = batch.tgt_out.shape
    try:
        model.train()
        seed_dropout(0, 0, 0)
        train = _macs(lambda: _update(model, batch))
        model.zero_grad(set_to_none=True)
        model.eval()
        with torch.no_grad():
            encode = _macs(lambda: model.encode(batch))
            memory = model.encode(batch)
            with capture():  # attention of a single query is then computed as plain products
                step = _macs(lambda: _steps(model, memory, rows, steps))
    finally:
        model.train(was_training)
    return np.array([train, encode, step], dtype=np.float64)


def random_batch(
    model: Model, src_length: int, tgt_length: int, rows: int = _ROWS, contexts: int = 0
) -> Batch:
    """Return random sentences of equal length without padding.

    Args:
        rows: sentences.
        contexts: context sentences of each, for a model that reads context.
    """
    draw, count = np.random.default_rng(1), rows * (1 + contexts)
    sizes = ((model.vocabularies.src, src_length), (model.vocabularies.tgt, tgt_length))
    src, tgt = (draw.integers(len(SPECIALS), size, (count, length)) for size, length in sizes)
    src[:, -1] = tgt[:, -1] = EOS
    batch = pair_batch(src[:rows].tolist(), tgt[:rows].tolist())
    if model.context_rule is None or not contexts:
        return batch
    numbers = np.arange(rows, count).reshape(rows, contexts).tolist()
    context = collate_contexts(
        numbers, src.__getitem__, model.context_rule, targets=tgt.__getitem__
    )
    return replace(batch, context=context)


def _update(model: Model, batch: Batch) -> None:
    """Compute forward and backward at every target position; the loss itself has no products."""
    assert batch.tgt_in is not None
    hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
    logits = model.logits(hidden)
    torch.autograd.backward(logits, torch.ones_like(logits))


def _steps(model: Model, memory: dict[str, Any], rows: int, steps: int) -> None:
    """Decode position by position, as search does."""
    state: dict[str, Any] | None = {}
    last = torch.full((rows, 1), BOS)
    for _ in range(steps):
        hidden, state = model.decode(last, memory, state)
        model.logits(hidden[:, -1])


def _macs(work: Callable[[], Any]) -> int:
    # The plain kernel's products are counted; the fused ones are private to torch.
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    with sdpa_kernel(SDPBackend.MATH), counter:
        work()
    return int(counter.get_total_flops()) // 2
