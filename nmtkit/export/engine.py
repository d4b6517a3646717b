"""The interface of an engine: it writes a system into a folder, and runs the folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from nmtkit.models.base import Model
    from nmtkit.records import ExportedSystem
    from nmtkit.text.vocabulary import Vocabulary

Sentences = list[list[str]]
"""The subwords of each sentence, without `</s>`."""
FULL = "free some space, or choose another folder with --out"
"""Hint of the error for a full disk."""


Translate = Callable[[Sentences, int, int, int], Sentences]
"""Returns the best translation of each source, found without length penalty. Arguments: the
sources, the beam, the maximum number of subwords (`</s>` included), the sentences of a batch.
"""


class Engine(ABC):
    """A target of `nmtkit export`."""

    title: ClassVar[str]
    """The name in messages and pages."""
    package: ClassVar[str]
    """The Python package that runs the folder."""
    extra: ClassVar[str]
    """nmtkit's extra that installs the package."""
    writes_alone: ClassVar[bool] = False
    """True if the folder is written without the package."""
    same_search: ClassVar[bool] = True
    """True if the engine's beam search finds the same translations as nmtkit's. Greedy search
    always does.
    """
    quantizations: ClassVar[tuple[str, ...]] = ("float32",)
    """Data types of the stored weights."""

    def refusal(self, model: Model) -> str | None:
        """Return why the engine cannot run a model; None if it can."""
        return model.beyond_transformer

    @abstractmethod
    def save(
        self,
        model: Model,
        vocabularies: tuple[Vocabulary, Vocabulary],
        about: ExportedSystem,
        folder: Path,
    ) -> None:
        """Write the engine's files.

        Args:
            model: a model without `refusal`.
            vocabularies: of source and target; the same object if they share a vocabulary.
            about: quantization, positions and search settings.
            folder: an empty folder.
        """

    @abstractmethod
    def load(self, folder: Path) -> tuple[str, Translate]:
        """Load a written folder on one CPU core.

        Returns: the engine's name and number type, and the function that translates.
        """
