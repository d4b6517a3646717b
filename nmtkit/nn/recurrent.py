"""A recurrent cell's run over padded sentences, in both directions; and CARU as a layer to use by itself.

Legend: B sentences, S source length, E width of inputs, H of states, N directions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from nmtkit.nn import cpu
from nmtkit.nn.cells import CARUCell, Cell, FirstStep, loop
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.repeated import eager


class Recurrent(nn.Module):
    """A cell that reads sentences forwards, or one that does and one that reads them backwards.

    Args:
        cell: makes a cell from E and H: its class, or one with more of its arguments given.
        d_in: E.
        d_hidden: H.
        bidirectional: N = 2 instead of 1.
    """

    def __init__(self, cell: Callable[[int, int], Cell], d_in: int, d_hidden: int, bidirectional: bool) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        self.forwards = cell(d_in, d_hidden)
        self.backwards = cell(d_in, d_hidden) if bidirectional else None

    @eager
    def forward(self, v: Tensor, lengths: Tensor, padded: bool = True, initial: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Read sentences; padding leaves a state as it is, and no work is done on it (where products are compiled, for a few rows).

        Args:
            v: inputs (B, S, E).
            lengths: (B), the real ones.
            padded: False where no sentence is padded.
            initial: the states before (N, B, state_blocks·H); None = no history.
        Returns: states (B, S, N·H), at each position those of the directions side by side, in the products' number type (they go into
            further products); the last state of each direction (N, B, state_blocks·H).
        """
        batch, steps, _ = v.shape
        words = _Words(lengths, steps, cpu.row_multiple(v.device)) if padded else None
        going = [batch] * steps if words is None else words.going
        cells, x = [self.forwards], [self.forwards.inputs(_rows(v, None if words is None else words.forwards))]
        if self.backwards is not None:
            cells.append(self.backwards)
            x.append(self.backwards.inputs(_rows(v.flip(1)) if words is None else _rows(v, words.backwards)))
        low, dtype = x[0].dtype, next(self.parameters()).dtype
        shape = (len(cells), batch) if len(cells) > 1 else (batch,)
        with torch.autocast(v.device.type, enabled=False):
            step = loop(cells, going, low)
            h = v.new_zeros(*shape, cells[0].state_blocks * self.d_hidden, dtype=dtype)
            if initial is not None:
                h = initial.to(dtype).view(h.shape)
                h = h if words is None else h.index_select(-2, words.order)
            states = [h]
            for t, x_t in enumerate((torch.stack(x) if len(x) > 1 else x[0]).to(dtype).split(going, dim=-2)):
                h = h if going[t] == h.size(-2) else h[..., : going[t], :]
                h = step(x_t, h) if t or initial is not None else cells[0].first(x_t, step)
                states.append(h)
            found = torch.cat(states, dim=-2).view(len(cells), -1, h.size(-1))
            last = h.view(len(cells), batch, -1) if words is None else found.index_select(1, words.last())
            found = found[..., : self.d_hidden].to(low)
        if words is None:  # what stands before the first word is no word's
            sides = [side[batch:].view(steps, batch, -1) for side in found]
            sides = [side.flip(0) if backwards else side for backwards, side in enumerate(sides)]
            sides = [side.transpose(0, 1) for side in sides]
        else:
            sides = [F.embedding(places, side) for places, side in zip(words.states(), found, strict=False)]
        return torch.cat(sides, dim=-1), last


class _Words:
    """The words of padded sentences without the padding: at each step those of the sentences that go on, the longest first.

    Args:
        lengths: (B).
        steps: S.
        rows: steps have a multiple of so many, the last of them of sentences that have ended; no state of theirs is read again.

    Rows are gathered by `F.embedding`, whose gradient on a CPU does not go row by row.
    """

    def __init__(self, lengths: Tensor, steps: int, rows: int) -> None:
        self._lengths = lengths
        order = lengths.argsort(descending=True, stable=True)
        self.order = order
        self.rank = order.argsort()
        self._t = torch.arange(steps, device=lengths.device)
        counts = (self._t.unsqueeze(1) < lengths).sum(1).tolist()  # a GPU is waited for here, once a batch
        self.going: list[int] = [min(len(order), math.ceil(count / rows) * rows) for count in counts if count]
        """How many rows each step has."""
        starts = [0, *itertools.accumulate(self.going, initial=len(order))][: len(self.going) + 1]
        self._start = torch.tensor(starts, device=lengths.device)
        row = torch.arange(len(order), device=lengths.device)
        taken = row < torch.tensor(self.going, device=lengths.device).unsqueeze(1)  # (S, B)
        first, end = order * steps, (lengths[order] - 1).clamp(min=0)  # of each sentence, among all (B·S) positions; its last word
        t = self._t[: len(self.going)].unsqueeze(1)
        self.forwards = (first + torch.minimum(t, end))[taken]
        """The positions (W) of all rows, step by step; behind a sentence that of its last word."""
        self.backwards = (first + (end - t).clamp(min=0))[taken]
        """The same where the last word comes first."""

    def last(self) -> Tensor:
        """Where the state after each sentence's last word is (B), among those before the first step (B) and after each (W)."""
        return self._start[self._lengths] + self.rank

    def states(self) -> tuple[Tensor, Tensor]:
        """Where the state of each position (B, S) is, forwards and backwards; behind a sentence that is its last one."""
        t, lengths = self._t, self._lengths.unsqueeze(1)
        read = torch.minimum(t + 1, lengths), torch.where(t < lengths, lengths - t, lengths)  # words up to there
        rank = self.rank.unsqueeze(1)
        return self._start[read[0]] + rank, self._start[read[1]] + rank


def _rows(v: Tensor, words: Tensor | None = None) -> Tensor:
    """The vectors (W, E) of words of v (B, S, E); None = of all, step by step."""
    return v.transpose(0, 1).flatten(0, 1) if words is None else F.embedding(words, v.flatten(0, 1))


class CARU(nn.Module):
    """Layers of content-adaptive recurrent units, called as torch's `nn.GRU` is.

    Args:
        input_size: E.
        hidden_size: H.
        num_layers: each but the first reads the states of the one below.
        batch_first: sentences come first in inputs and outputs, (B, S, …) instead of (S, B, …).
        dropout: on the states that go up to a further layer.
        bidirectional: N = 2 instead of 1.
        first_step: see `CARUCell`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        first_step: FirstStep = "tanh",
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.bidirectional, self.directions = batch_first, bidirectional, 1 + bidirectional

        def cell(d_in: int, d_hidden: int) -> Cell:
            return CARUCell(d_in, d_hidden, first_step)

        widths = [input_size, *[self.directions * hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(Recurrent(cell, width, hidden_size, bidirectional) for width in widths)
        self.dropout = Dropout(dropout)

    def forward(self, input: Tensor | PackedSequence, hx: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor | PackedSequence, Tensor]:
        """Read sequences; padding leaves a state as it is.

        Args:
            input: (S, B, E), (B, S, E) if batch_first, (S, E) for a single sequence, or packed.
            hx: the states before (num_layers·N, B, H), without B for a single sequence; None = no history.
            mask: bool, True = real, of the input's shape without E; the real positions come first. None = all (or as they are packed).
        Returns: states of the last layer, (…, N·H) of the input's kind, the last state repeated where a sequence is padded; the last states
            of every layer and direction (num_layers·N, B, H).
        Raises: ValueError for a mask with holes, or beside a packed input.
        """
        if isinstance(input, PackedSequence):
            if mask is not None:
                raise ValueError("a packed input says itself which positions are real")
            v, lengths = pad_packed_sequence(input, batch_first=True)  # in the order of the sequences before they were packed
            states, last = self._read(v, lengths.to(v.device), hx)
            return pack_padded_sequence(states, lengths, batch_first=True, enforce_sorted=input.unsorted_indices is None), last
        if input.dim() == 2:
            rows = None if mask is None else mask.unsqueeze(0)
            states, last = self._masked(input.unsqueeze(0), None if hx is None else hx.unsqueeze(1), rows)
            return states.squeeze(0), last.squeeze(1)
        if self.batch_first:
            return self._masked(input, hx, mask)
        states, last = self._masked(input.transpose(0, 1), hx, None if mask is None else mask.t())
        return states.transpose(0, 1), last

    def _masked(self, v: Tensor, hx: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is None:
            return self._read(v, v.new_full((v.size(0),), v.size(1), dtype=torch.long), hx, padded=False)
        lengths = mask.sum(1)
        if not torch.equal(mask, torch.arange(mask.size(1), device=mask.device) < lengths.unsqueeze(1)):
            raise ValueError("the mask has holes: real positions must come before padding")
        return self._read(v, lengths, hx)

    def _read(self, v: Tensor, lengths: Tensor, hx: Tensor | None, padded: bool = True) -> tuple[Tensor, Tensor]:
        """v (B, S, E), lengths (B), hx (num_layers·N, B, H) or None -> (B, S, N·H), (num_layers·N, B, H)."""
        before = [None] * self.num_layers if hx is None else hx.split(self.directions)
        ends = []
        for index, layer in enumerate(self.layers):
            v, last = layer(self.dropout(v) if index else v, lengths, padded, before[index])
            ends.append(last)
        return v, torch.cat(ends)
