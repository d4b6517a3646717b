"""Scores of the targets of a contrastive set: those of a system, and those of a score file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nmtkit import console, files
from nmtkit.analyze.study import Study
from nmtkit.data.documents import ContextRule
from nmtkit.measures.contrastive import Item, as_documents
from nmtkit.models.base import Model
from nmtkit.score.external_metrics import numbers
from nmtkit.translate import workers

Scores = list[list[float]]
"""Log-probabilities of the `targets` of each item; higher is better."""
NLL = "negative log-likelihoods, lower is better"
LOG_PROB = "log-probabilities, higher is better"


@dataclass(frozen=True)
class Reading:
    """How a system read the set.

    Attributes:
        rule: the context that it reads; None if it reads none.
        unknown: shares of unknown subwords in the sources and in the targets, 0..1.
        ties: number of wrong targets with exactly the probability of the right target, under the
            first condition.
    """

    rule: ContextRule | None
    unknown: tuple[float, float]
    ties: int


def score(
    study: Study, name: str, sets: Mapping[str, Sequence[Item]]
) -> tuple[Reading, dict[str, Scores]]:
    """Score a set with one system.

    Args:
        sets: condition -> the set with its contexts.
    Returns: how the system read the set, and column -> scores. Scores include </s> and are not
        normalised by length.
    """
    with workers.one_thread(study.device):
        model = study.model(name)
        rule = model.context_rule
        if rule is None or rule.kind == "foreign":  # it reads no context of the set
            by_column = {name: next(iter(sets.values()))}
        else:
            by_column = {name if key == "true" else f"{name}, {key}": sets[key] for key in sets}
        has_context = any(item.context_src for items in by_column.values() for item in items)
        for message in lacks(model, "pairs", has_context):
            study.warn(name, message)
        scorer = study.scorer(model, study.run.system(name).searching())
        columns = {}
        for column, items in by_column.items():
            text = as_documents(items, translated=rule is not None and rule.targets)
            with console.progress(f"{name}: pairs", len(items)) as scorer.done:
                scores = scorer.alternatives(text.lines, text.targets, text.documents)
            columns[column] = [scores[place] for place in text.places]
    first = next(iter(columns.values()))
    ties = sum(score == right for right, *wrong in first for score in wrong)
    counts = scorer.counts
    src = counts["unknown"] / max(1, counts["src_tokens"])
    tgt = counts["unknown_target"] / max(1, counts["tgt_tokens"])
    return Reading(rule, (src, tgt), ties), columns


def lacks(model: Model, texts: str, has_context: bool = False) -> Iterator[str]:
    """Yield a warning for each input of a model that texts do not have.

    Args:
        texts: the name of the texts, in the plural.
        has_context: True if some texts have sentences before them.
    """
    if model.reads_spans:
        yield f"reads parses, but the {texts} have none: it reads n-grams instead"
    if (rule := model.context_rule) is None:
        return
    if not has_context:
        yield f"reads context, but the {texts} have none: it reads single sentences"
    elif rule.kind == "next":
        yield f"reads following sentences, but the {texts} have none: it reads single sentences"
    elif rule.kind == "foreign":
        yield (
            "reads sentences of other documents, here of other pairs, and never the sentences "
            "before its own: it scores the pairs once"
        )


def decisions(scores: Sequence[Sequence[float]]) -> list[bool]:
    """Return, for each wrong translation, True if the right translation has a higher score.

    Args:
        scores: the scores of the `targets` of each item; higher is better.
    """
    return [right > score for right, *wrong in scores for score in wrong]


def preferred(scores: Sequence[Sequence[float]]) -> list[bool]:
    """Return, for each item with wrong translations, True if the right translation has the highest
    score.

    Args:
        scores: the scores of the `targets` of each item; higher is better.
    """
    return [right > max(wrong) for right, *wrong in scores if wrong]


class ScoreFile(NamedTuple):
    """The scores of a set from a file.

    Attributes:
        scores: the scores of the `targets` of each item; higher is better.
        meaning: the meaning of the numbers of the file, NLL or LOG_PROB.
    """

    scores: Scores
    meaning: str


def read_scores(path: Path, items: Sequence[Item]) -> ScoreFile:
    """Read a score file in Lingeval97's format: one number per line, in the order of the set.

    The numbers are log-probabilities if none is above zero, otherwise negative log-likelihoods.

    Raises: as `numbers`.
    """
    wanted = sum(len(item.in_score_file) for item in items)
    scores = numbers(files.text_lines(path), wanted, str(path), "--scores", "target", infinite=True)
    meaning = LOG_PROB if max(scores) <= 0 else NLL
    signed = iter(scores if meaning == LOG_PROB else [-score for score in scores])
    by_target = [dict(zip(item.in_score_file, signed, strict=False)) for item in items]
    return ScoreFile([[of[i] for i in sorted(of)] for of in by_target], meaning)
