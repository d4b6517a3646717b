"""All systems on one test set, side by side: the result object that is saved as scores.json, and the tables made from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import nmtkit
from nmtkit import console
from nmtkit.errors import DataError
from nmtkit.score import formulas, lengths
from nmtkit.score.formulas import Array
from nmtkit.score.metrics import Metric, Scorer, looks_tokenized
from nmtkit.score.significance import TESTS, Comparison, Resampling, estimate
from nmtkit.score.tables import Column, Estimate, Table, plain

METRICS = {"bleu": "BLEU", "tokenized_bleu": "tok. BLEU", "chrf": "chrF", "ter": "TER"}


@dataclass(frozen=True)
class Output:
    """What one system wrote: detokenised lines, and the same as tokens for BLEU as multi-bleu.perl computes it."""

    name: str
    lines: Sequence[str]
    tokens: Sequence[str]


@dataclass(frozen=True)
class Task:
    """What systems are measured against, and how.

    Args:
        set_name: the test set.
        refs, tokenized_refs: full reference streams, raw and as tokens.
        lang: target language; lowercase: compare without regard to case.
        baseline: the system that differences are taken against.
        resamples, seed: of the resampling.
        src_lengths: (N) for results by length, None for none; length_unit says in what they count.
        buckets: the length groups.
        commit: of nmtkit, for the record.
    """

    set_name: str
    refs: Sequence[Sequence[str]]
    tokenized_refs: Sequence[Sequence[str]]
    lang: str
    baseline: str
    lowercase: bool = False
    resamples: int = 1000
    seed: int = 1
    src_lengths: Array | None = None
    length_unit: str = ""
    buckets: str = "dc"
    commit: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """The result as plain values, and the metrics with their sentence statistics by system and key."""

    result: dict[str, Any]
    metrics: dict[str, dict[str, Metric]] = field(repr=False)


def evaluate(outputs: Sequence[Output], task: Task) -> Evaluation:
    """Score every output, compare each with the baseline, group by length.

    Args:
        outputs: the systems, baseline among them, in the order of the table.
        task: references and settings.
    Raises: DataError where line counts differ.
    """
    scorer = Scorer(task.refs, task.lang, task.lowercase, task.tokenized_refs)
    if scorer.remark:
        console.say(scorer.remark)
    metrics: dict[str, dict[str, Metric]] = {}
    with console.progress(f"scoring {task.set_name}", len(outputs) * len(METRICS)) as advance:
        for output in outputs:
            metrics[output.name] = {}
            for key in METRICS:
                metrics[output.name][key] = getattr(scorer, key)(output.tokens if key == "tokenized_bleu" else output.lines)
                advance(1)
            if looks_tokenized(output.lines) and not looks_tokenized(task.refs[0]):
                console.warn(f"{output.name}: 100 lines or more end in ' .': is this text detokenised? sacreBLEU expects it to be")
    resampling = Resampling(len(task.refs[0]), task.resamples, seed=task.seed)
    result: dict[str, Any] = {
        "format": 1,
        "set": task.set_name,
        "language": task.lang,
        "sentences": len(task.refs[0]),
        "references": len(task.refs),
        "empty_references": sum(not line.strip() for ref in task.refs for line in ref),
        "baseline": task.baseline,
        "signatures": {key: metric.signature for key, metric in metrics[task.baseline].items()},
        "resampling": {"resamples": task.resamples, "ratio": resampling.ratio, "seed": task.seed, "interval": "95% percentile bootstrap"},
        "version": nmtkit.__version__,
        "commit": task.commit,
        "remarks": [scorer.remark] if scorer.remark else [],
        "systems": [_system(name, own, metrics[task.baseline], resampling, name == task.baseline) for name, own in metrics.items()],
    }
    if task.src_lengths is not None:
        scores = {name: own["bleu"] for name, own in metrics.items()}
        found = lengths.by_length(scores, task.src_lengths, task.buckets, task.resamples, task.seed)
        rows = [{c.key: plain(v) for c, v in zip(lengths.COLUMNS, lengths.row(f), strict=True)} for f in found]
        result["by_length"] = {"buckets": task.buckets, "unit": task.length_unit, "groups": rows}
    return Evaluation(result, metrics)


def _system(name: str, own: dict[str, Metric], baseline: dict[str, Metric], resampling: Resampling, is_baseline: bool) -> dict[str, Any]:
    scores = {}
    for key, metric in own.items():
        value = plain(estimate(metric.value, resampling.scores(metric)))
        scores[key] = {"name": metric.name, **value, "signature": metric.signature, "details": metric.details}
    ratio = estimate(own["bleu"].length_ratio(), resampling.scores(own["bleu"], formulas.length_ratio))
    tests = {} if is_baseline else {
        test: {key: _comparison(run(own[key], baseline[key], resampling)) for key in own} for test, run in TESTS.items()
    }  # fmt: skip
    return {"name": name, "scores": scores, "length_ratio": plain(ratio), "empty_hypotheses": own["bleu"].empty_hypotheses, "tests": tests}


def _comparison(found: Comparison) -> dict[str, Any]:
    return {key: plain(value) for key, value in vars(found).items()}


def _estimate(value: dict[str, Any]) -> Estimate:
    return Estimate(value["value"], value["low"], value["high"])


def _p_column(result: dict[str, Any]) -> Column:
    """p as fine as the resamples allow: none in 1000 is p < 0.001, not 0."""
    finest = 1 / result["resampling"]["resamples"]
    return Column("p", "p", decimals=max(3, -math.floor(math.log10(finest))), below=finest)


def main_table(result: dict[str, Any]) -> Table:
    """The table of a result: one row a system; differences and p only where there is something to compare with."""
    columns = [Column("system", "system", left=True), Column("bleu", "BLEU [95%]", interval=True)]
    several = len(result["systems"]) > 1
    if several:
        columns += [Column("delta", "Δ [95%]", signed=True, interval=True), _p_column(result)]
    columns += [Column(key, METRICS[key]) for key in ("tokenized_bleu", "chrf", "ter")] + [Column("length_ratio", "length", decimals=3)]
    rows = []
    for system in result["systems"]:
        test = system["tests"].get("paired_bootstrap", {}).get("bleu")
        row: list[Any] = [system["name"], _estimate(system["scores"]["bleu"])]
        if several:
            row += [_estimate(test["difference"]) if test else None, test["p"] if test else None]
        rows.append([*row, *(system["scores"][key]["value"] for key in ("tokenized_bleu", "chrf", "ter")), system["length_ratio"]["value"]])
    title = f"{result['set']}: {result['sentences']:,} sentences, {result['references']} reference{'s' if result['references'] > 1 else ''}"
    return Table("score", title, columns, rows, _notes(result, several))


def _notes(result: dict[str, Any], several: bool) -> list[str]:
    draws = result["resampling"]
    notes = [f"{METRICS[key]}: {signature}" for key, signature in result["signatures"].items()]
    notes.append(f"[95%]: percentile interval, {draws['resamples']} resamples of the test set, seed {draws['seed']}; other intervals: scores.json")
    if several:
        notes.append(f"Δ, p: BLEU against {result['baseline']}; p = 1 - share of resamples in which the better of the two is better (Koehn 2004)")
    else:
        notes.append("one system: nothing to compare with")
    empty = [f"{s['name']} {s['empty_hypotheses']}" for s in result["systems"] if s["empty_hypotheses"]]
    if empty:
        notes.append("empty hypotheses: " + ", ".join(empty))
    if result["empty_references"]:
        notes.append(f"empty references: {result['empty_references']}")
    notes += result["remarks"]
    notes.append(f"nmtkit {result['version']}" + (f", commit {result['commit']}" if result["commit"] else ""))
    return notes


def length_scores(result: dict[str, Any]) -> list[lengths.GroupScore]:
    """The results by length, read back from a result."""
    rows = result["by_length"]["groups"]
    return [lengths.GroupScore(r["group"], r["sentences"], r["system"], _estimate(r["bleu"]), _estimate(r["length_ratio"])) for r in rows]


def length_table(result: dict[str, Any]) -> Table:
    """The table by length of a result that has one."""
    title = f"{result['set']} by source length in {result['by_length']['unit']} (groups: {result['by_length']['buckets']})"
    draws = result["resampling"]
    notes = [
        f"BLEU: {result['signatures']['bleu']}",
        f"[95%]: percentile interval over {draws['resamples']} resamples inside the group, seed {draws['seed']}; a small group has a wide one",
    ]
    return lengths.table(length_scores(result), title, notes)


def sentence_rows(evaluation: Evaluation, src_lengths: Array | None) -> list[str]:
    """The lines of sentences.tsv: line number from 1, source length, and each system's sentence BLEU and chrF."""
    names = list(evaluation.metrics)
    header = ["line", *(["src_length"] if src_lengths is not None else []), *(f"{n}.{k}" for n in names for k in ("bleu", "chrf"))]
    columns = [evaluation.metrics[n][k].sentence_scores() for n in names for k in ("bleu", "chrf")]
    rows = ["\t".join(header)]
    for i in range(evaluation.result["sentences"]):
        start = [str(i + 1)] + ([str(int(src_lengths[i]))] if src_lengths is not None else [])
        rows.append("\t".join(start + [f"{column[i]:.4f}" for column in columns]))
    return rows


def check_baseline(against: str | None, names: Sequence[str]) -> str:
    """The baseline among the systems: the named one, else the first.

    Raises: DataError if the named one is not there.
    """
    if against is not None and against not in names:
        raise DataError(f"the baseline '{against}' has nothing to compare with here", where="--against", hint="one of: " + ", ".join(names))
    return against or names[0]
