"""The data of an analysis: systems of a run, their models and translations, and prepared sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nmtkit import console
from nmtkit.arrays import Ints
from nmtkit.errors import DataError, LeftOut, counted
from nmtkit.files import JsonObject
from nmtkit.parallel import cores
from nmtkit.records import TextSet
from nmtkit.run import Run
from nmtkit.score.resampling import FEW, Draws
from nmtkit.score.translations import cautions_on, older_checkpoints, translated_systems
from nmtkit.settings import SearchSettings

if TYPE_CHECKING:
    import torch

    from nmtkit.data.batches import Batch
    from nmtkit.data.pairs import GivenPairs
    from nmtkit.data.store import Store
    from nmtkit.models.base import Model
    from nmtkit.nn.linear import Precision
    from nmtkit.translate.scorer import Scorer


RESAMPLES, SEED = 1000, 1
MANY_UNKNOWN = 0.02
"""A text with a larger share of unknown subwords is of another language, or tokenized differently.
"""
TRAIN_ONE = "train a variant that does (nmtkit/analyze/README.md names them)"
"""The hint if an analysis can measure no system of a run."""
R = TypeVar("R")
T = TypeVar("T")


@dataclass
class Study:
    """The systems and sets of a run that one analysis reads.

    Attributes:
        run: the run.
        analysis: the name of the analysis.
        systems: names of systems; the first is the baseline.
        set_names: names of sets; empty = the default of the analysis.
        left_out: system -> why the analysis cannot use it.
        checkpoints: system -> the checkpoints that its model was loaded from.
        facts: set, seed and resamples, if they are used; they become facts of the finding.
        warnings: warnings that become notes of the table.
    """

    run: Run
    analysis: str
    systems: list[str]
    set_names: list[str]
    left_out: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, list[str]] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def text_set(self) -> TextSet:
        """The one set that is read: the named set, else the first test set, else dev, else any.

        Raises: ConfigError for an unknown name.
        """
        named = list(map(self.run.text_set, self.set_names))
        first, *_ = [*named, *self.run.sets("test"), *self.run.sets("dev"), *self.run.sets()]
        self.facts["set"] = first.name
        return first

    @property
    def set_name(self) -> str:
        """The name of the one set that is read."""
        return self.text_set.name

    @cached_property
    def store(self) -> Store:
        """The token ids of the one set that is read."""
        from nmtkit.data.store import Store

        return Store(self.run.prep / self.set_name)

    @property
    def folder(self) -> Path:
        """The folder of the finding."""
        return self.run.path / "analyze" / self.analysis

    @property
    def dataset(self) -> str:
        """The name of the prepared corpus."""
        return self.run.manifest().dataset

    @cached_property
    def device(self) -> torch.device:
        """The device that models compute on."""
        from nmtkit.nn.hardware import pick_device

        return pick_device("auto")

    def model(self, name: str, precision: Precision = "float32") -> Model:
        """Return the model of a system in evaluation mode, with the weights that translate.

        Args:
            name: the system.
            precision: the number type of its products on a CPU.
        Raises: LeftOut if it has no checkpoint; as `nmtkit.models.loading.load_system`.
        """
        from nmtkit.models import checkpoints, loading

        self.check_trained(name)
        system = self.run.find_system(name)
        self.checkpoints[name] = list(checkpoints.current(system))
        return loading.load_system(self.run, system, self.device, precision=precision)

    def check_trained(self, name: str) -> None:
        """Raise LeftOut if a system has no checkpoint."""
        from nmtkit.models import checkpoints

        system = self.run.find_system(name)
        if not checkpoints.candidates(system.checkpoints):
            hint = f"{system.train_command}, or name the other systems with --system"
            raise LeftOut(f"no checkpoint of '{name}'", where=system.checkpoints, hint=hint)

    def warn(self, name: str, message: str) -> None:
        """Warn about a system or a set, on stderr and in the notes of the table."""
        console.warn(f"'{name}' {message}")
        self.warnings.append(f"{name} {message}")

    def warn_of_unknown(self, shares: Mapping[str, float]) -> None:
        """Warn, on stderr and in the notes, if texts have many unknown subwords.

        Args:
            shares: name of the texts -> share of unknown subwords, 0..1.
        """
        if max(shares.values()) > MANY_UNKNOWN:
            parts = ", ".join(f"{share:.1%} of the {texts}" for texts, share in shares.items())
            self.warnings.append(f"unknown subwords: {parts}; there a system can only guess")
            console.warn(self.warnings[-1])

    def note_too_long(self, name: str, count: int) -> None:
        """Add a note if a system leaves out sentences because they are too long."""
        if count:
            sentences = counted(count, "sentence")
            self.warnings.append(f"{name}: {sentences} left out, too long to be read")

    def scorer(self, model: Model, settings: SearchSettings) -> Scorer:
        """Return a scorer that translates and scores raw text with a model, on all cores."""
        from nmtkit.translate.scorer import Scorer

        return Scorer.for_corpus(self.run.prep, [model], settings, self.device, cores())

    def batches(
        self,
        name: str,
        model: Model,
        rows: Ints | None = None,
        pairs: GivenPairs | None = None,
        with_context: bool = True,
    ) -> Iterator[Batch]:
        """Yield sentence pairs in batches. Pairs that are too long are left out, and the finding
        has a note about them.

        Args:
            name: the system; model: its model.
            rows: the numbers of the pairs to read (default: all).
            pairs: pairs to read instead of those of the one set.
            with_context: read each pair with the context that the model reads.
        """
        from nmtkit.measures import recording

        rule = model.context_rule if with_context else None
        store = pairs or self.store
        rows = np.arange(len(store.src_lengths)) if rows is None else rows
        short = recording.readable_rows(store, rule, rows)
        self.note_too_long(name, len(rows) - len(short))
        with console.progress(f"{name}: sentences", len(short)) as advance:
            for batch in recording.batches(store, self.device, rule, short):
                yield batch
                advance(len(batch.rows))

    def each(self, measure: Callable[[str], R], nobody: str, hint: str) -> dict[str, R]:
        """Measure every system that can be measured.

        Args:
            measure: system -> its result; raises LeftOut, with the reason, if there is none.
            nobody: the message if no system can be measured.
            hint: the hint then, unless each reason has its own hint.
        Returns: system -> result, the baseline first. Systems that are left out are logged and
            added to `left_out`.
        Raises: DataError if no system can be measured.
        """
        results, remedies = {}, []
        for name in self.systems:
            try:
                results[name] = measure(name)
            except LeftOut as error:
                self.left_out[name] = error.message
                remedies.append(error.hint)
        if not results:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            hint = (all(remedies) and remedies[0]) or hint
            raise DataError(f"{nobody} ({reasons})", where=self.run.path, hint=hint)
        for name, why in self.left_out.items():
            console.say(f"left out: {name}: {why}")
        return results

    def models_with(
        self,
        recorded: Callable[[Model], T],
        tensors: str,
        measure: Callable[[str, Model, T], R],
    ) -> dict[str, R]:
        """Measure the systems whose models record something, one model after another.

        Args:
            recorded: model -> what the model records; empty if there is nothing.
            tensors: the name of the recorded tensors, for messages.
            measure: (system, model, what the model records) -> the result of the system.
        Returns: system -> result.
        Raises: DataError if no model records any.
        """

        def look(name: str) -> R:
            model = self.model(name)
            if not (records := recorded(model)):
                raise LeftOut(f"it records no {tensors} (see nmtkit.nn.capture)")
            return measure(name, model, records)

        return self.each(look, f"no system of this run records {tensors}", TRAIN_ONE)

    def translations(self, text_set: TextSet | None = None) -> dict[str, Path]:
        """Return the translation folders of the systems that have translated a set.

        Args:
            text_set: the set (default: the one that is read).
        Raises: as `translated_systems`; DataError if no system has.
        """
        text_set = text_set or self.text_set
        folders = translated_systems(self.run, text_set, [], among=self.systems)
        outdated = older_checkpoints(self.run, text_set.name, folders).values()
        cautions = [*self.warnings, *outdated, *cautions_on(self.run, text_set, folders)]
        self.warnings = list(dict.fromkeys(cautions))
        return folders

    def draws(self, sentences: int) -> Draws:
        """Return the resamples and swaps of N sentences, for intervals and significance tests."""
        self.facts |= {"seed": SEED, "resamples": RESAMPLES}
        return Draws(sentences, RESAMPLES, seed=SEED)


def interval_note(resampled: str = "of the sentences") -> str:
    """Return the note that says how the intervals of a table are computed."""
    drawn = f"{RESAMPLES} resamples {resampled}, seed {SEED}"
    return f"[95%]: percentile interval over {drawn}; {FEW}"
