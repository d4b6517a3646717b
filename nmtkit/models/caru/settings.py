"""Settings of CARU-gated attention and of its comparators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field, PositiveFloat

from nmtkit.errors import ConfigError
from nmtkit.models.base import ModelSettings, with_defaults
from nmtkit.models.caru.unit import FirstStep
from nmtkit.settings import AtLeastOne, BelowOne


class CARUSettings(ModelSettings):
    """Sizes and choices; the defaults are CAAtt + CAEmbed + L1(exp(Nx)), the paper's last row, with
    RNNSearch's encoder and readout.
    """

    earlier = {"unit_embeddings": False}
    d_embedding: int = Field(256, ge=1, le=1_000_000)
    """E: width of the embeddings."""
    d_hidden: int = Field(1024, ge=2, le=1_000_000)
    """H: width of the decoder's state and of each direction of the encoder."""
    alignment_width: int = Field(0, ge=0, le=1_000_000)
    """A: width of the additive alignment's hidden layer; 0 = as wide as the decoder's state."""
    cell: Literal["caru", "gru", "lstm", "mgu"] = "caru"
    """The recurrent cell of encoder and decoder."""
    bidirectional: bool = True
    """The encoder reads in both directions. The decoder's first state is then tanh(W · the last
    state of the backward direction), otherwise the encoder's last state.
    """
    caatt: bool = True
    """Gated attention (CAAtt): the decoder's state refines the source states before attention
    reads them.
    """
    gate: Literal["caru", "gru", "gru-inv"] = "caru"
    """The cell that refines the source states: caru; gru, whose history is the source state; or
    gru-inv, a GRU whose history is the decoder's state.
    """
    caatt_first: Literal["linear", "gated"] = "gated"
    """How CAAtt computes its first step: linear, W s + B at every position, as the paper prints it;
    or gated, with the equation of all other steps.
    """
    alignment: Literal["additive", "bounded"] = "additive"
    """The score of a source position: additive, vᵀ tanh(W [s|g]); or bounded, a single tanh
    (between -1 and 1), as the paper prints it.
    """
    attention_norm: Literal["softmax", "l1_exp_nx"] = "l1_exp_nx"
    """How scores e become weights: softmax(e), or L1(exp(N e)) = softmax(N e)."""
    n_scale: Literal["length", "const"] = "const"
    """N of L1(exp(Nx)): length, the sentence's number of source tokens; or const, `n_constant`."""
    n_constant: PositiveFloat = 2.0
    """N if `n_scale` is const; N = 1 is the usual softmax."""
    caembed: Literal["off", "state", "embed", "replace"] = "state"
    """CAEmbed, a CARU that reads earlier vectors and then the context. state: it reads decoder
    states, and its result replaces the context that the decoder's cell reads. embed: it reads
    target embeddings, and the cell reads only its result. replace: it reads decoder states, and its
    result is the next state, without a cell.
    """
    history: AtLeastOne = 1
    """p: the number of earlier vectors that CAEmbed reads."""
    first_step: FirstStep = "tanh"
    """The state of a CARU cell after its first input: tanh, tanh x as in the authors' code; or
    linear, x.
    """
    readout: Literal["linear", "maxout"] = "maxout"
    """The input of the output layer: the new state (linear), or RNNSearch's maxout of word,
    previous state and context, which is as wide as the embeddings (maxout).
    """
    dropout: BelowOne = 0.0
    """Dropout on embeddings and on what the output layer reads."""
    tie: Literal["none", "target", "all"] = "none"
    """Shared weights: none; target, the output layer uses the target embeddings; all, source and
    target also share their embeddings (needs a joint vocabulary).
    """
    softmax_bias: bool = True
    """A bias in the output layer."""
    initial_weights: Literal["xavier", "normal"] = "xavier"
    """Initial weights: xavier, Xavier-uniform matrices and zero biases; or normal, all weights and
    biases from N(0, 0.01²), as in the paper.
    """
    unit_embeddings: bool = True
    """Embeddings have variance 1 when the model reads them: vectors drawn from N(0, 1/E), times √E.
    Otherwise they are not scaled, and are too small for a gate that depends on them.
    """
    content_bias: float = 2.0
    """Initial bias of the content x in each CARU's gate l = σ(x) ⊙ z; the candidate, which reads x
    too, has its negative. A gate that begins open lets a CARU learn.
    """
    update_bias: float = 1.0
    """Initial bias of z in each CARU's gate l = σ(x) ⊙ z."""

    @property
    def width(self) -> int:
        """Return the width of the output layer's input."""
        return self.d_hidden if self.readout == "linear" else self.d_embedding

    def check(self) -> None:
        """Refuse settings that contradict each other or have no effect.

        Raises: ConfigError.
        """
        for key, (why, has_no_effect) in WITHOUT_EFFECT.items():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and has_no_effect(self):
                raise ConfigError(
                    f"model.{key}={value} has no effect: {why}",
                    where=f"model.{key}",
                    hint="leave it out",
                )
        if self.tie != "none" and self.width != self.d_embedding:
            raise ConfigError(
                f"the output layer reads {self.width} numbers and an embedding has "
                f"{self.d_embedding}: they cannot share weights",
                where="model.tie",
                hint="--set model.tie=none, or model.readout=maxout, or equal widths",
            )
        if self.readout == "maxout" and self.d_hidden % 2:
            raise ConfigError(
                "maxout takes pairs of units: d_hidden must be even",
                where="model.d_hidden",
                hint="or --set model.readout=linear",
            )


NO_CARU = (
    "no CARU begins with such a bias (model.cell, gate, caembed, initial_weights)",
    lambda s: (
        s.initial_weights == "normal"
        or (s.cell != "caru" and s.caembed == "off" and not (s.caatt and s.gate == "caru"))
    ),
)


WITHOUT_EFFECT: dict[str, tuple[str, Callable[[CARUSettings], bool]]] = {
    "gate": ("without gated attention (model.caatt) there is no gate", lambda s: not s.caatt),
    "caatt_first": (
        "only the CARU gate of gated attention has a first step of its own",
        lambda s: not s.caatt or s.gate != "caru",
    ),
    "n_scale": (
        "a softmax has no N (model.attention_norm)",
        lambda s: s.attention_norm == "softmax",
    ),
    "n_constant": (
        "N is not constant (model.attention_norm, model.n_scale)",
        lambda s: s.attention_norm == "softmax" or s.n_scale != "const",
    ),
    "history": ("CAEmbed, which reads it, is off (model.caembed)", lambda s: s.caembed == "off"),
    "content_bias": NO_CARU,
    "update_bias": NO_CARU,
    "first_step": (
        "there is no CARU cell (model.cell, model.caembed)",
        lambda s: s.cell != "caru" and s.caembed == "off",
    ),
}
"""Settings that can have no effect: (reason, condition)."""


GRUInvSettings = with_defaults(
    CARUSettings,
    gate="gru-inv",
    cell="gru",
    attention_norm="softmax",
    caembed="off",
    unit_embeddings=False,
)
GAttSettings = with_defaults(GRUInvSettings, gate="gru")
