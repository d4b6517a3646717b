"""Analysis `context`: is the context used? Loss and BLEU with the true one, none and others; gates, attention and examples."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.analyze import gates, looking, reading
from nmtkit.analyze.finding import Finding
from nmtkit.analyze.reading import Example, Numbers, Sites
from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents, documents_file
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.models.base import Model
from nmtkit.models.documents import DocumentTransformer
from nmtkit.models.variants import VARIANTS, load_variant
from nmtkit.parallel import cores
from nmtkit.run import Run
from nmtkit.score.metrics import Metric, Scorer
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import TESTS, compare, difference
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate import workers
from nmtkit.translate.chosen import Chosen, choose
from nmtkit.translate.forced import forced_scores
from nmtkit.translate.translator import Translator

OWN, NONE = "own", "none"
EXAMPLES = 5
"""Sentences shown of each system: those that gain most from their context."""
SEED = 1
P_VALUES = ("paired_bootstrap", "sacrebleu_randomization")


def conditions(rule: ContextRule) -> dict[str, ContextRule]:
    """The contexts that are compared, by their names: a system's own, and what takes its place."""
    others = {NONE: "none", "same document": "random", "other documents": "foreign"}
    return {OWN: rule} | {name: dataclasses.replace(rule, kind=kind, seed=rule.seed + 1) for name, kind in others.items()}  # type: ignore[arg-type]


class Replaced(Documents):
    """Documents whose sentences have another context in the place of their own; a sentence that has none still has none.

    Args:
        documents: of the set.
        rule: of the other context.
    """

    def __init__(self, documents: Documents, rule: ContextRule) -> None:
        vars(self).update(vars(documents))
        self._rule = rule

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        """See `Documents.context`; `rule` says which sentences have one."""
        return super().context(sentence, self._rule) if super().context(sentence, rule) else []


@dataclass(frozen=True)
class Measured:
    """A system with one context for each sentence of the set (N)."""

    bleu: Metric | None
    """None where the context would be what the system has not translated yet."""
    loss: Metric
    other: int
    """Sentences whose context is another than their own."""
    kept: Estimate
    on_words: Estimate


@dataclass(frozen=True)
class Subject:
    """A set and what reads it."""

    run: Run
    name: str
    store: Store
    scorer: Scorer
    draws: Draws

    def under(self, rule: ContextRule) -> Store:
        """The set with other contexts."""
        found = copy.copy(self.store)
        found.documents = Replaced(self.store.documents, rule)
        return found

    def log_probs(self, model: Model, store: Store) -> Numbers:
        """Of each reference (N)."""
        found = np.zeros(len(store))
        for batch in looking.batches(store, looking.device(), model.context_rule):
            found[batch.rows.cpu().numpy()] = [sum(scores) for scores in forced_scores([model], batch)]
        return found

    def loss(self, log_probs: Numbers) -> Metric:
        """Nats a subword of the references, </s> included."""
        statistics = np.stack([-log_probs, self.store.tgt_lengths.astype(np.float64)], axis=1)
        value = float(_ratio(statistics.sum(0)))
        return Metric("loss", "loss", value, "nats a subword, </s> included", statistics, _ratio, _ratio, higher_is_better=False)

    def read(self, model: Model, store: Store, sites: Sites) -> tuple[Estimate, Estimate]:
        """How much of its own state a source subword keeps, and how much of its attention falls on context words; where there is a context."""
        sums = np.zeros((len(store), 3))
        for batch in looking.batches(store, looking.device(), model.context_rule):
            for row, one in zip(batch.rows.tolist(), reading.readings(model, batch, sites), strict=True):
                if one is not None:
                    sums[row] = [0 if one.kept is None else one.kept.sum(), one.on_words.sum(), len(one.weights)]
        resampled, total = self.draws.full.sums(sums), sums.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = [estimate(float(total[i] / total[2]) if total[2] else None, resampled[:, i] / resampled[:, 2]) for i in (0, 1)]
        return found[0] if sites.gates else Estimate(None), found[1] if sites.attention else Estimate(None)


def _ratio(sums: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = sums[..., 0] / np.maximum(sums[..., 1], 1)
    return found


def having_context() -> list[str]:
    """The variants of the table that read context."""
    return [name for name in VARIANTS if issubclass(load_variant(name), DocumentTransformer)]


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = ()) -> Finding:
    """What the context is worth to each system that reads one.

    Args:
        run: the run; systems: those that read no context are left out. set_names: one set (default: dev).
    Raises: DataError if no system reads context, or the set has no documents; ConfigError for several sets.
    """
    chosen = looking.one_set(run, set_names or [s.name for s in run.sets("dev")][:1], "the use of context")
    device = looking.device()
    groups = {name: choose(run, [name], ensemble=False, search={}, single=True)[0] for name in systems}
    models = {name: group.load(device)[0] for name, group in groups.items()}
    rules = {name: model.context_rule for name, model in models.items() if model.context_rule is not None}
    if without := [name for name in systems if name not in rules]:
        what, hint = f"no context is read by {', '.join(without)}", f"variants that read one: {', '.join(having_context())}"
        if not rules:
            raise DataError(what, where=run.path, hint=hint)
        console.say(f"left out, for {what} ({hint})")
    if not documents_file(run.prep, chosen).is_file():
        what = f"the set '{chosen}' has no documents: each of its sentences stands alone, so there is no context to use"
        raise DataError(what, where=documents_file(run.prep, chosen), hint=f"nmtkit prep … --docs {chosen}=FILE, or another --set-name")
    if not run.source(chosen).is_file():
        raise ConfigError(f"the set '{chosen}' has no text to translate", where="--set-name", hint="a test set, or dev")
    subject = _subject(run, chosen)
    signature = subject.scorer.score("bleu", subject.scorer.refs[0]).signature
    rows: list[list[Any]] = []
    examples: list[Example] = []
    for name, rule in rules.items():
        found, gains = _measured(subject, groups[name], models[name], rule)
        rows += _rows(name, found, subject.draws)
        examples += _examples(subject, name, models[name], gains)
    gated = [name for name in rules if any(site.endswith(gates.OF_CONTEXT) for site in gates.gates_of(models[name], device))]
    of_gates = gates.run(run, gated, set_names=[chosen]) if gated else None
    note = "context words: the attention they get from the source words, in proportion to what these take; source words: what each takes from them"
    title = f"What is read in the context ({chosen}): the {EXAMPLES} sentences of each system that gain most from it"
    table = _table(rows, subject, signature)
    return Finding(
        name="context",
        title="whether the context is used",
        table=table,
        figure=_figure(table) if figures.available() else None,
        text="A system uses its context where loss and BLEU get worse without it, and with one that says something else. If another document's "
        "context does no harm, what was gained is not from what the context says.",
        bars="\n\n".join([f"{title}\n({note})", reading.as_text(examples), *([of_gates.bars] if of_gates else [])]),
        facts={
            **{"set": chosen, "sentences": len(subject.store), "documents": len(subject.store.documents), "left_out": without},
            **{"rules": {name: dataclasses.asdict(rule) for name, rule in rules.items()}, "resamples": subject.draws.resamples},
            **{"trials": subject.draws.trials, "seed": SEED},
        },
        attachments={
            "examples.html": reading.as_html(title, note, examples),
            **({f"gates.{suffix}": content for suffix, content in of_gates.table.forms().items()} if of_gates else {}),
        },
    )


def _subject(run: Run, chosen: str) -> Subject:
    store, manifest = Store(run.prep / chosen), run.manifest()
    references = [list(files.text_lines(path)) for path in run.references(chosen)]
    scorer = Scorer(references, manifest.tgt, manifest.settings.lowercase)
    return Subject(run, chosen, store, scorer, Draws(len(store), seed=SEED))


def _measured(subject: Subject, group: Chosen, model: Model, rule: ContextRule) -> tuple[dict[str, Measured], Numbers]:
    """A system under each condition, and by how much its own context raises the log-probability of each reference (N)."""
    run, device = subject.run, looking.device()
    sides = TextSide.load(run.prep, "src"), TextSide.load(run.prep, "tgt")
    lines = list(files.text_lines(run.source(subject.name)))
    sites = reading.sites_of(model, device)
    found: dict[str, Measured] = {}
    log_probs: dict[str, Numbers] = {}
    with workers.one_thread(device):
        translator = Translator([model], *sides, *load_vocabularies(run.prep), group.settings, device, cores())
        for condition, other in conditions(rule).items():
            store = subject.under(other)
            bleu = None
            if condition in (OWN, NONE) or not rule.targets:
                with console.progress(f"{group.name}: context {condition}", len(lines)) as translator.done:
                    bleu = subject.scorer.score("bleu", [t.text for t in translator.translate_window(lines, documents=store.documents)])
            log_probs[condition] = subject.log_probs(model, store)
            own = (subject.store.documents.context(i, rule) != store.documents.context(i, rule) for i in range(len(store)))
            found[condition] = Measured(bleu, subject.loss(log_probs[condition]), sum(own), *subject.read(model, store, sites))
    return found, log_probs[OWN] - log_probs[NONE]


def _examples(subject: Subject, name: str, model: Model, gains: Numbers) -> list[Example]:
    sites, vocabularies = reading.sites_of(model, looking.device()), load_vocabularies(subject.run.prep)
    if not (sites.attention or sites.gates):
        return []
    tgt = TextSide.load(subject.run.prep, "tgt")
    found: dict[tuple[int, ...], Example] = {}
    for row in np.argsort(-gains, kind="stable").tolist():
        if len(found) == EXAMPLES or gains[row] <= 0:
            break
        batch = collate(subject.store, np.array([row]), looking.device(), model.context_rule)
        one = reading.readings(model, batch, sites)[0]
        if one is not None:
            reference = tgt.surface(vocabularies[1].decode(subject.store.tgt(row)[:-1].tolist()))
            title = f"{name}, line {row + 1}: {gains[row]:+.2f} nats from its context"
            source = batch.src[0, :-1].tolist()
            found.setdefault((*one.symbols, *source), reading.example(title, one, source, reference, vocabularies[0]))  # the same text is shown once
    return list(found.values())


def _rows(name: str, found: dict[str, Measured], draws: Draws) -> list[list[Any]]:
    rows = []
    base = found[OWN]
    for condition, own in found.items():
        cells: list[Any] = [name, condition, own.other]
        for metric, other in ((own.loss, base.loss), (own.bleu, base.bleu)):
            if metric is None or other is None:
                cells += [None] * (2 + len(P_VALUES))
                continue
            value = estimate(metric.value, draws.full.scores(metric))
            cells += [value, None if own is base else difference(metric, other, draws)]
            # Some tests give equal outputs, or two scores of zero, a small p.
            alike = metric.value == other.value == 0 or np.array_equal(metric.statistics, other.statistics)
            cells += [None if alike else compare(test, metric, other, draws).p for test in P_VALUES]
        rows.append([*cells, own.kept, own.on_words])
    return rows


def _table(rows: list[list[Any]], subject: Subject, signature: str) -> Table:
    columns = [Column("system", "system", left=True), Column("context", "context", left=True), Column("changed", "changed")]
    for key, header, decimals in (("loss", "loss", 4), ("bleu", "BLEU", 2)):
        columns += [Column(key, f"{header} [95%]", decimals=decimals, interval=True)]
        columns += [Column(f"{key}_difference", f"Δ {header} [95%]", decimals=decimals, signed=True, interval=True)]
        for test in P_VALUES:
            columns.append(Column(f"{key}_{test}", f"p {TESTS[test].header}", decimals=4, below=TESTS[test].finest(subject.draws) or None))
    columns += [Column("kept", "own state kept [95%]", decimals=3, interval=True)]
    columns += [Column("on_words", "attention on context words [95%]", decimals=3, interval=True)]
    notes = [
        "own: what the system was trained to read; same document, other documents: as many sentences, drawn at random, in the place of the own "
        "ones; changed: sentences whose context is then another. A sentence that has no context of its own has none in any row",
        f"loss: nats a subword of the first reference, </s> included; BLEU: {signature}, searched in float32; "
        "a system that reads its own earlier translations gets those of the reference in the loss, and with other sentences no BLEU: these are not "
        "translated before",
        "Δ and p: against the system's own context, no p where outputs are the same or both scores zero; "
        + "; ".join(f"{TESTS[test].header}: {TESTS[test].name}, {TESTS[test].reading}" for test in P_VALUES)
        + f"; {subject.draws.full.describe()}; {subject.draws.swaps.describe()}",
        "own state kept: the mean of the gate λ over source subwords that have a context (the rest is what was read); attention on context words: "
        "of the attention of these, the share on words and not on breaks and ends (where both are read as one text: of all its encoder's attention)",
        "gates.md: λ by word and frequency; examples.html: the sentences that gain most",
    ]
    return Table("context", f"Is the context used? ({subject.name})", columns, rows, notes)


def _figure(table: Table) -> str:
    """By how much each other context raises the loss of each system."""
    keys = [column.key for column in table.columns]
    place = keys.index("loss_difference")
    systems = list(dict.fromkeys(row[0] for row in table.rows))
    series: dict[str, list[Estimate]] = {}
    for row in table.rows:
        if row[1] != OWN:
            series.setdefault(row[1], [Estimate(None)] * len(systems))[systems.index(row[0])] = row[place] or Estimate(None)
    return figures.grouped_bars(systems, series, "another context in the place of the own one", "Δ loss, nats a subword")
