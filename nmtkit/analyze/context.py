"""Analysis `context`: is the context used? Loss and BLEU with the true one, none and others;
gates, attention and examples.
"""

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
from nmtkit.analyze.analysis import Analysis, Finding, LeftOut, Options
from nmtkit.analyze.gates import OF_CONTEXT, Gates, GatesOptions, gates_of
from nmtkit.analyze.shared import context_reading, recording
from nmtkit.analyze.shared.context_reading import Example, Numbers
from nmtkit.analyze.shared.presenting import interval_column, text_columns
from nmtkit.analyze.study import SEED, Study
from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents, Kind, documents_file
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.models.base import Model
from nmtkit.models.variants import VARIANTS, load_variant
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import TESTS, compare, difference
from nmtkit.score.translations import scorer_of
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table
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
P_VALUES = ("paired_bootstrap", "sacrebleu_randomization")


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


@dataclass(frozen=True)
class ContextUse:
    """What was measured.

    Attributes:
        signature: of BLEU.
        systems: system -> condition -> what it does.
        gates: the finding of `gates` for the systems that weigh their context by a gate.
        facts: of the finding.
    """

    set_name: str
    signature: str
    draws: Draws
    systems: dict[str, Conditions]
    examples: list[Example]
    gates: Finding | None
    facts: dict[str, Any]


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

    def conditions(self, draws: Draws) -> Conditions:
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


def having_context() -> list[str]:
    """Return the variants of the table that read context."""
    return [name for name in VARIANTS if load_variant(name).context_rule is not Model.context_rule]


class Context(Analysis[Options, ContextUse]):
    """What the context is worth to each system that reads one."""

    name = "context"
    title = "whether the context is used"
    examples = ("--set-name dev",)

    def measure(self, study: Study) -> ContextUse:
        study.set_names = study.set_names or [s.name for s in study.run.sets("dev")][:1]
        set_name = study.set_name
        if not study.run.source(set_name).is_file():
            message = f"the set '{set_name}' has no text to translate"
            raise ConfigError(message, where="--set-name", hint="a test set, or dev")
        readers = study.each(
            lambda name: Reader(study, name),
            "no system reads context",
            f"variants that read one: {', '.join(having_context())}",
        )
        path = documents_file(study.run.prep, set_name)
        if not path.is_file():
            message = f"the set '{set_name}' has no documents: each sentence stands alone,"
            hint = f"nmtkit prep … --docs {set_name}=FILE, or another --set-name"
            raise DataError(f"{message} without any context", where=path, hint=hint)
        store, metrics = study.store, scorer_of(study.run, set_name)
        draws = study.draws(len(store))
        systems: dict[str, Conditions] = {}
        examples: list[Example] = []
        for name, reader in readers.items():
            of_system = systems[name] = reader.conditions(draws)
            nats = (of_system[label].loss.statistics[:, 0] for label in (NONE, OWN))
            examples += reader.examples(np.subtract(*nats))
        return ContextUse(
            set_name,
            metrics.score("bleu", metrics.refs[0]).signature,
            draws,
            systems,
            examples,
            _gates(study, readers),
            {
                "set": set_name,
                "sentences": len(store),
                "documents": len(store.documents),
                "left_out": list(study.left_out),
                "rules": {name: dataclasses.asdict(r.rule) for name, r in readers.items()},
                "resamples": draws.resamples,
                "trials": draws.trials,
                "seed": SEED,
            },
        )

    def present(self, result: ContextUse) -> Finding:
        title = (
            f"What is read in the context ({result.set_name}): the {EXAMPLES} sentences of each"
            " system that gain most from it"
        )
        note = (
            "context words: the attention they get from the source words, in proportion to what"
            " these take; source words: what each takes from them"
        )
        bars = [f"{title}\n({note})", context_reading.as_text(result.examples)]
        attachments = {"examples.html": context_reading.as_html(title, note, result.examples)}
        if result.gates is not None:
            bars.append(result.gates.bars)
            forms = result.gates.table.forms().items()
            attachments |= {f"gates.{suffix}": content for suffix, content in forms}
        return Finding(
            table=_table(result),
            text=(
                "A system uses its context where loss and BLEU get worse without it, and with one"
                " that says something else. If another document's context does no harm, what was"
                " gained is not from what the context says."
            ),
            figure=_figure(result),
            bars="\n\n".join(bars),
            facts=result.facts,
            attachments=attachments,
        )


def _gates(study: Study, readers: Mapping[str, Reader]) -> Finding | None:
    """Return what `analyze gates` finds of the systems that weigh their context by a gate."""
    systems = [
        name
        for name, reader in readers.items()
        if any(site.endswith(OF_CONTEXT) for site in gates_of(reader.model, study.device))
    ]
    if not systems:
        return None
    gates = Gates(GatesOptions())
    return gates.present(gates.measure(Study(study.run, "gates", systems, [study.set_name])))


def _rows(name: str, conditions: Conditions, draws: Draws) -> list[list[Any]]:
    rows, base = [], conditions[OWN]
    for label, condition in conditions.items():
        cells: list[Any] = [name, label, condition.changed]
        for metric, other in ((condition.loss, base.loss), (condition.bleu, base.bleu)):
            if metric is None or other is None:
                cells += [None] * (2 + len(P_VALUES))
                continue
            value = estimate(metric.value, draws.full.scores(metric))
            cells += [value, None if condition is base else difference(metric, other, draws)]
            # Some tests give equal outputs, or two scores of zero, a small p.
            alike = metric.value == other.value == 0 or np.array_equal(
                metric.statistics, other.statistics
            )
            cells += [None if alike else compare(test, metric, other, draws).p for test in P_VALUES]
        rows.append([*cells, condition.kept, condition.on_words])
    return rows


def _table(result: ContextUse) -> Table:
    draws = result.draws
    columns = [*text_columns("system", "context"), Column("changed", "changed")]
    for key, header, decimals in (("loss", "loss", 4), ("bleu", "BLEU", 2)):
        columns.append(interval_column(key, header, decimals))
        columns.append(interval_column(f"{key}_difference", f"Δ {header}", decimals, signed=True))
        for test in P_VALUES:
            finest = TESTS[test].finest(draws) or None
            columns.append(Column(f"{key}_{test}", f"p {TESTS[test].header}", 4, below=finest))
    columns.append(interval_column("kept", "own state kept", 3))
    columns.append(interval_column("on_words", "attention on context words", 3))
    tests = "; ".join(
        f"{TESTS[test].header}: {TESTS[test].name}, {TESTS[test].reading}" for test in P_VALUES
    )
    notes = [
        (
            "own: what the system was trained to read; same document, other documents: as many"
            " sentences, drawn at random, in the place of the own ones; changed: sentences whose"
            " context is then another. A sentence that has no context of its own has none in"
            " any row"
        ),
        (
            f"loss: nats a subword of the first reference, </s> included; BLEU: {result.signature},"
            " searched in float32; a system that reads its own earlier translations gets those of"
            " the reference in the loss, and with other sentences no BLEU: these are not"
            " translated before"
        ),
        (
            "Δ and p: against the system's own context, no p where outputs are the same or both"
            f" scores zero; {tests}; {draws.full.describe()}; {draws.swaps.describe()}"
        ),
        (
            "own state kept: the mean of the gate λ over source subwords that have a context (the"
            " rest is what was read); attention on context words: of the attention of these, the"
            " share on words and not on breaks and ends (where both are read as one text: of all"
            " its encoder's attention)"
        ),
        "gates.md: λ by word and frequency; examples.html: the sentences that gain most",
    ]
    rows = [
        row for name, conditions in result.systems.items() for row in _rows(name, conditions, draws)
    ]
    return Table("context", f"Is the context used? ({result.set_name})", columns, rows, notes)


def _figure(result: ContextUse) -> str | None:
    """Draw how much each other context raises the loss of each system."""
    systems, draws = result.systems, result.draws
    series = {
        label: [difference(c[label].loss, c[OWN].loss, draws) for c in systems.values()]
        for label in REPLACEMENTS
    }
    xlabel = "another context in the place of the own one"
    return figures.grouped_bars(list(systems), series, xlabel, "Δ loss, nats a subword")
