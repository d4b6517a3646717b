"""Analysis `context`: is the context used? Loss and BLEU with the true one, none and others;
gates, attention and examples.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.analyze.analysis import Analysis, Finding, LeftOut, Options
from nmtkit.analyze.gates import OF_CONTEXT, Gates, GatesOptions, gates_of
from nmtkit.analyze.shared import context_reading, recording
from nmtkit.analyze.shared.context_reading import Example, Numbers, Sites
from nmtkit.analyze.study import SEED, Study
from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents, Kind, documents_file
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.models.base import Model
from nmtkit.models.variants import VARIANTS, load_variant
from nmtkit.parallel import cores
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import TESTS, compare, difference
from nmtkit.score.translations import scorer_of
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate import workers
from nmtkit.translate.chosen import choose
from nmtkit.translate.forced import forced_scores
from nmtkit.translate.translator import Translator

OWN, NONE = "own", "none"
EXAMPLES = 5
"""Sentences shown of each system: those that gain most from their context."""
P_VALUES = ("paired_bootstrap", "sacrebleu_randomization")


def conditions(rule: ContextRule) -> dict[str, ContextRule]:
    """Return the contexts that are compared, by name: a system's own, and those in its place."""
    others: dict[str, Kind] = {
        NONE: "none",
        "same document": "random",
        "other documents": "foreign",
    }
    seed = rule.seed + 1
    replaced = {n: dataclasses.replace(rule, kind=k, seed=seed) for n, k in others.items()}
    return {OWN: rule, **replaced}


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
    """What a system does with one context for each sentence of the set (N)."""

    bleu: Metric | None
    """None where the context would be what the system has not translated yet."""
    loss: Metric
    changed: int
    """Sentences whose context is another than their own."""
    kept: Estimate
    """The share of its own state that a source subword keeps."""
    on_words: Estimate
    """The share of its attention that falls on context words."""


@dataclass(frozen=True)
class ContextUse:
    """What was measured, and the finding of `gates` where a system weighs its context by a gate."""

    set_name: str
    sentences: int
    documents: int
    signature: str
    draws: Draws
    rules: dict[str, ContextRule]
    systems: dict[str, dict[str, Condition]]
    examples: list[Example]
    gates: Finding | None
    left_out: list[str]


class Reader:
    """One set, and how a system reads it with other contexts.

    Args:
        study: with the set and the device.
    """

    def __init__(self, study: Study) -> None:
        self.run, self.set_name, self.store, self.device = (
            study.run,
            study.set_name,
            study.store,
            study.device,
        )
        self.scorer = scorer_of(study.run, study.set_name)
        self.draws = Draws(len(self.store), seed=SEED)
        self.texts = TextSide.load(self.run.prep, "src"), TextSide.load(self.run.prep, "tgt")
        self.vocabularies = load_vocabularies(self.run.prep)

    def under(self, rule: ContextRule) -> Store:
        """Return the set with other contexts."""
        store = copy.copy(self.store)
        store.documents = Replaced(self.store.documents, rule)
        return store

    def log_probs(self, model: Model, store: Store) -> Numbers:
        """Return the log-probability of each reference (N)."""
        sums = np.zeros(len(store))
        for batch in recording.batches(store, self.device, model.context_rule):
            sums[batch.rows.cpu().numpy()] = [
                sum(scores) for scores in forced_scores([model], batch)
            ]
        return sums

    def loss(self, log_probs: Numbers) -> Metric:
        """Return nats a subword of the references, </s> included."""
        statistics = np.stack([-log_probs, self.store.tgt_lengths.astype(np.float64)], axis=1)
        value = float(_ratio(statistics.sum(0)))
        signature = "nats a subword, </s> included"
        return Metric(
            "loss", "loss", value, signature, statistics, _ratio, _ratio, higher_is_better=False
        )

    def reading(self, model: Model, store: Store, sites: Sites) -> tuple[Estimate, Estimate]:
        """Return `Condition.kept` and `Condition.on_words`, over the subwords that have a
        context.
        """
        sums = np.zeros((len(store), 3))
        for batch in recording.batches(store, self.device, model.context_rule):
            readings = context_reading.readings(model, batch, sites)
            for row, reading in zip(batch.rows.tolist(), readings, strict=True):
                if reading is not None:
                    kept = 0 if reading.kept is None else reading.kept.sum()
                    sums[row] = [kept, reading.on_words.sum(), len(reading.weights)]
        resampled, total = self.draws.full.sums(sums), sums.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = [float(total[i] / total[2]) if total[2] else None for i in (0, 1)]
            kept, on_words = (
                estimate(mean, resampled[:, i] / resampled[:, 2]) for i, mean in enumerate(means)
            )
        return kept if sites.gates else Estimate(None), (
            on_words if sites.attention else Estimate(None)
        )

    def compare(
        self, name: str, model: Model, rule: ContextRule
    ) -> tuple[dict[str, Condition], Numbers]:
        """Return a system under each condition, and the log-probability that its own context
        adds to each reference (N).
        """
        lines = list(files.text_lines(self.run.source(self.set_name)))
        sites = context_reading.sites_of(model, self.device)
        results: dict[str, Condition] = {}
        log_probs: dict[str, Numbers] = {}
        search = choose(self.run, [name], ensemble=False, search={}, single=True)[0].settings
        with workers.one_thread(self.device):
            translator = Translator(
                [model], *self.texts, *self.vocabularies, search, self.device, cores()
            )
            for condition, other in conditions(rule).items():
                store = self.under(other)
                bleu = None
                if condition in (OWN, NONE) or not rule.targets:
                    with console.progress(
                        f"{name}: context {condition}", len(lines)
                    ) as translator.done:
                        hypotheses = translator.translate_window(lines, documents=store.documents)
                    bleu = self.scorer.score("bleu", [hypothesis.text for hypothesis in hypotheses])
                log_probs[condition] = self.log_probs(model, store)
                contexts = (
                    (s.documents.context(i, rule) for s in (self.store, store))
                    for i in range(len(store))
                )
                changed = sum(own != other for own, other in contexts)
                reading = self.reading(model, store, sites)
                results[condition] = Condition(
                    bleu, self.loss(log_probs[condition]), changed, *reading
                )
        return results, log_probs[OWN] - log_probs[NONE]

    def examples(self, name: str, model: Model, gains: Numbers) -> list[Example]:
        """Return the sentences that gain most from their context, the same text once."""
        sites = context_reading.sites_of(model, self.device)
        if not (sites.attention or sites.gates):
            return []
        examples: dict[tuple[int, ...], Example] = {}
        for row in np.argsort(-gains, kind="stable").tolist():
            if len(examples) == EXAMPLES or gains[row] <= 0:
                break
            batch = collate(self.store, np.array([row]), self.device, model.context_rule)
            reading = context_reading.readings(model, batch, sites)[0]
            if reading is not None:
                reference = self.texts[1].surface(
                    self.vocabularies[1].decode(self.store.tgt(row)[:-1].tolist())
                )
                title = f"{name}, line {row + 1}: {gains[row]:+.2f} nats from its context"
                source = batch.src[0, :-1].tolist()
                example = context_reading.example(
                    title, reading, source, reference, self.vocabularies[0]
                )
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
        _check_set(study)
        models: dict[str, Model] = {}

        def rule_of(name: str) -> ContextRule:
            model = study.model(name)
            if model.context_rule is None:
                raise LeftOut("it reads no context")
            models[name] = model
            return model.context_rule

        rules = study.each(
            rule_of,
            "no system reads context",
            f"variants that read one: {', '.join(having_context())}",
        )
        if not documents_file(study.run.prep, study.set_name).is_file():
            message = (
                f"the set '{study.set_name}' has no documents: each sentence stands alone, without"
                " any context"
            )
            hint = f"nmtkit prep … --docs {study.set_name}=FILE, or another --set-name"
            raise DataError(
                message, where=documents_file(study.run.prep, study.set_name), hint=hint
            )
        reader = Reader(study)
        signature = reader.scorer.score("bleu", reader.scorer.refs[0]).signature
        systems: dict[str, dict[str, Condition]] = {}
        examples: list[Example] = []
        for name, rule in rules.items():
            systems[name], gains = reader.compare(name, models[name], rule)
            examples += reader.examples(name, models[name], gains)
        gated = [
            name
            for name, model in models.items()
            if any(s.endswith(OF_CONTEXT) for s in gates_of(model, study.device))
        ]
        return ContextUse(
            set_name=study.set_name,
            sentences=len(study.store),
            documents=len(study.store.documents),
            signature=signature,
            draws=reader.draws,
            rules=rules,
            systems=systems,
            examples=examples,
            gates=_gates(study, gated),
            left_out=list(study.left_out),
        )

    def present(self, result: ContextUse) -> Finding:
        table = _table(result)
        title = f"What is read in the context ({result.set_name}): "
        title += f"the {EXAMPLES} sentences of each system that gain most from it"
        note = (
            "context words: the attention they get from the source words, in proportion to what"
            " these take; "
        )
        note += "source words: what each takes from them"
        bars = [f"{title}\n({note})", context_reading.as_text(result.examples)]
        attachments = {"examples.html": context_reading.as_html(title, note, result.examples)}
        if result.gates is not None:
            bars.append(result.gates.bars)
            attachments |= {
                f"gates.{suffix}": content for suffix, content in result.gates.table.forms().items()
            }
        facts = {
            "set": result.set_name,
            "sentences": result.sentences,
            "documents": result.documents,
        }
        rules = {name: dataclasses.asdict(rule) for name, rule in result.rules.items()}
        draws = {"resamples": result.draws.resamples, "trials": result.draws.trials, "seed": SEED}
        return Finding(
            table=table,
            text=(
                "A system uses its context where loss and BLEU get worse without it, and with one"
                " that says something else. If another document's context does no harm, what was"
                " gained is not from what the context says."
            ),
            figure=_figure(result.systems, table),
            bars="\n\n".join(bars),
            facts={**facts, "left_out": result.left_out, "rules": rules, **draws},
            attachments=attachments,
        )


def _check_set(study: Study) -> None:
    """Refuse a set without text."""
    if not study.run.source(study.set_name).is_file():
        message = f"the set '{study.set_name}' has no text to translate"
        raise ConfigError(message, where="--set-name", hint="a test set, or dev")


def _gates(study: Study, systems: Sequence[str]) -> Finding | None:
    """Return what `analyze gates` finds of the systems that weigh their context by a gate."""
    if not systems:
        return None
    gates = Gates(GatesOptions())
    return gates.present(gates.measure(Study(study.run, "gates", list(systems), [study.set_name])))


def _rows(name: str, conditions: Mapping[str, Condition], draws: Draws) -> list[list[Any]]:
    rows = []
    base = conditions[OWN]
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
    columns = [
        Column("system", "system", left=True),
        Column("context", "context", left=True),
        Column("changed", "changed"),
    ]
    for key, header, decimals in (("loss", "loss", 4), ("bleu", "BLEU", 2)):
        columns += [Column(key, f"{header} [95%]", decimals=decimals, interval=True)]
        columns += [
            Column(
                f"{key}_difference",
                f"Δ {header} [95%]",
                decimals=decimals,
                signed=True,
                interval=True,
            )
        ]
        for test in P_VALUES:
            finest = TESTS[test].finest(draws) or None
            columns.append(
                Column(f"{key}_{test}", f"p {TESTS[test].header}", decimals=4, below=finest)
            )
    columns += [Column("kept", "own state kept [95%]", decimals=3, interval=True)]
    columns += [Column("on_words", "attention on context words [95%]", decimals=3, interval=True)]
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


def _figure(systems: Mapping[str, Mapping[str, Condition]], table: Table) -> str | None:
    """Draw how much each other context raises the loss of each system."""
    place = [column.key for column in table.columns].index("loss_difference")
    others = [label for label in next(iter(systems.values())) if label != OWN]
    rises = {(row[0], row[1]): row[place] or Estimate(None) for row in table.rows}
    series = {label: [rises[name, label] for name in systems] for label in others}
    return figures.grouped_bars(
        list(systems),
        series,
        "another context in the place of the own one",
        "Δ loss, nats a subword",
    )
