"""Loss, BLEU and reading of a system with its own contexts, and with contexts that replace them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nmtkit import console, files
from nmtkit.analyze import context_reading
from nmtkit.analyze.context_reading import Example, Reading
from nmtkit.analyze.study import Study
from nmtkit.arrays import Floats, Ints
from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents, Kind
from nmtkit.data.store import Store
from nmtkit.errors import LeftOut
from nmtkit.measures import recording
from nmtkit.score.metrics import Metric, mean_metric
from nmtkit.score.resampling import Draws, ratios
from nmtkit.score.translations import scorer_of
from nmtkit.tables.table import Estimate
from nmtkit.translate import workers
from nmtkit.translate.forced import forced_scores
from nmtkit.translate.scorer import Scorer

OWN, NONE, OTHERS = "own", "none", "other documents"
REPLACEMENTS: dict[str, Kind] = {
    NONE: "none",
    "same document": "random",
    OTHERS: "foreign",
}
EXAMPLES = 5
"""Number of sentences shown of each system: those that gain most from their context."""


def conditions(rule: ContextRule) -> dict[str, ContextRule]:
    """Return condition -> rule: the system's own rule, then the REPLACEMENTS."""
    # With another seed, a system with random contexts does not draw its own contexts again.
    seed = rule.seed + 1
    replacements = {
        label: dataclasses.replace(rule, kind=kind, seed=seed)
        for label, kind in REPLACEMENTS.items()
    }
    return {OWN: rule, **replacements}


class Replaced(Documents):
    """Documents whose contexts come from another rule than the system's own. A sentence gets at
    most as many context sentences as under the system's rule, unless that rule takes whole
    documents.

    Args:
        documents: the documents of the set.
        rule: the other rule.
    """

    def __init__(self, documents: Documents, rule: ContextRule) -> None:
        vars(self).update(vars(documents))
        self._rule = rule

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        own = super().context(sentence, rule)
        size = self._rule.size if rule.whole else len(own)
        return super().context(sentence, dataclasses.replace(self._rule, size=size)) if own else []


@dataclass(frozen=True)
class Condition:
    """The results of a system on a set whose contexts come from one rule.

    Attributes:
        bleu: None if the contexts need translations that the system has not made.
        changed: number of sentences with another context than their own.
        loss: the loss on the references.
        kept: the share of its own state that a source subword keeps; empty if not recorded.
        on_words: the share of its attention that falls on context words; empty if not recorded.
    """

    bleu: Metric | None
    changed: int
    loss: Metric
    kept: Estimate
    on_words: Estimate


Conditions = Mapping[str, Condition]


class Reader:
    """Reads the set of a study with one system, under each condition.

    Raises: LeftOut if the system reads no context.
    """

    def __init__(self, study: Study, name: str) -> None:
        self.study, self.name, self.store, self.device = study, name, study.store, study.device
        self.model = study.model(name)
        if self.model.context_rule is None:
            raise LeftOut("it reads no context")
        self.rule = self.model.context_rule

    @cached_property
    def sites(self) -> context_reading.Sites:
        """The sites where the model reads contexts."""
        return context_reading.sites_of(self.model)

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer that translates with the model and has its vocabularies."""
        return self.study.scorer(self.model, self.study.run.system(self.name).searching())

    def compare(self, draws: Draws) -> Conditions:
        """Return the results of the system under each condition. Sentences that are too long under
        one condition are left out of the loss under all conditions.
        """
        results, stores = {}, {}
        metrics = scorer_of(self.study.run, self.study.set_name)
        for label, rule in conditions(self.rule).items():
            if label != OTHERS or len(self.store.documents) > 1:
                stores[label] = copy.copy(self.store)
                stores[label].documents = Replaced(self.store.documents, rule)
        rows = recording.readable_rows(self.store, None, np.arange(len(self.store)))
        for store in stores.values():
            rows = recording.readable_rows(store, self.rule, rows)
        self.study.note_too_long(self.name, len(self.store) - len(rows))
        with workers.one_thread(self.device):
            for label, store in stores.items():
                bleu = None
                if label in (OWN, NONE) or not self.rule.targets:
                    bleu = metrics.score("bleu", self._translations(label, store.documents))
                own, other = self.store.documents, store.documents
                changed = sum(
                    own.context(i, self.rule) != other.context(i, self.rule)
                    for i in range(len(store))
                )
                nats, sums = self._read(store, rows)
                signature = "nats a subword, </s> included"
                loss = mean_metric("loss", nats, signature, higher_is_better=False)
                kept, on_words = ratios(sums[:, :2], sums[:, [2, 2]], draws)
                results[label] = Condition(
                    bleu,
                    changed,
                    loss,
                    kept if self.sites.gates else Estimate(None),
                    on_words if self.sites.attention else Estimate(None),
                )
        return results

    def _translations(self, label: str, documents: Documents) -> list[str]:
        """Return the translations of the set with the contexts of some documents."""
        lines = list(files.text_lines(self.study.run.source(self.study.set_name)))
        with console.progress(f"{self.name}: context {label}", len(lines)) as self.scorer.done:
            return [line.text for line in self.scorer.translate_window(lines, documents=documents)]

    def _read(self, store: Store, rows: Ints) -> tuple[Floats, Floats]:
        """Return two arrays with a row for each sentence of the set.

        Returns: (N, 2), loss in nats and number of subwords of each reference; (N, 3), sums of
            `Reading.kept` and `Reading.on_words` over the source subwords, and the number of these
            subwords. Sentences that are not among the rows have zeros, and in the second array
            sentences without context too.
        """
        loss, sums = np.zeros((len(store), 2)), np.zeros((len(store), 3))
        for batch in recording.batches(store, self.device, self.rule, rows):
            rows = batch.rows.cpu().numpy()
            loss[rows, 1] = store.tgt_lengths[rows]
            loss[rows, 0] = [-sum(scores) for scores in forced_scores([self.model], batch)]
            readings = context_reading.readings(self.model, batch, self.sites)
            for row, reading in zip(rows, readings, strict=True):
                if reading is not None:
                    kept = 0 if reading.kept is None else reading.kept.sum()
                    sums[row] = [kept, reading.on_words.sum(), len(reading.weights)]
        return loss, sums

    def examples(self, gains: Floats) -> list[Example]:
        """Return the sentences that gain most from their context. Equal texts appear once.

        Args:
            gains: (N) the gain of each sentence in nats.
        """
        if not (self.sites.attention or self.sites.gates):
            return []
        readings: dict[tuple[int, ...], tuple[int, Reading]] = {}
        for row in np.argsort(-gains, kind="stable")[: (gains > 0).sum()].tolist():
            if len(readings) == EXAMPLES:
                break
            batch = collate(self.store, np.array([row]), self.device, self.rule)
            (reading,) = context_reading.readings(self.model, batch, self.sites)
            if reading is not None:
                text = *reading.symbols, *batch.src[0].tolist()
                readings.setdefault(text, (row, reading))
        scorer, examples = self.scorer, []
        vocabulary, splitter = scorer.src_vocab, scorer.src_side.splitter
        for row, reading in readings.values():
            title = f"{self.name}, line {row + 1}: {gains[row]:+.2f} nats from its context"
            source, target = (ids(row)[:-1].tolist() for ids in (self.store.src, self.store.tgt))
            reference = scorer.tgt_side.surface(scorer.tgt_vocab.decode(target))
            examples.append(
                context_reading.example(title, reading, source, reference, vocabulary, splitter)
            )
        return examples
