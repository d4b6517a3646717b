"""Sentences of different lengths as one padded array, and arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.text.vocabulary import BOS, PAD

Ids = NDArray[np.int64]

SAVED = 256
"""Rows are cut into parts of like length where each cut saves so many positions on a CPU."""


def padded(sentences: list[NDArray[Any]], behind: int = PAD) -> tuple[Ids, Ids]:
    """(B, longest) numbers with <pad> behind, and (B) lengths; filled in one assignment, not a
    sentence at a time.
    """
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    out = np.full((len(sentences), int(lengths.max())), behind, dtype=np.int64)
    out[np.arange(out.shape[1]) < lengths[:, None]] = np.concatenate(sentences)
    return out, lengths


def like_length(lengths: Ids, least: int = SAVED) -> list[int]:
    """Where parts of rows of falling lengths begin: the cut that saves most padding, and so on
    in both parts, while it saves `least` positions.
    """
    found, uncut = [0], [(0, len(lengths))]
    while uncut:
        start, end = uncut.pop()
        saved = (end - np.arange(start, end)) * (lengths[start] - lengths[start:end])
        cut = start + int(saved.argmax())
        if saved[cut - start] >= least:
            found.append(cut)
            uncut += [(start, cut), (cut, end)]
    return sorted(found)


def shifted(targets: Ids, lengths: Ids) -> Ids:
    """What a decoder reads to say padded targets (B, T) of some lengths (B): <s> and all but the
    last token of each.
    """
    out = np.empty_like(targets)
    out[:, 0] = BOS
    out[:, 1:] = targets[:, :-1]
    # The last token of a row that is not the longest (its </s>) would stand where padding belongs.
    out[np.arange(out.shape[1]) >= lengths[:, None]] = PAD
    return out


def tensor(array: NDArray[Any], device: torch.device | str) -> Tensor:
    """The array on a device; a GPU copies it while the program goes on."""
    found = torch.from_numpy(array)
    return found if str(device) == "cpu" else found.pin_memory().to(device, non_blocking=True)
