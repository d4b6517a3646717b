"""Length groups: every sentence in exactly one, each group's BLEU that of sacreBLEU on those lines."""

import random

import numpy as np
import pytest
import sacrebleu

from nmtkit.errors import ConfigError
from nmtkit.score import lengths, metrics


def label(spec, length):
    return next(g.label for g in lengths.groups(spec) if g.mask(np.array([length]))[0])


def test_borders_as_in_the_two_papers():
    assert [label("dc", n) for n in (0, 9, 10, 19, 20, 49, 50, 400)] == ["<10", "<10", "[10,20)", "[10,20)", "[20,30)", "[40,50)", "≥50", "≥50"]
    assert [label("pr", n) for n in (0, 15, 16, 30, 31, 45, 46)] == ["≤15", "≤15", "(15,30]", "(15,30]", "(30,45]", "(30,45]", ">45"]
    assert [label("4,8", n) for n in (3, 4, 7, 8)] == ["<4", "[4,8)", "[4,8)", "≥8"]


@pytest.mark.parametrize("spec", ["dc", "pr", "1", "3,7,90"])
def test_every_length_is_in_exactly_one_group(spec):
    masks = np.array([group.mask(np.arange(200)) for group in lengths.groups(spec)])
    assert (masks.sum(0) == 1).all()


@pytest.mark.parametrize("spec", ["", "dcx", "20,10", "0,5", "5,5", "1,a", "-3"])
def test_groups_that_make_no_sense_are_refused(spec):
    with pytest.raises(ConfigError, match="length groups"):
        lengths.groups(spec)


def test_each_group_is_sacrebleu_on_its_lines():
    rng = random.Random(4)
    ref = [" ".join(rng.choices(["a", "b", "c", "d", "e", "f"], k=rng.randint(4, 35))) for _ in range(80)]
    hyps = {n: [" ".join(w if rng.random() > s else "x" for w in line.split()) for line in ref] for n, s in (("one", 0.1), ("two", 0.3))}
    sizes = np.array([len(line.split()) for line in ref])
    found = lengths.by_length({n: metrics.bleu(h, [ref]) for n, h in hyps.items()}, sizes, "dc", resamples=50)
    assert [(f.group, f.system) for f in found[:3]] == [("<10", "one"), ("<10", "two"), ("[10,20)", "one")]
    borders = {"<10": (0, 9), "[10,20)": (10, 19), "[20,30)": (20, 29), "[30,40)": (30, 39)}
    for score in found:
        if score.group in borders:
            low, high = borders[score.group]
            rows = [i for i in range(80) if low <= sizes[i] <= high]
            expected = sacrebleu.corpus_bleu([hyps[score.system][i] for i in rows], [[ref[i] for i in rows]])
            assert score.sentences == len(rows) > 0
            assert score.bleu.value == pytest.approx(expected.score, abs=1e-9)
            assert score.ratio.value == pytest.approx(expected.ratio, abs=1e-12)
            assert score.bleu.low <= score.bleu.value <= score.bleu.high
        else:
            assert (score.sentences, score.bleu.value, score.ratio.value) == (0, None, None)
    drawn = lengths.bars(found).splitlines()
    assert drawn[0].startswith("<10")
    assert max(drawn, key=lambda line: line.count("█")).endswith(f"{max(f.bleu.value or 0 for f in found):.1f}")
    assert lengths.table(found, "title", []).cells()[-1] == ["≥50", "0", "two", "–", "–"]
