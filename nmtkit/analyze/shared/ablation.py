"""What becomes of the distribution of the next word when its attention to one source position is taken away.

Legend: B sentences, T target length, S source length, K positions that are removed in turn, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.analyze.shared import context_spread, recording
from nmtkit.models.base import Memory, Model
from nmtkit.nn.capture import Change, capture
from nmtkit.nn.state import select_rows
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.translate.forced import pair_batch

NOTHING = -1
"""Among positions to remove: all stay."""
CHUNK = 1 << 22
"""Probabilities of one kind held at once, so that memory does not grow with sentences x length x vocabulary."""
PROBE = (5, 4)
"""Lengths of a source and a target on which it is tried what an attention reaches."""


def without(site: str, positions: Tensor, renormalise: bool) -> Change:
    """The change of weights that removes one source position for each query, in all heads.

    Args:
        site: the attention that is changed.
        positions: (B, queries), NOTHING where all stay.
        renormalise: whether what is left sums to one again (in each head); where nothing is left it stays zero.
    """

    def change(name: str, weights: Tensor) -> Tensor:
        if name != site:
            return weights
        gone = torch.arange(weights.size(-1), device=weights.device) == positions.unsqueeze(-1)  # (B, queries, S)
        gone = gone.unsqueeze(1) if weights.dim() == 4 else gone
        left = weights.masked_fill(gone, 0)
        if renormalise:
            left = left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
        return torch.where(gone.any(-1, keepdim=True), left, weights)

    return change


Pick = Callable[[Tensor, int], Tensor]
"""Weights of an attention (B, H, T, S) and which step the first of them is of, from 0 -> the source positions to remove in turn (B, K, T)."""


@dataclass(frozen=True)
class Removed:
    """What the output layer reads at every step with the whole attention, and without one source position and another."""

    positions: Tensor
    """(B, K, T) those that were removed."""
    weights: Tensor
    """(B, H, T, S) the whole attention's."""
    contexts: Tensor | None
    """(B, T, C) what it read, where that is recorded."""
    intact: Tensor
    """(B, T, D)."""
    changed: Tensor
    """(B, K, T, D)."""


def at_once(model: Model, site: str, memory: Memory, tgt_in: Tensor, pick: Pick, count: int, renormalise: bool) -> Removed:
    """Remove source positions in turn at every step, all steps in one pass: for an attention after which no step hears of another.

    Args:
        model: in evaluation mode; site: the attention; memory: from `encode`, B rows.
        tgt_in: (B, T).
        pick: the positions; count: K.
        renormalise: see `without`.
    """
    with capture() as seen:
        intact = model.decode(tgt_in, memory)[0]
    weights = _with_heads(seen[site][0])
    positions = pick(weights, 0)
    rows = tgt_in.repeat_interleave(count, dim=0)
    with capture(without(site, positions.flatten(1), renormalise)):
        hidden = model.decode(rows, memory)[0]
    own = seen.get(site + context_spread.ENDING)
    return Removed(positions, weights, own[0] if own else None, intact, hidden.view(*positions.shape, -1))


def step_by_step(model: Model, site: str, memory: Memory, tgt_in: Tensor, pick: Pick, count: int, renormalise: bool) -> Removed:
    """As `at_once`, for any attention: each step begins with the state that the whole attention left, and nothing removed is remembered.

    A sentence has 1 + K rows, the first with the whole attention: its weights tell, inside the step, what the others do without.
    """
    rows = tgt_in.repeat_interleave(1 + count, dim=0)
    first = torch.arange(len(tgt_in), device=tgt_in.device).repeat_interleave(1 + count) * (1 + count)
    positions: list[Tensor] = []

    def change(name: str, weights: Tensor) -> Tensor:
        if name != site:
            return weights
        if len(positions) == t:
            positions.append(pick(_with_heads(weights)[..., :1, :], t))
        gone = torch.cat([positions[t].new_full((len(tgt_in), 1), NOTHING), positions[t].squeeze(-1)], dim=1)
        return without(site, gone, renormalise)(name, weights)

    state: dict[str, object] | None = {}
    hidden, weights, read = [], [], []
    for t in range(tgt_in.size(1)):  # noqa: B007 — `change` reads it
        with capture(change) as seen:
            step, state = model.decode(rows[:, t : t + 1], memory, state)
        state = select_rows(state, first)
        hidden.append(step.view(len(tgt_in), 1 + count, -1))
        weights.append(_with_heads(seen[site][0])[..., :1, :])
        read += [own[0][:: 1 + count] for own in [seen.get(site + context_spread.ENDING)] if own]
    found = torch.stack(hidden, dim=2)
    return Removed(torch.cat(positions, dim=-1), torch.cat(weights, dim=-2), torch.cat(read, dim=1) if read else None, found[:, 0], found[:, 1:])


def _with_heads(weights: Tensor) -> Tensor:
    """(B, T, S) or (B, H, T, S) -> (B, H, T, S)."""
    return weights if weights.dim() == 4 else weights.unsqueeze(1)


Way = Callable[[Model, str, Memory, Tensor, Pick, int, bool], Removed]
"""`at_once` or `step_by_step`."""


def way(model: Model, site: str, where: torch.device) -> Way | None:
    """How an attention's weights can be taken away, tried on a made-up sentence.

    Returns: `at_once` where all steps are one product and the last one does not feel that those before it read nothing, else `step_by_step`; None
        where the model does not ask `capture` what the weights are to be.
    """
    src, tgt = ([UNK] * (length - 1) + [EOS] for length in PROBE)
    batch = pair_batch([src], [tgt], where)
    assert batch.tgt_in is not None
    asked: list[int] = []

    def nothing_but_last(name: str, weights: Tensor) -> Tensor:
        if name != site:
            return weights
        steps = torch.arange(weights.size(-2), device=where) + sum(asked)
        asked.append(len(steps))
        return weights * (steps == len(tgt) - 1).unsqueeze(-1)

    with torch.inference_mode():
        memory = model.encode(batch)
        with capture():
            plain = model.decode(batch.tgt_in, memory)[0]
        with capture(nothing_but_last):
            changed = model.decode(batch.tgt_in, memory)[0]
    if not asked:
        return None
    return at_once if asked == [len(tgt)] and torch.equal(plain[:, -1], changed[:, -1]) else step_by_step


def strongest(weights: Tensor) -> Tensor:
    """The source position with the largest weight, mean over heads, the first of equals: (B, H, T, S) -> (B, T)."""
    return weights.mean(1).argmax(-1)


def divergences(model: Model, intact: Tensor, changed: Tensor) -> Tensor:
    """Jensen-Shannon divergence, in bits, of the next word's distribution from what it is without something: H((p+q)/2) - (H(p) + H(q)) / 2.

    Args:
        intact: (N, D) what the output layer reads; changed: (N, K, D) the same without.
    Returns: (N, K), 0 to 1, in float64.
    """
    found = []
    rows = max(1, CHUNK // model.vocabularies.tgt)
    for own, others in zip(torch.split(intact, rows), torch.split(changed, rows), strict=True):
        p, of_p = _with_entropy(model, own)
        each = []
        for other in others.unbind(1):
            q, of_q = _with_entropy(model, other)
            middle = q.add_(p).div_(2)
            each.append((-torch.xlogy(middle, middle).sum(-1) - (of_p + of_q) / 2).clamp(min=0))
        found.append(torch.stack(each, dim=1) / math.log(2))
    return torch.cat(found)


def _with_entropy(model: Model, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The next word's distribution (N, V), and its entropy (N), in float64."""
    logs = torch.log_softmax(model.logits(hidden).double(), dim=-1)
    p = logs.exp()
    return p, -logs.mul_(p).sum(-1)


def attention_site(model: Model, where: torch.device) -> str | None:
    """The last attention from the target to the source; None if there is none."""
    return next(reversed([site for site, who in recording.sides(model, where).items() if who == recording.CROSS]), None)
