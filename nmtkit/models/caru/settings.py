"""Settings of CARU-gated attention and of its comparators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from nmtkit.errors import ConfigError
from nmtkit.models.base import ModelSettings, with_defaults
from nmtkit.models.caru.unit import FirstStep


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
    """The encoder reads in both directions; the decoder then begins with tanh(W · last state
    backwards), else with the encoder's last state.
    """
    caatt: bool = True
    """Gated attention (CAAtt): the decoder's state refines the source states before it attends to
    them.
    """
    gate: Literal["caru", "gru", "gru-inv"] = "caru"
    """The cell that refines: CARU, a GRU with the source state as history, or one with the
    decoder's state as history.
    """
    caatt_first: Literal["linear", "gated"] = "linear"
    """CAAtt's first step: W s + B at every position, as printed, or the equation of all other
    steps.
    """
    alignment: Literal["additive", "bounded"] = "additive"
    """The score of a source position: vᵀ tanh(W [s|g]), or one tanh as printed, within -1 and 1."""
    attention_norm: Literal["softmax", "l1_exp_nx"] = "l1_exp_nx"
    """How scores e become weights: softmax(e), or L1(exp(N e)) = softmax(N e)."""
    n_scale: Literal["length", "const"] = "length"
    """N of L1(exp(Nx)): the number of real source tokens of the sentence, or `n_constant`."""
    n_constant: float = Field(20.0, gt=0)
    """N where it is constant; with 1 it is the usual softmax."""
    caembed: Literal["off", "state", "embed", "replace"] = "state"
    """CAEmbed, a run of CARU over what came before and then the context: over decoder states, its
    end is the context for the decoder's cell; over target embeddings, its end is all the cell
    reads; over decoder states, its end is the next state and there is no cell.
    """
    history: int = Field(1, ge=1)
    """p: how many earlier vectors CAEmbed reads."""
    first_step: FirstStep = "tanh"
    """What a CARU cell makes of a first input, without history: tanh x (the authors' code), or x.
    """
    readout: Literal["linear", "maxout"] = "linear"
    """What the output layer reads: the new state, or RNNSearch's maxout of word, state before and
    context, as wide as the embeddings.
    """
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on embeddings and on what the output layer reads."""
    tie: Literal["none", "target", "all"] = "none"
    """Which embeddings are one: none, the target's and the output layer's, or the source's too
    (needs a joint vocabulary).
    """
    softmax_bias: bool = True
    """A bias in the output layer."""
    initial_weights: Literal["xavier", "normal"] = "xavier"
    """Initial weights: Xavier-uniform matrices and zero biases, or all of it from N(0, 0.01²), as
    in the paper.
    """

    @property
    def width(self) -> int:
        """Width of what the output layer reads."""
        return self.d_hidden if self.readout == "linear" else self.d_embedding

    def check(self) -> None:
        """Refuse settings that cannot be, or that change nothing.

        Raises: ConfigError.
        """
        for key, (why, idle) in WITHOUT_EFFECT.items():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and idle(self):
                message = f"model.{key}={value} has no effect: {why}"
                raise ConfigError(message, where=f"model.{key}", hint="leave it out")
        if self.tie != "none" and self.width != self.d_embedding:
            message = (
                f"the output layer reads {self.width} numbers and an embedding has "
                f"{self.d_embedding}: they cannot be one"
            )
            hint = "--set model.tie=none, or model.readout=maxout, or equal widths"
            raise ConfigError(message, where="model.tie", hint=hint)
        if self.readout == "maxout" and self.d_hidden % 2:
            message = "maxout takes pairs of units: d_hidden must be even"
            hint = "or --set model.readout=linear"
            raise ConfigError(message, where="model.d_hidden", hint=hint)


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
    "history": ("without CAEmbed (model.caembed) there is none", lambda s: s.caembed == "off"),
    "first_step": (
        "there is no CARU cell (model.cell, model.caembed)",
        lambda s: s.cell != "caru" and s.caembed == "off",
    ),
}
"""Settings that can lie idle: why, and when."""


GRUInvSettings = with_defaults(
    CARUSettings,
    gate="gru-inv",
    cell="gru",
    bidirectional=True,
    attention_norm="softmax",
    caembed="off",
    readout="maxout",
)
GAttSettings = with_defaults(GRUInvSettings, gate="gru")
