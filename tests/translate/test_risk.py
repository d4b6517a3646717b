"""Minimum Bayes risk against its definition, with sacreBLEU's chrF of each pair of texts."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF
from test_translator import heir, make, texts

from nmtkit.data.documents import Documents
from nmtkit.errors import ConfigError
from nmtkit.score.external_metrics import ExternalMetric
from nmtkit.settings import SearchSettings, build
from nmtkit.translate import risk
from nmtkit.translate.hypotheses import Hypothesis
from nmtkit.translate.risk import chrf, external_utility, least_risk

TEXTS = st.lists(st.text(alphabet="ab cdé", max_size=12), min_size=1, max_size=6)


def pairwise(candidates):
    metric = CHRF()
    return [[metric.sentence_score(h, [r]).score for r in candidates] for h in candidates]


@given(TEXTS)
def test_chrf_is_sacrebleus(candidates):
    assert chrf(candidates) == pytest.approx(np.array(pairwise(candidates)), abs=1e-9)


@given(TEXTS, st.integers(1, 6), st.booleans(), st.integers(0, 1000))
@examples(deadline=None)
def test_the_choice_is_that_of_the_definition(candidates, nbest, drawn, seed):
    draw = random.Random(seed)
    ends = sorted((draw.random() < 0.5 for _ in candidates), reverse=True)
    hypotheses = [  # unfinished ones are far more probable
        Hypothesis([i], -draw.random() * 8 - 800 * end, 0.0, end) for i, end in enumerate(ends)
    ]
    counts = [drawn or end or not any(ends) for end in ends]
    weights = [
        c * (drawn or math.exp(h.log_prob + 800 * h.finished))
        for c, h in zip(counts, hypotheses, strict=True)
    ]
    expected = {}
    for h, row, count in zip(candidates, pairwise(candidates), counts, strict=True):
        risk = sum(w * value for w, value in zip(weights, row, strict=True)) / sum(weights)
        expected.setdefault(h, (not count, -risk))
    found = least_risk(hypotheses, candidates, nbest, drawn)
    assert [-h.score for h in found] == pytest.approx(
        [risk for _, risk in sorted(expected.values())[:nbest]], abs=1e-9
    )
    for h in found:
        assert replace(h, score=0.0) == hypotheses[h.ids[0]]
        assert -h.score == pytest.approx(expected[candidates[h.ids[0]]][1], abs=1e-9)


def test_another_utility_chooses_another_translation():
    candidates = ["a", "abcd", "ab"]
    hypotheses = [Hypothesis([i], 0.0, 0.0, True) for i in range(3)]
    shorter = np.array([[-float(len(text))] * 3 for text in candidates])
    assert least_risk(hypotheses, candidates, 1, True, shorter)[0].ids == [0]
    assert least_risk(hypotheses, candidates, 1, True)[0].ids == [1]


class SameLetters(ExternalMetric):
    """Counts the letters of the source that a text and another one both have, the pairs of all
    calls in `calls`.
    """

    option, kind = "--metric", "test"

    def scores(self, system, hyps, texts):
        (others,) = texts.references
        CALLS.append(list(zip(texts.sources, hyps, others, strict=True)))
        return [float(len({*s} & {*h} & {*o})) for s, h, o in CALLS[-1]]

    def depends_on(self, set_name, systems):
        return ""


CALLS = []


@pytest.mark.parametrize(("better", "most"), [(True, 1000), (False, 1000), (True, 5)])
def test_an_external_metric_is_asked_for_pairs_of_all_lines_at_once(better, most, monkeypatch):
    monkeypatch.setattr(risk, "PAIRS", most)
    CALLS.clear()
    lines = ["a b c", "", "d e f g", "h"]
    options = {"sample": True, "mbr": 6}
    candidates = make(sample=True, nbest=6).translate_window(lines)
    translator = make(**options, batch_size=1)
    translator.utility = external_utility(SameLetters("letters", "x", higher_is_better=better))
    found = translator.translate_window(lines)
    rows = list(itertools.chain(*CALLS))
    assert [len(of_call) for of_call in CALLS[:-1]] == [most] * ((len(rows) - 1) // most)
    expected = []
    for line, of_line, chosen in zip(lines, candidates, found, strict=True):
        own = [c.text for c in of_line.candidates]
        for h in dict.fromkeys(own):
            expected += [(line, h, o) for o in dict.fromkeys(own)]
        if own:
            mean = {h: sum(len({*line} & {*h} & {*o}) for o in own) / len(own) for h in own}
            best = (max if better else min)(mean, key=mean.get)
            assert chosen.text == best
            assert chosen.candidates[0].score == pytest.approx(mean[best] * (1 if better else -1))
    assert rows == expected


@pytest.mark.parametrize("options", [{"sample": True, "mbr": 9}, {"beam": 4, "mbr": 4}])
@pytest.mark.parametrize("jobs", [1, 2])
def test_lines_have_the_best_of_their_candidates(options, jobs):
    lines = ["a b c", "", "d e f g", "h", "i j"]
    candidates = make(**{k: v for k, v in options.items() if k != "mbr"}, nbest=options["mbr"])
    found = make(**options, nbest=2, jobs=jobs).translate_window(lines)
    for of_line, chosen in zip(candidates.translate_window(lines), found, strict=True):
        hypotheses = [
            Hypothesis([i], c.log_prob, 0, c.finished) for i, c in enumerate(of_line.candidates)
        ]
        if hypotheses:
            own = [c.text for c in of_line.candidates]
            best = least_risk(hypotheses, own, 2, "sample" in options)
            assert [c.text for c in chosen.candidates] == [own[h.ids[0]] for h in best]
    assert found[1].text == ""


def test_the_chosen_translation_is_read_as_context():
    documents = Documents([0], 2)
    plain = texts(heir().translate_window(["a", "b"], documents=documents))
    assert texts(heir(mbr=3).translate_window(["a", "b"], documents=documents)) == plain


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mbr": 6}, "search.mbr = 6 is more than search.beam = 5"),
        ({"mbr": 3, "nbest": 4}, "search.nbest = 4 is more than search.mbr = 3"),
        ({"mbr": -1}, "search.mbr"),
    ],
)
def test_wrong_settings(values, message):
    with pytest.raises(ConfigError) as caught:
        build(SearchSettings, values, "search")
    assert message in str(caught.value)
