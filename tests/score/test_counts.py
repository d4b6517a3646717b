"""Counts and scores are the same with sacreBLEU's public functions alone."""

import numpy as np
import pytest

from nmtkit.score import counts, metrics

from .single import TOKENS

HYPS = [
    "Der Hund bellt laut .",
    "",
    "ÄA  b\u00a0c - d & e",
    "die Katze sitzt auf der Matte \u00a0",
    "x",
    "ein Hund",
]
REFS = [
    ["Ein Hund bellt laut.", "leer", "äa b c - d &amp; E", "die Katze saß auf der Matte", "", "e"],
    ["Der Hund bellte", "", "Äa b\u00a0c d", "eine Katze sitzt auf ihrer Matte\u00a0", "x y", ""],
]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("key", metrics.METRICS)
def test_counts_and_scores_are_equal_without_sacrebleus_private_functions(
    key, lowercase, monkeypatch
):
    scorer = metrics.Scorer(REFS, lowercase=lowercase, side=TOKENS)
    private = scorer.score(key, HYPS)
    monkeypatch.setattr(counts, "PRIVATE", ("_gone",))
    public = metrics.Scorer(REFS, lowercase=lowercase, side=TOKENS).score(key, HYPS)
    assert np.array_equal(private.statistics, public.statistics)
    assert (private.value, private.signature) == (public.value, public.signature)
    assert private.details == public.details
