"""The encoder of context sentences: a recurrent layer, layers of a Transformer, or neither.

Legend: U' contexts of like length, M' their length, D the width.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from nmtkit.data.context import Context
from nmtkit.errors import ConfigError
from nmtkit.models.transformer import DocumentSettings, EncoderLayer, visible_words
from nmtkit.nn.dropout import Dropout
from nmtkit.nn.embeddings import Embedder
from nmtkit.nn.recurrent import GRU, LSTM, Recurrent

Reader = Literal["gru", "lstm", "bigru", "none", "transformer"]
"""The layers that read the embeddings of a context's words."""


class ContextEncoder(nn.Module):
    """Encodes the words of contexts.

    Args:
        settings: of the model.
        kind: the layers that read the embeddings.
    """

    def __init__(self, settings: DocumentSettings, kind: Reader) -> None:
        super().__init__()
        s = settings
        self.rnn: Recurrent | None = None
        if kind in ("gru", "lstm", "bigru"):
            bidirectional = kind == "bigru"
            if bidirectional and s.d_model % 2:
                message = "two directions cannot share an odd width"
                raise ConfigError(message, where="model.d_model", hint="make d_model even")
            cell = LSTM if kind == "lstm" else GRU
            self.rnn = Recurrent(cell, s.d_model, s.d_model // (1 + bidirectional), bidirectional)
        layers = s.encoder_layers if kind == "transformer" else 0
        self.layers = s.stack(EncoderLayer(s) for _ in range(layers))
        self.norm = s.last_norm() if kind == "transformer" else nn.Identity()
        self.dropout = Dropout(s.dropout)

    def forward(self, context: Context, embedder: Embedder) -> list[Tensor]:
        """Return the words of contexts, contexts of like length together, (U', M', D) each.

        Args:
            embedder: the source's.
        """
        parts = context.of_like_length()
        if self.rnn is None:
            return [self._through_layers(part, embedder) for part in parts]
        # A recurrent layer needs no positions, and no parts either: padding costs it nothing.
        words = self.dropout(embedder.table(context.ids))
        if context.copies is not None:
            packing = context.copies.segments.keys
            states, _ = self.rnn(packing.padded(words), packing.lengths)
            return [packing.packed(states)]
        states, _ = self.rnn(words, context.lengths)
        rows = states.split([len(part.ids) for part in parts])
        return [x[:, : part.ids.size(1)] for part, x in zip(parts, rows, strict=True)]

    def _through_layers(self, context: Context, embedder: Embedder) -> Tensor:
        visible = visible_words(context)
        x = embedder(context.ids, visible=visible)
        for layer in self.layers:
            x = layer(x, visible)
        return self.norm(x)
