"""Analysis `cost`: what a system costs beside the baseline, in parameters, arithmetic and time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmtkit import console, environment, files
from nmtkit.analyze.finding import Finding
from nmtkit.analyze.looking import one_set
from nmtkit.analyze.macs import Macs, Parameters, count_macs, count_parameters
from nmtkit.analyze.timing import Timing, measure_speed
from nmtkit.data.documents import ContextRule
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.models.loading import build_untrained
from nmtkit.run import Run, System
from nmtkit.score import figures
from nmtkit.score import paper as papers
from nmtkit.score.tables import Column, Estimate, Table
from nmtkit.settings import SearchSettings, build

ASKED = 10_000
"""Sentences whose number of context sentences is looked up."""
READING = (
    "A relative time near the relative MACs is what the arithmetic demands, well above it is a price of the implementation; "
    "speeds from the log are of their own training and machine, only those of --measure were taken in turn."
)


@dataclass(frozen=True)
class Speed:
    """Target tokens/s of one system in training and in decoding, None where not measured."""

    train: float | None = None
    decode: float | None = None
    updates: float | None = None
    """Updates a second."""


@dataclass(frozen=True)
class Cost:
    """All that was found out about one system."""

    name: str
    parameters: Parameters
    macs: Macs
    contexts: float | None
    """Context sentences that a sentence has in the training set, None of a system that reads none."""
    beam: int
    """Hypotheses a sentence that the decoding speeds are of."""
    logged: Speed
    timing: Timing | None = None


def run(run: Run, systems: Sequence[str], *, measure: bool = False, set_names: Sequence[str] = (), paper: str = "", table: str = "") -> Finding:
    """Parameters, multiply-accumulates and speed of systems, absolute and relative to the first of them.

    Args:
        run: the run; systems: oldest first, the first is the baseline.
        measure: time training steps and decoding now, the systems in turn, instead of reading what was logged, or what such a call has kept of
            the same systems.
        set_names: the set whose decoding speed is read, or whose sentences are decoded (default: the first test set, else dev).
        paper: a paper's printed numbers, to be put beside; table: which of its tables.
    Raises: ConfigError for several sets; DataError, CheckpointError if a system cannot be built or loaded.
    """
    beside = papers.asked(paper, table, "cost")
    if measure:
        environment.room_for_products(len(systems))
    store = training_pairs(run)
    src_length, tgt_length = typical_lengths(store)
    set_name = one_set(run, set_names, "decoding speed")
    costs = []
    with console.progress("counting multiply-accumulates", len(systems)) as advance:
        for name in systems:
            costs.append(_cost(run, run.system(name), store, set_name))
            advance(1)
    timings = measure_speed(run, [run.system(name) for name in systems], set_name, tgt_length) if measure else kept_timings(run, systems, set_name)
    costs = [replace(c, timing=timings.get(c.name)) for c in costs]
    finding = Finding(
        name="cost",
        title="Parameters, arithmetic and speed",
        table=cost_table(costs, set_name),
        text=READING,
        figure=_figure(costs) if len(costs) > 1 and figures.available() else None,
        facts={
            "baseline": costs[0].name,
            "src_length": src_length,
            "tgt_length": tgt_length,
            "contexts": {cost.name: cost.contexts for cost in costs if cost.contexts is not None},
            "set": set_name,
            "measured": {name: timing.as_json() for name, timing in timings.items()},
        },
    )
    return finding if beside is None else finding.beside(_beside(beside, costs, finding.table, str(run.manifest().get("dataset"))))


def kept_timings(run: Run, systems: Sequence[str], set_name: str) -> dict[str, Timing]:
    """What the last call with --measure has kept, if all of it is of these systems as they are; else nothing, and what is lost is said."""
    try:
        stored = files.read_json(run.path / "analyze" / "cost" / "finding.json")
        facts, known = stored["facts"], stored["made_from"]["files"]
        measured = dict(facts["measured"])
    except (DataError, KeyError, TypeError, ValueError):
        return {}
    if not measured:
        return {}
    inputs = [f"systems/{name}/{file}" for name in systems for file in ("config.toml", "best.json")]
    changed = [one for one in inputs if (run.path / one).is_file() and known.get(one) != files.sha256(run.path / one)]
    if not changed and (facts["baseline"], facts["set"]) == (systems[0], set_name) and set(systems) <= set(measured):
        with contextlib.suppress(KeyError, TypeError):  # written by another version
            return {name: Timing.from_json(measured[name]) for name in systems}
    console.say(f"cost: the times that --measure took of {', '.join(measured)} are not of these systems, and give way to those of the logs")
    return {}


def _beside(paper: papers.Printed, costs: Sequence[Cost], table: Table, dataset: str) -> Table:
    """A paper's parameters and speeds beside the measured ones."""
    keys = [column.key for column in table.columns]
    known: dict[str, dict[str, float]] = {}
    for cost, row in zip(costs, table.rows, strict=True):
        updates = cost.timing.updates_per_s if cost.timing else cost.logged.updates
        ratios = {key: row[keys.index(key)].value for key in ("train_time_ratio", "decode_time_ratio")}
        found = {"parameters": cost.parameters.total / 1e6, papers.OF_MACHINES: updates, **ratios}
        known[cost.name] = {key: value for key, value in found.items() if value is not None}
    timing = costs[0].timing
    speeds = f"in turn, {timing.rounds} rounds, {timing.device}" if timing is not None else "from the logs, not in turn"
    remark = "parameters depend on the vocabulary, speeds on machine and software: a paper's are of its own; of steps a second there is no difference"
    relative_to = f"times relative to {costs[0].name}"
    return papers.numbers_beside(paper, "cost", known, dataset, "", f"counted; speeds {speeds}", [relative_to, remark])


def training_pairs(run: Run) -> Store:
    """The training set.

    Raises: DataError if the run has no training pairs.
    """
    train = run.sets("train")
    if not train:
        raise DataError("this run has no training set", where=run.prep, hint="nmtkit prep --force")
    store = Store(run.prep / train[0].name)
    if not len(store):
        raise DataError("the training set of this run is empty", where=run.prep, hint="nmtkit prep --force")
    return store


def typical_lengths(store: Store) -> tuple[int, int]:
    """Mean source and target length of a set in subwords, ends included, rounded."""
    return max(1, round(float(store.src_lengths.mean()))), max(1, round(float(store.tgt_lengths.mean())))


def typical_contexts(store: Store, rule: ContextRule) -> float:
    """Mean number of context sentences of a sentence, over sentences from all of a set."""
    asked = np.unique(np.linspace(0, len(store) - 1, ASKED).astype(int))
    return float(np.mean([len(store.documents.context(int(i), rule)) for i in asked]))


def _cost(run: Run, system: System, store: Store, set_name: str) -> Cost:
    model = build_untrained(run, system).eval()
    contexts = None if model.context_rule is None else typical_contexts(store, model.context_rule)
    macs = count_macs(model, *typical_lengths(store), contexts or 0)
    beam = build(SearchSettings, system.read_config().get("search", {}), "search").beam
    logged = Speed(logged_training_speed(system), logged_decoding_speed(system, set_name), logged_training_speed(system, updates=True))
    return Cost(system.name, count_parameters(model), macs, contexts, beam, logged)


def logged_training_speed(system: System, updates: bool = False) -> float | None:
    """Median target tokens/s, or updates/s, over the logged stretches of training; the first, in which everything is warmed up, is left out if there
    are more.

    Returns: None if nothing was logged.
    """
    if not system.metrics.is_file():
        return None
    found = []
    for line in files.text_lines(system.metrics):
        try:
            record = json.loads(line)
            if record["kind"] == "train" and record["tgt_tokens_per_s"]:
                found.append(float(record["updates"]) / float(record["seconds"]) if updates else float(record["tgt_tokens_per_s"]))
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            continue  # a line cut off by a killed process
    return float(np.median(found[1:] or found)) if found else None


def logged_decoding_speed(system: System, set_name: str) -> float | None:
    """Target tokens/s in the translation of a set; None if it was not translated."""
    path = system.translation(set_name) / "meta.json"
    if not path.is_file():
        return None
    try:
        return float(files.read_json(path)["speed"]["tokens_per_second"])
    except (DataError, KeyError, TypeError, ValueError):
        return None


def relative(value: float | None, baseline: float | None) -> float | None:
    """value / baseline, None if either is missing."""
    return value / baseline if value is not None and baseline else None


COLUMNS = (
    Column("system", "system", left=True),
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


def _row(cost: Cost, baseline: Cost) -> list[Any]:
    macs, base = cost.macs, baseline.macs
    train_mac, step_mac = relative(macs.train, base.train), relative(macs.step, base.step)
    decode_mac = relative(_sentence_macs(macs, cost.beam), _sentence_macs(base, baseline.beam))
    if cost.timing and baseline.timing:
        train_time, decode_time = cost.timing.train_ratio, cost.timing.decode_ratio
        speeds = Speed(cost.timing.train_tokens_per_s, cost.timing.decode_tokens_per_s)
    else:
        speeds = cost.logged
        train_time = Estimate(relative(baseline.logged.train, cost.logged.train))
        decode_time = Estimate(relative(baseline.logged.decode, cost.logged.decode))
    parameters = cost.parameters
    return [
        cost.name,
        parameters.total,
        parameters.embeddings,
        parameters.rest,
        macs.train / 1e6,
        train_mac,
        macs.encode / 1e6,
        macs.step / 1e6,
        step_mac,
        speeds.train,
        train_time,
        relative(train_time.value, train_mac),
        speeds.decode,
        decode_time,
        relative(decode_time.value, decode_mac),
    ]


def _sentence_macs(macs: Macs, beam: int) -> float:
    """Of one whole sentence, read once and decoded with a beam: what a decoding time is compared with."""
    return macs.encode * macs.src_length + beam * macs.step * macs.tgt_length


def cost_table(costs: Sequence[Cost], set_name: str) -> Table:
    """One row a system, the baseline first; × is relative to it."""
    base, macs = costs[0], costs[0].macs
    measured = base.timing is not None
    how = (
        f"measured in {base.timing.rounds} alternating rounds on {base.timing.device}; time ×: median of the rounds' ratios [their middle 95%]"
        if base.timing is not None
        else f"target tokens/s; training: median of metrics.jsonl; decoding: logged for {set_name}; no interval (--measure takes the systems in turn)"
    )
    notes = [
        f"×: relative to {base.name}; time × above 1 is slower; time/MAC: time × divided by MAC × (decoding: of a whole sentence)",
        f"MMAC: million multiply-accumulates, sentences of {macs.src_length} source and {macs.tgt_length} target subwords; exact counts, no interval",
        "train: forward and backward per target token; encode: per source token; step: one decoding step of one hypothesis with state",
        "counted: matrix products, convolutions, attention; not counted: softmax, norms, activations, gates' element-wise part, look-ups",
        f"speed: {how}",
    ]
    reading = [f"{cost.name} {cost.contexts:.2f}" for cost in costs if cost.contexts is not None]
    if reading:
        notes.insert(4, f"context sentences of a sentence, as in the training set, counted and timed with the rest: {', '.join(reading)}")
    title = "Cost" + (" (speed measured in turn)" if measured else "")
    return Table("cost", title, COLUMNS, [_row(cost, base) for cost in costs], notes)


def _figure(costs: Sequence[Cost]) -> str:
    base = costs[0]
    keys = ("parameters", "train_mac_ratio", "train_time_ratio", "step_mac_ratio", "decode_time_ratio")
    labels = ["parameters", "training\nMACs", "training\ntime", "decoding\nstep MACs", "decoding\ntime"]
    position = {column.key: i for i, column in enumerate(COLUMNS)}
    series = {}
    for cost in costs:
        row = _row(cost, base)
        values = [cost.parameters.total / base.parameters.total, *(row[position[key]] for key in keys[1:])]
        series[cost.name] = [v if isinstance(v, Estimate) else Estimate(v) for v in values]
    return figures.grouped_bars(labels, series, "", f"relative to {base.name}", "")
