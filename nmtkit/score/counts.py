"""sacreBLEU's counts of every sentence; only this file and edit_distance.py use its private parts.

Resampling needs the counts of each sentence, and sacreBLEU's public functions return those of a
corpus. A version of sacreBLEU without the private parts gives the same numbers, but more slowly: it
scores each sentence as a corpus.
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
        hyps: one line a sentence.
        refs: each a full reference stream.
    """
    lines = metric.words if isinstance(metric, Script) else list
    hyps = lines(hyps)
    if all(hasattr(metric, name) for name in PRIVATE):
        with fast_edit_distance():
            rows = metric._extract_corpus_statistics(hyps, None)
        sums = [sum(column) for column in zip(*rows, strict=True)]
        return rows, metric._compute_score_from_stats(sums)
    refs = [lines(ref) for ref in refs]
    rows = [_sentence(metric, *pair) for pair in zip(hyps, zip(*refs, strict=True), strict=True)]
    return rows, metric.corpus_score(hyps, refs)


def _sentence(metric: Any, hyp: str, refs: Sequence[str]) -> list[float]:
    """Return the counts of one sentence by sacreBLEU's public functions alone."""
    if isinstance(metric, CHRF):
        return _chrf(metric, hyp, refs)
    score = metric.corpus_score([hyp], [[ref] for ref in refs])
    if isinstance(metric, BLEU):
        return [score.sys_len, score.ref_len, *score.counts, *score.totals]
    return [score.num_edits, score.ref_length]


def _chrf(metric: CHRF, hyp: str, refs: Sequence[str]) -> list[float]:
    """Return the counts of one sentence with its best reference: no public function has them."""
    hyp_ngrams, best = _ngrams(metric, hyp), [0.0] * 3 * metric.order
    for number, ref in enumerate(refs):
        pairs = zip(hyp_ngrams, _ngrams(metric, ref), strict=True)
        counts = [(h.total() if r else 0, r.total(), (h & r).total()) for h, r in pairs]
        row = [float(n) for order in counts for n in order]
        if not number or formulas.chrf(np.array(row)) > formulas.chrf(np.array(best)):
            best = row
    return best


def _ngrams(metric: CHRF, line: str) -> list[Counter[Any]]:
    """Return the n-grams of characters of each order, and for chrF++ those of words."""
    line = line.lower() if metric.lowercase else line
    words = [part for word in line.split() for part in _without_mark(word)]
    orders = range(1, metric.word_order + 1)
    characters = extract_all_char_ngrams(line, metric.char_order)
    return [*characters, *(extract_word_ngrams(words, n) for n in orders)]


def _without_mark(word: str) -> list[str]:
    """Return a word and the punctuation mark at its end, or else at its start, as chrF++ does."""
    if len(word) > 1 and word[-1] in string.punctuation:
        return [word[:-1], word[-1]]
    if len(word) > 1 and word[0] in string.punctuation:
        return [word[0], word[1:]]
    return [word]
