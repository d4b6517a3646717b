"""Minimum Bayes risk: the candidate that is most like the other candidates.

The choice, exactly. The expected utility of a candidate h is Σ_r w_r · chrF(h, r) over all
candidates r of the sentence, including h, with chrF2 of their texts as sacreBLEU computes it
(Popović 2015). Samples have equal weights w_r = 1/n (Eikema & Aziz 2022). The n best of a search
have the model's probabilities, divided by their sum (Kumar & Byrne 2004). If one of the n best is
finished, unfinished ones have weight 0, because the probability of an unfinished hypothesis is that
of a prefix.

The candidates are ranked by expected utility, each text once. Equal candidates keep their order;
unfinished ones of a search come after the finished ones. The score of a translation is its expected
utility; log_prob is the model's own. A line in pieces is ranked piece by piece. An external metric
can replace chrF; if lower is better, the utility is its negative.

Legend: N distinct texts, U distinct n-grams of one order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nmtkit.arrays import Floats
from nmtkit.score import formulas
from nmtkit.score.external_metrics import ExternalMetric, SetTexts
from nmtkit.translate.hypotheses import Hypothesis, NBest
from nmtkit.translate.windows import windowed

Matrix = Floats
PairUtility = Callable[[Sequence[str], Sequence[Sequence[str]]], list[Matrix]]
"""Returns for each source with N distinct texts the utilities (N, N): of the text of each row, if
the text of the column is the reference.
"""
PAIRS = 1 << 18
"""The most pairs that a command gets at once, so that memory does not grow with the text."""
ORDERS = range(1, 7)
"""The lengths of the character n-grams of chrF2."""


def least_risk(
    hypotheses: Sequence[Hypothesis],
    texts: Sequence[str],
    nbest: int,
    drawn: bool,
    utilities: Matrix | None = None,
) -> NBest:
    """Return the n hypotheses of a sentence with the highest expected utility, best first.

    Args:
        hypotheses: the candidates, at least one.
        texts: of each candidate.
        nbest: the maximum number of hypotheses to return.
        drawn: True if the candidates are samples.
        utilities: (N, N) of the distinct texts, in their order; None = `chrf`.
    """
    first = [hypotheses[texts.index(text)] for text in distinct(texts)]
    weights = dict.fromkeys(texts, 0.0)
    all_count = drawn or not any(h.finished for h in hypotheses)
    best = max(h.log_prob for h in hypotheses if all_count or h.finished)
    for h, text in zip(hypotheses, texts, strict=True):
        if all_count or h.finished:
            weights[text] += 1.0 if drawn else float(np.exp(h.log_prob - best))
    shares = np.array(list(weights.values())) / sum(weights.values())
    expected = (chrf(distinct(texts)) if utilities is None else utilities) @ shares
    ranked = [replace(h, score=float(e)) for h, e in zip(first, expected, strict=True)]
    return sorted(ranked, key=lambda h: (not (all_count or h.finished), -h.score))[:nbest]


def distinct(texts: Sequence[str]) -> list[str]:
    """Return each text once, in the order of the first occurrences."""
    return list(dict.fromkeys(texts))


def external_utility(metric: ExternalMetric) -> PairUtility:
    """Return the utility that an external metric measures, with at most PAIRS pairs at once."""

    def utility(sources: Sequence[str], texts: Sequence[Sequence[str]]) -> list[Matrix]:
        rows = (
            (source, text, other)
            for source, of_source in zip(sources, texts, strict=True)
            for text, other in itertools.product(of_source, repeat=2)
        )
        scores = (_scores(metric, some) for some in windowed(rows, PAIRS))
        numbers = itertools.chain.from_iterable(scores)
        sign = 1 if metric.higher_is_better else -1
        sizes = map(len, texts)
        return [sign * np.fromiter(numbers, float, size**2).reshape(size, size) for size in sizes]

    return utility


def _scores(metric: ExternalMetric, rows: list[tuple[str, str, str]]) -> list[float]:
    """Return the score of each row of a source, a candidate and a reference."""
    sources, candidates, references = map(list, zip(*rows, strict=True))
    pairs = SetTexts(f"{len(rows):,} pairs", sources, [references])
    return metric.scores("candidates", candidates, pairs)


def chrf(texts: Sequence[str]) -> Matrix:
    """Return chrF2 (N, N) of each text, by rows, against each text, by columns."""
    letters = ["".join(text.split()) for text in texts]
    sums = np.empty((len(texts), len(texts), 3 * len(ORDERS)))
    for order in ORDERS:
        occurring = [_occurrences(line, order) for line in letters]
        counts = np.array(list(map(len, occurring)))
        sums[..., 3 * order - 3] = counts[:, None]
        sums[..., 3 * order - 2] = counts
        sums[..., 3 * order - 1] = _shared(occurring)
    return formulas.chrf(sums)


def _occurrences(line: str, order: int) -> list[tuple[str, int]]:
    """Return the n-grams of a line, each with the number of its earlier occurrences. So the clipped
    matches of two lines are the entries that both lines have.
    """
    before: Counter[str] = Counter()
    occurrences = []
    for start in range(len(line) - order + 1):
        gram = line[start : start + order]
        occurrences.append((gram, before[gram]))
        before[gram] += 1
    return occurrences


def _shared(lists: Sequence[Sequence[tuple[str, int]]]) -> Matrix:
    """Return the number of entries that each two of N lists share (N, N). A list has no entry
    twice.
    """
    places: dict[tuple[str, int], int] = {}
    columns = [[places.setdefault(entry, len(places)) for entry in entries] for entries in lists]
    has = np.zeros((len(lists), max(1, len(places))), dtype=np.float32)  # exact below 2^24
    for row, of_row in zip(has, columns, strict=True):
        row[of_row] = 1
    return (has @ has.T).astype(np.float64)
