"""Analysis `cost`: parameters, arithmetic and speed of each system, relative to the baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmtkit import console, environment
from nmtkit.analyze.analysis import Finding, PaperAnalysis, PaperOptions
from nmtkit.analyze.study import Study
from nmtkit.analyze.timing import (
    CostFacts,
    Timing,
    logged_speeds,
    measure_speed,
    relative,
    stored_speeds,
)
from nmtkit.data.documents import ContextRule
from nmtkit.data.store import Store
from nmtkit.errors import counted
from nmtkit.measures.macs import Macs, Parameters, count_macs, count_parameters
from nmtkit.models.loading import build_untrained
from nmtkit.score import paper as papers
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, text_column

SAMPLE = 10_000
"""Maximum training sentences whose context sentences or spans are counted."""
COLUMNS = (
    text_column("system"),
    Column("parameters", "parameters"),
    Column("embeddings", "embeddings"),
    Column("rest", "rest"),
    Column("train_mmac", "train MMAC/token"),
    Column("train_mac_ratio", "×"),
    Column("encode_mmac", "encode MMAC/token"),
    Column("step_mmac", "step MMAC"),
    Column("step_mac_ratio", "×"),
    Column("train_tokens_per_s", "train tokens/s", decimals=0),
    Column("train_time_ratio", "time ×", interval=True),
    Column("train_time_per_mac", "time/MAC"),
    Column("decode_tokens_per_s", "decode tokens/s", decimals=0),
    Column("decode_time_ratio", "time ×", interval=True),
    Column("decode_time_per_mac", "time/MAC"),
)
BARS = ["parameters", "training\nMACs", "training\ntime", "decoding\nstep MACs", "decoding\ntime"]


class CostOptions(PaperOptions):
    """Options of `cost`."""

    measure: bool = False
    """Time training and decoding now, the systems in turn, instead of reading the logs."""


@dataclass(frozen=True)
class Count:
    """The size of a system and its arithmetic for a typical sentence.

    Attributes:
        parameters: the parameters of the model; macs: its multiply-accumulates.
        contexts: mean context sentences of a training sentence; None if the system reads none.
        spans: spans of the counted source; None if the system reads none.
        beam: the beam size of its search.
    """

    parameters: Parameters
    macs: Macs
    contexts: float | None
    spans: int | None
    beam: int

    def relative_to(self, baseline: Count) -> tuple[float, float, float, float]:
        """Return four ratios to the baseline: parameters, and the MACs of training, of a decoding
        step and of a search.
        """
        return (
            self.parameters.total / baseline.parameters.total,
            self.macs.train / baseline.macs.train,
            self.macs.step / baseline.macs.step,
            self.macs.search(self.beam) / baseline.macs.search(baseline.beam),
        )


@dataclass(frozen=True)
class Costs:
    """Counts and speeds by system, the baseline first."""

    counts: dict[str, Count]
    speeds: dict[str, Timing]
    facts: CostFacts


class Cost(PaperAnalysis[CostOptions, Costs]):
    """Parameters, multiply-accumulates and speed, absolute and relative to the baseline."""

    name = "cost"
    title = "Parameters, arithmetic and speed"
    examples = ("--measure --system baseline --system mine",)
    Options = CostOptions
    paper = "cost"

    @property
    def repeats(self) -> bool:
        return self.options.measure

    def measure(self, study: Study) -> Costs:
        set_name = study.set_name  # refuses an unknown set at once
        if self.options.measure:
            nobody, hint = "no system can be timed", study.run.train_first
            study.systems = list(study.each(study.check_trained, nobody, hint))
            # Before the first product, because oneDNN reads this setting then.
            environment.room_for_products(len(study.systems))
        systems = study.systems
        store = Store(study.run.prep / "train")
        counts = {}
        with console.progress("counting multiply-accumulates", len(systems)) as advance:
            for name in systems:
                counts[name] = count(study, name, store)
                advance(1)
        macs, beam = counts[systems[0]].macs, counts[systems[0]].beam
        steps = macs.tgt_length
        in_turn = measure_speed(study, steps) if self.options.measure else stored_speeds(study)
        if in_turn:  # the searches were timed with the beam of the first system
            counts = {name: replace(of_system, beam=beam) for name, of_system in counts.items()}
        facts = CostFacts(
            baseline=systems[0],
            src_length=macs.src_length,
            tgt_length=steps,
            contexts={n: c.contexts for n, c in counts.items() if c.contexts is not None},
            spans={n: c.spans for n, c in counts.items() if c.spans is not None},
            set=set_name,
            measured=in_turn,
        )
        return Costs(counts, in_turn or logged_speeds(study), facts)

    def present(self, result: Costs) -> Finding:
        title = "Cost (speed measured in turn)" if result.facts.measured else "Cost"
        rows = [cells(result, name) for name in result.counts]
        return Finding(
            table=Table("cost", title, COLUMNS, rows, notes(result)),
            text=(
                "A relative time close to the relative MACs is the cost of the arithmetic; a "
                "time well above it is implementation overhead. Speeds from the log depend on "
                "each training's machine and hour; only --measure alternates the systems."
            ),
            figure=figure(result) if len(rows) > 1 else None,
            facts=result.facts.model_dump(),
        )

    def printed_too(self, result: Costs) -> papers.Measured:
        numbers = {}
        for name, speed in result.speeds.items():
            costs = {
                "parameters": result.counts[name].parameters.total / 1e6,
                papers.OF_MACHINES: speed.updates_per_s,
                "train_time_ratio": speed.train_ratio.value,
                "decode_time_ratio": speed.decode_ratio.value,
            }
            numbers[name] = {key: value for key, value in costs.items() if value is not None}
        base, how = result.speeds[result.facts.baseline], "from the logs, not in turn"
        if base.rounds:
            how = f"in turn, {counted(base.rounds, 'round')}, {base.device}"
        remarks = [
            f"times relative to {result.facts.baseline}",
            "parameters depend on the vocabulary, speeds on machine and software, so a paper's"
            " values differ; steps per second have no difference",
        ]
        return papers.Measured(numbers, "", {"": f"counted; speeds {how}"}, remarks)


def cells(result: Costs, name: str) -> list[Any]:
    """Return the row of a system."""
    system, speed, base = result.counts[name], result.speeds[name], result.facts.baseline
    parameters, macs = system.parameters, system.macs
    _, train, step, search = system.relative_to(result.counts[base])
    sizes = name, parameters.total, parameters.embeddings, parameters.rest
    arithmetic = macs.train / 1e6, train, macs.encode / 1e6, macs.step / 1e6, step
    training = speed.train_tokens_per_s, speed.train_ratio, relative(speed.train_ratio.value, train)
    decoding = speed.decode_tokens_per_s, speed.decode_ratio
    return [*sizes, *arithmetic, *training, *decoding, relative(speed.decode_ratio.value, search)]


def notes(result: Costs) -> list[str]:
    """Return the notes of the table."""
    facts = result.facts
    speed = result.speeds[facts.baseline]
    how = (
        "target tokens/s; training: median of metrics.jsonl, of a processor second on a CPU; "
        f"decoding: logged for {facts.set}; no interval, and no time × of another processor, "
        "number type or search (--measure takes the systems in turn)"
    )
    if speed.rounds:
        how = (
            f"measured in {speed.rounds} alternating rounds on {speed.device}; time ×: median of "
            "the rounds' ratios [their middle 95%]"
        )
    lines = [
        (
            f"×: relative to {facts.baseline}; time × above 1 is slower; time/MAC: time × divided"
            " by MAC × (decoding: of a whole sentence)"
        ),
        (
            f"MMAC: million multiply-accumulates, sentences of {facts.src_length} source and "
            f"{facts.tgt_length} target subwords; exact counts, no interval"
        ),
        (
            "train: forward and backward per target token; encode: per source token; step: one "
            "decoding step of one hypothesis with state"
        ),
        (
            "counted: matrix products, convolutions, attention; not counted: softmax, "
            "norms, activations, elementwise operations of gates, look-ups"
        ),
    ]
    if facts.spans:
        spans = ", ".join(f"{name} {count}" for name, count in facts.spans.items())
        lines.append(
            f"phrases of a source come from its parse, as many as in the training set: {spans}"
        )
    if facts.contexts:
        contexts = ", ".join(f"{name} {count:.2f}" for name, count in facts.contexts.items())
        lines.append(
            "context sentences per sentence, as in the training set, counted and timed "
            f"with the rest: {contexts}"
        )
    return [*lines, f"speed: {how}"]


def figure(result: Costs) -> str | None:
    """Return the figure of all numbers that are relative to the baseline."""
    baseline, series = result.facts.baseline, {}
    for name, system in result.counts.items():
        ratios = system.relative_to(result.counts[baseline])
        parameters, train, step, _ = map(Estimate, ratios)
        speed = result.speeds[name]
        series[name] = [parameters, train, speed.train_ratio, step, speed.decode_ratio]
    return figures.grouped_bars(BARS, series, "", f"relative to {baseline}")


def typical_lengths(store: Store) -> tuple[int, int]:
    """Return the mean source and target length of a set in subwords with </s>, rounded."""
    return round(float(store.src_lengths.mean())), round(float(store.tgt_lengths.mean()))


def typical_contexts(store: Store, rule: ContextRule) -> float:
    """Return the mean number of context sentences of a sentence, over a sample of a set."""
    sample = np.unique(np.linspace(0, len(store) - 1, SAMPLE).astype(int))
    return float(np.mean([len(store.documents.context(int(i), rule)) for i in sample]))


def typical_spans(store: Store, length: int) -> list[int]:
    """Return the spans of a typical source of a length: as many as sentences of about that length
    have, all of about the same size.

    Returns: the number of tokens of each span; [] if no sentence has spans.
    """
    if store.spans is None:
        return []
    nearest = np.argsort(np.abs(store.src_lengths.astype(int) - length), kind="stable")[:SAMPLE]
    counts = [count for i in nearest if (count := len(store.spans[int(i)]))]
    if not counts:
        return []
    parts = np.array_split(range(length), min(length, round(np.mean(counts))))
    return list(map(len, parts))


def count(study: Study, name: str, store: Store) -> Count:
    """Return the counts of a system for a training sentence of mean length (with </s>)."""
    system = study.run.system(name)
    model = build_untrained(study.run, system)
    rules = model.train().context_rule, model.eval().context_rule  # of training and of a search
    contexts, searched = (None if r is None else typical_contexts(store, r) for r in rules)
    src, tgt = typical_lengths(store)
    spans = typical_spans(store, src) if model.reads_spans else []
    macs = count_macs(model, src, tgt, contexts or 0, spans)
    if searched != contexts:
        search = count_macs(model, src, tgt, searched or 0, spans)
        macs = replace(macs, encode=search.encode, step=search.step)
    beam = system.searching().beam
    return Count(count_parameters(model), macs, contexts, len(spans) or None, beam)
