"""Batches: which sentence pairs go together, and their padded tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Padded token ids of B sentence pairs (or of B sources alone).

    src (B, S) ends each row in </s>; src_lengths (B) counts it. tgt_in (B, T) starts with <s>, tgt_out (B, T) ends in </s>.
    rows (B) are the line numbers in the set. `src_padded` / `tgt_padded` say whether any row holds padding, known without a device sync.
    """

    src: Tensor
    src_lengths: Tensor
    rows: Tensor
    tgt_in: Tensor | None = None
    tgt_out: Tensor | None = None
    tgt_lengths: Tensor | None = None
    src_padded: bool = True
    tgt_padded: bool = True
