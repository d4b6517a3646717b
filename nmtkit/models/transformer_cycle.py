"""A Transformer whose layers share parameters, which is a setting of every kind of Transformer."""

from __future__ import annotations

from typing import Any

from nmtkit.models.base import with_defaults
from nmtkit.models.transformer import Transformer, TransformerSettings


class TransformerCycle(Transformer):
    """Takase & Kiyono 2023, *Lessons on parameter sharing across layers in Transformers*,
    SustaiNLP.

    A stack has twice the layers of the preset, with the parameters of as many as the preset has.
    """

    Settings = with_defaults(
        TransformerSettings, encoder_layers=12, decoder_layers=12, distinct_layers=6
    )
    paper = "Takase & Kiyono 2023"
    packs = True

    @classmethod
    def adapt(cls, sizes: dict[str, Any]) -> dict[str, Any]:
        """See `Model.adapt`: a preset's layers are the distinct ones of stacks twice as deep."""
        values = super().adapt(sizes)
        stacks = values.keys() & {"encoder_layers", "decoder_layers"}
        if not stacks or "distinct_layers" in values:
            return values
        doubled = {key: 2 * values[key] for key in stacks}
        return values | doubled | {"distinct_layers": min(values[key] for key in stacks)}

    @property
    def beyond_transformer(self) -> None:
        return None
