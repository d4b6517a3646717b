"""Scores by source length: borders of the groups, and BLEU and significance inside each group."""

import json
import random
from xml.etree import ElementTree

import numpy as np
import pytest
import sacrebleu

from nmtkit.errors import ConfigError
from nmtkit.score import lengths, metrics
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import Draws
from nmtkit.score.significance import TESTS
from nmtkit.tables.drawing import DESCRIPTION
from nmtkit.tables.table import Estimate, text

from . import slow


@pytest.mark.parametrize(
    ("spec", "sizes", "labels"),
    [
        ("dc", (0, 9, 10, 19, 20, 49, 50), "<10 <10 [10,20) [10,20) [20,30) [40,50) ≥50"),
        ("pr", (0, 15, 16, 30, 31, 45, 46), "≤15 ≤15 (15,30] (15,30] (30,45] (30,45] >45"),
        ("4,8", (3, 4, 7, 8), "<4 [4,8) [4,8) ≥8"),
    ],
)
def test_each_length_is_in_one_group_with_the_papers_borders(spec, sizes, labels):
    groups = lengths.groups(spec)
    found = [[group.label for group in groups if group.mask(np.array([n]))[0]] for n in sizes]
    assert found == [[label] for label in labels.split()]


@pytest.mark.parametrize("spec", ["", "dcx", "20,10", "0,5", "5,5", "1,a", "-3"])
def test_unreadable_length_groups_are_refused(spec):
    with pytest.raises(ConfigError, match="length groups"):
        lengths.groups(spec)


@pytest.mark.parametrize(
    ("options", "groups"),
    [({}, None), ({"by_length": True}, "dc"), ({"buckets": ""}, "dc"), ({"buckets": "pr"}, "pr")],
)
def test_either_option_asks_for_length_groups(options, groups):
    assert ScoreOptions(**options).length_groups == groups


def systems(count, **shares):
    """Return reference lines, hypotheses of systems with these shares of wrong words, and the
    lengths of the references.
    """
    rng = random.Random(4)
    ref = [" ".join(rng.choices("abcdef", k=rng.randint(4, 35))) for _ in range(count)]
    hyps = {
        name: [" ".join(w if rng.random() > share else "x" for w in line.split()) for line in ref]
        for name, share in shares.items()
    }
    return ref, hyps, np.array([len(line.split()) for line in ref])


def lines_between(low, high, sizes, *streams):
    """Return the numbers and the texts of lines with low <= length <= high."""
    rows = [i for i, size in enumerate(sizes) if low <= size <= high]
    return rows, [[lines[i] for i in rows] for lines in streams]


@pytest.fixture(scope="module")
def grouped():
    """80 lines by two systems, none with 50 words: (reference, hypotheses, lengths, scores)."""
    ref, hyps, sizes = systems(80, one=0.1, two=0.3)
    scores = {name: metrics.bleu(hyp, [ref]) for name, hyp in hyps.items()}
    return ref, hyps, sizes, lengths.by_length(scores, sizes, "dc", Draws(80, 50))


def test_bleu_and_length_ratio_of_each_group_equal_sacrebleus(grouped):
    ref, hyps, sizes, scores = grouped
    borders = {"<10": (0, 9), "[10,20)": (10, 19), "[20,30)": (20, 29), "[30,40)": (30, 39)}
    empty = ["[40,50)", "≥50"]
    expected_order = [(group, name) for group in [*borders, *empty] for name in hyps]
    assert [(score.group, score.system) for score in scores] == expected_order
    for score in scores[:8]:
        rows, (hyp, reference) = lines_between(
            *borders[score.group], sizes, hyps[score.system], ref
        )
        expected = sacrebleu.corpus_bleu(hyp, [reference])
        assert score.sentences == len(rows) > 0
        assert score.bleu.value == pytest.approx(expected.score, abs=1e-9)
        assert score.length_ratio.value == pytest.approx(expected.ratio, abs=1e-12)
        assert score.bleu.low <= score.bleu.value <= score.bleu.high
    for score in scores[8:]:
        assert (score.sentences, score.bleu.value, score.length_ratio.value) == (0, None, None)


def test_bars_and_cells_show_the_groups(grouped):
    *_, scores = grouped
    bars = lengths.bars(scores).splitlines()
    assert bars[0].startswith("<10")
    best = max(score.bleu.value or 0 for score in scores)
    assert max(bars, key=lambda line: line.count("█")).endswith(f"{best:.1f}")
    cells = list(map(text, lengths.row(scores[-1]), lengths.COLUMNS))
    assert cells == ["≥50", "0", "two", "–", "–"]


def test_figure_has_a_bar_for_each_system_and_group(grouped):
    *_, scores = grouped
    figure = ElementTree.fromstring(lengths.figure(scores, "words", "test"))
    numbers = json.loads(figure.findtext(f".//{DESCRIPTION}"))
    assert numbers["groups"] == ["<10", "[10,20)", "[20,30)", "[30,40)", "[40,50)", "≥50"]
    for name in ("one", "two"):
        expected = [score.bleu.value for score in scores if score.system == name]
        assert [bar["value"] for bar in numbers["series"][name]] == expected


@pytest.mark.parametrize(
    ("group", "low", "high", "has_p"), [(0, 0, 9, False), (1, 10, 19, True), (2, 20, 99, True)]
)
def test_difference_and_p_of_a_group_equal_a_bootstrap_of_its_lines(group, low, high, has_p):
    ref, hyps, sizes = systems(120, one=0.2, two=0.22)
    refs = [ref, hyps["two"][::-1]]
    scores = {name: metrics.bleu(hyp, refs) for name, hyp in hyps.items()}
    found = lengths.by_length(scores, sizes, "10,20,50", Draws(120, 40, ratio=0.5, seed=7), "one")
    assert [score.difference for score in found[6:]] == [Estimate(None)] * 2  # an empty group
    base, system = found[2 * group : 2 * group + 2]
    assert (base.p, base.difference.value) == (None, None)
    rows, (ours, theirs, *references) = lines_between(
        low, high, sizes, hyps["two"], hyps["one"], *refs
    )
    count = len(rows)
    assert system.sentences == count
    draws = np.random.default_rng(7).integers(0, count, (40, count))
    gaps = slow.gaps(ours, theirs, references, draws)
    (whole,) = slow.gaps(ours, theirs, references, [range(count)])
    gap = system.difference
    assert gap.value == pytest.approx(whole)
    bounds = tuple(np.quantile(gaps, [0.025, 0.975])) if count >= 10 else (None, None)
    assert (gap.low, gap.high) == pytest.approx(bounds, abs=1e-9)
    assert (system.p is not None) is has_p is (count >= 30)
    if has_p:
        draws = np.random.default_rng(7).integers(0, count, (40, count // 2))
        gaps = slow.gaps(ours, theirs, references, draws)
        better = sum(drawn * gap.value > 0 for drawn in gaps)
        assert system.p == pytest.approx(1 - better / 40, abs=1e-12)
        assert 0 < system.p < 1


def test_every_significance_test_runs_inside_a_group():
    ref, hyps, sizes = systems(120, one=0.2, two=0.22)
    scores = {name: metrics.bleu(hyp, [ref]) for name, hyp in hyps.items()}
    for test in TESTS:
        found = lengths.by_length(scores, sizes, "20", Draws(120, 20, 20), "one", test)
        assert [score.p is not None for score in found] == [False, True, False, True]
    _, (two, one, references) = lines_between(20, 99, sizes, hyps["two"], hyps["one"], ref)
    *_, p = slow.sign_test(two, one, [references])
    assert found[-1].p == pytest.approx(p, abs=1e-12)  # `sign` is the last test
