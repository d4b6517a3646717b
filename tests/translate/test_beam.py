"""Beam search against a slow search and itself in other batches; tests/properties/test_search.py
compares it with all sequences and with greedy search.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import Table, batch_of, of_prefixes, recurrent, sources

from nmtkit.errors import TrainingDiverged
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.translate import beam as search_module
from nmtkit.translate import steps
from nmtkit.translate.beam import ROUND, search
from nmtkit.translate.hypotheses import Hypothesis, length_limit, length_penalty

pytestmark = pytest.mark.usefixtures("each_path")


def options(beam=5, alpha=0.6, a=1.0, b=4, nbest=1):
    return SearchSettings(
        beam=beam, length_penalty=alpha, max_length_a=a, max_length_b=b, nbest=nbest
    )


def score(length, log_p, alpha):
    return log_p / ((5 + length) / 6) ** alpha


def slow_search(models, source, o, forced=()):
    """The definition at the top of beam.py, one sentence, Python lists, whole prefixes, and no
    stopping before the last slot is used; with a forced prefix.
    """
    limit = max(1, int(o.max_length_a * len(source) + o.max_length_b))
    live, finished, unfinished, slots = [((), 0.0)], [], [], o.beam
    for length in range(1, limit + 1):
        candidates, rows = [], of_prefixes(models, source, [prefix for prefix, _ in live])
        for beam, ((_, log_p), row) in enumerate(zip(live, rows, strict=True)):
            candidates += [
                (-(log_p + row[token]), beam, token)
                for token in range(len(row))
                if token not in (PAD, BOS) and forced[length - 1 : length] in ((), (token,))
            ]
        kept = sorted(candidates)[:slots]
        ended = [(live[beam][0], -cost) for cost, beam, token in kept if token == EOS]
        live = [((*live[beam][0], token), -cost) for cost, beam, token in kept if token != EOS]
        slots -= len(ended)
        finished += [(score(length, log_p, o.length_penalty), ids, log_p) for ids, log_p in ended]
        if not live:
            break
    unfinished = [(score(limit, log_p, o.length_penalty), ids, log_p) for ids, log_p in live]
    ranked = [(True, *r) for r in sorted(finished, key=lambda r: -r[0])] + [
        (False, *r) for r in sorted(unfinished, key=lambda r: -r[0])
    ]
    return ranked[: o.nbest]


def assert_same(found: list[Hypothesis], expected):
    assert [(h.finished, h.ids) for h in found] == [
        (finished, list(ids)) for finished, _, ids, _ in expected
    ]
    assert [h.score for h in found] == pytest.approx([s for _, s, _, _ in expected], abs=1e-10)
    assert [h.log_prob for h in found] == pytest.approx([p for _, _, _, p in expected], abs=1e-10)


def test_length_penalty_golden_values():
    assert length_penalty(20, 0.6) == pytest.approx(2.354362, abs=1e-6)
    assert length_penalty(20, 1.1) == pytest.approx(4.805821, abs=1e-6)
    assert length_penalty(7, 0) == 1


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(5, 30),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    beam=st.integers(1, 7),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    eos_bias=st.sampled_from([-2.0, 0.0, 2.0]),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_fast_search_is_slow_search(seed, vocabulary, lengths, beam, alpha, eos_bias, data):
    nbest = data.draw(st.integers(1, beam))
    models = [
        recurrent(seed + i, vocabulary, eos_bias=eos_bias)
        for i in range(data.draw(st.integers(1, 2)))
    ]
    ids = sources(seed, vocabulary, lengths)
    o = options(beam, alpha, a=0.5, b=5, nbest=nbest)
    for found, source in zip(search(models, batch_of(ids), o), ids, strict=True):
        assert_same(found, slow_search(models, source, o))


@pytest.mark.parametrize("beam", [1, 4])
def test_finished_sentences_that_stay_to_fill_a_batch_change_nothing(beam, monkeypatch):
    model = recurrent(7, 40, eos_bias=1.0)
    ids = sources(7, 40, [1 + (5 * i) % 17 for i in range(3 * ROUND + 5)])
    filled, stay = [], search_module._stay

    def watched(going, halves):
        kept = stay(going, halves)
        filled.append(len(kept) < len(going) and not all(going[i] for i in kept))
        return kept

    monkeypatch.setattr(search_module, "_stay", watched)
    together = search([model], batch_of(ids), options(beam, nbest=beam))
    assert any(filled)
    for source, found in zip(ids, together, strict=True):
        (alone,) = search([model], batch_of([source]), options(beam, nbest=beam))
        assert [(h.ids, h.finished) for h in found] == [(h.ids, h.finished) for h in alone]
        assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in alone], abs=1e-10)


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_who_is_still_searched_stays(going):
    kept = search_module._stay(going)
    assert kept == sorted(set(kept))
    assert {i for i, goes in enumerate(going) if goes} <= set(kept)
    left = len(going) - len(kept)
    assert left == 0 or (
        left * 8 >= len(going) and (len(kept) % ROUND == 0 or len(kept) == sum(going) <= ROUND // 2)
    )


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_with_graphs_a_batch_has_few_sizes(going):
    kept = search_module._stay(going, halves=True)
    assert kept == sorted(set(kept)) and {i for i, goes in enumerate(going) if goes} <= set(kept)
    sizes = [len(going)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    assert len(kept) == min(n for n in sizes if n == len(going) or n >= max(sum(going), ROUND))


def late_winner(first_stop):
    """Stops at once with this probability; else goes on surely to length 4 and stops there."""
    go, stop = math.log(1 - first_stop), math.log(first_stop)
    never = -60.0
    return Table(
        [never, never, stop, never, go],
        *[[never, never, never, never, 0.0]] * 2,
        [never, never, 0.0, never, never],
    )


@pytest.mark.parametrize(
    ("first_stop", "alpha", "ids", "steps_taken"),
    [
        # lp(4) = 1.275 for α = 0.6: going on can gain at most that factor, and here the winner
        # comes at the limit itself.
        (0.5, 0.6, [4, 4, 4], 4),
        (0.54, 0.6, [4, 4, 4], 4),
        (0.6, 0.6, [], 1),  # log 0.4 / lp(4) < log 0.6: stopped at the first step
        (0.5, 0.0, [], 1),  # equal at best: the one that came first stays
        (0.49, 0.0, [4, 4, 4], 4),
    ],
)
def test_stop_is_exact(first_stop, alpha, ids, steps_taken, each_path):
    model = late_winner(first_stop)
    found = search([model], batch_of([[4, EOS]]), options(beam=2, alpha=alpha, a=0, b=4))[0][0]
    assert found.ids == ids
    assert model.steps == (steps_taken if each_path == "cpu" else min(4, max(3, steps_taken)))


def test_limit_counts_the_end_of_both():
    assert length_limit(10, options(a=1.5, b=3)) == 18
    assert length_limit(1, options(a=0, b=0)) == 1


def test_ties_go_to_lower_beam_then_lower_token():
    found = search(
        [Table([0.0] * 8)], batch_of([[4, EOS]]), options(beam=4, alpha=0, a=0, b=2, nbest=4)
    )[0]
    # Step 1 keeps </s>, 3, 4, 5 (equal); three slots are left, and all of step 2 that beam 0 offers
    # comes first: </s>, 3, 4.
    assert [(h.ids, h.finished) for h in found] == [
        ([], True),
        ([3], True),
        ([3, 3], False),
        ([3, 4], False),
    ]


@pytest.mark.parametrize("beam", [1, 3])
def test_not_finite_is_an_error(beam):
    with pytest.raises(TrainingDiverged, match="not finite"):
        search([Table([math.nan] * 6)], batch_of([[4, EOS]]), options(beam=beam))


@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3000), st.integers(1, 9), st.booleans()
)
@settings(max_examples=50, deadline=None)
def test_top_sorted_is_a_stable_sort(seed, rows, columns, k, coarse):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    if coarse:
        values = values.round()
    top, index = steps.top_sorted(values, k)
    expected, where = values.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top, expected[:, :k])
    assert torch.equal(index, where[:, :k])


def test_equal_entries_in_chunks_of_different_maxima():
    """Levels of a half, so that the best entries of a row are equal to one another."""
    generator = torch.Generator().manual_seed(1)
    values = (2 * torch.randn(200, 3000, generator=generator)).round()
    expected, where = values.sort(dim=-1, descending=True, stable=True)
    for k in (1, 2, 9):
        top, index = steps.top_sorted(values, k)
        assert torch.equal(top, expected[:, :k]) and torch.equal(index, where[:, :k])
