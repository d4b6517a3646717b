"""Analysis `context`: loss and BLEU with the own context, without context, and with other contexts,
with attention and examples.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from nmtkit.analyze import context_reading
from nmtkit.analyze.analysis import Analysis, Finding, Options
from nmtkit.analyze.context_conditions import (
    EXAMPLES,
    NONE,
    OTHERS,
    OWN,
    Conditions,
    Reader,
)
from nmtkit.analyze.context_reading import Example
from nmtkit.analyze.study import TRAIN_ONE, Study
from nmtkit.data.documents import documents_file
from nmtkit.errors import DataError
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import FEW, Draws
from nmtkit.score.significance import FEW_DIFFERENT, TESTS, compare, difference
from nmtkit.score.translations import scorer_of
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Rows, Table, interval_column, text_columns

P_VALUES = ("paired_bootstrap", "sacrebleu_randomization")


@dataclass(frozen=True)
class ContextUse:
    """Loss and BLEU of some systems on a set under each condition.

    Attributes:
        set_name: the set.
        signature: the signature of BLEU.
        draws: the draws of the significance tests.
        systems: system -> condition -> results.
        examples: the sentences that gain most from their context.
        facts: the facts of the finding.
    """

    set_name: str
    signature: str
    draws: Draws
    systems: dict[str, Conditions]
    examples: list[Example]
    facts: dict[str, Any]


class Context(Analysis[Options, ContextUse]):
    """How much each system that reads a context gains from it."""

    name = "context"
    title = "whether the context is used"
    reads_translations = False
    examples = ("--on dev",)

    def measure(self, study: Study) -> ContextUse:
        study.set_names = study.set_names or [s.name for s in study.run.sets("dev")][:1]
        set_name, nobody = study.set_name, "no system reads context"
        study.run.check_text(set_name)
        readers = study.each(lambda name: Reader(study, name), nobody, TRAIN_ONE)
        path = documents_file(study.run.prep, set_name)
        if not path.is_file():
            message = f"the set '{set_name}' has no documents: each sentence stands alone, without"
            hint = f"nmtkit prep … --docs {set_name}=FILE, or another --on"
            raise DataError(f"{message} any context", where=path, hint=hint)
        store, metrics = study.store, scorer_of(study.run, set_name)
        draws = study.draws(len(store))
        systems, examples = {}, []
        for name, reader in readers.items():
            systems[name] = reader.compare(draws)
            without, own = (systems[name][label].loss.statistics[:, 0] for label in (NONE, OWN))
            examples += reader.examples(without - own)
        return ContextUse(
            set_name,
            metrics.score("bleu", metrics.refs[0]).signature,
            draws,
            systems,
            examples,
            {
                "sentences": len(store),
                "documents": len(store.documents),
                "rules": {name: dataclasses.asdict(r.rule) for name, r in readers.items()},
                "trials": draws.trials,
            },
        )

    def present(self, result: ContextUse) -> Finding:
        title = (
            f"What systems read in the context ({result.set_name}): for each, the {EXAMPLES}"
            " sentences that gain most from it"
        )
        note = (
            "context words: attention that they get from source words, weighted by what each "
            "source word takes from the context; source words: what each takes from the context"
        )
        return Finding(
            table=_table(result),
            text=(
                "A system uses its context if loss and BLEU get worse without it, and also "
                "with another context. If the context of another document does no harm, the "
                "gain does not come from the content of the context."
            ),
            figure=_figure(result),
            bars=f"{title}\n({note})\n\n{context_reading.as_text(result.examples)}",
            facts=result.facts,
            attachments={"examples.html": context_reading.as_html(title, note, result.examples)},
        )


def _rows(name: str, conditions: Conditions, draws: Draws) -> Rows:
    """Return a row for each condition of a system."""
    rows, own = [], conditions[OWN]
    for label, condition in conditions.items():
        loss = _cells(condition.loss, own.loss, draws)
        bleu = _cells(condition.bleu, own.bleu, draws)
        about = name, label, condition.changed
        rows.append([*about, *loss, *bleu, condition.kept, condition.on_words])
    return rows


def _cells(metric: Metric | None, own: Metric | None, draws: Draws) -> list[Any]:
    """Return a score, its difference to the score with the own context, and the p of this."""
    if metric is None or own is None:
        return [None] * (2 + len(P_VALUES))
    if metric is own:
        return [draws.score(own), *[None] * (1 + len(P_VALUES))]
    p_values = [compare(test, metric, own, draws).p for test in P_VALUES]
    return [draws.score(metric), difference(metric, own, draws), *p_values]


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
            "own: the context that the system was trained to read; same document, other "
            "documents: as many sentences, drawn at random, in place of its own; changed: "
            "sentences whose context differs after the draw. A sentence without context "
            "has none in any row"
        ),
        (
            "loss: nats per subword of the first reference, </s> included; BLEU: "
            f"{result.signature}, searched in float32. A system that reads its own earlier "
            "translations reads the reference's in the loss. With other sentences it has "
            "no BLEU, because they were not translated before"
        ),
        (
            f"Δ and p: against the system's own context; {tests}; {draws.describe()}; "
            f"{draws.swaps}; {FEW}; {FEW_DIFFERENT}"
        ),
        (
            "own state kept: mean of the gate λ over source subwords that have a context "
            "(the rest is what was read); attention on context words: share of the "
            "attention to the context that falls on words, not on breaks and ends (if both "
            "are one text: share of all the encoder's attention)"
        ),
        "examples.html: the sentences that gain most",
    ]
    if result.facts["documents"] == 1:
        notes.append(f"no row of {OTHERS}: the set is a single document")
    rows = [
        row for name, conditions in result.systems.items() for row in _rows(name, conditions, draws)
    ]
    return Table("context", f"Is the context used? ({result.set_name})", columns, rows, notes)


def _figure(result: ContextUse) -> str | None:
    """Return the figure of how much each other context raises the loss of each system."""
    systems, draws = result.systems, result.draws
    series = {
        label: [difference(c[label].loss, c[OWN].loss, draws) for c in systems.values()]
        for label in next(iter(systems.values()))
        if label != OWN
    }
    xlabel = "another context in the place of the own one"
    return figures.grouped_bars(list(systems), series, xlabel, "Δ loss, nats a subword")
