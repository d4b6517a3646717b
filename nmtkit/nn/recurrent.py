"""Gated recurrent cells, and a layer that reads padded sentences in one direction or in both.

Products of the inputs are computed for all steps together, before the loop over time. The loop only
computes products of the state and element-wise work.

Legend: B sentences, S source length, R rows, E width of inputs, H of states, G blocks of a cell's
input side, N directions, or cells side by side, W words of all sentences.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn, tanh
from torch.nn import functional as F

from nmtkit.nn import cpu, gpu
from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import Product, eager, loop_product

Step = Callable[[Tensor, Tensor], Tensor]


class Cell(nn.Module, abc.ABC):
    """A gated recurrent cell, called as torch's `nn.GRUCell` is.

    A subclass lists its products and defines `step`.

    Args:
        d_in: E.
        d_hidden: H.
    """

    input: Linear
    """The input-side product; another input of the cell adds its product to this one."""
    blocks: ClassVar[int]
    """G: how many blocks of H numbers the input-side product has."""
    state_side: ClassVar[dict[str, int]]
    """The products with the state: their names, and how many blocks of H numbers each has."""
    biased: ClassVar[tuple[str, ...]] = ("input",)
    """Which products have a bias."""
    state_blocks: ClassVar[int] = 1
    """How many blocks of H numbers the state has; the first is what a model sees of it."""

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        for name, blocks in {"input": self.blocks, **self.state_side}.items():
            width = d_in if name == "input" else d_hidden
            setattr(self, name, Linear(width, blocks * d_hidden, name in self.biased, blocks))

    def input_bias(self) -> Tensor | None:
        """Return what is added to the input-side product (G·H)."""
        return self.input.bias

    def inputs(self, v: Tensor) -> Tensor:
        """Return the input-side products of any number of steps: (…, E) -> (…, G·H)."""
        return self.input.affine(v, self.input.weight, self.input_bias())

    @staticmethod
    @abc.abstractmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        """Return the next state.

        Args:
            x: input-side products of this step (…, R, G·H).
            h: the state (…, R, state_blocks·H).
            products: the state side made ready for a loop.
        """

    def first(self, x: Tensor, step: Step) -> Tensor:
        """Return the state after the first input, by default a step from zeros.

        Args:
            x: (…, R, G·H).
            step: of the loop.
        Returns: (…, R, state_blocks·H).
        """
        return step(x, x.new_zeros(*x.shape[:-1], self.state_blocks * self.d_hidden))

    def forward(self, v: Tensor, h: Tensor | None = None) -> Tensor:
        """One step.

        Args:
            v: (R, E) or (E).
            h: (R, state_blocks·H), or without rows; None = no history.
        Returns: the next state.
        """
        if v.dim() == 1:
            return self(v.unsqueeze(0), None if h is None else h.unsqueeze(0)).squeeze(0)
        x = self.inputs(v)
        step = cell_step([self], 1, x.dtype)
        return self.first(x, step) if h is None else step(x, h)


class GRU(Cell):
    """h' = (1-u) ⊙ h + u ⊙ h̃, u = σ(W_u v + U_u h), h̃ = tanh(W v + U (r ⊙ h) + b).

    r = σ(W_r v + U_r h). The reset gate acts on the state. In torch's GRU it acts on the product of
    the state, so torch's kernels compute something else.
    Source: Cho et al. 2014, Eqs. 5-8; Bahdanau et al. 2015, A.1.1.
    """

    blocks = 3  # W_r, W_u, W
    state_side = {"gates": 2, "candidate": 1}  # U_r and U_u, U
    biased = ()

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__(d_in, d_hidden)
        self.bias = nn.Parameter(torch.zeros(d_hidden))

    def input_bias(self) -> Tensor:
        return F.pad(self.bias, (2 * len(self.bias), 0))

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        gates, candidate = products
        if (fused := gpu.recurrent_step("gru", x, h, gates, candidate)) is not None:
            return fused
        of_gates, of_candidate = x.split([2 * h.size(-1), h.size(-1)], dim=-1)
        reset, update = torch.sigmoid(of_gates + gates(h)).chunk(2, dim=-1)
        return torch.lerp(h, tanh(of_candidate + candidate(reset * h)), update)


class MGU(Cell):
    """h' = (1-f) ⊙ h + f ⊙ h̃, f = σ(W_f v + U_f h + b_f), h̃ = tanh(W v + U (f ⊙ h) + b).

    Source: Zhou et al. 2016, *Minimal gated unit for recurrent neural networks*, Eqs. 6a-6c.
    """

    blocks = 2  # W_f, W
    state_side = {"forget": 1, "candidate": 1}  # U_f, U

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        forget, candidate = products
        of_forget, of_candidate = x.chunk(2, dim=-1)
        f = torch.sigmoid(of_forget + forget(h))
        return torch.lerp(h, tanh(of_candidate + candidate(f * h)), f)


class LSTM(Cell):
    """h' = o ⊙ tanh c', c' = f ⊙ c + i ⊙ c̃, i, f, o = σ(W v + U h + b); the state is [h | c].

    c̃ = tanh(W_c v + U_c h + b_c).
    Source: Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    blocks = 4  # of i, f, o, c̃
    state_side = {"state": 4}
    state_blocks = 2

    @staticmethod
    def step(x: Tensor, h: Tensor, *products: Product) -> Tensor:
        h, c = h.chunk(2, dim=-1)
        gates, new = (x + products[0](h)).split([3 * h.size(-1), h.size(-1)], dim=-1)
        i, f, o = torch.sigmoid(gates).chunk(3, dim=-1)
        c = f * c + i * tanh(new)
        return torch.cat([o * tanh(c), c], dim=-1)


def cell_step(cells: Sequence[Cell], times: int | Sequence[int], dtype: torch.dtype) -> Step:
    """Make cells of one kind ready for a loop; they compute each step side by side.

    Args:
        cells: N of them.
        times: steps, at most; or R of each step.
        dtype: number type of the products (under autocast that of the input-side products, while
            states keep that of the parameters).
    Returns: (x, h) -> next h, (R, G·H) and (R, state_blocks·H) of one cell; of several, N in front.
    """
    layers = [[getattr(cell, name) for cell in cells] for name in cells[0].state_side]
    products = [loop_product(side, times, dtype) for side in layers]
    step = cells[0].step
    return lambda x, h: step(x, h, *products)


def cell_inputs(cell: Cell, times: int, dtype: torch.dtype) -> Product:
    """Make a cell's input side (R, E) -> (R, G·H) ready for a loop.

    For an input that depends on the state; see `loop_product`.
    """
    return loop_product([cell.input], times, dtype, cell.input_bias())


class Recurrent(nn.Module):
    """A cell that reads sentences forwards, or two that read them forwards and backwards.

    Args:
        cell: makes a cell from E and H: its class, or a partial call of it.
        d_in: E.
        d_hidden: H.
        bidirectional: N = 2 instead of 1.
    """

    def __init__(
        self, cell: Callable[[int, int], Cell], d_in: int, d_hidden: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        self.forwards = cell(d_in, d_hidden)
        self.backwards = cell(d_in, d_hidden) if bidirectional else None

    @eager
    def forward(
        self, v: Tensor, lengths: Tensor, initial: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read sentences; padding leaves a state as it is, and costs almost no work.

        Args:
            v: inputs (B, S, E).
            lengths: (B), the real ones.
            initial: the states before (N, B, state_blocks·H); None = no history.
        Returns: states (B, S, N·H), at each position those of the directions side by side, in the
            products' number type (they go into further products); the last state of each direction
            (N, B, state_blocks·H).
        """
        cells = [self.forwards] if self.backwards is None else [self.forwards, self.backwards]
        count = len(cells)
        schedule = _Schedule(lengths, v.size(1), cpu.row_multiple(v.device))
        # `F.embedding` gathers rows: on a CPU its gradient does not go row by row.
        words = (F.embedding(positions, v.flatten(0, 1)) for positions in schedule.read[:count])
        # The input side of all words in one product for each direction.
        x = [cell.inputs(rows) for cell, rows in zip(cells, words, strict=True)]  # (W, G·H) each
        low, dtype = x[0].dtype, next(self.parameters()).dtype
        with torch.autocast(v.device.type, enabled=False):
            width = cells[0].state_blocks * self.d_hidden
            start = v.new_zeros(count, len(v), width, dtype=dtype)
            if initial is not None:
                start = initial.to(dtype).index_select(1, schedule.order)
            # The cells run side by side, without the axis N if there is one cell.
            step = cell_step(cells, schedule.rows, low)
            states = [start[0] if count == 1 else start]
            inputs = (x[0] if count == 1 else torch.stack(x)).to(dtype)
            for t, x_t in enumerate(inputs.split(schedule.rows, dim=-2)):
                # Sentences that have ended are the last rows: their states stay behind.
                h, rows = states[-1], x_t.size(-2)
                h = h if rows == h.size(-2) else h[..., :rows, :]
                first = t == 0 and initial is None
                states.append(cells[0].first(x_t, step) if first else step(x_t, h))
            # The states before the first step and after each (N, B+W, state_blocks·H).
            ends = torch.cat(states, dim=-2).view(count, -1, width)
            last = ends.index_select(1, schedule.last)
            hidden = ends[..., : self.d_hidden].to(low)
        after = schedule.after[:count]
        return torch.cat([F.embedding(*pair) for pair in zip(after, hidden, strict=True)], -1), last


class _Schedule:
    """Which sentences take part in which step: those that have not ended, the longest first.

    Args:
        lengths: (B).
        steps: S.
        multiple: the number of rows of each step is a multiple of this. Extra rows are of sentences
            that have ended; their states are not read again.
    """

    def __init__(self, lengths: Tensor, steps: int, multiple: int) -> None:
        device, batch, length = lengths.device, len(lengths), lengths.unsqueeze(1)
        self.order = lengths.argsort(descending=True, stable=True)
        t = torch.arange(steps, device=device)
        # Counting on a GPU would make the host wait. There every step has all sentences, which
        # costs little.
        counts = [batch] * steps
        if cpu.reads_at_once(lengths):
            counts = (t.unsqueeze(1) < lengths).sum(1).tolist()
        self.rows = [min(batch, math.ceil(n / multiple) * multiple) for n in counts if n]
        """How many rows each step has (T)."""
        # The position that each direction reads at step t (2, B, S).
        backwards = torch.where(t < length, length - 1 - t, t)
        position = torch.stack([t.expand_as(backwards), backwards])
        of_batch = position + steps * torch.arange(batch, device=device)[:, None]
        by_step = of_batch[:, self.order, : len(self.rows)].mT
        # On a GPU no row is left out, so all positions are read.
        self.read = by_step.flatten(1)
        if sum(self.rows) < self.read.size(1):
            rows = torch.tensor(self.rows, device=device)
            self.read = by_step[:, torch.arange(batch, device=device) < rows[:, None]]
        """The positions (2, W) of all rows, step by step, among all (B·S) positions."""
        row_of_sentence = self.order.argsort()
        start = batch * torch.arange(len(self.rows) + 1, device=device)
        if sum(self.rows) < batch * len(self.rows):
            starts = [0, *itertools.accumulate(self.rows, initial=batch)][: len(self.rows) + 1]
            start = torch.tensor(starts, device=device)
        self.last = start[lengths] + row_of_sentence
        """Where the state after each sentence's last word is (B).

        It is counted among the states before the first step (B) and after each step (W).
        """
        self.after = start[torch.minimum(position + 1, length)] + row_of_sentence[:, None]
        """Where the state of each position is (2, B, S); after a sentence, its last state."""
