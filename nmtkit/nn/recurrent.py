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
from nmtkit.nn.cells import Cell, cell_step
from nmtkit.nn.loops import eager


class Recurrent(nn.Module):
    """A cell that reads sentences forwards, or two that read them forwards and backwards.

    Args:
        cell: makes a cell from E and H: its class, or a partial call of it.
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
        self, v: Tensor, lengths: Tensor, initial: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read sentences; padding leaves a state as it is, and costs almost no work.

        Args:
            v: inputs (B, S, E).
            lengths: (B), the real ones.
            initial: the states before (N, B, state_blocks·H); None = no history.
        Returns: states (B, S, N·H), at each position those of the directions side by side, in the
            products' number type (they go into further products); the last state of each direction
            (N, B, state_blocks·H).
        """
        cells = [self.forwards] if self.backwards is None else [self.forwards, self.backwards]
        count, single = len(cells), len(cells) == 1
        schedule = _Schedule(lengths, v.size(1), cpu.row_multiple(v.device))
        # `F.embedding` gathers rows: on a CPU its gradient does not go row by row.
        words = (F.embedding(positions, v.flatten(0, 1)) for positions in schedule.read[:count])
        x = [cell.inputs(rows) for cell, rows in zip(cells, words, strict=True)]  # (W, G·H) each
        low, dtype = x[0].dtype, next(self.parameters()).dtype
        with torch.autocast(v.device.type, enabled=False):
            step = cell_step(cells, schedule.rows, low)
            h = v.new_zeros(count, len(v), cells[0].state_blocks * self.d_hidden, dtype=dtype)
            if initial is not None:
                h = initial.to(dtype).index_select(1, schedule.order)
            states = [h[0] if single else h]
            steps = (x[0] if single else torch.stack(x)).to(dtype).split(schedule.rows, dim=-2)
            for t, x_t in enumerate(steps):
                h, rows = states[-1], x_t.size(-2)
                h = h if rows == h.size(-2) else h[..., :rows, :]
                first = t == 0 and initial is None
                states.append(cells[0].first(x_t, step) if first else step(x_t, h))
            ends = torch.cat(states, dim=-2).view(count, -1, h.size(-1))  # (N, B+W, state_blocks·H)
            last = ends.index_select(1, schedule.last)
            hidden = ends[..., : self.d_hidden].to(low)
        after = schedule.after[:count]
        return torch.cat([F.embedding(*pair) for pair in zip(after, hidden, strict=True)], -1), last


class _Schedule:
    """Which sentences take part in which step: those that have not ended, the longest first.

    Args:
        lengths: (B).
        steps: S.
        multiple: each step has a multiple of so many rows. The last ones are of sentences that have
            ended; their states are not read again.
    """

    def __init__(self, lengths: Tensor, steps: int, multiple: int) -> None:
        device, batch, length = lengths.device, len(lengths), lengths.unsqueeze(1)
        self.order = lengths.argsort(descending=True, stable=True)
        t = torch.arange(steps, device=device)
        # A GPU is waited for here, once a batch.
        counts = (t.unsqueeze(1) < lengths).sum(1).tolist()
        self.rows = [min(batch, math.ceil(n / multiple) * multiple) for n in counts if n]
        """How many rows each step has (T)."""
        # The position that each direction reads at step t (2, B, S).
        backwards = torch.where(t < length, length - 1 - t, t)
        position = torch.stack([t.expand_as(backwards), backwards])
        taken = torch.arange(batch, device=device) < torch.tensor(self.rows, device=device)[:, None]
        of_batch = position + steps * torch.arange(batch, device=device)[:, None]
        self.read = of_batch[:, self.order, : len(self.rows)].mT[:, taken]
        """The positions (2, W) of all rows, step by step, among all (B·S) positions."""
        rank = self.order.argsort()
        starts = [0, *itertools.accumulate(self.rows, initial=batch)][: len(self.rows) + 1]
        start = torch.tensor(starts, device=device)
        self.last = start[lengths] + rank
        """Where the state after each sentence's last word is (B).

        It is counted among the states before the first step (B) and after each step (W).
        """
        self.after = start[torch.minimum(position + 1, length)] + rank[:, None]
        """Where the state of each position is (2, B, S); behind a sentence, its last state."""
