"""Forced scores: the log-probabilities that models give to the tokens of given targets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nmtkit.data.batches import Batch, source_batch, with_targets
from nmtkit.models.base import Model
from nmtkit.nn.hardware import widest
from nmtkit.nn.linear import inference
from nmtkit.nn.masks import real_positions
from nmtkit.translate.steps import wide

CHUNK_LOGITS = 1 << 22
"""Logits in memory at once, so that memory does not grow with sentences x length x vocabulary."""


def forced_scores(models: Sequence[Model], batch: Batch) -> list[list[float]]:
    """Return the natural log-probability of every target token, given the source and the target
    before it.

    Args:
        models: in eval mode; several: the mean of their probabilities, as in search.
        batch: with both sides; tgt_out (B, T) ends in </s>. There may be several targets for a
            source (`with_targets`).
    Returns: for each pair one number per target token, that of </s> last; their sum is search's
        `log_prob` of the same output.
    Raises: ValueError if the batch has no targets.
    """
    if batch.tgt_in is None or batch.tgt_out is None or batch.tgt_lengths is None:
        raise ValueError("forced_scores needs a batch with targets")
    lengths = batch.tgt_lengths
    real = real_positions(lengths, batch.tgt_out.size(1))  # (B, T)
    targets = batch.tgt_out[real]  # (N)
    of_models = []
    with inference(models):
        for model in models:
            hidden = model.decode(batch.tgt_in, model.encode(batch))[0][real]  # (N, D)
            rows = max(1, CHUNK_LOGITS // model.vocabularies.tgt)
            parts = zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
            chunks = []
            for part, wanted in parts:
                logits = wide(model.logits(part))  # (C, V)
                of_wanted, total = logits.gather(1, wanted[:, None])[:, 0], logits.logsumexp(1)
                sums = widest(logits.device)
                chunks.append(of_wanted.to(sums) - total.to(sums))
            of_models.append(torch.cat(chunks))
        flat = torch.stack(of_models).logsumexp(0) - math.log(len(of_models))
    return [scores.tolist() for scores in torch.split(flat, lengths.tolist())]


def pair_batch(
    src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> Batch:
    """Return the batch of pairs of token ids (both with </s> last), in their order."""
    return with_targets(source_batch(src, device), tgt)
