"""Length groups: every sentence in exactly one, each group's BLEU that of sacreBLEU on those
lines.
"""

import random

import numpy as np
import pytest
import sacrebleu

from nmtkit.errors import ConfigError
from nmtkit.score import lengths, metrics
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import Draws
from nmtkit.score.significance import TESTS
from nmtkit.tables.table import text

from . import slow


def label(spec, length):
    return next(g.label for g in lengths.groups(spec) if g.mask(np.array([length]))[0])


@pytest.mark.parametrize(
    ("spec", "sizes", "labels"),
    [
        ("dc", (0, 9, 10, 19, 20, 49, 50), "<10 <10 [10,20) [10,20) [20,30) [40,50) ≥50"),
        ("pr", (0, 15, 16, 30, 31, 45, 46), "≤15 ≤15 (15,30] (15,30] (30,45] (30,45] >45"),
        ("4,8", (3, 4, 7, 8), "<4 [4,8) [4,8) ≥8"),
    ],
)
def test_borders_as_in_the_two_papers(spec, sizes, labels):
    assert [label(spec, n) for n in sizes] == labels.split()


@pytest.mark.parametrize("spec", ["", "dcx", "20,10", "0,5", "5,5", "1,a", "-3"])
def test_groups_that_make_no_sense_are_refused(spec):
    with pytest.raises(ConfigError, match="length groups"):
        lengths.groups(spec)


def test_groups_are_asked_for_by_either_option():
    asked = ({}, {"by_length": True}, {"buckets": ""}, {"buckets": "pr"})
    assert [ScoreOptions(**of).length_groups for of in asked] == [None, "dc", "dc", "pr"]


def systems(count=120, shares=None):
    """A reference, systems with these shares of words wrong, and lengths of the reference."""
    rng = random.Random(4)
    ref = [" ".join(rng.choices("abcdef", k=rng.randint(4, 35))) for _ in range(count)]
    hyps = {
        name: [" ".join(w if rng.random() > share else "x" for w in line.split()) for line in ref]
        for name, share in (shares or {"one": 0.2, "two": 0.22}).items()
    }
    return ref, hyps, np.array([len(line.split()) for line in ref])


def test_each_group_is_sacrebleu_on_its_lines():
    ref, hyps, sizes = systems(80, {"one": 0.1, "two": 0.3})
    scores = {name: metrics.bleu(hyp, [ref]) for name, hyp in hyps.items()}
    found = lengths.by_length(scores, sizes, "dc", Draws(80, 50))
    groups = [(score.group, score.system) for score in found[:3]]
    assert groups == [("<10", "one"), ("<10", "two"), ("[10,20)", "one")]
    borders = {"<10": (0, 9), "[10,20)": (10, 19), "[20,30)": (20, 29), "[30,40)": (30, 39)}
    for score in found:
        if score.group in borders:
            low, high = borders[score.group]
            rows = [i for i in range(80) if low <= sizes[i] <= high]
            expected = sacrebleu.corpus_bleu(
                [hyps[score.system][i] for i in rows], [[ref[i] for i in rows]]
            )
            assert score.sentences == len(rows) > 0
            assert score.bleu.value == pytest.approx(expected.score, abs=1e-9)
            assert score.length_ratio.value == pytest.approx(expected.ratio, abs=1e-12)
            assert score.bleu.low <= score.bleu.value <= score.bleu.high
        else:
            assert (score.sentences, score.bleu.value, score.length_ratio.value) == (0, None, None)
    drawn = lengths.bars(found).splitlines()
    assert drawn[0].startswith("<10")
    best = max(score.bleu.value or 0 for score in found)
    assert max(drawn, key=lambda line: line.count("█")).endswith(f"{best:.1f}")
    shown = list(map(text, lengths.row(found[-1]), lengths.COLUMNS))
    assert shown == ["≥50", "0", "two", "–", "–"]


def test_significance_inside_a_group_is_that_of_its_lines_alone():
    ref, hyps, sizes = systems()
    refs = [ref, hyps["two"][::-1]]
    scores = {name: metrics.bleu(hyp, refs) for name, hyp in hyps.items()}
    found = lengths.by_length(scores, sizes, "10,20", Draws(120, 40, seed=7), "one")
    borders = [(0, 9), (10, 19), (20, 99)]
    for base, system, (low, high) in zip(found[::2], found[1::2], borders, strict=True):
        rows = [i for i in range(120) if low <= sizes[i] <= high]
        streams = (hyps["two"], hyps["one"], *refs)
        ours, theirs, *own = ([lines[i] for i in rows] for lines in streams)
        draws = np.random.default_rng(7).integers(0, len(rows), (40, len(rows)))
        gaps = slow.gaps(ours, theirs, own, draws)
        (whole,) = slow.gaps(ours, theirs, own, [range(len(rows))])
        gap = system.difference
        assert (base.p, base.difference.value) == (None, None)
        assert gap.value == pytest.approx(whole)
        bounds = tuple(np.quantile(gaps, [0.025, 0.975])) if len(rows) >= 10 else (None, None)
        assert (gap.low, gap.high) == pytest.approx(bounds, abs=1e-9)
        better = sum(drawn * gap.value > 0 for drawn in gaps)
        assert system.sentences == len(rows)
        if len(rows) < 30:
            assert system.p is None
        else:
            assert system.p == pytest.approx(1 - better / 40, abs=1e-12)
            assert 0 < system.p < 1
    assert [score.p is None for score in found[1::2]] == [True, False, False]


def test_the_sign_test_inside_a_group_and_every_other_test():
    ref, hyps, sizes = systems()
    scores = {n: metrics.bleu(h, [ref]) for n, h in hyps.items()}
    for test in TESTS:
        found = lengths.by_length(scores, sizes, "20", Draws(120, 20, 20), "one", test)
        assert [score.p is not None for score in found] == [False, True, False, True]
    rows = [i for i in range(120) if sizes[i] >= 20]
    *_, p = slow.sign_test(
        [hyps["two"][i] for i in rows], [hyps["one"][i] for i in rows], [[ref[i] for i in rows]]
    )
    assert found[-1].p == pytest.approx(p, abs=1e-12)
