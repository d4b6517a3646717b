"""What becomes of the distribution of the next word when its attention to one source position is taken away.

Legend: B sentences, T target length, S source length, K positions that are removed in turn, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nmtkit.analyze import looking
from nmtkit.analyze.divergence import jensen_shannon
from nmtkit.data.vocabulary import EOS, UNK
from nmtkit.models.base import Memory, Model
from nmtkit.nn.capture import Change, capture
from nmtkit.nn.state import select_rows
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


def at_once(model: Model, site: str, memory: Memory, tgt_in: Tensor, positions: Tensor, renormalise: bool) -> Tensor:
    """What the output layer reads at every step without one source position, all steps in one pass.

    For an attention after which no step hears of another.

    Args:
        model: in evaluation mode; site: the attention; memory: from `encode`, B rows.
        tgt_in: (B, T).
        positions: (B, K, T) the source position that is removed at each step, NOTHING where all stay.
        renormalise: see `without`.
    Returns: (B, K, T, D).
    """
    rows = tgt_in.repeat_interleave(positions.size(1), dim=0)
    with capture(without(site, positions.flatten(1), renormalise)):
        hidden = model.decode(rows, memory)[0]
    return hidden.view(*positions.shape, -1)


def step_by_step(model: Model, site: str, memory: Memory, tgt_in: Tensor, positions: Tensor, renormalise: bool) -> Tensor:
    """As `at_once`, for any attention: each step begins with the state that the whole attention left, and nothing removed is remembered."""
    intact = positions.new_full((len(positions), 1, positions.size(2)), NOTHING)
    positions = torch.cat([intact, positions], dim=1)
    count = positions.size(1)
    rows = tgt_in.repeat_interleave(count, dim=0)
    first = torch.arange(len(tgt_in), device=tgt_in.device).repeat_interleave(count) * count
    state: dict[str, object] | None = {}
    found = []
    for t in range(tgt_in.size(1)):
        with capture(without(site, positions[:, :, t], renormalise)):
            hidden, state = model.decode(rows[:, t : t + 1], memory, state)
        state = select_rows(state, first)
        found.append(hidden.view(len(tgt_in), count, -1)[:, 1:])
    return torch.stack(found, dim=2)


Way = Callable[[Model, str, Memory, Tensor, Tensor, bool], Tensor]
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
    """Jensen-Shannon divergence, in bits, of the next word's distribution from what it is without something.

    Args:
        intact: (N, D) what the output layer reads; changed: (N, K, D) the same without.
    Returns: (N, K), 0 to 1, in float64.
    """
    found = []
    rows = max(1, CHUNK // model.vocabularies.tgt)
    for own, others in zip(torch.split(intact, rows), torch.split(changed, rows), strict=True):
        p = torch.softmax(model.logits(own).double(), dim=-1)
        each = [jensen_shannon(p, torch.softmax(model.logits(other).double(), dim=-1)) for other in others.unbind(1)]
        found.append(torch.stack(each, dim=1) / math.log(2))
    return torch.cat(found)


def attention_site(model: Model, where: torch.device) -> str | None:
    """The last attention from the target to the source; None if there is none."""
    return next(reversed([site for site, who in looking.sides(model, where).items() if who == looking.CROSS]), None)
