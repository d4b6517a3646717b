"""All systems on one test set, side by side: the result object that is saved as scores.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import nmtkit
from nmtkit import console
from nmtkit.errors import DataError
from nmtkit.records import (
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
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import TESTS, compare, difference


@dataclass(frozen=True)
class Output:
    """What one system wrote: detokenised lines, and the same as tokens in their own case for the
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
        refs, tokenized_refs: full reference streams, raw and as tokens in their own case; None
            leaves out the metrics of tokens.
        tokenization: what made the tokens, for the signature.
        lang: target language; lowercase: compare without regard to case.
        baseline: the system that differences are taken against.
        draws: of the test set; test: the one whose p stands in the main table, in length groups and
            among seeds.
        seed_groups: the systems by training seed.
        src_lengths: (N) for results by length, None for none; length_unit says in what they count.
        buckets: the length groups.
        commit: of nmtkit, for the record.
    """

    set_name: str
    refs: Sequence[Sequence[str]]
    tokenized_refs: Sequence[Sequence[str]] | None
    tokenization: str
    lang: str
    baseline: str
    draws: Draws
    test: str = "paired_bootstrap"
    lowercase: bool = False
    seed_groups: Sequence[SeedGroup] = ()
    src_lengths: Array | None = None
    length_unit: str = ""
    buckets: str = "dc"
    commit: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """The result, and the metrics with their sentence statistics by system and key."""

    result: Scores
    metrics: dict[str, dict[str, Metric]] = field(repr=False)


def evaluate(outputs: Sequence[Output], task: Task) -> Evaluation:
    """Score every output, compare each with the baseline, group by training seed and by length.

    Args:
        outputs: the systems, baseline among them, in the order of the table.
        task: references and settings.
    Raises: DataError where line counts differ.
    """
    scorer = Scorer(task.refs, task.lang, task.lowercase, task.tokenized_refs, task.tokenization)
    if scorer.remark:
        console.say(scorer.remark)
    metrics = _metrics(outputs, scorer, task)
    draws, base = task.draws, metrics[task.baseline]
    by_length = None
    if task.src_lengths is not None:
        scores = {name: own["bleu"] for name, own in metrics.items()}
        found = lengths.by_length(
            scores, task.src_lengths, task.buckets, draws, task.baseline, task.test
        )
        by_length = LengthResult(task.buckets, task.length_unit, found)
    result = Scores(
        format=4,
        set=task.set_name,
        language=task.lang,
        sentences=len(task.refs[0]),
        references=len(task.refs),
        empty_references=sum(not line.strip() for ref in task.refs for line in ref),
        baseline=task.baseline,
        signatures={key: metric.signature for key, metric in base.items()},
        resampling=DrawnResamples(
            draws.resamples, draws.trials, draws.ratio, draws.seed, "95% percentile bootstrap"
        ),
        test=task.test,
        tests={
            key: SignificanceTest(test.name, test.reading, test.finest(draws))
            for key, test in TESTS.items()
        },
        version=nmtkit.__version__,
        commit=task.commit,
        remarks=[scorer.remark] if scorer.remark else [],
        systems=[
            _system(name, own, None if name == task.baseline else base, draws)
            for name, own in metrics.items()
        ],
        seeds=(
            seeds.summarize(task.seed_groups, metrics, task.baseline, task.test, draws)
            if task.seed_groups
            else None
        ),
        by_length=by_length,
    )
    return Evaluation(result, metrics)


def _metrics(outputs: Sequence[Output], scorer: Scorer, task: Task) -> dict[str, dict[str, Metric]]:
    """Every metric of every system, by system and key."""
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
    name: str, own: dict[str, Metric], base: dict[str, Metric] | None, draws: Draws
) -> SystemScores:
    """One system's scores, and its differences and tests against the baseline (None for the
    baseline itself).
    """
    scores = {}
    for key, metric in own.items():
        found = estimate(metric.value, draws.full.scores(metric))
        scores[key] = MetricScore(
            metric.name, found.value, found.low, found.high, metric.signature, metric.details
        )
    bleu = own["bleu"]
    ratio = estimate(bleu.details["ratio"], draws.full.scores(bleu, formulas.length_ratio))
    if base is None:
        return SystemScores(name, scores, ratio, bleu.empty_hypotheses, {}, {})
    differences = {key: difference(metric, base[key], draws) for key, metric in own.items()}
    tests = {
        test: {key: compare(test, metric, base[key], draws) for key, metric in own.items()}
        for test in TESTS
    }
    return SystemScores(name, scores, ratio, bleu.empty_hypotheses, differences, tests)


def sentence_rows(evaluation: Evaluation, src_lengths: Array | None) -> list[str]:
    """The lines of sentences.tsv: line number from 1, source length, and each system's sentence
    BLEU and chrF.
    """
    names = list(evaluation.metrics)
    header = [
        "line",
        *(["src_length"] if src_lengths is not None else []),
        *(f"{n}.{k}" for n in names for k in ("bleu", "chrf")),
    ]
    columns = [evaluation.metrics[n][k].sentence_scores() for n in names for k in ("bleu", "chrf")]
    rows = ["\t".join(header)]
    for i in range(evaluation.result.sentences):
        start = [str(i + 1)] + ([str(int(src_lengths[i]))] if src_lengths is not None else [])
        rows.append("\t".join(start + [f"{column[i]:.4f}" for column in columns]))
    return rows


def check_baseline(against: str | None, names: Sequence[str]) -> str:
    """The baseline among the systems: the named one, else the first.

    Raises: DataError if the named one is not there.
    """
    if against is not None and against not in names:
        raise DataError(
            f"the baseline '{against}' has nothing to compare with here",
            where="--against",
            hint="one of: " + ", ".join(names),
        )
    return against or names[0]
