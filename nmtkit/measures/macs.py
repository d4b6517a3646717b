"""Parameters and multiply-accumulates of any model, counted while it encodes and decodes.

torch's FLOP counter counts every matrix product, batched product, convolution and fused attention
that is executed (2 FLOPs per multiply-accumulate). It does not count element-wise work: softmax,
layer norm, activations, gates, dropout, embedding look-ups. This file adds the missing formula for
matrix-vector products. There is no formula for the fused kernels of attention, of torch's encoder
layers and of oneDNN's LSTM, so these kernels are off during the count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.data.batches import Batch
from nmtkit.data.context import contexts as collate_contexts
from nmtkit.measures import recording
from nmtkit.models.base import Memory, Model, State, Vocabularies, target_states
from nmtkit.nn.capture import capture
from nmtkit.nn.dropout import seed_dropout
from nmtkit.text.vocabulary import BOS

_ROWS = 2  # a small batch is cheap, and the count is per token


def _matrix_vector(*sizes: Any, **_: Any) -> int:
    """Return the FLOPs of a matrix (the last but one argument) times a vector."""
    return 2 * int(sizes[-2].numel())


_FORMULAS = {torch.ops.aten.mv: _matrix_vector, torch.ops.aten.addmv: _matrix_vector}


@dataclass(frozen=True)
class Parameters:
    """The number of parameters of a model; tied parameters count once.

    Attributes:
        total: all parameters.
        embeddings: parameters whose shape depends on a vocabulary (embeddings, output layer).
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
        encode: encoding the source, per source token.
        step: one decoding step of one hypothesis with state, with the output layer; the mean over
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
    """Return the number of parameters. A second model with larger vocabularies shows which of them
    depend on a vocabulary.
    """
    parameters = dict(model.named_parameters())
    sizes = model.vocabularies
    larger = Vocabularies(2 * sizes.src, 2 * sizes.tgt, sizes.shared)
    try:
        with torch.device("meta"):  # shapes only, without memory
            second = type(model)(model.settings, larger)
            second.initialise()
        of_larger = dict(second.named_parameters())
        depend = [p for name, p in parameters.items() if p.shape != of_larger.get(name, p).shape]
    except Exception:  # the user's own class may need real tensors, or just these vocabularies
        known = {sizes.src, sizes.tgt}
        depend = [p for p in parameters.values() if p.dim() and p.size(0) in known]
    total = sum(p.numel() for p in parameters.values())
    return Parameters(total, sum(p.numel() for p in depend))


def count_macs(
    model: Model, src_length: int, tgt_length: int, contexts: float = 0.0, spans: Sequence[int] = ()
) -> Macs:
    """Run a model and return its multiply-accumulates.

    Args:
        model: on the CPU. Afterwards it is in evaluation mode and has no gradients.
        src_length, tgt_length: tokens of the sentences, </s> included.
        contexts: context sentences per sentence, for a model that reads context. Each has
            src_length tokens, and no two sentences share one. The count is interpolated between no
            context and the maximum number of context sentences.
        spans: tokens of each part of the source, for a model that reads parses; empty = unknown.
    """
    batch = recording.made_up((src_length, tgt_length), torch.device("cpu"), _ROWS)
    batch = replace(batch, spans=torch.tensor([spans] * _ROWS) if spans else None)
    counts = _counts(model, batch)
    if model.context_rule is not None and contexts:
        assert batch.tgt_out is not None
        # The maximum number of contexts, each as long as the pair.
        size, src, tgt = model.context_rule.size, batch.src[0].numpy(), batch.tgt_out[0].numpy()
        numbers = np.arange(_ROWS * size).reshape(_ROWS, size).tolist()
        read = collate_contexts(numbers, lambda _: src, model.context_rule, targets=lambda _: tgt)
        with_context = _counts(model, replace(batch, context=read))
        counts += contexts / size * (with_context - counts)
    tokens = _ROWS * np.array([tgt_length, src_length, tgt_length])
    return Macs(src_length, tgt_length, *(counts / tokens).tolist())


def _counts(model: Model, batch: Batch) -> Any:
    """Return the multiply-accumulates (3) of an update, of encoding, and of decoding by steps."""
    model.train()
    seed_dropout(0, 0, 0)
    train = _macs(lambda: _update(model, batch))
    # During a capture the backward pass computes no product again, but attention to windows reads
    # all positions. So the smaller count is right.
    with capture():
        train = min(train, _macs(lambda: _update(model, batch)))
    model.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad():
        encode = _macs(lambda: model.encode(batch))
        memory = model.encode(batch)
        with capture():  # during a capture attention of a single query is a plain product
            step = _macs(lambda: _steps(model, memory, batch))
    return np.array([train, encode, step], dtype=np.float64)


def _update(model: Model, batch: Batch) -> None:
    """Compute forward and backward passes at every target position; the loss has no products."""
    hidden = target_states(model, batch)
    logits = model.logits(hidden)
    torch.autograd.backward(logits, torch.ones_like(logits))


def _steps(model: Model, memory: Memory, batch: Batch) -> None:
    """Decode position by position, as search does."""
    assert batch.tgt_in is not None
    state: State | None = {}
    for last in torch.split(torch.full_like(batch.tgt_in, BOS), 1, dim=1):
        hidden, state = model.decode(last, memory, state)
        model.logits(hidden[:, -1])


def _macs(work: Callable[[], Any]) -> int:
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    with _plain_kernels(), counter:
        work()
    return int(counter.get_total_flops()) // 2


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Compute with products that are counted, without fused kernels."""
    onednn, mha = torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()
    # `mkldnn.flags` would also set TF32, and torch on a CPU warns about that.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.backends.mha.set_fastpath_enabled(mha)
