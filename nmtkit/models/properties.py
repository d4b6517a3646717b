"""Properties that every model must have, tried on a few pairs.

tests/models/test_contract.py tests more of them, exactly. These are for a class of the user's own,
before its training begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.models.base import Model, State, target_states
from nmtkit.nn.masks import real_positions
from nmtkit.text.vocabulary import EOS, UNK

TOLERANCE = 1e-2
"""Share of the largest number by which states may differ; products of a GPU may have 10 bits."""
NOT_CAUSAL = "a target position reads later words, which a search does not have yet"
NOT_ALONE = "the states of a sentence depend on the other sentences of its batch, or on padding"
NOT_STEPWISE = "a search, which decodes step by step, has other states than training"


def lacking(model: Model, batch: Batch, alone: Sequence[Batch]) -> list[str]:
    """Return a sentence for each property that a model lacks.

    Args:
        model: in eval mode.
        batch: some pairs of different lengths, padded.
        alone: a batch of each of these pairs.
    """
    assert batch.tgt_in is not None and batch.tgt_lengths is not None
    tgt_in, steps = batch.tgt_in, []
    state: State = {}
    with torch.no_grad():
        memory = model.encode(batch)
        whole = model.decode(tgt_in, memory)[0]  # (B, T, D)
        other = tgt_in.clone()
        other[:, -1] = torch.where(tgt_in[:, -1] == EOS, UNK, EOS)
        changed = model.decode(other, memory)[0]
        for t in range(tgt_in.size(1)):
            hidden, after = model.decode(tgt_in[:, t : t + 1], memory, state)
            state = after or {}
            steps.append(hidden)
        singles = [target_states(model, of_pair)[0] for of_pair in alone]  # (T', D) each
    real = real_positions(batch.tgt_lengths, tgt_in.size(1))
    properties = {
        NOT_CAUSAL: _equal(changed[:, :-1], whole[:, :-1]),
        NOT_ALONE: model.reads_batch_length or _equal(torch.cat(singles), whole[real]),
        NOT_STEPWISE: _equal(torch.cat(steps, 1)[real], whole[real]),
    }
    return [sentence for sentence, holds in properties.items() if not holds]


def _equal(found: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=0, atol=TOLERANCE * scale)
