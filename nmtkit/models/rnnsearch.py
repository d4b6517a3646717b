"""RNNSearch: a bidirectional GRU reads; a GRU writes and looks back by additive attention."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn, tanh
from torch.nn import functional as F

from nmtkit.data.batches import Batch
from nmtkit.models.base import (
    Memory,
    Model,
    ModelSettings,
    State,
    Vocabularies,
    embedding_tables,
    visible_source,
)
from nmtkit.nn.alignment import SITE, AdditiveAttention
from nmtkit.nn.capture import capturing, record
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.embeddings import Embedding, OutputLayer
from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import LoopProduct, eager
from nmtkit.nn.recurrent import GRU, Recurrent, cell_step
from nmtkit.settings import BelowOne


class RNNSearchSettings(ModelSettings):
    """Sizes and choices; the defaults are Bahdanau et al.'s sizes as THUMT trains them."""

    d_embedding: int = Field(620, ge=1, le=1_000_000)
    """E: width of the embeddings, and of the readout that the output layer reads."""
    d_hidden: int = Field(1000, ge=2, multiple_of=2, le=1_000_000)
    """H: width of the decoder's state and of each direction of the encoder; even, because the
    maxout takes pairs.
    """
    d_alignment: int = Field(0, ge=0, le=1_000_000)
    """A: width of the attention's hidden layer; 0 = as wide as the state."""
    dropout: BelowOne = 0.2
    """Dropout on embeddings and on the readout."""
    tie: Literal["none", "target", "all"] = "none"
    """Shared weights: none; target, the output layer uses the target embeddings; all, source and
    target also share their embeddings (needs a joint vocabulary).
    """
    softmax_bias: bool = True
    """A bias in the output layer."""


class Words(nn.Module):
    """Dropout(E[y] + b).

    Args:
        table: the embedding, which another may share; its vectors are read as they are, without √d.
        width: E.
        dropout: probability of dropping an element.
    """

    def __init__(self, table: Embedding, width: int, dropout: float) -> None:
        super().__init__()
        self.table = table
        self.bias = nn.Parameter(torch.zeros(width))
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, E)."""
        return self.dropout(F.embedding(ids, self.table.weight) + self.bias)


class RecurrentModel(Model):
    """A model with a recurrent decoder."""

    @classmethod
    def adapt(cls, sizes: dict[str, Any]) -> dict[str, Any]:
        """See `Model.adapt`: a width d means embeddings of d and states of 2d.

        That comes near the parameters of d's Transformer.
        """
        values = super().adapt(sizes)
        if "d_model" in sizes:
            values = {"d_embedding": sizes["d_model"], "d_hidden": 2 * sizes["d_model"]} | values
        return values

    def first_states(self, memory: Memory, rows: int) -> Tensor:
        """Return the states (R, ·) that targets begin with, of `initial` (B, ·) in the memory."""
        initial = memory["initial"]
        return initial.repeat_interleave(rows // len(initial), dim=0)


class RNNSearch(RecurrentModel):
    """Bahdanau, Cho & Bengio 2015, *Neural machine translation by jointly learning to align and
    translate*, ICLR.
    """

    Settings = RNNSearchSettings
    settings: RNNSearchSettings
    paper = "Bahdanau et al. 2015"

    def __init__(self, settings: RNNSearchSettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        s, e, h = settings, settings.d_embedding, settings.d_hidden
        source, target, tied = embedding_tables(s.tie, vocabularies, e)
        self.src_words = Words(source, e, s.dropout)
        self.tgt_words = Words(target, e, s.dropout)
        self.encoder = Recurrent(GRU, e, h, bidirectional=True)
        self.initial = Linear(h, h)
        self.attention = AdditiveAttention(h, 2 * h, s.d_alignment or h)
        self.cell = GRU(e, h)
        self.cell_context = Linear(2 * h, GRU.blocks * h, bias=False, blocks=GRU.blocks)
        self.maxout = Linear(e + h, h, bias=False)
        self.maxout_context = Linear(2 * h, h, bias=False)
        self.readout = Linear(h // 2, e, bias=False)
        self.readout_dropout = Dropout(s.dropout)
        self.output = OutputLayer(vocabularies.tgt, e, tied, s.softmax_bias)

    @property
    def width(self) -> int:
        return self.settings.d_embedding

    def encode(self, batch: Batch) -> Memory:
        """See `Model.encode`.

        Returns: the decoder's first state (B, H), keys (B, S, A), visible bool (B, 1, S) or None,
            and the products of the source's states h_i for the cell (B, S, 3H) and for the readout
            (B, S, H): W Σα_i h_i = Σα_i W h_i, so these are computed once per sentence. The states
            themselves only for a capture.
        """
        words = self.src_words(batch.src)
        states, last = self.encoder(words, batch.src_lengths)
        memory = {
            "initial": tanh(self.initial(last[1])),
            "keys": self.attention.prepare(states),
            "visible": visible_source(batch),
            "to_cell": self.cell_context(states),
            "to_readout": self.maxout_context(states),
        }
        return memory | {"states": states} if capturing() else memory

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """See `Model.decode`; the state is s (R, H).

        c_t = Σα_i h_i with α from s_{t-1}; the readout is of [e(y_{t-1})|s_{t-1}|c_t]; then
        s_t = GRU([e(y_{t-1})|c_t], s_{t-1}).
        """
        words = self.tgt_words(tgt_in)  # (R, T, E)
        start = state["s"] if state else self.first_states(memory, len(tgt_in))
        start = start.to(self.cell.bias.dtype)
        x = self.cell.inputs(words.transpose(0, 1))  # (T, R, 3H)
        states, alpha, last = self._steps(x, start, memory, state is not None)
        record(SITE, alpha.unsqueeze(1))
        if capturing() and "states" in memory:
            context = torch.matmul(alpha, memory["states"].to(alpha.dtype))  # (B, K·T, 2H)
            record(f"{SITE}_context", context.view(*tgt_in.shape, -1))
        # The readout: the maximum of pairs of units, projected (R, T, E).
        source = memory["to_readout"]
        units = self.maxout(torch.cat([words.to(source.dtype), states.to(source.dtype)], dim=-1))
        units = units + torch.matmul(alpha, source).view(units.shape)
        hidden = self.readout_dropout(self.readout(torch.maximum(*units.chunk(2, dim=-1))))
        return hidden, None if state is None else {"s": last}

    @eager
    def _steps(
        self, x: Tensor, s: Tensor, memory: Memory, further: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loop over time.

        Args:
            x: the words' side of the cell's input (T, R, 3H).
            s: the state before (R, H).
            memory: from `encode`.
            further: True if the state after the last word is needed.
        Returns: the state that each word meets (R, T, H), its attention weights (B, K·T, S), the
            state at the end (R, H).
        """
        states, weights, times = [], [], len(x)
        with torch.autocast(x.device.type, enabled=False):
            attend = self.attention.loop(memory["keys"], memory["visible"], times, x.dtype)
            context = LoopProduct(memory["to_cell"], times)
            step = cell_step([self.cell], times, x.dtype)
            for t, x_t in enumerate(x.to(s.dtype), start=1):
                states.append(s)
                weights.append(attend(s))  # (B, K, S)
                if t < times or further:
                    s = step(x_t + context(weights[-1]).view(x_t.shape), s)
        return torch.stack(states, dim=1), torch.stack(weights, dim=2).flatten(1, 2), s
