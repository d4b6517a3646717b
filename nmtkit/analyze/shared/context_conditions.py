"""A system that reads a set with its own context, and with others in its place."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.analyze.analysis import LeftOut
from nmtkit.analyze.shared import context_reading, recording
from nmtkit.analyze.shared.context_reading import Example, Numbers
from nmtkit.analyze.study import Study
from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents, Kind
from nmtkit.data.store import Store
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.translations import scorer_of
from nmtkit.tables.table import Estimate
from nmtkit.text.bpe import join
from nmtkit.translate import workers
from nmtkit.translate.forced import forced_scores
from nmtkit.translate.scorer import Scorer

OWN, NONE = "own", "none"
REPLACEMENTS: dict[str, Kind] = {
    NONE: "none",
    "same document": "random",
    "other documents": "foreign",
}
EXAMPLES = 5
"""Sentences shown of each system: those that gain most from their context."""


def conditions(rule: ContextRule) -> dict[str, ContextRule]:
    """Return the contexts that are compared, by name: a system's own, and those in its place."""
    seed = rule.seed + 1
    others = {n: dataclasses.replace(rule, kind=k, seed=seed) for n, k in REPLACEMENTS.items()}
    return {OWN: rule, **others}


class Replaced(Documents):
    """Documents whose sentences have another context in the place of their own; a sentence without
    one still has none.

    Args:
        documents: of the set.
        rule: of the other context.
    """

    def __init__(self, documents: Documents, rule: ContextRule) -> None:
        vars(self).update(vars(documents))
        self._rule = rule

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        return super().context(sentence, self._rule) if super().context(sentence, rule) else []


@dataclass(frozen=True)
class Condition:
    """What a system does with one context for each sentence of the set (N).

    Attributes:
        bleu: None where the context would be what the system has not translated yet.
        changed: sentences whose context is another than their own.
        loss: of the references.
        kept: the share of its own state that a source subword keeps.
        on_words: the share of its attention that falls on context words.
    """

    bleu: Metric | None
    changed: int
    loss: Metric
    kept: Estimate
    on_words: Estimate


Conditions = Mapping[str, Condition]


class Reader:
    """A system that reads a set with its own context and with others.

    Args:
        study: with the set and the device.
        name: the system.
    Raises: LeftOut if the system reads no context.
    """

    def __init__(self, study: Study, name: str) -> None:
        self.study, self.name, self.store = study, name, study.store
        self.model = study.model(name)
        if self.model.context_rule is None:
            raise LeftOut("it reads no context")
        self.rule = self.model.context_rule

    @cached_property
    def sites(self) -> context_reading.Sites:
        """Where the model reads contexts."""
        return context_reading.sites_of(self.model, self.study.device)

    @cached_property
    def scorer(self) -> Scorer:
        """What translates with the model."""
        return self.study.scorer(self.model, self.study.search_settings(self.name))

    def compare(self, draws: Draws) -> Conditions:
        """Return what the system does under each condition."""
        study, results = self.study, {}
        lines = list(files.text_lines(study.run.source(study.set_name)))
        metrics = scorer_of(study.run, study.set_name)
        with workers.one_thread(study.device):
            for label, rule in conditions(self.rule).items():
                store = copy.copy(self.store)
                store.documents = Replaced(self.store.documents, rule)
                bleu = None
                if label in (OWN, NONE) or not self.rule.targets:
                    progress = console.progress(f"{self.name}: context {label}", len(lines))
                    with progress as self.scorer.done:
                        translations = self.scorer.translate_window(lines, None, store.documents)
                    bleu = metrics.score("bleu", [translation.text for translation in translations])
                documents = self.store.documents, store.documents
                pairs = ([d.context(i, self.rule) for d in documents] for i in range(len(store)))
                changed = sum(own != other for own, other in pairs)
                results[label] = Condition(bleu, changed, *self._read(store, draws))
        return results

    def _read(self, store: Store, draws: Draws) -> tuple[Metric, Estimate, Estimate]:
        """Return the loss, `Condition.kept` and `Condition.on_words` of the set with some
        contexts.
        """
        # By sentence: nats and subwords of the reference; if it has a context, sums of `kept` and
        # `on_words` over its source subwords, and the number of these.
        loss, sums = np.zeros((len(store), 2)), np.zeros((len(store), 3))
        loss[:, 1] = store.tgt_lengths
        for batch in recording.batches(store, self.study.device, self.rule):
            rows = batch.rows.cpu().numpy()
            loss[rows, 0] = [-sum(scores) for scores in forced_scores([self.model], batch)]
            readings = context_reading.readings(self.model, batch, self.sites)
            for row, reading in zip(rows, readings, strict=True):
                if reading is not None:
                    kept = 0 if reading.kept is None else reading.kept.sum()
                    sums[row] = [kept, reading.on_words.sum(), len(reading.weights)]
        resampled, total = draws.full.sums(sums), sums.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            kept, on_words = (
                estimate(float(total[i] / total[2]), resampled[:, i] / resampled[:, 2])
                if known
                else Estimate(None)
                for i, known in enumerate((self.sites.gates, self.sites.attention))
            )
        value, about = float(_ratio(loss.sum(0))), "nats a subword, </s> included"
        metric = Metric("loss", "loss", value, about, loss, _ratio, _ratio, higher_is_better=False)
        return metric, kept, on_words

    def examples(self, gains: Numbers) -> list[Example]:
        """Return the sentences that gain most from their context, the same text once.

        Args:
            gains: (N) nats.
        """
        if not (self.sites.attention or self.sites.gates):
            return []
        scorer = self.scorer
        examples: dict[tuple[int, ...], Example] = {}
        for row in np.argsort(-gains, kind="stable").tolist():
            if len(examples) == EXAMPLES or gains[row] <= 0:
                break
            batch = collate(self.store, np.array([row]), self.study.device, self.rule)
            (reading,) = context_reading.readings(self.model, batch, self.sites)
            if reading is not None:
                subwords = scorer.tgt_vocab.decode(self.store.tgt(row)[:-1].tolist())
                reference = " ".join(join(subwords))
                title = f"{self.name}, line {row + 1}: {gains[row]:+.2f} nats from its context"
                source = batch.src[0, :-1].tolist()
                about = reading, source, reference, scorer.src_vocab
                example = context_reading.example(title, *about)
                examples.setdefault((*reading.symbols, *source), example)
        return list(examples.values())


def _ratio(sums: NDArray[Any]) -> NDArray[Any]:
    ratios: NDArray[Any] = sums[..., 0] / np.maximum(sums[..., 1], 1)
    return ratios
