"""Corpus scores as functions of summed counts, for many samples at once (any leading axes).

They equal sacreBLEU's `_compute_score_from_stats` and mteval-v13a.pl except for the last few bits
(compared in the tests).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from nmtkit.arrays import Array

Formula = Callable[[Array], Array]

BETA = 2.0
"""The weight of recall in chrF."""
_LOG_OF_ZERO = -9999999999.0  # sacreBLEU's my_log(0)


def bleu(sums: Array, smooth: str = "exp", effective_order: bool = False) -> Array:
    """BLEU (Papineni et al. 2002).

    Args:
        sums: (…, 10) hypothesis length, reference length, 4 counts of matching n-grams, 4 counts of
            n-grams.
        smooth: "exp" (NIST's smoothing: each further order without a match counts half as much),
            "none", or "mteval" (NIST's script, which also smooths a text without any match, and
            counts an order without n-grams as perfect; sacreBLEU gives 0 for both).
        effective_order: True to leave out orders longer than the text (for single sentences).
    Returns: (…) 0 to 100.
    """
    # The samples are the last axis, along which numpy is fast.
    counts = np.ascontiguousarray(np.moveaxis(sums, -1, 0))
    hyp_len, ref_len, correct, total = counts[0], counts[1], counts[2:6], counts[6:]
    possible = np.maximum(total, 1)
    precision = 100 * correct / possible
    if smooth != "none":
        unmatched = correct == 0
        halvings = unmatched.cumsum(0, dtype=np.int32)
        precision = np.where(unmatched, 100 / np.ldexp(possible, halvings), precision)
    precision = np.where(total > 0, precision, 100.0 if smooth == "mteval" else 0.0)
    logs = np.full_like(precision, _LOG_OF_ZERO)
    np.log(precision, out=logs, where=precision > 0)
    used = total > 0 if effective_order else np.ones_like(total, dtype=bool)
    mean = np.where(used, logs, 0.0).sum(0) / np.maximum(used.sum(0), 1)
    scored = hyp_len > 0 if smooth == "mteval" else (correct > 0).any(0)
    shorter = np.where(hyp_len > 0, np.exp(1 - ref_len / np.maximum(hyp_len, 1)), 0.0)
    brevity = np.where(hyp_len < ref_len, shorter, 1.0)
    return np.where(scored, brevity * np.exp(mean), 0.0)


sentence_bleu: Formula = partial(bleu, effective_order=True)
multi_bleu: Formula = partial(bleu, smooth="none")
sentence_multi_bleu: Formula = partial(bleu, smooth="none", effective_order=True)
mteval_bleu: Formula = partial(bleu, smooth="mteval")


def chrf(sums: Array) -> Array:
    """chrF2 (Popović 2015): F of character n-gram precision and recall, averaged over the orders
    that occur; recall counts twice as much. chrF2++ (Popović 2017) averages over word n-grams too.

    Args:
        sums: (…, 18) for each order 1 to 6 the number of n-grams of the hypothesis, of the
            reference, and matching ones; for chrF++ (…, 24) with the orders 1 and 2 of words.
    Returns: (…) 0 to 100.
    """
    hyp, ref, match = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    counted = (hyp > 0) & (ref > 0)
    orders = np.maximum(counted.sum(-1), 1)
    precision = _ratio(match, np.where(counted, hyp, 0)).sum(-1) / orders
    recall = _ratio(match, np.where(counted, ref, 0)).sum(-1) / orders
    return _ratio(100 * (1 + BETA**2) * precision * recall, BETA**2 * precision + recall)


def ter(sums: Array) -> Array:
    """Translation edit rate (Snover et al. 2006).

    Args:
        sums: (…, 2) edits, reference length (mean over the references).
    Returns: (…) percent; 100 where there are edits but no reference words.
    """
    edits, length = sums[..., 0], sums[..., 1]
    return 100 * _ratio(edits, length, np.where(edits > 0, 1.0, 0.0))


def mean(sums: Array) -> Array:
    """Mean of sentence scores.

    Args:
        sums: (…, 2) scores, number of sentences.
    """
    return _ratio(sums[..., 0], sums[..., 1], np.nan)


length_ratio = mean
"""Hypothesis words / reference words: the first two counts of `bleu`. NaN if the references have no
words."""


def _ratio(above: Array, below: Array, otherwise: Array | float = 0.0) -> Array:
    """Return above / below, or `otherwise` where `below` is 0."""
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), otherwise)
