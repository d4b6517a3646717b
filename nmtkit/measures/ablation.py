"""How the next word's distribution changes when attention to one source position is removed.

`compare` removes the position with the largest weight and, separately, a random other position.

Legend: B sentences, T target length, S source length, K = 2 positions removed in turn, D width.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.data.batches import Batch
from nmtkit.errors import LeftOut
from nmtkit.measures import context_spread, recording
from nmtkit.models.base import Memory, Model, State, device_of
from nmtkit.nn.capture import capture
from nmtkit.nn.masks import real_positions
from nmtkit.nn.state import Continued, select_rows

SEED = 1
ROWS = 3
"""Rows of a sentence in a pass, 1 + K: the first keeps all positions, the others lack one each."""
NOTHING = -1
"""A position that removes nothing."""
CHUNK = 1 << 22
"""Maximum probabilities of one distribution tensor."""
PROBE = (5, 4)
"""Source and target length of a made-up pair."""


def without(weights: Tensor, positions: Tensor, renormalise: bool) -> Tensor:
    """Return weights with one source position of each query set to 0 in all heads.

    Args:
        weights: (B, H, queries, S) or (B, queries, S).
        positions: (B, queries); NOTHING leaves a query unchanged.
        renormalise: scale the other weights of each head to sum to 1, unless all are 0.
    """
    keys = torch.arange(weights.size(-1), device=weights.device)
    gone = keys == positions.unsqueeze(-1)  # (B, queries, S)
    gone = gone.unsqueeze(1) if weights.dim() == 4 else gone
    left = weights.masked_fill(gone, 0)
    if renormalise:
        left = left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
    return torch.where(gone.any(-1, keepdim=True), left, weights)


class Ablation:
    """One attention of a model, from which positions are removed.

    Args:
        model: in evaluation mode.
        site: the name of the attention.
        renormalise: see `without`.
    Attributes:
        in_parallel: True if a removal at one step cannot change another step, so that all steps are
            decoded in one pass. A made-up pair shows this.
    Raises: LeftOut if the model does not use the weights that `capture` has changed.
    """

    def __init__(self, model: Model, site: str, renormalise: bool) -> None:
        self.model, self.site, self.renormalise = model, site, renormalise
        device = device_of(model)
        batch = recording.made_up(PROBE, device)
        assert batch.tgt_in is not None
        queries: list[int] = []

        def last_step_only(weights: Tensor) -> Tensor:
            steps = torch.arange(weights.size(-2), device=device) + sum(queries)
            queries.append(len(steps))
            return weights * (steps == PROBE[1] - 1).unsqueeze(-1)

        with torch.inference_mode():
            memory = model.encode(batch)
            with capture():
                whole, _ = model.decode(batch.tgt_in, memory)
            with capture({site: last_step_only}):
                changed, _ = model.decode(batch.tgt_in, memory)
        if not queries:
            message = f"the weights of its attention '{site}' cannot be changed"
            raise LeftOut(f"{message} (see nmtkit.nn.capture)")
        self.in_parallel = queries == [PROBE[1]] and torch.equal(whole[:, -1], changed[:, -1])

    def remove(
        self, memory: Memory, batch: Batch, chances: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Remove the position with the largest weight, and another position, at every step.

        A sentence has 1 + K rows. The first row keeps all positions; its weights determine, inside
        the pass, which position each other row lacks. If steps depend on each other, all rows begin
        a step with the state of the first row, so that removals do not add up.

        Args:
            memory: the memory of the batch.
            chances: from `drawn_chances`.
        Returns: (B, T, K), the weights of the removed positions, mean over heads, in float64;
            (B, T, 1 + K, D), hidden states that the output layer reads, first without removal;
            outputs of the attention without removal, parts of (B, steps, C), [] if not recorded.
        """
        assert batch.tgt_in is not None
        rows = batch.tgt_in.repeat_interleave(ROWS, dim=0)
        state: State | None = None if self.in_parallel else {}
        block = rows.size(1) if self.in_parallel else 1  # steps of a pass
        alpha, hidden, contexts = [], [], []
        for steps, drawn in zip(*(torch.split(x, block, 1) for x in (rows, chances)), strict=True):
            removal = _Removal(self.renormalise, drawn, batch)
            with capture({self.site: removal}) as recorded:
                output, state = self.model.decode(steps, memory, state)
            if state is not None:
                first = torch.arange(0, len(output), ROWS, device=output.device)
                state = select_rows(state, Continued(first.repeat_interleave(ROWS)))
            alpha.append(removal.alpha)
            hidden.append(output.view(-1, ROWS, *output.shape[1:]).transpose(1, 2))
            for context in recorded.get(self.site + context_spread.ENDING, [])[:1]:
                contexts.append(context[::ROWS])
        return torch.cat(alpha, dim=1), torch.cat(hidden, dim=1), contexts

    def even_contexts(self, memory: Memory, batch: Batch) -> list[Tensor]:
        """Return the output of the attention with equal weights for all source positions (B, T, C);
        [] if it is not recorded.
        """
        assert batch.tgt_in is not None
        even = partial(context_spread.even_weights, src_lengths=batch.src_lengths)
        with capture({self.site: even}) as recorded:
            self.model.decode(batch.tgt_in, memory)
        return recorded.get(self.site + context_spread.ENDING, [])[:1]


class _Removal:
    """Changes the weights of one pass: the first row of a sentence keeps all positions, each later
    row lacks one.

    Args:
        renormalise: see `without`.
        chances: (B, T) random numbers for the steps of the pass; batch: the sentences.
    Raises: LeftOut if the model attends to more than the source.
    Attributes:
        alpha: (B, T, K) the weights of the removed positions.
    """

    alpha: Tensor
    positions: Tensor | None = None

    def __init__(self, renormalise: bool, chances: Tensor, batch: Batch) -> None:
        self.renormalise, self.chances, self.batch = renormalise, chances, batch

    def __call__(self, weights: Tensor) -> Tensor:
        steps = self.chances.size(1)
        if self.positions is None:
            recording.check_positions(weights, self.batch)
            whole = (weights if weights.dim() == 4 else weights.unsqueeze(1))[..., :steps, :]
            mean = whole.mean(1)  # (B, T, S)
            strongest = mean.argmax(-1)  # ties: the first
            other = other_positions(self.chances, strongest, self.batch.src_lengths)
            self.positions = torch.stack([strongest, other], dim=1)  # (B, K, T)
            keys = self.positions.transpose(1, 2).clamp(max=mean.size(-1) - 1)
            self.alpha = mean.double().gather(-1, keys)
        gone = F.pad(self.positions.flatten(1), (steps, 0), value=NOTHING)
        return without(weights, gone, self.renormalise)


def divergences(model: Model, hidden: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence, in bits, of the next word's distribution with each
    removal from that without removal.

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2.

    Args:
        hidden: (N, 1 + K, D) hidden states that the output layer reads, first without removal.
    Returns: (N, K), 0 to 1, in float64.
    """
    parts = []
    for states in torch.split(hidden, max(1, CHUNK // model.vocabularies.tgt)):
        p, p_entropy = _with_entropy(model, states[:, :1])
        q, q_entropy = _with_entropy(model, states[:, 1:])
        middle = q.add_(p).div_(2)
        entropy = -torch.xlogy(middle, middle).sum(-1)
        parts.append((entropy - (p_entropy + q_entropy) / 2).clamp(min=0) / math.log(2))
    return torch.cat(parts)


def _with_entropy(model: Model, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next word's distribution (…, V) and its entropy (…), in float64."""
    logs = torch.log_softmax(model.logits(hidden).double(), dim=-1)
    p = logs.exp()
    return p, -logs.mul_(p).sum(-1)


class Comparison(NamedTuple):
    """The strongest source position of each step compared with a random other position."""

    alpha: Tensor
    """(B, T) Δα; NaN at padding, and for a source of one position."""
    js: Tensor
    """(B, T) ΔJS; NaN like Δα."""
    spread: Tensor
    """(2, B) `context_spread.spread` of the attention, and with even weights; NaN if not recorded.
    """


def drawn_chances(rows: Tensor, steps: int) -> Tensor:
    """Return a random number from 0 to 1 for each step of each sentence: (B, steps) in float64.

    Args:
        rows: (B) the number of each sentence, which seeds its draws. So the draws of a sentence do
            not depend on its batch.
    """
    chances = [np.random.default_rng([SEED, row]).random(steps) for row in rows.tolist()]
    return torch.from_numpy(np.stack(chances)).to(rows.device)


def other_positions(chances: Tensor, strongest: Tensor, src_lengths: Tensor) -> Tensor:
    """Return a source position other than the strongest for each step, all equally likely.

    Args:
        chances: (B, T) from `drawn_chances`.
        strongest: (B, T).
        src_lengths: (B) real positions.
    Returns: (B, T); undefined at padding, and for a source of one position.
    """
    # The number of a position among the others: numbers from the strongest on move up by one.
    number = (chances * (src_lengths - 1).clamp(min=1)[:, None]).long()
    return number + (number >= strongest)


def compare(attention: Ablation, batch: Batch) -> Comparison:
    """Compare the strongest source position of every step of a batch with another position.

    Source: Im & Chan 2024, after Serrano & Smith 2019, Is attention interpretable?
    """
    assert batch.tgt_in is not None and batch.tgt_lengths is not None
    chances = drawn_chances(batch.rows, batch.tgt_in.size(1))
    real = real_positions(batch.tgt_lengths, chances.size(1))
    points = real & (batch.src_lengths > 1)[:, None]  # (B, T)
    with torch.inference_mode():
        with capture():  # some models keep the source states only during a capture
            memory = attention.model.encode(batch)
        alpha, hidden, contexts = attention.remove(memory, batch, chances)
        d_alpha, d_js = alpha.new_full((2, *points.shape), torch.nan)
        js = divergences(attention.model, hidden[points])
        for difference, values in ((d_alpha, alpha[points]), (d_js, js)):
            difference[points] = values[:, 0] - values[:, 1]
        spread = alpha.new_full((2, len(alpha)), torch.nan)
        for i, read in enumerate((contexts, attention.even_contexts(memory, batch))):
            if read:
                spread[i] = context_spread.spread(torch.cat(read, dim=1), batch.tgt_lengths)
    return Comparison(d_alpha, d_js, spread)
