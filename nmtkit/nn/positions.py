"""Sinusoidal positions, made when first needed and extended on demand."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


class Positions(nn.Module):
    """A table of sinusoids that has no parameters and is no part of a checkpoint; there is no longest sentence.

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self._table: Tensor | None = None

    def forward(self, start: int, length: int, like: Tensor) -> Tensor:
        """Positions start … start+length-1 as (length, D), with the device and number type of `like`."""
        end = start + length
        table = self._table
        if table is None or table.size(0) < end or table.dtype != like.dtype or table.device != like.device:
            with torch.inference_mode(False):
                size = max(256, 1 << (end - 1).bit_length())
                self._table = table = sinusoids(size, self.width).to(device=like.device, dtype=like.dtype)
        return table[start:end]
