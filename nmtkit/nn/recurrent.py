"""A recurrent cell's run over padded sentences, in one direction or in both.

Legend: B sentences, S source length, E width of inputs, H of states, N directions, W words of all
sentences.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.nn import cpu
from nmtkit.nn.cells import Cell, loop
from nmtkit.nn.repeated import eager


class Recurrent(nn.Module):
    """A cell that reads sentences forwards, or one that does and one that reads them backwards.

    Args:
        cell: makes a cell from E and H: its class, or one with more of its arguments given.
        d_in: E.
        d_hidden: H.
        bidirectional: N = 2 instead of 1.
    """

    def __init__(
        self, cell: Callable[[int, int], Cell], d_in: int, d_hidden: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        self.forwards = cell(d_in, d_hidden)
        self.backwards = cell(d_in, d_hidden) if bidirectional else None

    @eager
    def forward(
        self, v: Tensor, lengths: Tensor, padded: bool = True, initial: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read sentences; padding leaves a state as it is, and costs no work but to fill up rows.

        Args:
            v: inputs (B, S, E).
            lengths: (B), the real ones.
            padded: False if no sentence is padded.
            initial: the states before (N, B, state_blocks·H); None = no history.
        Returns: states (B, S, N·H), at each position those of the directions side by side, in the
            products' number type (they go into further products); the last state of each direction
            (N, B, state_blocks·H).
        """
        cells = [self.forwards] if self.backwards is None else [self.forwards, self.backwards]
        words = _Words(lengths, v.size(1), cpu.row_multiple(v.device))
        if padded:
            sides = (F.embedding(positions, v.flatten(0, 1)) for positions in words.read)
        else:  # the same rows without a gather
            sides = (side.transpose(0, 1).flatten(0, 1) for side in (v, v.flip(1)))
        x = [cell.inputs(side) for cell, side in zip(cells, sides, strict=False)]  # (W, G·H) each
        low, dtype = x[0].dtype, next(self.parameters()).dtype
        with torch.autocast(v.device.type, enabled=False):
            step, single = loop(cells, words.going, low), len(cells) == 1
            h = v.new_zeros(len(cells), len(v), cells[0].state_blocks * self.d_hidden, dtype=dtype)
            if initial is not None:
                h = initial.to(dtype).index_select(1, words.order)
            states = [h[0] if single else h]
            steps = (x[0] if single else torch.stack(x)).to(dtype).split(words.going, dim=-2)
            for t, x_t in enumerate(steps):
                h, rows = states[-1], x_t.size(-2)
                h = h if rows == h.size(-2) else h[..., :rows, :]
                first = t == 0 and initial is None
                states.append(cells[0].first(x_t, step) if first else step(x_t, h))
            ends = torch.cat(states, dim=-2).view(
                len(cells), -1, h.size(-1)
            )  # (N, B+W, state_blocks·H)
            last = ends.index_select(1, words.last)
            hidden = ends[..., : self.d_hidden].to(low)
        states = [F.embedding(at, side) for at, side in zip(words.after, hidden, strict=False)]
        return torch.cat(states, dim=-1), last


class _Words:
    """The words of padded sentences without the padding: at each step those of longer sentences.

    The longest sentence comes first. Rows are gathered by `F.embedding`, whose gradient on a CPU
    does not go row by row.

    Args:
        lengths: (B).
        steps: S.
        rows: steps have a multiple of so many, the last of them of sentences that have ended; no
            state of theirs is read again.
    """

    def __init__(self, lengths: Tensor, steps: int, rows: int) -> None:
        device, batch = lengths.device, len(lengths)
        t = torch.arange(steps, device=device)
        self.order = order = lengths.argsort(descending=True, stable=True)
        # A GPU is waited for here, once a batch.
        counts = (t.unsqueeze(1) < lengths).sum(1).tolist()
        self.going = [min(batch, math.ceil(n / rows) * rows) for n in counts if n]
        """How many rows each step has."""
        going = torch.tensor(self.going, device=device).unsqueeze(1)
        taken = torch.arange(batch, device=device) < going  # (S, B)
        step, end = t[: len(self.going)].unsqueeze(1), (lengths[order] - 1).clamp(min=0)
        first = order * steps  # of each sentence, among all (B·S) positions
        self.read = (first + step.clamp(max=end))[taken], (first + (end - step).clamp(min=0))[taken]
        """The positions (W) of all rows, step by step, forwards and backwards.

        Behind a sentence stands its last word's.
        """
        rank = order.argsort()
        starts = [0, *itertools.accumulate(self.going, initial=batch)][: len(self.going) + 1]
        start = torch.tensor(starts, device=device)
        self.last = start[lengths] + rank
        """Where the state after each sentence's last word is (B).

        It is counted among those before the first step (B) and after each (W).
        """
        count = lengths.unsqueeze(1)
        read = torch.minimum(t + 1, count), torch.where(t < count, count - t, count)
        self.after = [start[words] + rank.unsqueeze(1) for words in read]
        """Where the state of each position (B, S) is, forwards and backwards.

        Behind a sentence that is its last one.
        """
