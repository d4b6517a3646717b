"""All systems on one test set, side by side: the result object that is saved as scores.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import nmtkit
from nmtkit import console
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.records import (
    Comparison,
    DrawnResamples,
    LengthResult,
    MetricScore,
    Scores,
    SeedGroup,
    SignificanceTest,
    SystemScores,
)
from nmtkit.score import formulas, lengths, seeds
from nmtkit.score.formulas import Array
from nmtkit.score.metrics import METRICS, Metric, Scorer, looks_tokenized
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import TESTS, compare, difference
from nmtkit.tables.table import Estimate, check_format


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
        set_name: the test set.
        refs, tokenized_refs: full reference streams, raw and as tokens in their own case; without
            tokens, the metrics of tokens are left out.
        tokenization: the tokenizer's name, for the signature.
        language: of the references; lowercase: ignore case.
        baseline: the system that differences are taken against.
        options: how to draw, the test of the main table, the length groups.
        seed_groups: the systems by training seed.
        src_lengths: (N) for results by length, if they are asked for; length_unit: their unit.
        commit: of nmtkit, for the record.
    """

    set_name: str
    refs: Sequence[Sequence[str]]
    tokenized_refs: Sequence[Sequence[str]] | None
    tokenization: str
    language: str
    baseline: str
    options: ScoreOptions
    lowercase: bool = False
    seed_groups: Sequence[SeedGroup] = ()
    src_lengths: Array | None = None
    length_unit: str = ""
    commit: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """The result, and the metrics with their sentence statistics by system and key."""

    result: Scores
    metrics: dict[str, dict[str, Metric]] = field(repr=False)


def check_options(options: ScoreOptions) -> None:
    """Refuse values that do not exist before any work is done.

    Raises: ConfigError naming what there is.
    """
    check_format(options.output_format)
    if options.test not in TESTS:
        raise ConfigError(
            f"unknown significance test '{options.test}'",
            where="--test",
            hint=nearest(options.test, TESTS),
        )
    if options.group_by not in (None, "seed"):
        raise ConfigError(
            f"cannot group systems by '{options.group_by}'",
            where="--group-by",
            hint="one of: seed",
        )
    lengths.groups(options.length_groups or "dc")


def evaluate(outputs: Sequence[Output], task: Task) -> Evaluation:
    """Score every output, compare each with the baseline, group by training seed and by length.

    Args:
        outputs: the systems, baseline among them, in the order of the table.
        task: references and settings.
    Raises: DataError if line counts differ.
    """
    options, baseline = task.options, task.baseline
    scorer = Scorer(
        task.refs, task.language, task.lowercase, task.tokenized_refs, task.tokenization
    )
    if scorer.remark:
        console.say(scorer.remark)
    metrics = _metrics(outputs, scorer, task)
    base, draws = metrics[baseline], Draws.of(options, len(task.refs[0]))
    by_length, buckets = None, options.length_groups
    if task.src_lengths is not None and buckets:
        bleu = {name: own["bleu"] for name, own in metrics.items()}
        scores = lengths.by_length(bleu, task.src_lengths, buckets, draws, baseline, options.test)
        by_length = LengthResult(buckets, task.length_unit, scores)
    by_seed = None
    if task.seed_groups:
        by_seed = seeds.summarize(task.seed_groups, metrics, baseline, options.test, draws)
    result = Scores(
        format=4,
        set=task.set_name,
        language=task.language,
        sentences=len(task.refs[0]),
        references=len(task.refs),
        empty_references=sum(not line.strip() for ref in task.refs for line in ref),
        baseline=baseline,
        signatures={key: metric.signature for key, metric in base.items()},
        resampling=DrawnResamples(
            draws.resamples, draws.trials, draws.ratio, draws.seed, "95% percentile bootstrap"
        ),
        test=options.test,
        tests={
            key: SignificanceTest(test.name, test.reading, test.finest(draws))
            for key, test in TESTS.items()
        },
        version=nmtkit.__version__,
        commit=task.commit,
        remarks=[scorer.remark] if scorer.remark else [],
        systems=[
            _system(name, own, None if name == baseline else base, draws)
            for name, own in metrics.items()
        ],
        seeds=by_seed,
        by_length=by_length,
    )
    return Evaluation(result, metrics)


def _metrics(outputs: Sequence[Output], scorer: Scorer, task: Task) -> dict[str, dict[str, Metric]]:
    """Return every metric of every system, by system and key."""
    metrics: dict[str, dict[str, Metric]] = {}
    with console.progress(f"scoring {task.set_name}", len(outputs) * len(scorer.keys)) as advance:
        for output in outputs:
            metrics[output.name] = {}
            for key in scorer.keys:
                metrics[output.name][key] = scorer.score(
                    key, output.tokens if METRICS[key].of_tokens else output.lines
                )
                advance(1)
            if looks_tokenized(output.lines) and not looks_tokenized(task.refs[0]):
                console.warn(
                    f"{output.name}: 100 lines or more end in ' .': is this text detokenised?"
                    " sacreBLEU expects it to be"
                )
    return metrics


def _system(
    name: str, metrics: dict[str, Metric], base: dict[str, Metric] | None, draws: Draws
) -> SystemScores:
    """Return one system's scores, and its differences and tests against the baseline (None for the
    baseline itself).
    """
    scores = {}
    for key, metric in metrics.items():
        value = estimate(metric.value, draws.full.scores(metric))
        scores[key] = MetricScore(
            metric.name, value.value, value.low, value.high, metric.signature, metric.details
        )
    bleu = metrics["bleu"]
    ratio = estimate(bleu.details["ratio"], draws.full.scores(bleu, formulas.length_ratio))
    differences: dict[str, Estimate] = {}
    tests: dict[str, dict[str, Comparison]] = {}
    if base is not None:
        pairs = {key: (metric, base[key], draws) for key, metric in metrics.items()}
        differences = {key: difference(*pair) for key, pair in pairs.items()}
        tests = {test: {key: compare(test, *pair) for key, pair in pairs.items()} for test in TESTS}
    return SystemScores(name, scores, ratio, bleu.empty_hypotheses, differences, tests)


def sentence_rows(evaluation: Evaluation, src_lengths: Array) -> list[str]:
    """Return the lines of sentences.tsv: line number from 1, source length, and each system's
    sentence BLEU and chrF.
    """
    header, columns = ["line", "src_length"], []
    for name, metrics in evaluation.metrics.items():
        for key in ("bleu", "chrf"):
            header.append(f"{name}.{key}")
            columns.append(metrics[key].sentence_scores())
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
