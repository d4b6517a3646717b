"""CARU-gated attention: a recurrent model whose attention, and what goes from it to the decoder, are gated by content-adaptive recurrent units."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn, tanh
from torch.nn import functional as F

from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError
from nmtkit.models.base import Memory, Model, ModelSettings, State, Vocabularies, embedding_tables
from nmtkit.nn.alignment import SITE, AdditiveAttention
from nmtkit.nn.caembed import CAEmbed
from nmtkit.nn.capture import capturing, record
from nmtkit.nn.cells import GRU, LSTM, MGU, CARUCell, Cell, FirstStep, inputs_loop, loop
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.embeddings import OutputLayer
from nmtkit.nn.gated import CARUGate, GatedAttention, GRUGate
from nmtkit.nn.linear import Linear
from nmtkit.nn.masks import visible_positions
from nmtkit.nn.recurrent import Recurrent
from nmtkit.nn.repeated import eager, repeated

Attend = Callable[[Tensor, bool], tuple[Tensor, Tensor, Tensor | None]]
CELLS: dict[str, type[Cell]] = {"caru": CARUCell, "gru": GRU, "lstm": LSTM, "mgu": MGU}
DEVIATION = 0.01
"""Of the paper's initial weights."""


class CARUSettings(ModelSettings):
    """Sizes and choices; the defaults are the paper's best row, CAAtt + CAEmbed + L1(exp(Nx))."""

    d_embedding: int = Field(256, ge=1)
    """E: width of the embeddings."""
    d_hidden: int = Field(1024, ge=2)
    """H: width of the decoder's state and of each direction of the encoder."""
    alignment_width: int = Field(0, ge=0)
    """A: width of the additive alignment's hidden layer; 0 = as wide as the state."""
    cell: Literal["caru", "gru", "lstm", "mgu"] = "caru"
    """The recurrent cell of encoder and decoder."""
    bidirectional: bool = False
    """The encoder reads in both directions; the decoder then begins with tanh(W · last state backwards), else with the encoder's last state."""
    caatt: bool = True
    """Gated attention (CAAtt): the decoder's state refines the source states before it attends to them."""
    gate: Literal["caru", "gru", "gru-inv"] = "caru"
    """The cell that refines: CARU, a GRU with the source state as history, or one with the decoder's state as history."""
    caatt_first: Literal["linear", "gated"] = "linear"
    """CAAtt's first step: W s + B at every position, as printed, or the equation of all other steps."""
    alignment: Literal["additive", "bounded"] = "additive"
    """The score of a source position: vᵀ tanh(W [s|g]), or one tanh as printed, within -1 and 1."""
    attention_norm: Literal["softmax", "l1_exp_nx"] = "l1_exp_nx"
    """How scores e become weights: softmax(e), or L1(exp(N e)) = softmax(N e)."""
    n_scale: Literal["length", "const"] = "length"
    """N of L1(exp(Nx)): the number of real source tokens of the sentence, or `n_constant`."""
    n_constant: float = Field(20.0, gt=0)
    """N where it is constant; with 1 it is the usual softmax."""
    caembed: Literal["off", "state", "embed", "replace"] = "state"
    """CAEmbed, a run of CARU over what came before and then the context: over decoder states, its end is the context for the decoder's cell;
    over target embeddings, its end is all the cell reads; over decoder states, its end is the next state and there is no cell."""
    history: int = Field(1, ge=1)
    """p: how many earlier vectors CAEmbed reads."""
    first_step: FirstStep = "tanh"
    """What a CARU cell makes of a first input, without history: tanh x (the authors' code), or x."""
    readout: Literal["linear", "maxout"] = "linear"
    """What the output layer reads: the new state, or RNNSearch's maxout of word, state before and context, as wide as the embeddings."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on embeddings and on what the output layer reads."""
    tie: Literal["none", "target", "all"] = "none"
    """Which embeddings are one: none, the target's and the output layer's, or the source's too (needs a joint vocabulary)."""
    softmax_bias: bool = True
    """A bias in the output layer."""
    initial_weights: Literal["xavier", "normal"] = "xavier"
    """Initial weights: Xavier-uniform matrices and zero biases, or all of it from N(0, 0.01²), as in the paper."""


WITHOUT_EFFECT: dict[str, tuple[str, Callable[[CARUSettings], bool]]] = {
    "gate": ("without gated attention (model.caatt) there is no gate", lambda s: not s.caatt),
    "caatt_first": ("only the CARU gate of gated attention has a first step of its own", lambda s: not s.caatt or s.gate != "caru"),
    "n_scale": ("a softmax has no N (model.attention_norm)", lambda s: s.attention_norm == "softmax"),
    "n_constant": ("N is not constant (model.attention_norm, model.n_scale)", lambda s: s.attention_norm == "softmax" or s.n_scale != "const"),
    "history": ("without CAEmbed (model.caembed) there is none", lambda s: s.caembed == "off"),
    "first_step": ("there is no CARU cell (model.cell, model.caembed)", lambda s: s.cell != "caru" and s.caembed == "off"),
}
"""Settings that can lie idle: why, and when."""


def refuse_idle(settings: CARUSettings) -> None:
    """Refuse a setting that changes nothing.

    Raises: ConfigError naming it.
    """
    for key, (why, idle) in WITHOUT_EFFECT.items():
        value, default = getattr(settings, key), type(settings).model_fields[key].default
        if value != default and idle(settings):
            raise ConfigError(f"model.{key}={value} has no effect: {why}", where=f"model.{key}", hint="leave it out")


@dataclass
class Run:
    """What the loop over time leaves behind; lists have one entry a step."""

    recent: list[Tensor]
    """What CAEmbed reads at later steps."""
    before: list[Tensor] = field(default_factory=list)
    """The states that the words meet (R, H)."""
    after: list[Tensor] = field(default_factory=list)
    """The states that they leave (R, H)."""
    contexts: list[Tensor] = field(default_factory=list)
    """c_t (R, E_h)."""
    weights: list[Tensor] = field(default_factory=list)
    """α (B, K, S)."""
    attention_gate: list[Tensor] = field(default_factory=list)
    """How open the attention's gate is (B, K, S), where somebody captures."""
    caembed_gate: list[Tensor] = field(default_factory=list)
    """How open CAEmbed's gate to the context is (R), where somebody captures."""


class CARUAttention(Model):
    """Im & Chan 2024, *Neural machine translation with CARU-embedding layer and CARU-gated attention layer*, Mathematics 12(7)."""

    Settings: ClassVar[type[CARUSettings]] = CARUSettings
    settings: CARUSettings
    paper: ClassVar[str] = "Im & Chan 2024"

    def __init__(self, settings: CARUSettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        refuse_idle(settings)
        s = settings
        e, h, source = s.d_embedding, s.d_hidden, (2 if s.bidirectional else 1) * s.d_hidden
        if s.tie != "none" and self.width != e:
            message = f"the output layer reads {self.width} numbers and an embedding has {e}: they cannot be one"
            raise ConfigError(message, where="model.tie", hint="--set model.tie=none, or model.readout=maxout, or model.d_hidden = model.d_embedding")
        if s.readout == "maxout" and h % 2:
            raise ConfigError("maxout takes pairs of units: d_hidden must be even", where="model.d_hidden", hint="or --set model.readout=linear")
        caru = functools.partial(CARUCell, first_step=s.first_step)
        kind: Callable[[int, int], Cell] = caru if s.cell == "caru" else CELLS[s.cell]
        self.src_table, self.tgt_table = embedding_tables(s.tie, vocabularies, e)
        self.dropout = Dropout(s.dropout)
        self.encoder = Recurrent(kind, e, h, s.bidirectional)
        self.initial = Linear(h, h) if s.bidirectional else None
        self.attention, context = self._attention(source)
        read = {"off": context, "embed": e}.get(s.caembed, h)  # width of what goes from attention to the decoder's cell
        self.embed = CAEmbed(context, read, s.history, s.first_step) if s.caembed != "off" else None
        self.word = Linear(e, h, bias=False) if s.caembed == "replace" else None
        self.cell = kind(e, h) if s.caembed != "replace" else None
        blocks = CELLS[s.cell].blocks
        self.cell_context = Linear(read, blocks * h, bias=False, blocks=blocks) if s.caembed in {"off", "state"} else None
        self.maxout = Linear(e + h + context, h, bias=False) if s.readout == "maxout" else None
        self.readout = Linear(h // 2, e, bias=False) if s.readout == "maxout" else None
        self.output = OutputLayer(vocabularies.tgt, self.width, self.tgt_table if s.tie != "none" else None, s.softmax_bias)

    def _attention(self, source: int) -> tuple[AdditiveAttention | GatedAttention, int]:
        """The attention to source states of a width E_h, and the width of its contexts."""
        s = self.settings
        refined = s.d_hidden if s.caatt and s.gate == "gru-inv" else source
        plain = AdditiveAttention(s.d_hidden, refined, s.alignment_width or s.d_hidden, bias=True, bounded=s.alignment == "bounded")
        if not s.caatt:
            return plain, source
        caru = s.gate == "caru"
        gate = CARUGate(s.d_hidden, source, s.caatt_first == "linear") if caru else GRUGate(s.d_hidden, source, s.gate == "gru-inv")
        return GatedAttention(gate, plain), refined

    def initialise(self) -> None:
        """See `Model.initialise`."""
        if self.settings.initial_weights == "normal":
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=DEVIATION)

    @classmethod
    def adapt(cls, sizes: dict[str, Any]) -> dict[str, Any]:
        """See `Model.adapt`: a width d means embeddings of d and states of 2d; the output layer is tied only where it is as wide."""
        own = super().adapt(sizes)
        if "d_model" in sizes:
            own = {"d_embedding": sizes["d_model"], "d_hidden": 2 * sizes["d_model"]} | own
            if own.get("readout", cls.Settings.model_fields["readout"].default) == "linear" and own["d_embedding"] != own["d_hidden"]:
                own["tie"] = "none"
        return own

    @property
    def width(self) -> int:
        """H, or E with RNNSearch's readout."""
        return self.settings.d_hidden if self.settings.readout == "linear" else self.settings.d_embedding

    def encode(self, batch: Batch) -> Memory:
        """See `Model.encode`.

        Returns: the decoder's first state (B, state_blocks·H), source states (B, S, E_h), what attention makes of them once per sentence, visible
            bool (B, 1, S) or None, and N of L1(exp(Nx)) for each sentence (B, 1, 1).
        """
        states, last = self.encoder(self._words(self.src_table.weight, batch.src), batch.src_lengths, batch.src_padded)
        start, h = last[-1], self.settings.d_hidden
        if self.initial is not None:  # an LSTM's memory goes on as it is
            start = torch.cat([tanh(self.initial(start[:, :h])).to(start.dtype), start[:, h:]], dim=-1)
        return {
            "initial": start,
            "states": states.to(start.dtype),
            "once": self.attention.prepare(states) if isinstance(self.attention, GatedAttention) else self.attention.keys(states),
            "visible": visible_positions(batch.src_lengths, batch.src.size(1)) if batch.src_padded else None,
            "n": batch.src_lengths.to(start.dtype).view(-1, 1, 1),
        }

    def decode(self, tgt_in: Tensor, memory: Memory, state: State | None = None) -> tuple[Tensor, State | None]:
        """See `Model.decode`; the state is that of the cell (R, state_blocks·H), and what CAEmbed reads of earlier steps.

        c_t from s_{t-1}; u_t of CAEmbed, or c_t; s_t = Cell([e(y_{t-1})|u_t], s_{t-1}).
        """
        words = self._words(self.tgt_table.weight, tgt_in)  # (R, T, E)
        if state:
            s, recent = state["s"], list(state["recent"])
        else:
            s, recent = memory["initial"].repeat_interleave(len(tgt_in) // len(memory["initial"]), dim=0), []
            s = s[:, : self.settings.d_hidden] if self.cell is None else s
        run = Run(recent)
        s = self._steps(words.transpose(0, 1), s, memory, run, first=not state)
        record(SITE, torch.stack(run.weights, dim=2).flatten(1, 2).unsqueeze(1))
        if capturing():
            record(f"{SITE}_context", torch.stack(run.contexts, dim=1))
        if run.attention_gate:
            record(f"{SITE}_gate", torch.stack(run.attention_gate, dim=2).flatten(1, 2))
        if run.caembed_gate:
            record("caembed_gate", torch.stack(run.caembed_gate, dim=1))
        return self._readout(words, run), None if state is None else {"s": s, "recent": run.recent}

    def _words(self, table: Tensor, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, E)."""
        return self.dropout(F.embedding(ids, table))

    @eager
    def _steps(self, words: Tensor, s: Tensor, memory: Memory, run: Run, first: bool) -> Tensor:
        """The loop over time.

        Args:
            words: e(y_{t-1}) (T, R, E).
            s: the state before (R, state_blocks·H).
            memory: from `encode`.
            run: is filled.
            first: whether nothing was written yet.
        Returns: the state after the last word.
        """
        hidden = self.settings.d_hidden
        dtype, advance = self._advance(words, run)
        with torch.autocast(words.device.type, enabled=False):
            attend = self._attend(memory, len(words), dtype)
            for t in range(len(words)):
                run.before.append(s[:, :hidden])
                c, alpha, openness = attend(s[:, :hidden], first and t == 0)
                s = advance(t, c, s)
                run.after.append(s[:, :hidden])
                run.contexts.append(c)
                run.weights.append(alpha)
                if openness is not None:
                    run.attention_gate.append(openness)
        return s

    def _attend(self, memory: Memory, times: int, dtype: torch.dtype) -> Attend:
        """Attention made ready for the loop (see `GatedAttention.loop`)."""
        s, h = self.settings, memory["states"]
        scale = None if s.attention_norm == "softmax" else memory["n"] if s.n_scale == "length" else s.n_constant
        if isinstance(self.attention, GatedAttention):
            return self.attention.loop(h, memory["once"], memory["visible"], times, dtype, scale)
        weigh = self.attention.loop(memory["once"], memory["visible"], times, dtype, scale)

        def attend(state: Tensor, first: bool) -> tuple[Tensor, Tensor, Tensor | None]:
            alpha = weigh(state)  # (B, K, S)
            return torch.matmul(alpha, h).flatten(0, 1), alpha, None

        return attend

    def _advance(self, words: Tensor, run: Run) -> tuple[torch.dtype, Callable[[int, Tensor, Tensor], Tensor]]:
        """What leads from a context to the next state.

        Args:
            words: (T, R, E).
            run: CAEmbed's part of it is kept up to date.
        Returns: the number type of products; step t, its context and the state before -> the state after.
        """
        times, hidden, wide = len(words), self.settings.d_hidden, words.dtype
        cell, caembed = self.cell, self.embed
        if cell is None:  # the word is added to the context and goes with it into CAEmbed's cell, which makes the next state
            assert caembed is not None and self.word is not None
            x = caembed.cell.inputs(self.word(words))  # (T, R, 2H)
            over, contexts = caembed.over_states(run.recent, run.caembed_gate, times, x.dtype), caembed.contexts(times, x.dtype, bias=False)
            return x.dtype, lambda t, c, s: over(s, x[t] + contexts(c))
        if self.cell_context is None:
            assert caembed is not None
            dtype, end = caembed.over_words(words, run.recent, run.caembed_gate)
            embedded, inputs, step = caembed.contexts(times, dtype), inputs_loop(cell, times, dtype), loop([cell], times, dtype)
            return dtype, lambda t, c, s: step(inputs(end(t, embedded(c))).to(wide), s)
        x = cell.inputs(words)  # (T, R, G·H)
        dtype, x = x.dtype, x.to(wide)
        step, to_cell = loop([cell], times, dtype), repeated([self.cell_context], times, dtype)
        if caembed is None:
            return dtype, lambda t, c, s: step(x[t] + to_cell(c), s)
        before, ends = caembed.over_states(run.recent, run.caembed_gate, times, dtype), caembed.contexts(times, dtype)
        return dtype, lambda t, c, s: step(x[t] + to_cell(before(s[:, :hidden], ends(c))), s)

    def _readout(self, words: Tensor, run: Run) -> Tensor:
        """What the output layer reads: words (R, T, E) -> (R, T, H), or (R, T, E)."""
        if self.maxout is None or self.readout is None:
            return self.dropout(torch.stack(run.after, dim=1))
        units = self.maxout(torch.cat([words, torch.stack(run.before, dim=1), torch.stack(run.contexts, dim=1)], dim=-1))
        return self.dropout(self.readout(torch.maximum(*units.chunk(2, dim=-1))))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the target vocabulary: (…, D) -> (…, V)."""
        return self.output(hidden)


class GRUInvSettings(CARUSettings):
    """RNNSearch with an attention gated by an inverted GRU."""

    gate: Literal["caru", "gru", "gru-inv"] = "gru-inv"
    """The cell that refines: CARU, a GRU with the source state as history, or one with the decoder's state as history."""
    cell: Literal["caru", "gru", "lstm", "mgu"] = "gru"
    """The recurrent cell of encoder and decoder."""
    bidirectional: bool = True
    """The encoder reads in both directions; the decoder then begins with tanh(W · last state backwards), else with the encoder's last state."""
    attention_norm: Literal["softmax", "l1_exp_nx"] = "softmax"
    """How scores e become weights: softmax(e), or L1(exp(N e)) = softmax(N e)."""
    caembed: Literal["off", "state", "embed", "replace"] = "off"
    """CAEmbed, which these comparators have not."""
    readout: Literal["linear", "maxout"] = "maxout"
    """What the output layer reads: the new state, or RNNSearch's maxout of word, state before and context, as wide as the embeddings."""


class GAttSettings(GRUInvSettings):
    """RNNSearch with an attention gated by a GRU."""

    gate: Literal["caru", "gru", "gru-inv"] = "gru"
    """The cell that refines: CARU, a GRU with the source state as history, or one with the decoder's state as history."""


class GRUInv(CARUAttention):
    """Zhang, Xiong & Su 2017, *A GRU-gated attention model for neural machine translation*: GAtt-Inv, the state is the history."""

    Settings: ClassVar[type[CARUSettings]] = GRUInvSettings
    paper: ClassVar[str] = "Zhang et al. 2017"


class GAtt(CARUAttention):
    """Zhang, Xiong & Su 2017, *A GRU-gated attention model for neural machine translation*: the source state is the history."""

    Settings: ClassVar[type[CARUSettings]] = GAttSettings
    paper: ClassVar[str] = "Zhang et al. 2017"
