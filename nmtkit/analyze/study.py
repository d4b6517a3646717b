"""What an analysis reads: the systems and sets that were asked for, their models, texts and
translations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nmtkit import console
from nmtkit.arrays import Ints
from nmtkit.errors import DataError, LeftOut
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
"""Share of unknown subwords above which a text is of another language, or tokenized otherwise."""
TRAIN_ONE = "train a variant that does (nmtkit/analyze/README.md names them)"
"""The hint if an analysis can measure no system of a run."""
R = TypeVar("R")
T = TypeVar("T")


@dataclass
class Study:
    """Systems of a run and the sets that one analysis looks at.

    Attributes:
        run: the run.
        analysis: the name of the analysis.
        systems: names; the first is the baseline.
        set_names: as asked for; empty: the analysis' default.
        left_out: system -> why the analysis cannot use it.
        checkpoints: system -> the checkpoints that its model was loaded from.
        facts: set, seed and resamples, once they are used; they become facts of the finding.
        too_long: system -> the number of sentences that it did not read because of their length.
        warnings: what a reader of the finding must know; they become notes of its table.
    """

    run: Run
    analysis: str
    systems: list[str]
    set_names: list[str]
    left_out: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, list[str]] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)
    too_long: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def text_set(self) -> TextSet:
        """The one set that is read: the one named, else the first test set, else dev, else any.

        Raises: ConfigError if there is none of that name.
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
        """Where models compute."""
        from nmtkit.nn.hardware import pick_device

        return pick_device("auto")

    def model(self, name: str, precision: Precision = "float32") -> Model:
        """Return a system's model in evaluation mode, with the weights that it translates with.

        Args:
            name: the system.
            precision: of its products on a CPU.
        Raises: LeftOut if it has no checkpoint; as `nmtkit.models.loading.load_system`.
        """
        from nmtkit.models import checkpoints, loading

        system = self.run.find_system(name)
        if not checkpoints.candidates(system.checkpoints):
            hint = f"{system.train_command}, or name the other systems with --system"
            raise LeftOut(f"no checkpoint of '{name}'", where=system.checkpoints, hint=hint)
        self.checkpoints[name] = list(checkpoints.current(system))
        return loading.load_system(self.run, system, self.device, precision=precision)

    def warn(self, name: str, message: str) -> None:
        """Warn of a system or a set, now and in the finding."""
        console.warn(f"'{name}' {message}")
        self.warnings.append(f"{name} {message}")

    def warn_of_unknown(self, shares: Mapping[str, float]) -> None:
        """Warn if a system can read little of texts that are not of the run, as `warn`.

        Args:
            shares: texts -> share of their subwords that the run's vocabulary lacks, 0..1.
        """
        if max(shares.values()) > MANY_UNKNOWN:
            parts = ", ".join(f"{share:.1%} of the {texts}" for texts, share in shares.items())
            self.warnings.append(f"unknown subwords: {parts}; there a system can only guess")
            console.warn(self.warnings[-1])

    def scorer(self, model: Model, settings: SearchSettings) -> Scorer:
        """Return a scorer that translates and scores raw text with a model, on all cores."""
        from nmtkit.translate.scorer import Scorer

        return Scorer.for_corpus(self.run.prep, [model], settings, self.device, cores())

    def batches(
        self, name: str, model: Model, rows: Ints | None = None, pairs: GivenPairs | None = None
    ) -> Iterator[Batch]:
        """Yield the pairs of the one set in batches, with the contexts that a model reads. The
        finding has a note if some are too long.

        Args:
            name: the system, for the progress that is shown; model: its model.
            rows: the numbers of the pairs to read; None: all.
            pairs: pairs to read instead of those of the set; they have no contexts.
        """
        from nmtkit.measures import recording

        rule = model.context_rule if pairs is None else None
        store = pairs or self.store
        count = len(store.src_lengths) if rows is None else len(rows)
        short = recording.readable_rows(store, rule, rows)
        self.too_long[name] += count - len(short)
        with console.progress(f"{name}: sentences", len(short)) as advance:
            for batch in recording.batches(store, self.device, rule, short):
                yield batch
                advance(len(batch.rows))

    def each(self, measure: Callable[[str], R], nobody: str, hint: str) -> dict[str, R]:
        """Measure every system that can be measured.

        Args:
            measure: system -> its result; raises LeftOut with the reason if the system has none.
            nobody: the message if no system can be measured; hint: what to do then, unless the
                reason for a system has a hint.
        Returns: system -> result, the baseline first. The systems left out, and why, are logged
            and stay in `left_out`.
        Raises: DataError if no system can be measured.
        """
        results, remedy = {}, None
        for name in self.systems:
            try:
                results[name] = measure(name)
            except LeftOut as error:
                self.left_out[name], remedy = error.message, remedy or error.hint
        if not results:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise DataError(f"{nobody} ({reasons})", where=self.run.path, hint=remedy or hint)
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
        Raises: DataError if no system has it.
        """

        def look(name: str) -> R:
            model = self.model(name)
            if not (records := recorded(model)):
                raise LeftOut(f"it records no {tensors} (see nmtkit.nn.capture)")
            return measure(name, model, records)

        return self.each(look, f"no system of this run records {tensors}", TRAIN_ONE)

    def translations(self, text_set: TextSet | None = None) -> dict[str, Path]:
        """Return the translation folders of the systems that have translated a set (default: the
        one that is read).

        Raises: as `translated_systems`; DataError if none has.
        """
        text_set = text_set or self.text_set
        folders = translated_systems(self.run, text_set, [], among=self.systems)
        outdated = older_checkpoints(self.run, text_set.name, folders).values()
        for caution in (*outdated, *cautions_on(self.run, text_set, folders)):
            if caution not in self.warnings:
                self.warnings.append(caution)
        return folders

    def draws(self, sentences: int) -> Draws:
        """Return the resamples and swaps of N sentences, for intervals and significance tests."""
        self.facts |= {"seed": SEED, "resamples": RESAMPLES}
        return Draws(sentences, RESAMPLES, seed=SEED)


def interval_note(resampled: str = "of the sentences") -> str:
    """Return the note that says how the intervals of a table are computed."""
    drawn = f"{RESAMPLES} resamples {resampled}, seed {SEED}"
    return f"[95%]: percentile interval over {drawn}; {FEW}"
