"""The packed form of a batch: the sentences of each side are one row, one after another.

Sentences of <pad> fill a row up to a multiple of positions; none of them is longer than the longest
sentence. So every position belongs to a sentence, and attention within sentences needs no mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.arrays import Array, Integers
from nmtkit.data.padding import Ids, next_size
from nmtkit.text.vocabulary import BOS, PAD

LEAST_ROWS, LEAST_LENGTH = 64, 32
"""With `few_shapes`, R and L are multiples of at least these numbers."""


class Packing(NamedTuple):
    """Where R sentences lie in a row of N positions, and in the padded form (R, L).

    Attributes:
        offsets: (R+1) int32, where each sentence begins, then N.
        cells: (N), each position as an index into R·L.
        positions: (R, L), the position of each cell; 0 where the padded form has padding.
        visible: bool (R, 1, L), False for padding; a sentence has one True at least.
    """

    offsets: Tensor
    cells: Tensor
    positions: Tensor
    visible: Tensor

    @property
    def steps(self) -> Tensor:
        """The index of each position in its sentence, (N)."""
        return self.cells % self.positions.size(1)

    @property
    def lengths(self) -> Tensor:
        """The length of each sentence, at least 1, (R)."""
        return self.visible.sum((1, 2))

    def padded(self, x: Tensor) -> Tensor:
        """Return vectors in the padded form, (1, N, …) -> (R, L, …). The vectors of padding are
        arbitrary; their gradients are not used.
        """
        return at_positions(x.squeeze(0), self.positions, self.cells)

    def packed(self, x: Tensor) -> Tensor:
        """Return vectors in the row, (R, L, …) -> (1, N, …)."""
        row: Tensor = _Packed.apply(x.flatten(0, 1), self.cells)  # type: ignore[no-untyped-call]
        return row.unsqueeze(0)


def one_after_another(first: Packing, second: Packing) -> Packing:
    """Return the packing of two rows, one after the other."""
    longest = max(first.positions.size(1), second.positions.size(1))
    before, rows = len(first.cells), len(first.positions)
    cells = [x.cells // x.positions.size(1) * longest + x.steps for x in (first, second)]

    def joined(*padded: Tensor) -> Tensor:
        return torch.cat([F.pad(x, (0, longest - x.size(-1))) for x in padded])

    return Packing(
        torch.cat([first.offsets[:-1], second.offsets + before]),
        torch.cat([cells[0], cells[1] + rows * longest]),
        joined(first.positions, second.positions + before),
        joined(first.visible, second.visible),
    )


def at_positions(x: Tensor, positions: Tensor, cells: Tensor) -> Tensor:
    """Return vectors at some positions, (N, …) -> (R, L, …).

    Args:
        positions: (R, L).
        cells: (N), an index into R·L for each vector: the one cell whose gradient the vector gets.
    """
    result: Tensor = _Padded.apply(x, positions.flatten(), cells)  # type: ignore[no-untyped-call]
    return result.view(*positions.shape, *x.shape[1:])


class _Padded(torch.autograd.Function):
    """Vectors (N, …) at some positions, (R·L, …).

    A vector gets the gradient of its cell. torch would add up the gradients of all cells that read
    a vector: those of padding all to one vector, on a GPU one after another and in any order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        return x.index_select(0, positions)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (cells,) = ctx.saved_tensors
        return gradient.index_select(0, cells), None, None


class _Packed(torch.autograd.Function):
    """The vectors of some cells, (R·L, …) -> (N, …)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cells: Tensor) -> Tensor:
        ctx.count = len(x)
        ctx.save_for_backward(cells)
        return x.index_select(0, cells)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (cells,) = ctx.saved_tensors
        whole = gradient.new_zeros(ctx.count, *gradient.shape[1:])
        return whole.index_copy_(0, cells, gradient), None


class Segments(NamedTuple):
    """The packings of R sentences of queries and of keys. A query sees the keys of its sentence."""

    queries: Packing
    keys: Packing


class Copies(NamedTuple):
    """J copies of a packed row, one after another. In each copy a sentence reads another context.

    Attributes:
        segments: the queries are the copies, the keys the contexts.
        has: bool (J, N), False where a position's sentence has no such context.
    """

    segments: Segments
    has: Tensor

    def repeated(self, x: Tensor) -> Tensor:
        """Return the copies of vectors (1, N, …), (1, J·N, …)."""
        return x.expand(len(self.has), *x.shape[1:]).flatten(0, 1).unsqueeze(0)

    def per_position(self, x: Tensor) -> Tensor:
        """Return for each position the vector of its sentence, (R, D) -> (J, N, D)."""
        queries = self.segments.queries
        cells = x.unsqueeze(1).expand(-1, queries.positions.size(1), -1)
        return queries.packed(cells).view(*self.has.shape, -1)


def filled(lengths: Integers, multiple: int) -> int:
    """Return the number of positions of the row that holds sentences of these lengths."""
    return -(-int(lengths.sum()) // multiple) * multiple


def in_one_row(ids: Array, lengths: Ids, multiple: int) -> tuple[Ids, Ids]:
    """Fill a row up with sentences of <pad>.

    Args:
        ids: of all sentences, one after another.
        lengths: (B).
        multiple: N is a multiple of this number.
    Returns: token ids (N), and the lengths of all sentences, sentences of <pad> last.
    """
    missing = filled(lengths, multiple) - len(ids)
    fill = np.diff([*range(0, missing, int(lengths.max())), missing])
    row = np.concatenate([ids, np.full(missing, PAD)], dtype=np.int64)
    return row, np.append(lengths, fill)


def shifted_row(row: Ids, lengths: Ids) -> Ids:
    """Return the decoder input for targets in one row (N): each sentence begins with <s>."""
    out = np.roll(row, 1)
    out[np.cumsum(lengths) - lengths] = BOS
    return out


def segments(src: Ids, tgt: Ids, few_shapes: bool = False) -> Segments:
    """Return the packings of targets (queries) and sources (keys).

    Args:
        src, tgt: lengths of the sentences in the rows; one side may have more sentences of <pad>.
        few_shapes: round up R and L: to multiples of a quarter and of a half of the next power of
            2, or of `LEAST_ROWS` and `LEAST_LENGTH`. The additional sentences are empty.
    Returns: R sentences. The last one is empty on both sides: if a model makes a fixed number of
        keys, the unused keys belong to this sentence.
    """
    rows = max(len(tgt), len(src)) + 1
    rows = next_size(rows, 2, LEAST_ROWS) if few_shapes else rows
    return Segments(*(_packing(of_side, rows, few_shapes) for of_side in (tgt, src)))


def _packing(of_sentences: Ids, rows: int, few_shapes: bool) -> Packing:
    lengths = np.zeros(rows, np.int64)
    lengths[: len(of_sentences)] = of_sentences
    longest = int(lengths.max())
    longest = next_size(longest, 1, LEAST_LENGTH) if few_shapes else longest
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    visible = np.arange(longest) < lengths[:, None]  # (R, L)
    cells = np.flatnonzero(visible)
    positions = np.zeros((rows, longest), np.int64)
    positions.ravel()[cells] = np.arange(len(cells))
    # A sentence of <pad> that one side lacks shows one position: every query sees a key.
    visible[:, 0] = True
    arrays = offsets, cells, positions, visible[:, None]
    return Packing(*map(torch.from_numpy, arrays))
