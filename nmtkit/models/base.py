"""The contract between a model and its users: two verbs, `encode` and `decode`, then `logits`.

Training, beam search, forced scoring, ensembling and every analysis use only these, so a new model
is one file.

Legend: B sentences, R = B·K rows (K hypotheses per sentence), S source length, T target length,
D width, V vocabulary.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import create_model
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.data.context import Form
from nmtkit.data.documents import ContextRule
from nmtkit.errors import ConfigError
from nmtkit.nn.embeddings import Embedding
from nmtkit.nn.masks import Sight, Visible, own_sentence, visible_positions
from nmtkit.settings import BelowOne, Section

# Nested dicts (and lists) of tensors, rows first (axis 0). Search does only one thing with them: it
# selects rows (`nmtkit.nn.state`). A leaf that is not a tensor either holds for all rows (a step
# counter) or selects its rows itself (`nmtkit.nn.cache.Cache`).
Memory = dict[str, Any]
State = dict[str, Any]


@dataclass(frozen=True)
class Vocabularies:
    """The sizes of the vocabularies, and whether both sides share one vocabulary."""

    src: int
    tgt: int
    shared: bool


class ModelSettings(Section):
    """Settings that every model has; a variant's own class adds to them."""

    dropout: BelowOne = 0.1
    """Dropout on embeddings and on the output of every sublayer."""


S = TypeVar("S", bound=ModelSettings)


def with_defaults(settings: type[S], **defaults: Any) -> type[S]:
    """Return a settings class with other default values."""
    fields: dict[str, Any] = {
        key: (field.annotation, field.merge_field_infos(field, default=value))
        for key, value in defaults.items()
        for field in [settings.model_fields[key]]
    }
    return create_model(settings.__name__, __base__=settings, __doc__=settings.__doc__, **fields)


class Model(nn.Module, abc.ABC):
    """Base of every variant.

    A subclass has: a docstring with its citation; `Settings`, its settings class; `paper`, a short
    citation; `__init__(settings, vocabularies)`; `encode` and `decode`; and either `output` or its
    own `logits`.
    """

    Settings: ClassVar[type[ModelSettings]] = ModelSettings
    paper: ClassVar[str] = ""
    context_form: ClassVar[Form] = "plain"
    """How a packed batch holds the contexts of this model."""
    output: nn.Module

    def __init__(self, settings: ModelSettings, vocabularies: Vocabularies) -> None:
        super().__init__()
        self.settings = settings
        self.vocabularies = vocabularies

    @classmethod
    def adapt(cls, sizes: dict[str, Any]) -> dict[str, Any]:
        """Return a preset's `model` section as settings of this model: by default, the known keys.

        Args:
            sizes: the preset's values (d_model, d_ff, heads, encoder_layers, dropout, tie, …).
        Returns: values for `cls.Settings`.
        """
        return {key: value for key, value in sizes.items() if key in cls.Settings.model_fields}

    def initialise(self) -> None:
        """Finish a new model if needed: for example, draw its weights again or name its modules."""

    @property
    def reads_spans(self) -> bool:
        """True if the model reads `Batch.spans`; its training set must have spans."""
        return False

    @property
    def reads_batch_length(self) -> bool:
        """True if the results depend on the length of a batch: it must not be rounded up."""
        return False

    @property
    def reads_packed(self) -> bool:
        """True if the model's own class says `packs = True`: training may then pack its batches
        (`Batch.segments`). A subclass has to say it again, because it may mix positions in its own
        way.
        """
        return bool(vars(type(self)).get("packs"))

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with `prepared` set: whatever follows from lengths alone and would take
        many small kernels on a GPU. The batch is packed and on the host. The shapes of `prepared`
        follow from those of the batch, and its tensors are integers or bools.
        """
        return batch

    @property
    def context_rule(self) -> ContextRule | None:
        """Return which sentences the model reads in `Batch.context`; None if it reads none."""
        return None

    @property
    def beyond_transformer(self) -> str | None:
        """Return why an engine for plain Transformers cannot run this model; None if it can."""
        source = f" ({self.paper})" if self.paper else ""
        return f"it is not a plain Transformer but {type(self).__name__}{source}"

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Return D, the width of the input of `logits`."""

    @abc.abstractmethod
    def encode(self, batch: Batch) -> Memory:
        """Read the source side of a batch.

        Args:
            batch: `src` (B, S) token ids, each row ending in </s> and padded with <pad>;
                `src_lengths` (B); `src_padded` is False if no row is padded, so that no mask is
                needed.
        Returns: everything that `decode` needs of the source, B rows. Compute here whatever can be
            computed once per sentence.
        """

    @abc.abstractmethod
    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """Continue targets by one or more positions.

        Args:
            tgt_in: (R, T) target ids; a target starts with <s>. R = B·K: each sentence of `memory`
                has K neighbouring rows (K = 1 in training).
            memory: from `encode`, B rows.
            state: None to decode whole targets. To decode step by step: {} in the first call, then
                the state that the last call returned. Pass each state only once.
        Returns: hidden states (R, T, D), of which state t depends only on tgt_in up to t; and the
            new state, R rows (None if `state` was None).
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return scores over the target vocabulary: (…, D) -> (…, V)."""
        return self.output(hidden)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model computes."""
    return next(model.parameters()).device


def target_states(model: Model, batch: Batch) -> Tensor:
    """Return the hidden states (B, T, D) at all target positions of a batch with both sides."""
    assert batch.tgt_in is not None
    return model.decode(batch.tgt_in, model.encode(batch))[0]


def source_sight(batch: Batch) -> Sight:
    """Return what a source position of a batch may attend to: see `visible_source`; in a packed
    batch, its own sentence.
    """
    if batch.segments is not None:
        return own_sentence(batch.segments.keys)
    return visible_source(batch)


def visible_source(batch: Batch) -> Visible:
    """Return which source positions of a batch are real, bool (B, 1, S); None = all."""
    return visible_positions(batch.src_lengths, batch.src.size(1), batch.src_padded)


def embedding_tables(
    tie: str, vocabularies: Vocabularies, width: int
) -> tuple[Embedding, Embedding, Embedding | None]:
    """Return the embeddings (V, D) of source and target, and those that the output layer shares.

    Args:
        tie: none; target: the output layer shares the target's table; all: all three are one table.
        vocabularies: their sizes, and whether both sides share one vocabulary.
        width: D.
    Raises: ConfigError for tie = "all" if each side has its own vocabulary.
    """
    if tie == "all" and not vocabularies.shared:
        raise ConfigError(
            "tie = 'all' needs one vocabulary for both sides",
            where="model.tie",
            hint="--set model.tie=target, or prepare with --set prep.joint_vocab=true",
        )
    source = Embedding(vocabularies.src, width)
    target = source if tie == "all" else Embedding(vocabularies.tgt, width)
    return source, target, None if tie == "none" else target
