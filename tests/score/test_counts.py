"""sacreBLEU's public functions alone give the numbers that its private ones give."""

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
def test_without_private_functions_counts_and_scores_are_the_same(key, lowercase, monkeypatch):
    def score():
        scorer = metrics.Scorer(REFS, lowercase=lowercase, side=TOKENS)
        return scorer.score(key, HYPS)

    private = score()
    monkeypatch.setattr(counts, "PRIVATE", ("_gone",))
    public = score()
    assert np.array_equal(private.statistics, public.statistics)
    assert (private.value, private.signature) == (public.value, public.signature)
    assert private.details == public.details
