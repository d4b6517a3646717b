"""What Transformers have in common that read other sentences of the document beside the source."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from nmtkit.data.context import Context
from nmtkit.data.documents import ContextRule, Join
from nmtkit.models.transformer import Transformer, TransformerSettings
from nmtkit.nn.masks import visible_positions


def visible_words(context: Context) -> Tensor | None:
    """Which positions of contexts are real, bool (U, 1, M); None = all."""
    return visible_positions(context.lengths, context.ids.size(1)) if context.padded else None


class DocumentSettings(TransformerSettings):
    """A Transformer's, and which sentences are the context of one."""

    context: Literal["previous", "next", "random", "foreign"] = "previous"
    """The nearest sentences before, those after, any of the document, or (for ablations) any of other documents."""
    context_size: int = Field(1, ge=1, le=5)
    """At most so many sentences; where the document has fewer, those it has."""
    context_seed: int = Field(1, ge=0)
    """Of the draw of random and foreign contexts; it does not change with the training's seed, and goes by the document's number in its set."""


class DocumentTransformer(Transformer):
    """A Transformer that reads `Batch.context`; by default one text of all context sentences, a break between them."""

    Settings: ClassVar[type[TransformerSettings]] = DocumentSettings
    settings: DocumentSettings

    @property
    def context_join(self) -> Join:
        """How several context sentences come; see `ContextRule`."""
        return "concatenate"

    @property
    def context_rule(self) -> ContextRule:
        """See `Model.context_rule`."""
        s = self.settings
        return ContextRule(s.context, s.context_size, self.context_join, s.context_seed)
