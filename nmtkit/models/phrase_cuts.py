"""Cut sentences into phrases of consecutive tokens: n-grams, or phrases of parse trees.

A cut is the number of tokens of each phrase of each sentence, (B, c), with zeros after the last
phrase.

Legend: B sentences, S source length, c phrases of a sentence; N tokens of a batch, P phrases of a
batch, m tokens of a phrase.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.data.packing import Packing, Segments, at_positions
from nmtkit.nn.masks import Sight, additive


class Phrases(NamedTuple):
    """P phrases of at most m consecutive tokens of a batch.

    The rows of the batch stand one after another: N = B·S tokens, or the N tokens of a packed row.
    Unused phrases, which round up P, have no tokens and are never attended to.
    """

    cells: Tensor
    """int64 (N), the place of each token, an index into P·m; padding has a place without token."""
    owners: Tensor
    """int64 (N), the phrase of each token; any phrase for padding."""
    tokens: Tensor
    """int64 (P, m), the tokens of each phrase; the last one is repeated up to m."""
    real: Tensor
    """(P, 1, m), True or 1 for a token of the phrase, False or 0 for a repeated one."""
    visible: Sight
    """Which phrases a source position may attend to, bool (B, 1, c); None = all."""
    mask: Any = None
    """From `of_type`, (P, 1, m), numbers to add to scores: low where `real` is 0."""

    def of_type(self, dtype: torch.dtype) -> Phrases:
        """Return the phrases with `real` and `mask` in the number type of token states."""
        mask = additive(self.real, dtype) / 2  # a sum with a score is finite, also of float16
        return self._replace(real=self.real.to(dtype), mask=mask)

    @property
    def shares(self) -> Tensor:
        """Return 1 / the number of tokens of a phrase, 0 where `real` is 0, (P, 1, m)."""
        return self.real / self.real.sum(-1, keepdim=True).clamp(min=1)

    def gathered(self, x: Tensor) -> Tensor:
        """Return the vectors of the tokens of each phrase, (N, D) -> (P, m, D)."""
        return at_positions(x, self.tokens, self.cells)

    def per_token(self, x: Tensor) -> Tensor:
        """Return for each token the vector of its phrase, (P, D) -> (N, D). Call `of_type` first:
        the gradient multiplies by `real`.
        """
        return _PerToken.apply(x, self.owners, self.tokens, self.real)  # type: ignore[no-untyped-call]


class _PerToken(torch.autograd.Function):
    """`Phrases.per_token`, whose gradient is summed in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, owners: Tensor, tokens: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, real)
        return x.index_select(0, owners)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        tokens, real = ctx.saved_tensors
        of_phrases = gradient.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
        return torch.bmm(real, of_phrases).squeeze(1), None, None, None


def longest_phrase(lengths: Tensor) -> Tensor:
    """Return the most tokens of a phrase: a sixth of the sentence, 3 to 8 (Xu et al., §3.1)."""
    return ((lengths + 5) // 6).clamp(3, 8)


def ngrams(lengths: Tensor, columns: int, padded: bool, by_batch: bool = False) -> Tensor:
    """Cut sentences into phrases of equal length, the last one shorter: (B, c).

    Args:
        lengths: (B), </s> included.
        columns: S.
        padded: whether any row is padded.
        by_batch: cut all by the length S.
    Source: Xu et al. 2020, §3.1.
    """
    size = longest_phrase(torch.full_like(lengths, columns) if by_batch else lengths)[:, None]
    # The largest number of phrases follows from S alone: up to 48 tokens a sentence has at most 6,
    # as one of 18 tokens has. A phrase too many has no token.
    largest = -(-columns // 3) if columns < 18 else max(6, -(-columns // 8))
    count = largest if padded else -(-columns // _longest(columns))
    starts = torch.arange(count, device=lengths.device) * size  # (B, c)
    return torch.minimum((lengths[:, None] - starts).clamp(min=0), size)


def parsed(spans: Tensor, otherwise: Tensor) -> Tensor:
    """Return the cut of a batch that has parses, (B, c).

    Args:
        spans: (B, c') tokens of each phrase, at most `longest_phrase`; 0 after the last one. A row
            of zeros has no parse.
        otherwise: (B, c''), the cut of rows without a parse.
    """
    missing = otherwise.size(1) - spans.size(1)
    spans = F.pad(spans, (0, max(0, missing)))
    return torch.where(spans[:, :1] > 0, spans, F.pad(otherwise, (0, max(0, -missing))))


def in_rows(sizes: Tensor, columns: int, padded: bool) -> Phrases:
    """Return the phrases of a cut (B, c) of rows of S tokens, P = B·c.

    Args:
        sizes, padded: as of `ngrams`.
        columns: S.
    """
    count = len(sizes) * columns
    starts = torch.arange(0, count, columns, device=sizes.device)[:, None] + sizes.cumsum(1) - sizes
    phrases = _phrases(starts.flatten(), sizes.flatten(), count, _longest(columns))
    if not padded:
        return phrases
    cells, real = phrases.cells, phrases.real
    cells = torch.where(cells < 0, (~real).flatten().int().argmax(), cells)
    owners = cells // real.size(-1)
    return phrases._replace(cells=cells, owners=owners, visible=(sizes > 0).unsqueeze(1))


def in_packed(sizes: Tensor, packing: Packing, most: int) -> Phrases:
    """Return the phrases of a cut (B, c) of packed sentences, P = most.

    Args:
        packing: where the sentences lie; the last sentence is empty.
        most: no less than the number of phrases.
    """
    starts = packing.offsets[:-1, None] + sizes.cumsum(1) - sizes
    exists = sizes > 0
    positions = exists.flatten().cumsum(0) - 1
    grid = torch.arange(exists.numel(), device=sizes.device)
    # Unused phrases belong to the last sentence, which is empty.
    cells = grid.new_full((most + 1,), exists.numel() - 1)
    cells = cells.scatter_(0, torch.where(exists.flatten(), positions, most), grid)[:most]
    ends = torch.arange(0, exists.numel() + 1, exists.size(1), device=sizes.device)
    offsets = torch.searchsorted(cells, ends, out_int32=True)
    where = Packing(offsets, cells, positions.view_as(exists), exists.unsqueeze(1))
    starts, sizes = starts.flatten()[cells], sizes.flatten()[cells]
    longest = _longest(packing.positions.size(1))
    phrases = _phrases(starts, sizes, len(packing.cells), longest)
    return phrases._replace(visible=Segments(packing, where))


def _longest(columns: int) -> int:
    return min(8, max(3, -(-columns // 6)))


def _phrases(starts: Tensor, sizes: Tensor, count: int, longest: int) -> Phrases:
    """Return phrases of N tokens; the cell of a token in no phrase is -1.

    Args:
        starts, sizes: the first token and the number of tokens of each phrase (P).
        count: N.
        longest: m.
    """
    steps = torch.arange(longest, device=starts.device)
    starts, sizes = starts[:, None], sizes[:, None]
    real = steps < sizes  # (P, m)
    tokens = starts + torch.minimum(steps, sizes - 1)
    cells = tokens.new_full((count + 1,), -1)
    places = torch.arange(tokens.numel(), device=starts.device)
    cells = cells.scatter_(0, torch.where(real, tokens, count).flatten(), places)[:-1]
    return Phrases(cells, cells // longest, tokens, real.unsqueeze(1), None)
