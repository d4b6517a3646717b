"""Token embeddings with sinusoidal positions, and the output layer that may share their weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.nn.cache import DeviceCount
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.linear import Packable
from nmtkit.nn.masks import Sight, packing_of


class Embedding(nn.Module):
    """A table of V vectors drawn from N(0, D^-0.5), multiplied by √D when read.

    Args:
        vocabulary: V.
        width: D.
    Source: Vaswani et al. 2017, §3.4.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        if not self.weight.is_meta:  # without numbers; torch would import its compiler first
            nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of token ids: (…) -> (…, D)."""
        return F.embedding(ids, self.weight) * self.scale


def sinusoids(length: int, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), in float64.

    Source: Vaswani et al. 2017, §3.5.
    """
    positions = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    rates = 10_000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(positions * rates)
    table[:, 1::2] = torch.cos(positions * rates[: width // 2])
    return table


class Embedder(nn.Module):
    """The inputs of a stack: Dropout(√D · E[id] + position), with an optional layer norm.

    The table of sinusoids grows on demand. It is no parameter, and no checkpoint has it.

    Args:
        table: the embedding, which several embedders may share.
        width: D.
        dropout: probability of dropping an element of the sum.
        norm: layer norm on the sum.
    """

    def __init__(self, table: Embedding, width: int, dropout: float, norm: bool = False) -> None:
        super().__init__()
        self.table, self.width = table, width
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.dropout = Dropout(dropout)
        # The last table is used. Recorded CUDA graphs still read the earlier ones.
        self._sinusoids = [torch.empty(0)]

    def forward(self, ids: Tensor, start: int | DeviceCount = 0, visible: Sight = None) -> Tensor:
        """Return the inputs of a stack: ids (B, T) at positions start, start+1, … -> (B, T, D).

        In a packed batch, `visible` says where sentences begin.
        """
        vectors, packing = F.embedding(ids, self.table.weight), packing_of(visible)
        longest = (ids if packing is None else packing.positions).size(1)
        positions = self.positions(start, longest, vectors)
        if packing is not None:
            positions = positions.index_select(0, packing.steps)
        return self.dropout(self.norm(torch.add(positions, vectors, alpha=self.table.scale)))

    def positions(self, start: int | DeviceCount, length: int, like: Tensor) -> Tensor:
        """Return positions start … start+length-1, (length, D), of `like`'s device and type."""
        if isinstance(start, DeviceCount):
            index = start.value + torch.arange(length, device=like.device)
            return self.positions(0, start.below + length - 1, like).index_select(0, index)
        end, table = start + length, self._sinusoids[-1]
        if table.size(0) < end or table.dtype != like.dtype or table.device != like.device:
            # A table made in inference mode could not be used in training later.
            with torch.inference_mode(False):
                size = max(256, 1 << (end - 1).bit_length())
                table = sinusoids(size, self.width).to(like)
                self._sinusoids.append(table)
        return table[start:end]


class OutputLayer(Packable):
    """Scores over the vocabulary: hidden · Wᵀ (+ b), W its own or an embedding's.

    Args:
        vocabulary: V.
        width: D.
        tied: the embedding whose weights are used, None for weights of its own.
        bias: whether there is a bias.
    Source: Press & Wolf 2017 for the tying.
    """

    def __init__(self, vocabulary: int, width: int, tied: Embedding | None, bias: bool) -> None:
        super().__init__()
        if tied is None:
            self.weight = nn.Parameter(torch.empty(vocabulary, width))
            nn.init.xavier_uniform_(self.weight)
        else:
            self.weight = tied.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, V)."""
        return self.affine(hidden, self.weight, self.bias)
