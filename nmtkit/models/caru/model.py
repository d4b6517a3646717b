"""CARU-gated attention: a recurrent model with content-adaptive recurrent units as gates.

One unit gates the attention. Another unit (CAEmbed) gates the path from attention to the decoder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, tanh
from torch.nn import functional as F

from nmtkit.data.batches import Batch
from nmtkit.models.base import Memory, State, Vocabularies, embedding_tables, visible_source
from nmtkit.models.caru.attention import Attend, Attended, GatedAttention
from nmtkit.models.caru.caembed import CAEmbed
from nmtkit.models.caru.gates import CARUGate, GRUGate
from nmtkit.models.caru.settings import CARUSettings, GAttSettings, GRUInvSettings
from nmtkit.models.caru.unit import CARUCell
from nmtkit.models.rnnsearch import RecurrentModel
from nmtkit.nn.alignment import SITE, AdditiveAttention
from nmtkit.nn.capture import capturing, record
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.embeddings import Embedding, OutputLayer
from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import eager, loop_product
from nmtkit.nn.recurrent import GRU, LSTM, MGU, Cell, Recurrent, cell_inputs, cell_step

CELLS: dict[str, type[Cell]] = {"caru": CARUCell, "gru": GRU, "lstm": LSTM, "mgu": MGU}
Advance = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Step t, the state before (R, state_blocks·H) and the context (R, E_h) -> the state after, and
in a capture how open CAEmbed's gate is (R), otherwise None."""


class CARUAttention(RecurrentModel):
    """Im & Chan 2024, *Neural machine translation with CARU-embedding layer and CARU-gated
    attention layer*, Mathematics 12(7).
    """

    Settings = CARUSettings
    settings: CARUSettings
    paper = "Im & Chan 2024"

    def __init__(self, settings: CARUSettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        settings.check()
        s, e, h = settings, settings.d_embedding, settings.d_hidden
        kind: Any = CELLS[s.cell]
        if s.cell == "caru":
            kind = functools.partial(kind, first_step=s.first_step)
        self.src_table, self.tgt_table, tied = embedding_tables(s.tie, vocabularies, e)
        self.dropout = Dropout(s.dropout)
        self.encoder = Recurrent(kind, e, h, s.bidirectional)
        self.initial = Linear(h, h) if s.bidirectional else None
        self.attention, context = self._attention(2 * h if s.bidirectional else h)
        self._make_cells(kind, context)
        maxout = s.readout == "maxout"
        self.maxout: Any = Linear(e + h + context, h, bias=False) if maxout else None
        self.readout: Any = Linear(h // 2, e, bias=False) if maxout else None
        self.output = OutputLayer(vocabularies.tgt, self.width, tied, s.softmax_bias)

    def _make_cells(self, kind: Any, context: int) -> None:
        """Make CAEmbed and the decoder's cell.

        caembed   CAEmbed reads           the decoder's cell reads
        off                               word, context
        state     states, context         word, u
        embed     words, context          u
        replace   states, word + context  (u is the next state)

        Args:
            kind: makes a cell from the widths of its input and its state.
            context: width of the contexts.
        """
        s, e, h = self.settings, self.settings.d_embedding, self.settings.d_hidden
        width = {"off": context, "embed": e}.get(s.caembed, h)  # of u, or of the context
        self.embed: Any = None
        self.word: Any = None
        self.cell: Any = None
        self.cell_context: Any = None
        if s.caembed != "off":
            self.embed = CAEmbed(context, width, s.history, s.first_step)
        if s.caembed == "replace":
            self.word = Linear(e, h, bias=False)
        else:
            self.cell = kind(e, h)
        if s.caembed in {"off", "state"}:
            blocks = CELLS[s.cell].blocks
            self.cell_context = Linear(width, blocks * h, bias=False, blocks=blocks)

    def _attention(self, source: int) -> tuple[AdditiveAttention | GatedAttention, int]:
        """Return the attention to source states of a width E_h, and the width of its contexts."""
        s, h = self.settings, self.settings.d_hidden
        inverted = s.gate == "gru-inv"
        width = h if s.caatt and inverted else source
        bounded = s.alignment == "bounded"
        plain = AdditiveAttention(h, width, s.alignment_width or h, bias=True, bounded=bounded)
        if not s.caatt:
            return plain, width
        if s.gate == "caru":
            return GatedAttention(CARUGate(h, source, s.caatt_first == "linear"), plain), width
        return GatedAttention(GRUGate(h, source, inverted), plain), width

    def initialise(self) -> None:
        """Open the gates of all CARUs, or draw all weights from N(0, 0.01²) as the paper does."""
        s = self.settings
        if s.initial_weights == "normal":
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=0.01)
            return
        for module in self.modules():
            if isinstance(module, CARUCell | CARUGate):
                module.open_gates(s.content_bias, s.update_bias)

    @property
    def width(self) -> int:
        return self.settings.width

    def encode(self, batch: Batch) -> Memory:
        """See `Model.encode`.

        Returns: the decoder's first state (B, state_blocks·H), source states (B, S, E_h), their
            products for attention, visible bool (B, 1, S) or None, and N of L1(exp(Nx)) for each
            sentence (B, 1, 1).
        """
        words = self._words(self.src_table, batch.src)
        states, last = self.encoder(words, batch.src_lengths)
        start, h = last[-1], self.settings.d_hidden
        if self.initial is not None:  # only the state; an LSTM's memory cell is not transformed
            first = tanh(self.initial(start[:, :h])).to(start.dtype)
            start = torch.cat([first, start[:, h:]], dim=-1)
        if self.cell is None:  # CAEmbed makes the next state, which has one block
            start = start[:, :h]
        return {
            "initial": start,
            "states": states.to(start.dtype),
            "products": self.attention.prepare(states),
            "visible": visible_source(batch),
            "n": batch.src_lengths.to(start.dtype).view(-1, 1, 1),
        }

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """See `Model.decode`.

        A step: c_t from s_{t-1}; u_t from CAEmbed, or c_t; s_t = Cell([e(y_{t-1})|u_t], s_{t-1}).
        The state holds s_t (R, state_blocks·H) and CAEmbed's vectors of earlier steps.
        """
        words = self._words(self.tgt_table, tgt_in)  # (R, T, E)
        s = state["s"] if state else self.first_states(memory, len(tgt_in))
        recent = list(state["recent"]) if state else []
        s, hidden, *inputs = self._steps(words.transpose(0, 1), s, memory, recent, first=not state)
        if self.maxout is not None:  # RNNSearch's readout of words, states before and contexts
            units = self.maxout(torch.cat([words, *inputs], dim=-1))
            hidden = self.readout(torch.maximum(*units.chunk(2, dim=-1)))  # (R, T, E)
        return self.dropout(hidden), None if state is None else {"s": s, "recent": recent}

    def _words(self, table: Embedding, ids: Tensor) -> Tensor:
        """Return embeddings after dropout: (B, T) -> (B, T, E)."""
        unit = self.settings.unit_embeddings
        return self.dropout(table(ids) if unit else F.embedding(ids, table.weight))

    @eager
    def _steps(
        self,
        words: Tensor,
        s: Tensor,
        memory: Memory,
        recent: list[Tensor],
        first: bool,
    ) -> tuple[Tensor, ...]:
        """Compute all steps of the decoder, one after the other.

        Vectors of all steps are stacked here: torch.compile would compile a stack for each length.

        Args:
            words: e(y_{t-1}) (T, R, E).
            s: the state before the first step (R, state_blocks·H).
            memory: from `encode`.
            recent: see `CAEmbed.loop`.
            first: True at the start of the target.
        Returns: the state after the last word; of all steps the states after them (R, T, H); for a
            maxout readout also the states before them (R, T, H) and the contexts (R, T, E_h).
        """
        hidden, steps = self.settings.d_hidden, []
        dtype, advance = self._advance(words, recent)
        with torch.autocast(words.device.type, enabled=False):
            attend = self._attend(memory, len(words), dtype)
            for t in range(len(words)):
                before = _hidden(s, hidden)
                context, alpha, attention_gate = attend(before, first and t == 0)
                s, embed_gate = advance(t, s, context)
                steps.append((s[:, :hidden], before, context, alpha, attention_gate, embed_gate))
        *vectors, weights, attention_gates, embed_gates = zip(*steps, strict=True)
        if capturing():  # a gate that the model lacks is None at every step
            record(SITE, torch.stack(weights, dim=2).flatten(1, 2).unsqueeze(1))  # (B, 1, K·T, S)
            record(f"{SITE}_context", torch.stack(vectors[-1], dim=1))
            if attention_gates[0] is not None:
                gates = torch.stack(attention_gates, dim=2)  # (B, K, T, S)
                record(f"{SITE}_gate", gates.flatten(1, 2))
            if embed_gates[0] is not None:
                record("caembed_gate", torch.stack(embed_gates, dim=1))
        read = vectors[:1] if self.maxout is None else vectors
        return s, *(torch.stack(of_steps, dim=1) for of_steps in read)

    def _attend(self, memory: Memory, times: int, dtype: torch.dtype) -> Attend:
        """Make the attention ready for the loop."""
        s, h = self.settings, memory["states"]
        n = memory["n"] if s.n_scale == "length" else s.n_constant
        scale = None if s.attention_norm == "softmax" else n
        arguments = memory["products"], memory["visible"], times, dtype, scale
        if isinstance(self.attention, GatedAttention):
            return self.attention.loop(h, *arguments)
        weigh = self.attention.loop(*arguments)

        def attend(state: Tensor, first: bool) -> Attended:
            alpha = weigh(state)  # (B, K, S)
            return torch.matmul(alpha, h).flatten(0, 1), alpha, None

        return attend

    def _advance(self, words: Tensor, recent: list[Tensor]) -> tuple[torch.dtype, Advance]:
        """Return the number type of products, and the function that makes a step."""
        times, mode = len(words), self.settings.caembed
        if mode == "replace":
            # The word goes with the context into CAEmbed's cell, which makes the next state.
            x = self.embed.cell.inputs(self.word(words))  # (T, R, 2H)
            return x.dtype, self.embed.loop(recent, times, x.dtype, added=x)
        # In the mode `embed` the words go into CAEmbed, and the cell reads only CAEmbed's result.
        embeds = mode == "embed"
        x = (self.embed if embeds else self).cell.inputs(words)  # (T, R, G·H)
        dtype, wide, hidden = x.dtype, words.dtype, self.settings.d_hidden
        step = cell_step([self.cell], times, dtype)
        words_read = x if embeds else None
        embed = self.embed and self.embed.loop(recent, times, dtype, words=words_read)
        if embeds:
            to_cell = cell_inputs(self.cell, times, dtype)
        else:
            x, to_cell = x.to(wide), loop_product([self.cell_context], times, dtype)

        def advance(t: int, s: Tensor, c: Tensor) -> tuple[Tensor, Tensor | None]:
            u, gate = embed(t, _hidden(s, hidden), c) if embed else (c, None)
            x_t = to_cell(u).to(wide) if embeds else x[t] + to_cell(u)
            return step(x_t, s), gate

        return dtype, advance


def _hidden(s: Tensor, width: int) -> Tensor:
    """Return the hidden state; the state of an LSTM has its memory cell, too."""
    return s if s.size(1) == width else s[:, :width]


class GRUInv(CARUAttention):
    """Zhang, Xiong & Su 2017, *A GRU-gated attention model for neural machine translation*:
    GAtt-Inv, the state is the history.
    """

    Settings = GRUInvSettings
    paper = "Zhang et al. 2017"


class GAtt(CARUAttention):
    """Zhang, Xiong & Su 2017, *A GRU-gated attention model for neural machine translation*: the
    source state is the history.
    """

    Settings = GAttSettings
    paper = "Zhang et al. 2017"
