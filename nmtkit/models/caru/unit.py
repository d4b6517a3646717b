"""The content-adaptive recurrent unit: the cell, and a layer for use in any model.

Legend: B sentences, S source length, R rows, E width of inputs, H of states, N directions.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor, nn, tanh
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from nmtkit.nn import gpu
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import Product
from nmtkit.nn.masks import real_positions
from nmtkit.nn.recurrent import Cell, Recurrent, Step

FirstStep = Literal["tanh", "linear"]


class CARUCell(Cell):
    """h' = (1-l) ⊙ h + l ⊙ n, n = tanh(W_n h + B_n + x), l = σ(x) ⊙ z, x = W v + B.

    z = σ(W_zh h + W_zv v + B_z).

    Args:
        input_size: E.
        hidden_size: H. Both names are those of torch's `nn.GRUCell`.
        first_step: the state after the first input: tanh x (the authors' code), or x.
    Source: Chan, Ke & Im 2020, *CARU: a content-adaptive recurrent unit for the transition of
        hidden state in NLP*, Eq. 4; the gate z has two biases, as in the authors' code.
    """

    blocks = 2  # W, W_zv
    state: Linear
    state_side = {"state": 2}  # W_n and W_zh
    biased = ("input", "state")

    def __init__(self, input_size: int, hidden_size: int, first_step: FirstStep = "tanh") -> None:
        super().__init__(input_size, hidden_size)
        self.first_step = first_step

    def open_gates(self, content: float, update: float) -> None:
        """Raise the gate l and keep the candidate n.

        Args:
            content: added to B, and subtracted from B_n.
            update: added to B_z.
        """
        with torch.no_grad():
            self.input.bias[: self.d_hidden] += content
            self.state.bias[: self.d_hidden] -= content
            self.state.bias[self.d_hidden :] += update

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        if (fused := gpu.recurrent_step("adaptive", x, h, *products)) is not None:
            return fused
        return torch.lerp(h, *CARUCell.parts(x, h, *products))

    @staticmethod
    def parts(x: Tensor, h: Tensor, state: Product) -> tuple[Tensor, Tensor]:
        """Return n and l, both (…, R, H); the arguments are those of `step`."""
        x, of_z = x.chunk(2, dim=-1)
        n, z = state(h).chunk(2, dim=-1)
        return tanh(x + n), torch.sigmoid(x) * torch.sigmoid(of_z + z)

    def first(self, x: Tensor, step: Step) -> Tensor:
        """See `Cell.first`; it reads only the first half, x = W v + B: (…, R, 2H) -> (…, R, H)."""
        x = x[..., : self.d_hidden]
        return tanh(x) if self.first_step == "tanh" else x


class CARU(nn.Module):
    """Layers of content-adaptive recurrent units, called like torch's `nn.GRU`.

    Args:
        input_size: E.
        hidden_size: H.
        num_layers: each layer except the first reads the states of the layer below.
        batch_first: sentences come first in inputs and outputs, (B, S, …) instead of (S, B, …).
        dropout: on the states that another layer reads.
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
        self.batch_first, self.directions = batch_first, 1 + bidirectional
        cell = functools.partial(CARUCell, first_step=first_step)
        widths = [input_size, *[self.directions * hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            [Recurrent(cell, width, hidden_size, bidirectional) for width in widths]
        )
        self.dropout = Dropout(dropout)

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Read sequences; padding does not change a state.

        Args:
            input: (S, B, E), (B, S, E) if batch_first, (S, E) for a single sequence, or packed.
            hx: initial states (num_layers·N, B, H), without B for a single sequence; None = no
                history.
            mask: bool, True = real, of the input's shape without E; the real positions come first.
                None = all positions are real (of a packed input, those packed).
        Returns: the states (…, N·H) of the last layer, packed if the input is, with the last state
            repeated at padded positions; and the last states of every layer and direction
            (num_layers·N, B, H).
        Raises: ValueError for a mask with holes, or beside a packed input.
        """
        if isinstance(input, PackedSequence):
            if mask is not None:
                raise ValueError("a packed input already defines which positions are real")
            v, lengths = pad_packed_sequence(input, batch_first=True)
            states, last = self._read(v, lengths.to(v.device), hx)
            in_order = input.unsorted_indices is None
            return pack_padded_sequence(states, lengths, True, enforce_sorted=in_order), last
        if input.dim() == 2:  # a single sequence
            batch = 0 if self.batch_first else 1
            mask = None if mask is None else mask.unsqueeze(batch)
            hx = None if hx is None else hx.unsqueeze(1)
            states, last = self(input.unsqueeze(batch), hx, mask)
            return states.squeeze(batch), last.squeeze(1)
        turn = (lambda x: x) if self.batch_first else (lambda x: x.transpose(0, 1))
        v = turn(input)
        real = v.new_ones(v.shape[:2], dtype=torch.bool) if mask is None else turn(mask)
        lengths = real.sum(1)
        if not torch.equal(real, real_positions(lengths, real.size(1))):
            raise ValueError("the mask has holes: real positions must come before padding")
        states, last = self._read(v, lengths, hx)
        return turn(states), last

    def _read(self, v: Tensor, lengths: Tensor, hx: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read with all layers.

        Args:
            v: (B, S, E), of which `lengths` (B) are real.
            hx: (num_layers·N, B, H); None = no history.
        Returns: as `forward`, sentences first.
        """
        ends = []
        for index, layer in enumerate(self.layers):
            before = None if hx is None else hx.split(self.directions)[index]
            v, last = layer(self.dropout(v) if index else v, lengths, initial=before)
            ends.append(last)
        return v, torch.cat(ends)
