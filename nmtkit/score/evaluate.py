"""All systems on one test set, side by side: the record that is saved as scores.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import nmtkit
from nmtkit import console
from nmtkit.arrays import Array
from nmtkit.errors import ConfigError, DataError, check_known
from nmtkit.run import code_commit
from nmtkit.score import formulas, lengths, seeds
from nmtkit.score.budgets import unequal
from nmtkit.score.external_metrics import SetTexts, external_metrics
from nmtkit.score.metrics import METRICS, Metric, Scorer, looks_tokenized
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import Draws
from nmtkit.score.significance import TESTS, compare, difference
from nmtkit.score.stored_scores import (
    Budget,
    Comparison,
    DrawnResamples,
    LengthResult,
    MetricScore,
    Scores,
    SeedGroup,
    SignificanceTest,
    SystemScores,
)
from nmtkit.tables.table import check_format

Measured = dict[str, dict[str, Metric]]
"""By key of the metric: the metric of each system."""
OF_SENTENCES = ("bleu", "chrf")
"""Metrics whose sentence scores are stored."""


@dataclass(frozen=True)
class Output:
    """The output of one system: detokenised lines, and the same lines as tokens, with their case,
    for metrics that read tokens.
    """

    name: str
    lines: Sequence[str]
    tokens: Sequence[str] = ()


@dataclass(frozen=True)
class Task:
    """What systems are measured against, and how.

    Args:
        scorer: the metrics, with the references.
        baseline: the system that all others are compared with.
        options: the resamples, the test of the main table, the length groups.
        src_lengths: (N) source lengths, for results by length; length_unit: their unit.
        texts: the texts of the set, for external metrics.
        seed_groups: the systems by training seed.
        budgets: the training budget of each system.
        remarks: remarks on the translations.
    """

    scorer: Scorer
    baseline: str
    options: ScoreOptions
    src_lengths: Array
    length_unit: str
    texts: SetTexts
    seed_groups: Sequence[SeedGroup] = ()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def check_options(options: ScoreOptions) -> None:
    """Raise ConfigError for an unknown value, before any work is done."""
    check_format(options.output_format)
    message = f"unknown significance test '{options.test}'"
    check_known(options.test, TESTS, message, "--significance")
    if options.group_by is not None:
        message = f"cannot group systems by '{options.group_by}'"
        check_known(options.group_by, seeds.GROUPINGS, message, "--group-by")
    if options.length_groups is not None:
        lengths.groups(options.length_groups)
    asked_metrics(options)


def asked_metrics(options: ScoreOptions) -> list[str]:
    """Return the keys of the metrics that are asked for: those of --metrics with BLEU first, then
    the external metrics.

    Raises: ConfigError for an unknown name.
    """
    external = list(external_metrics(options))
    if options.metrics is None:
        return external
    keys = ["bleu"]
    for name in map(str.strip, options.metrics.split(",")):
        keys.append(name if name in external else name.lower())
        check_known(keys[-1], (*METRICS, *external), f"unknown metric '{name}'", "--metrics")
    return list(dict.fromkeys([*keys, *external]))


def _columns(outputs: Sequence[Output], task: Task) -> list[str]:
    """Return the keys of all metrics, in the order of the columns. A default metric that makes no
    sense here, or is too slow for these texts, is left out with a remark.

    Raises: ConfigError if a metric of --metrics makes no sense here, or is too slow.
    """
    asked, scorer = asked_metrics(task.options), task.scorer
    texts = [output.lines for output in outputs]
    if "bleu" not in asked:
        return [*scorer.columns(texts), *asked]
    for key in asked:
        if key in METRICS and (reason := scorer.lacks(key, texts)):
            raise ConfigError(
                f"{METRICS[key].header} is not possible here: {reason}",
                where="--metrics",
                hint="add --lang, or leave it out" if "--lang" in reason else "leave it out",
            )
    return asked


def measure(outputs: Sequence[Output], task: Task) -> Measured:
    """Return every metric of every system, in the order of the columns and of the outputs.

    Raises: DataError if line counts differ; ConfigError if a metric makes no sense here.
    """
    scorer, external = task.scorer, external_metrics(task.options)
    metrics: Measured = {key: {} for key in _columns(outputs, task)}
    for remark in scorer.remarks:
        console.say(f"{task.texts.name}: {remark}")
    with console.progress(f"scoring {task.texts.name}", len(outputs) * len(metrics)) as advance:
        for output in outputs:
            for key, by_system in metrics.items():
                if key in external:
                    metric = external[key].measure(output.name, output.lines, task.texts)
                else:
                    tokens = METRICS[key].of_tokens
                    metric = scorer.score(key, output.tokens if tokens else output.lines)
                by_system[output.name] = metric
                advance(1)
            _warn_of_tokens(output, task)
    return metrics


def _warn_of_tokens(output: Output, task: Task) -> None:
    """Warn if an output looks tokenised but the first reference does not."""
    if looks_tokenized(output.lines) and not looks_tokenized(task.scorer.refs[0]):
        remark = "100 lines or more end in ' .': is this text detokenised?"
        where = f"{task.texts.name}: {output.name}"
        task.remarks.append(f"{where}: {remark} sacreBLEU expects it to be")
        console.warn(task.remarks[-1])


def evaluate(metrics: Measured, task: Task) -> Scores:
    """Compare every system with the baseline, and group by training seed and by length.

    Args:
        metrics: as `measure` returns them; the baseline is among the systems.
        task: references and settings.
    """
    options, baseline, scorer = task.options, task.baseline, task.scorer
    draws = Draws.of(options, len(scorer.refs[0]))
    by_seed = None
    if groups := task.seed_groups:
        grouping = options.group_by or "seed"
        by_seed = seeds.summarize(groups, metrics, baseline, options.test, draws, grouping)
    by_length = None
    if options.length_groups:
        in_groups = (task.src_lengths, options.length_groups, draws, baseline, options.test)
        by_length = LengthResult(
            buckets=options.length_groups,
            unit=task.length_unit,
            groups=lengths.by_length(metrics["bleu"], *in_groups),
            further={
                key: [score for score, *_ in lengths.in_groups(metrics[key], *in_groups)]
                for key in asked_metrics(options)
                if key != "bleu"
            },
        )
    return Scores(
        format=4,
        set=task.texts.name,
        language=scorer.lang,
        sentences=draws.sentences,
        references=len(scorer.refs),
        empty_references=sum(not line.strip() for ref in scorer.refs for line in ref),
        baseline=baseline,
        signatures={key: by_system[baseline].signature for key, by_system in metrics.items()},
        resampling=DrawnResamples(
            draws.resamples, draws.trials, draws.ratio, draws.seed, "95% percentile bootstrap"
        ),
        test=options.test,
        tests={
            key: SignificanceTest(test.name, test.reading, test.finest(draws))
            for key, test in TESTS.items()
        },
        version=nmtkit.__version__,
        commit=code_commit(),
        remarks=[*scorer.remarks, *unequal(task.budgets, task.seed_groups), *task.remarks],
        systems=[_system(name, metrics, baseline, draws) for name in metrics["bleu"]],
        seeds=by_seed,
        by_length=by_length,
        asked=asked_metrics(options),
    )


def _system(name: str, metrics: Measured, baseline: str, draws: Draws) -> SystemScores:
    """Return one system's scores, and its differences and tests against the baseline."""
    scores, differences = {}, {}
    tests: dict[str, dict[str, Comparison]] = {test: {} for test in TESTS if name != baseline}
    for key, by_system in metrics.items():
        metric = by_system[name]
        score = draws.score(metric)
        scores[key] = MetricScore(
            metric.name, score.value, score.low, score.high, metric.signature, metric.details
        )
        if name != baseline:
            pair = metric, by_system[baseline], draws
            differences[key] = difference(*pair)
            for test, by_metric in tests.items():
                by_metric[key] = compare(test, *pair)
    bleu = metrics["bleu"][name]
    ratio = draws.score(bleu, formulas.length_ratio)
    return SystemScores(name, scores, ratio, bleu.empty_hypotheses, differences, tests)


def sentence_rows(metrics: Measured, src_lengths: Array) -> list[str]:
    """Return the lines of sentences.tsv: line number from 1, source length, and each system's
    sentence BLEU, chrF and external scores.
    """
    header, columns = ["line", "src_length"], []
    for name in metrics["bleu"]:
        for key, by_system in metrics.items():
            if key in OF_SENTENCES or key not in METRICS:
                header.append(f"{name}.{key}")
                columns.append(by_system[name].sentence_scores())
    rows = [header]
    for number, (length, *scores) in enumerate(zip(src_lengths, *columns, strict=True), 1):
        rows.append([str(number), str(int(length)), *(f"{score:.4f}" for score in scores)])
    return list(map("\t".join, rows))


def check_baseline(against: str | None, names: Sequence[str]) -> str:
    """Return the named baseline, or else the first system.

    Raises: DataError if the named baseline is not among the systems.
    """
    if against is not None and against not in names:
        raise DataError(
            f"the baseline '{against}' is not one of the systems",
            where="--against",
            hint="one of: " + ", ".join(names),
        )
    return against or names[0]
