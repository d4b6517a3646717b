"""sacreBLEU's counts of every sentence. Only this file and edit_distance.py use its private parts.

Resampling needs the counts of each sentence, but sacreBLEU's public functions return those of a
corpus. If a version of sacreBLEU lacks the private parts, each sentence is scored as a corpus. That
gives the same numbers, but is slower.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_word_ngrams

from nmtkit.score import formulas
from nmtkit.score.edit_distance import fast_edit_distance
from nmtkit.score.scripts import References, Script

PRIVATE = ("_extract_corpus_statistics", "_compute_score_from_stats")


def count(metric: Any, hyps: Sequence[str], refs: References) -> tuple[Any, Any]:
    """Return the counts of every sentence, and sacreBLEU's score of the corpus.

    Args:
        metric: sacreBLEU's BLEU, CHRF or TER, which has read the references already.
        hyps: one line per sentence.
        refs: reference streams with one line per sentence.
    """
    lines = metric.words if isinstance(metric, Script) else list
    hyps = lines(hyps)
    if all(hasattr(metric, name) for name in PRIVATE):
        with fast_edit_distance():
            rows = metric._extract_corpus_statistics(hyps, None)
        sums = [sum(column) for column in zip(*rows, strict=True)]
        return rows, metric._compute_score_from_stats(sums)
    refs = [lines(ref) for ref in refs]
    rows = []
    for hyp, *of_hyp in zip(hyps, *refs, strict=True):
        if isinstance(metric, CHRF):
            rows.append(_chrf(metric, hyp, of_hyp))
            continue
        score = metric.corpus_score([hyp], [[ref] for ref in of_hyp])
        if isinstance(metric, BLEU):
            rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
        else:
            rows.append([score.num_edits, score.ref_length])
    return rows, metric.corpus_score(hyps, refs)


def _chrf(metric: CHRF, hyp: str, refs: Sequence[str]) -> list[float]:
    """Return the chrF counts of one sentence with its best reference; sacreBLEU has no public
    function for them.
    """
    hyp_ngrams, best = _ngrams(metric, hyp), [0.0] * 3 * metric.order
    for number, ref in enumerate(refs):
        pairs = zip(hyp_ngrams, _ngrams(metric, ref), strict=True)
        counts = [(h.total() if r else 0, r.total(), (h & r).total()) for h, r in pairs]
        row = [float(n) for order in counts for n in order]
        if not number or formulas.chrf(np.array(row)) > formulas.chrf(np.array(best)):
            best = row
    return best


def _ngrams(metric: CHRF, line: str) -> list[Counter[Any]]:
    """Return the character n-grams of each order, and for chrF++ the word n-grams of each order."""
    line = line.lower() if metric.lowercase else line
    words = [part for word in line.split() for part in _without_mark(word)]
    orders = range(1, metric.word_order + 1)
    characters = extract_all_char_ngrams(line, metric.char_order)
    return [*characters, *(extract_word_ngrams(words, n) for n in orders)]


def _without_mark(word: str) -> list[str]:
    """Split the punctuation mark at the end, or else at the start, from a word, as chrF++ does."""
    if len(word) > 1 and word[-1] in string.punctuation:
        return [word[:-1], word[-1]]
    if len(word) > 1 and word[0] in string.punctuation:
        return [word[0], word[1:]]
    return [word]
