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
from toy_translators import target_copier, texts, translator

from nmtkit.data.documents import Documents
from nmtkit.score.external_metrics import ExternalMetric
from nmtkit.translate import risk
from nmtkit.translate.hypotheses import Hypothesis
from nmtkit.translate.risk import chrf, external_utility, least_risk

TEXTS = st.lists(st.text(alphabet="ab cdé", max_size=12), min_size=1, max_size=6)


def sacrebleu_chrf(candidates):
    metric = CHRF()
    return [[metric.sentence_score(h, [r]).score for r in candidates] for h in candidates]


@given(TEXTS)
def test_chrf_equals_sacrebleu(candidates):
    assert chrf(candidates) == pytest.approx(np.array(sacrebleu_chrf(candidates)), abs=1e-9)


@given(TEXTS, st.integers(1, 6), st.booleans(), st.integers(0, 1000))
@examples(deadline=None)
def test_least_risk_equals_its_definition(candidates, nbest, drawn, seed):
    draw = random.Random(seed)
    ends = sorted((draw.random() < 0.5 for _ in candidates), reverse=True)
    # Unfinished hypotheses are far more probable.
    hypotheses = [
        Hypothesis([i], -draw.random() * 8 - 800 * end, 0.0, end) for i, end in enumerate(ends)
    ]
    weights = [1.0 if drawn else math.exp(h.log_prob + 800 * h.finished) for h in hypotheses]
    if any(ends) and not drawn:
        weights = [weight * end for weight, end in zip(weights, ends, strict=True)]
    utilities, unfinished = {}, {}
    for text, row, weight in zip(candidates, sacrebleu_chrf(candidates), weights, strict=True):
        utility = sum(w * value for w, value in zip(weights, row, strict=True)) / sum(weights)
        utilities.setdefault(text, utility)
        unfinished.setdefault(text, not weight)
    ranked = sorted(utilities, key=lambda text: (unfinished[text], -utilities[text]))
    chosen = least_risk(hypotheses, candidates, nbest, drawn)
    expected = [utilities[text] for text in ranked[:nbest]]
    assert [h.score for h in chosen] == pytest.approx(expected, abs=1e-9)
    for h in chosen:
        assert replace(h, score=0.0) == hypotheses[h.ids[0]]
        assert h.score == pytest.approx(utilities[candidates[h.ids[0]]], abs=1e-9)


def test_given_utilities_replace_chrf():
    candidates = ["a", "abcd", "ab"]
    hypotheses = [Hypothesis([i], 0.0, 0.0, True) for i in range(3)]
    shorter_is_better = np.array([[-float(len(text))] * 3 for text in candidates])
    assert least_risk(hypotheses, candidates, 1, True, shorter_is_better)[0].ids == [0]
    assert least_risk(hypotheses, candidates, 1, True)[0].ids == [1]


def shared_letters(source, text, other):
    return float(len({*source} & {*text} & {*other}))


class SharedLetters(ExternalMetric):
    """Counts the letters that a source and two translations share; keeps the rows of each call."""

    option, kind = "--metric", "test"
    calls = []  # noqa: RUF012

    def scores(self, system, hyps, texts):
        (others,) = texts.references
        self.calls.append(list(zip(texts.sources, hyps, others, strict=True)))
        return list(itertools.starmap(shared_letters, self.calls[-1]))

    def depends_on(self, set_name, systems):
        return ""


@pytest.mark.parametrize(("higher_is_better", "most"), [(True, 1000), (False, 1000), (True, 5)])
def test_external_metric_scores_the_pairs_of_all_lines_in_few_calls(
    higher_is_better, most, monkeypatch
):
    monkeypatch.setattr(risk, "PAIRS", most)
    metric = SharedLetters("letters", "x", higher_is_better=higher_is_better)
    metric.calls.clear()
    lines, pairs = ["a b c", "", "d e f g", "h"], []
    by_metric = translator(sample=True, mbr=6, batch_size=1)
    by_metric.utility = external_utility(metric)
    translations = by_metric.translate_window(lines)
    samples = translator(sample=True, nbest=6).translate_window(lines)
    for line, of_line, translation in zip(lines, samples, translations, strict=True):
        candidates = [c.text for c in of_line.candidates]
        rows = [(line, *pair) for pair in itertools.product(dict.fromkeys(candidates), repeat=2)]
        pairs += rows
        if candidates:
            utilities = {
                text: np.mean([shared_letters(line, text, other) for other in candidates])
                for text in candidates
            }
            best = (max if higher_is_better else min)(utilities, key=utilities.get)
            assert translation.text == best
            utility = utilities[best] if higher_is_better else -utilities[best]
            assert translation.candidates[0].score == pytest.approx(utility)
    assert list(itertools.chain(*metric.calls)) == pairs
    assert {len(call) for call in metric.calls[:-1]} <= {most} and len(metric.calls[-1]) <= most


@pytest.mark.parametrize(
    ("method", "count"), [({"sample": True}, 9), ({"beam": 4}, 4)], ids=["samples", "beam"]
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_lines_get_the_candidates_of_least_risk(method, count, jobs):
    lines = ["a b c", "", "d e f g", "h", "i j"]
    all_candidates = translator(**method, nbest=count).translate_window(lines)
    translations = translator(**method, mbr=count, nbest=2, jobs=jobs).translate_window(lines)
    for of_line, translation in zip(all_candidates, translations, strict=True):
        candidates = [c.text for c in of_line.candidates]
        hypotheses = [
            Hypothesis([i], c.log_prob, 0, c.finished) for i, c in enumerate(of_line.candidates)
        ]
        if hypotheses:
            best = least_risk(hypotheses, candidates, 2, "sample" in method)
            expected = [candidates[h.ids[0]] for h in best]
            assert [c.text for c in translation.candidates] == expected
    assert translations[1].text == ""


def test_translation_of_least_risk_is_context():
    documents = Documents([0], 2)
    plain = texts(target_copier().translate_window(["a", "b"], documents=documents))
    assert texts(target_copier(mbr=3).translate_window(["a", "b"], documents=documents)) == plain
