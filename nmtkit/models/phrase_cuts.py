"""Cuts of sentences into phrases of consecutive tokens: n-grams, or phrases of parse trees.

Legend: B sentences, S source length, c phrases of a sentence, m tokens of a phrase.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.nn.masks import Visible


class Phrases(NamedTuple):
    """A cut of sentences (B, S) into at most c phrases of at most m consecutive tokens."""

    members: Tensor
    """bool (B, c, S): which tokens a phrase has."""
    tokens: Tensor
    """int64 (B, c, m): their positions, 0 where there is no further token."""
    real: Tensor
    """bool (B, c, m): which of `tokens` there are."""
    visible: Visible
    """bool (B, 1, c): phrases that have a token; None = all."""


def longest_phrase(lengths: Tensor) -> Tensor:
    """Return the most tokens of a phrase: a sixth of the sentence, 3 to 8 (Xu et al., §3.1)."""
    return ((lengths + 5) // 6).clamp(3, 8)


def ngrams(lengths: Tensor, columns: int, padded: bool, by_batch: bool = False) -> Phrases:
    """Cut sentences into phrases of equal length, the last one shorter.

    Args:
        lengths: (B), </s> included.
        columns: S.
        padded: whether any row is padded.
        by_batch: cut all by the length S.
    Source: Xu et al. 2020, §3.1.
    """
    size = longest_phrase(torch.full_like(lengths, columns) if by_batch else lengths)[:, None]
    # The largest number of phrases follows from S alone: below 49 tokens it is that of 18 tokens,
    # 6. A phrase too many has no token.
    largest = -(-columns // 3) if columns < 18 else max(6, -(-columns // 8))
    count = -(-columns // _longest(columns)) if by_batch or not padded else largest
    starts = torch.arange(count, device=lengths.device) * size  # (B, c)
    return _phrases(starts, torch.minimum(starts + size, lengths[:, None]), columns, padded)


def cut_by_parse(spans: Tensor, otherwise: Phrases, columns: int) -> Phrases:
    """Return the phrases of a batch that has parses.

    Args:
        spans: (B, c) tokens of each phrase, at most `longest_phrase`; 0 behind the last one. A row
            of zeros has no parse.
        otherwise: the phrases of rows without a parse.
        columns: S.
    """
    ngram_sizes = otherwise.members.sum(-1)  # (B, c')
    missing = ngram_sizes.size(1) - spans.size(1)
    spans = F.pad(spans, (0, max(0, missing)))
    ngram_sizes = F.pad(ngram_sizes, (0, max(0, -missing)))
    sizes = torch.where(spans[:, :1] > 0, spans, ngram_sizes)
    ends = sizes.cumsum(1)
    return _phrases(ends - sizes, ends, columns, padded=True)


def _longest(columns: int) -> int:
    return min(8, max(3, -(-columns // 6)))


def _phrases(starts: Tensor, ends: Tensor, columns: int, padded: bool) -> Phrases:
    """Return phrases from starts and ends (B, c); one that ends where it starts is empty."""
    starts, ends = starts[..., None], ends[..., None]
    positions = torch.arange(columns, device=starts.device)
    tokens = starts + positions[: _longest(columns)]  # (B, c, m)
    real = tokens < ends
    visible = (starts < ends).transpose(1, 2) if padded else None
    members = (positions >= starts) & (positions < ends)
    return Phrases(members, tokens.masked_fill(~real, 0), real, visible)
