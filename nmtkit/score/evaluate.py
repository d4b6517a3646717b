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
    DrawnResamples,
    LengthResult,
    MetricScore,
    Scores,
    SeedGroup,
    SignificanceTest,
    SystemScores,
)
from nmtkit.tables.table import check_format

SystemMetrics = dict[str, dict[str, Metric]]
"""Metrics by system and key."""
OF_SENTENCES = ("bleu", "chrf")
"""Metrics whose sentence scores are stored."""


@dataclass(frozen=True)
class Output:
    """The output of one system: detokenised lines, and the same as tokens in their own case for the
    metrics that read tokens.
    """

    name: str
    lines: Sequence[str]
    tokens: Sequence[str] = ()


@dataclass(frozen=True)
class Task:
    """What systems are measured against, and how.

    Args:
        scorer: the metrics against its references.
        baseline: the system that differences are taken against.
        options: the resamples, the test of the main table, the length groups.
        src_lengths: (N) for results by length; length_unit: their unit.
        texts: of the set, for external metrics.
        seed_groups: the systems by training seed.
        budgets: of the systems' trainings.
        remarks: on the translations.
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
    """Refuse unknown values before any work is done.

    Raises: ConfigError naming the known ones.
    """
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
    """Return the keys of the metrics that are asked for: BLEU and those of --metrics, then the
    external ones.

    Raises: ConfigError for an unknown name.
    """
    external = list(external_metrics(options))
    if options.metrics is None:
        return external
    listed = [name.strip() for name in options.metrics.split(",")]
    keys = [name if name in external else name.lower() for name in listed]
    for name, key in zip(listed, keys, strict=True):
        check_known(key, (*METRICS, *external), f"unknown metric '{name}'", "--metrics")
    return list(dict.fromkeys(["bleu", *keys, *external]))


def _columns(outputs: Sequence[Output], task: Task) -> list[str]:
    """Return the keys of all metrics, in the order of the columns; one that makes no sense here, or
    is too slow for these texts, is left out with a remark.

    Raises: ConfigError if a metric that is asked for makes no sense here.
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
                hint="leave it out",
            )
    return asked


def measure(outputs: Sequence[Output], task: Task) -> SystemMetrics:
    """Return every metric of every system, in the order of the outputs.

    Raises: DataError if line counts differ; ConfigError if a metric makes no sense here.
    """
    scorer, metrics = task.scorer, SystemMetrics()
    external, keys = external_metrics(task.options), _columns(outputs, task)
    for remark in scorer.remarks:
        console.say(f"{task.texts.name}: {remark}")
    with console.progress(f"scoring {task.texts.name}", len(outputs) * len(keys)) as advance:
        for output in outputs:
            metrics[output.name] = {}
            for key in keys:
                if key in external:
                    metric = external[key].measure(output.name, output.lines, task.texts)
                else:
                    tokens = METRICS[key].of_tokens
                    metric = scorer.score(key, output.tokens if tokens else output.lines)
                metrics[output.name][key] = metric
                advance(1)
            if looks_tokenized(output.lines) and not looks_tokenized(scorer.refs[0]):
                remark = "100 lines or more end in ' .': is this text detokenised?"
                where = f"{task.texts.name}: {output.name}"
                task.remarks.append(f"{where}: {remark} sacreBLEU expects it to be")
                console.warn(task.remarks[-1])
    return metrics


def evaluate(metrics: SystemMetrics, task: Task) -> Scores:
    """Compare every system with the baseline, group by training seed and by length.

    Args:
        metrics: of `measure`; the baseline is among the systems.
        task: references and settings.
    """
    options, baseline, scorer = task.options, task.baseline, task.scorer
    draws = Draws.of(options, len(scorer.refs[0]))
    by_seed = None
    if task.seed_groups:
        grouping = options.group_by or "seed"
        by_seed = seeds.summarize(
            task.seed_groups, metrics, baseline, options.test, draws, grouping
        )
    return Scores(
        format=4,
        set=task.texts.name,
        language=scorer.lang,
        sentences=draws.sentences,
        references=len(scorer.refs),
        empty_references=sum(not line.strip() for ref in scorer.refs for line in ref),
        baseline=baseline,
        signatures={key: metric.signature for key, metric in metrics[baseline].items()},
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
        remarks=[
            *scorer.remarks,
            *unequal(task.budgets, task.seed_groups),
            *task.remarks,
        ],
        systems=[_system(name, metrics, baseline, draws) for name in metrics],
        seeds=by_seed,
        by_length=_by_length(metrics, task, draws),
        asked=asked_metrics(options),
    )


def _system(name: str, metrics: SystemMetrics, baseline: str, draws: Draws) -> SystemScores:
    """Return one system's scores, and its differences and tests against the baseline."""
    bleu = metrics[name]["bleu"]
    ratio = draws.score(bleu, formulas.length_ratio)
    scores = {key: _score(metric, draws) for key, metric in metrics[name].items()}
    differences, tests = {}, {}
    if name != baseline:
        pairs = {
            key: (metric, metrics[baseline][key], draws) for key, metric in metrics[name].items()
        }
        differences = {key: difference(*pair) for key, pair in pairs.items()}
        tests = {test: {key: compare(test, *pair) for key, pair in pairs.items()} for test in TESTS}
    return SystemScores(name, scores, ratio, bleu.empty_hypotheses, differences, tests)


def _score(metric: Metric, draws: Draws) -> MetricScore:
    value = draws.score(metric)
    return MetricScore(
        metric.name, value.value, value.low, value.high, metric.signature, metric.details
    )


def _by_length(metrics: SystemMetrics, task: Task, draws: Draws) -> LengthResult | None:
    """Return the scores by length if they are asked for."""
    buckets = task.options.length_groups
    if buckets is None:
        return None
    by_metric = {
        key: {name: of_system[key] for name, of_system in metrics.items()}
        for key in ("bleu", *asked_metrics(task.options))
    }
    grouping = (task.src_lengths, buckets, draws, task.baseline, task.options.test)
    groups = lengths.by_length(by_metric.pop("bleu"), *grouping)
    further = {
        key: [score for score, *_ in lengths.in_groups(scores, *grouping)]
        for key, scores in by_metric.items()
    }
    return LengthResult(buckets=buckets, unit=task.length_unit, groups=groups, further=further)


def sentence_rows(metrics: SystemMetrics, src_lengths: Array) -> list[str]:
    """Return the lines of sentences.tsv: line number from 1, source length, and each system's
    sentence BLEU, chrF and external scores.
    """
    header, columns = ["line", "src_length"], []
    for name, of_system in metrics.items():
        for key in of_system:
            if key in METRICS and key not in OF_SENTENCES:
                continue
            header.append(f"{name}.{key}")
            columns.append(of_system[key].sentence_scores())
    lines = ["\t".join(header)]
    for number, length in enumerate(src_lengths):
        scores = [f"{column[number]:.4f}" for column in columns]
        lines.append("\t".join([str(number + 1), str(int(length)), *scores]))
    return lines


def check_baseline(against: str | None, names: Sequence[str]) -> str:
    """Return the baseline among the systems: the named one, else the first.

    Raises: DataError if the named one is not there.
    """
    if against is not None and against not in names:
        raise DataError(
            f"the baseline '{against}' has nothing to compare with here",
            where="--against",
            hint="one of: " + ", ".join(names),
        )
    return against or names[0]
