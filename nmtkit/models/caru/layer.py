"""CARU as a layer to use by itself, in any model.

Legend: B sentences, S source length, E width of inputs, H of states, N directions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from nmtkit.models.caru.cell import CARUCell, FirstStep
from nmtkit.nn.cells import Cell
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.recurrent import Recurrent


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
