"""Properties that every model must have, tried on a few pairs.

tests/models/test_contract.py tests more of them, exactly. These are for a class of the user's own,
before its training begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmtkit.data.batches import Batch, without_targets
from nmtkit.errors import ConfigError, is_out_of_memory
from nmtkit.models.base import Memory, Model, State, target_states
from nmtkit.nn.dropout import seed_everything
from nmtkit.nn.masks import real_positions
from nmtkit.nn.state import Continued, mapped, select_rows
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.user_classes import place_of

TOLERANCE = 1e-2
"""Share of the largest number by which states may differ; products of a GPU may have 10 bits."""
NOT_CAUSAL = "a target position reads later words, which a search does not have yet"
NOT_CAUSAL_IN_TRAINING = (
    "in training a target position reads later words, for example by a mean over all positions"
)
NOT_ALONE = "the states of a sentence depend on the other sentences of its batch, or on padding"
READS_TARGETS = "`encode` reads the target, which a translation does not have"
NOT_PACKED = "`packs = True`, but the states of a packed batch differ from those of a padded one"
NOT_ROWS_FIRST = (
    "a tensor of the memory or of the state does not have its rows on the first axis, where search"
    " selects them"
)
NOT_STEPWISE = (
    "decoding step by step, with several rows a sentence of which search selects some, gives other"
    " states than training"
)
ROWS = 2
"""Rows of each sentence while decoding step by step."""
APART = 2
"""Steps before rows are selected."""


def lacking(
    model: Model, batch: Batch, alone: Sequence[Batch], packed: Batch | None = None
) -> list[str]:
    """Return a sentence for each property that a model lacks.

    Args:
        model: in eval mode.
        batch: some pairs of different lengths, padded.
        alone: a batch of each of these pairs.
        packed: the pairs in packed form, if the model reads it.
    Raises: ConfigError if `decode` does not return (hidden (R, T, D), state), or `logits` not
        (R, T, V).
    """
    sentences = _differences(model, batch, alone, packed)
    # A pass in training mode may change a model (batch norm, spectral norm), so it comes last.
    if NOT_CAUSAL not in sentences and not _is_causal_in_training(model, batch):
        sentences.append(NOT_CAUSAL_IN_TRAINING)
    if unreached := _without_gradient(model, batch):
        more = f" and {len(unreached) - 3} more" if len(unreached) > 3 else ""
        sentences.append(f"no gradient reaches {', '.join(unreached[:3])}{more}")
    return sentences


@torch.no_grad()
def _differences(
    model: Model, batch: Batch, alone: Sequence[Batch], packed: Batch | None
) -> list[str]:
    """Return a sentence for each way to compute hidden states that gives others than training."""
    assert batch.tgt_in is not None and batch.tgt_lengths is not None
    tgt_in = batch.tgt_in
    real = real_positions(batch.tgt_lengths, tgt_in.size(1))
    memory = model.encode(without_targets(batch))
    whole = _checked(model, tgt_in, model.decode(tgt_in, memory))  # (B, T, D)
    sentences = []
    if not _equal(target_states(model, batch)[real], whole[real]):
        sentences.append(READS_TARGETS)
    earlier = real[:, :-1]
    changed = model.decode(_with_other_end(tgt_in), memory)[0]
    if not _equal(changed[:, :-1][earlier], whole[:, :-1][earlier]):
        sentences.append(NOT_CAUSAL)
    singles = []  # (T', D) each
    for pair in alone:
        assert pair.tgt_in is not None
        singles.append(model.decode(pair.tgt_in, model.encode(without_targets(pair)))[0][0])
    if not (model.reads_batch_length or _equal(torch.cat(singles), whole[real])):
        sentences.append(NOT_ALONE)
    if packed is not None:
        row = target_states(model, packed)[0, : int(real.sum())]  # one sentence after another
        if not _equal(row, whole[real]):
            sentences.append(NOT_PACKED)
    if fault := _fault_of_steps(model, memory, tgt_in, whole, real):
        sentences.append(fault)
    return sentences


def _with_other_end(tgt_in: Tensor) -> Tensor:
    """Return targets (B, T) of which the last position has another word."""
    other = tgt_in.clone()
    other[:, -1] = torch.where(tgt_in[:, -1] == EOS, UNK, EOS)
    return other


@torch.no_grad()
def _is_causal_in_training(model: Model, batch: Batch) -> bool:
    """True if another last word changes no earlier state in training mode. Also True if a second
    pass over the same words changes them: the model counts its passes, or has its own generator.
    """
    assert batch.tgt_in is not None and batch.tgt_lengths is not None
    earlier = real_positions(batch.tgt_lengths, batch.tgt_in.size(1))[:, :-1]
    states = []
    model.train()
    for tgt_in in (batch.tgt_in, batch.tgt_in, _with_other_end(batch.tgt_in)):
        seed_everything(0, 0, 0)
        hidden = target_states(model, dataclasses.replace(batch, tgt_in=tgt_in))
        states.append(hidden[:, :-1][earlier])
    model.eval()
    first, again, changed = states
    return not _equal(first, again) or _equal(again, changed)


def _fault_of_steps(
    model: Model, memory: Memory, tgt_in: Tensor, whole: Tensor, real: Tensor
) -> str:
    """Return what a search would find wrong with decoding step by step, or "".

    The rows of a sentence begin with different words. Then the first sentence ends, and both rows
    of each other sentence continue the second.

    Args:
        memory: of the sources.
        tgt_in: (B, T).
        whole: hidden states (B, T, D) of whole targets.
        real: bool (B, T), False for padding.
    """
    count = len(tgt_in)
    left = torch.arange(1 if count > 1 else 0, count, device=tgt_in.device)
    continued = (left * ROWS + 1).repeat_interleave(ROWS)
    rows = tgt_in.repeat_interleave(ROWS, 0)
    rows[::ROWS, 1:] = EOS
    state: State = {}
    steps: list[Tensor] = []
    try:
        for token in rows.split(1, dim=1):
            if len(steps) == APART:
                if not (_rows_first(memory, count) and _rows_first(state, len(rows))):
                    return NOT_ROWS_FIRST
                memory = select_rows(memory, left)
                state = select_rows(state, Continued(continued, left))
            apart = len(steps) < APART
            hidden, after = model.decode(token if apart else token[continued], memory, state)
            state = after or {}
            steps.append(hidden[continued] if apart else hidden)
    except (IndexError, RuntimeError) as error:
        # A model without steps can be trained, but no search can use it.
        early = len(steps) < APART and not isinstance(error, NotImplementedError)
        if early or is_out_of_memory(error):
            raise
        return NOT_STEPWISE
    sentences = continued // ROWS
    where = real[sentences]
    same = _equal(torch.cat(steps, 1)[where], whole[sentences][where])
    return "" if same else NOT_STEPWISE


def _rows_first(tree: Memory | State, rows: int) -> bool:
    """True if all tensors in a tree have this number of rows, on the first axis."""
    leaves: list[Any] = []
    mapped(tree, leaves.append)
    return all(leaf.shape[:1] == (rows,) for leaf in leaves if isinstance(leaf, Tensor))


def _checked(model: Model, tgt_in: Tensor, returned: Any) -> Tensor:
    """Return the hidden states (B, T, D) of what `decode` returned.

    Raises: ConfigError if there are none, or if the size of their `logits` is not the vocabulary's.
    """
    shape, vocabulary = (*tgt_in.shape, model.width), model.vocabularies.tgt
    match returned:
        case (Tensor() as hidden, _) if hidden.shape == shape:
            logits: Any = model.logits(hidden)
            if getattr(logits, "shape", None) == (*tgt_in.shape, vocabulary):
                return hidden
            verb: Any = model.logits
            message = f"logits must return (…, V), with V = vocabularies.tgt = {vocabulary}"
            message += f", not {tuple(logits.shape)}" if isinstance(logits, Tensor) else ""
        case _:
            verb = model.decode
            message = "decode must return (hidden (R, T, D), state), with D = width, a property"
    raise ConfigError(message, where=place_of(verb), hint="see nmtkit/models/README.md")


def _without_gradient(model: Model, batch: Batch) -> list[str]:
    """Return the names of the trainable parameters that no logit depends on."""
    model.train()
    number = model.logits(target_states(model, batch)).sum()
    model.eval()
    learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not learnt or not number.requires_grad:
        return list(learnt)
    grads = torch.autograd.grad(number, list(learnt.values()), allow_unused=True)
    return [name for name, grad in zip(learnt, grads, strict=True) if grad is None]


def _equal(states: Tensor, expected: Tensor) -> bool:
    """True if states (N, D) are about equal where both are finite."""
    finite = states.isfinite() & expected.isfinite()
    scale = expected[finite].abs().max().item() if finite.any() else 0.0
    return bool(((states - expected)[finite].abs() <= TOLERANCE * scale).all())
