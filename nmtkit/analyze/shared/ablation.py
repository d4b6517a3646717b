"""How the next word's distribution changes when attention to one source position is removed.

`compare` removes the position with the largest weight, and another one drawn at random.

Legend: B sentences, T target length, S source length, K = 2 positions removed in turn, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.analyze.analysis import LeftOut
from nmtkit.analyze.shared import context_spread, recording
from nmtkit.data.batches import Batch
from nmtkit.models.base import Memory, Model, State
from nmtkit.nn.capture import capture
from nmtkit.nn.state import select_rows

SEED = 1
COUNT = 2
"""Positions that are removed in turn at every step (K)."""
NOTHING = -1
"""In place of a position: all positions stay."""
CHUNK = 1 << 22
"""Most probabilities of one kind in memory at once."""
PROBE = (5, 4)
"""Source and target length of the pair that shows what an attention reaches."""
Pick = Callable[[Tensor, int], Tensor]
"""(weights (B, H, T, S), number of their first step) -> source positions to remove (B, K, T)."""


def without(weights: Tensor, positions: Tensor, renormalise: bool) -> Tensor:
    """Return weights without one source position of each query, in all heads.

    Args:
        weights: (B, H, queries, S) or (B, queries, S).
        positions: (B, queries), NOTHING where all stay.
        renormalise: scale the weights that are left to sum to 1 in each head, if any is left.
    """
    keys = torch.arange(weights.size(-1), device=weights.device)
    gone = keys == positions.unsqueeze(-1)  # (B, queries, S)
    gone = gone.unsqueeze(1) if weights.dim() == 4 else gone
    left = weights.masked_fill(gone, 0)
    if renormalise:
        left = left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
    return torch.where(gone.any(-1, keepdim=True), left, weights)


@dataclass(frozen=True)
class Removed:
    """What the output layer reads at every step, with the whole attention and without positions.

    Attributes:
        positions: the removed positions (B, K, T).
        weights: of the whole attention (B, H, T, S).
        contexts: what the whole attention returns (B, T, C), if it is recorded.
        intact: (B, T, D) with the whole attention; changed: (B, K, T, D) without each position.
    """

    positions: Tensor
    weights: Tensor
    contexts: Tensor | None
    intact: Tensor
    changed: Tensor


@dataclass(frozen=True)
class Ablation:
    """One attention of a model, whose weights can be removed.

    Attributes:
        model: in evaluation mode.
        site: the attention.
        renormalise: see `without`.
        in_parallel: True if no step after this attention depends on another step.
    """

    model: Model
    site: str
    renormalise: bool
    in_parallel: bool

    @classmethod
    def of(cls, model: Model, site: str, renormalise: bool, device: torch.device) -> Ablation:
        """Return the ablation of an attention, which is tried on a made-up pair.

        Raises: LeftOut if the model does not ask `capture` for the weights to use.
        """
        batch = recording.made_up(PROBE, device)
        assert batch.tgt_in is not None
        length = batch.tgt_in.size(1)
        queries: list[int] = []

        def last_step_only(weights: Tensor) -> Tensor:
            steps = torch.arange(weights.size(-2), device=device) + sum(queries)
            queries.append(len(steps))
            return weights * (steps == length - 1).unsqueeze(-1)

        with torch.inference_mode():
            memory = model.encode(batch)
            with capture():
                whole = model.decode(batch.tgt_in, memory)[0]
            with capture({site: last_step_only}):
                changed = model.decode(batch.tgt_in, memory)[0]
        if not queries:
            message = f"the weights of its attention '{site}' cannot be changed"
            raise LeftOut(f"{message} (see nmtkit.nn.capture)")
        independent = queries == [length] and torch.equal(whole[:, -1], changed[:, -1])
        return cls(model, site, renormalise, independent)

    def remove(self, memory: Memory, tgt_in: Tensor, pick: Pick) -> Removed:
        """Remove K source positions in turn at every step.

        A sentence has 1 + K rows. The first keeps all positions. Its weights tell, inside the pass,
        which positions the other rows do without. If steps depend on each other, each step begins
        with the state that the first row left, so that removals do not add up.

        Args:
            memory: from `encode`, B rows; tgt_in: (B, T).
            pick: chooses the positions by the weights.
        """
        sentences, length = tgt_in.shape
        size, block = 1 + COUNT, length if self.in_parallel else 1  # rows, steps of a pass
        rows = tgt_in.repeat_interleave(size, dim=0)
        whole = torch.arange(sentences, device=tgt_in.device).repeat_interleave(size) * size
        state: State | None = None if self.in_parallel else {}
        positions: list[Tensor] = []
        outputs: list[Tensor] = []
        whole_weights, contexts = [], []

        def change(weights: Tensor) -> Tensor:
            if len(positions) == len(outputs):
                positions.append(pick(_with_heads(weights)[..., :block, :], len(outputs)))
            gone = F.pad(positions[-1].flatten(1), (block, 0), value=NOTHING)
            return without(weights, gone, self.renormalise)

        for start in range(0, length, block):
            with capture({self.site: change}) as recorded:
                output, state = self.model.decode(rows[:, start : start + block], memory, state)
            state = None if state is None else select_rows(state, whole)
            outputs.append(output.view(sentences, size, block, -1))
            whole_weights.append(_with_heads(recorded[self.site][0])[..., :block, :])
            contexts += recorded.get(self.site + context_spread.ENDING, [])[:1]
        hidden = torch.cat(outputs, dim=2)
        return Removed(
            torch.cat(positions, dim=-1),
            torch.cat(whole_weights, dim=-2),
            torch.cat(contexts, dim=1)[::size] if contexts else None,
            hidden[:, 0],
            hidden[:, 1:],
        )


def _with_heads(weights: Tensor) -> Tensor:
    """(B, T, S) or (B, H, T, S) -> (B, H, T, S)."""
    return weights if weights.dim() == 4 else weights.unsqueeze(1)


def divergences(model: Model, intact: Tensor, changed: Tensor) -> Tensor:
    """Return how far removals move the next word's distribution: Jensen-Shannon divergence in bits.

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2.

    Args:
        intact: (N, D) what the output layer reads; changed: (N, K, D) the same without a position.
    Returns: (N, K), 0 to 1, in float64.
    """
    parts = []
    rows = max(1, CHUNK // model.vocabularies.tgt)
    for whole, removals in zip(torch.split(intact, rows), torch.split(changed, rows), strict=True):
        p, p_entropy = _with_entropy(model, whole.unsqueeze(1))
        q, q_entropy = _with_entropy(model, removals)
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
    """Each step of a batch: its strongest source position against one drawn at random."""

    alpha: Tensor
    """(B, T) Δα; NaN where there are no two positions to compare."""
    js: Tensor
    """(B, T) ΔJS; NaN as Δα."""
    spread: Tensor
    """(2, B) of `context_spread.spread`: of the attention, of even weights; NaN if not recorded."""


def drawn_chances(rows: Tensor, steps: int) -> Tensor:
    """Return a random number from 0 to 1 for each step of each sentence, (B, steps) in float64,
    which does not depend on the batch.

    Args:
        rows: (B) the number of each sentence, which seeds its draws.
    """
    chances = [np.random.default_rng([SEED, row]).random(steps) for row in rows.tolist()]
    return torch.from_numpy(np.stack(chances)).to(rows.device)


def other_positions(chances: Tensor, strongest: Tensor, src_lengths: Tensor) -> Tensor:
    """Return a source position other than the strongest for each step, all equally likely.

    Args:
        chances: (B, T) from `drawn_chances`.
        strongest: (B, T).
        src_lengths: (B) real positions.
    Returns: (B, T); without meaning behind the end, or where a source has one position only.
    """
    others = (chances * (src_lengths - 1).clamp(min=1)[:, None]).long()
    return others + (others >= strongest)


def compare(attention: Ablation, batch: Batch) -> Comparison:
    """Compare the strongest source position of every step of a batch with another position.

    Source: Im & Chan 2024, after Serrano & Smith 2019, Is attention interpretable?
    """
    assert batch.tgt_in is not None and batch.tgt_lengths is not None
    model, src_lengths, tgt_lengths = attention.model, batch.src_lengths, batch.tgt_lengths
    chances = drawn_chances(batch.rows, batch.tgt_in.size(1))

    def pick(weights: Tensor, start: int) -> Tensor:
        strongest = weights.mean(1).argmax(-1)  # (B, T), the first of equals
        drawn = chances[:, start : start + strongest.size(1)]
        return torch.stack([strongest, other_positions(drawn, strongest, src_lengths)], dim=1)

    with torch.inference_mode():
        with capture():  # some models keep the source states only while a capture is open
            memory = model.encode(batch)
        removed = attention.remove(memory, batch.tgt_in, pick)
        even = partial(context_spread.even_weights, src_lengths=src_lengths)
        with capture({attention.site: even}) as recorded:
            model.decode(batch.tgt_in, memory)
        even_contexts = recorded.get(attention.site + context_spread.ENDING, [None])[0]

        real = torch.arange(chances.size(1), device=chances.device) < tgt_lengths[:, None]
        points = real & (src_lengths > 1)[:, None]  # (B, T)
        weights = removed.weights.mean(1).double()  # (B, T, S)
        positions = removed.positions.transpose(1, 2).clamp(max=weights.size(-1) - 1)
        alpha = weights.gather(-1, positions).masked_fill(~points.unsqueeze(-1), torch.nan)
        js = torch.full_like(alpha, torch.nan)  # (B, T, K)
        changed = removed.changed.transpose(1, 2)
        js[points] = divergences(model, removed.intact[points], changed[points])
        spread = [
            torch.full_like(tgt_lengths, torch.nan, dtype=torch.float64)
            if contexts is None
            else context_spread.spread(contexts, tgt_lengths)
            for contexts in (removed.contexts, even_contexts)
        ]
    return Comparison(alpha[..., 0] - alpha[..., 1], js[..., 0] - js[..., 1], torch.stack(spread))
