"""Beam search against its definition, against itself in other batches, and when it stops.

tests/properties/test_search.py compares it with all possible sequences.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from slow_search import SlowSearch, assert_same, problems
from toy_models import Table, recurrent, sources

from nmtkit.data.batches import source_batch
from nmtkit.errors import TrainingDiverged
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS
from nmtkit.translate import beam as beam_module
from nmtkit.translate import steps
from nmtkit.translate.beam import ROUND, search
from nmtkit.translate.demands import Demand
from nmtkit.translate.hypotheses import length_limit, length_penalty
from nmtkit.translate.methods import decode

pytestmark = pytest.mark.usefixtures("each_path")


def test_length_penalty_has_the_golden_values():
    assert length_penalty(20, 0.6) == pytest.approx(2.354362, abs=1e-6)
    assert length_penalty(20, 1.1) == pytest.approx(4.805821, abs=1e-6)
    assert length_penalty(7, 0) == 1


def test_length_limit_counts_the_end_of_both_sentences():
    assert length_limit(10, SearchSettings(max_length_a=1.5, max_length_b=3)) == 18
    assert length_limit(1, SearchSettings(max_length_a=0, max_length_b=0)) == 1


@given(problems(), st.integers(1, 7), st.sampled_from([0.0, 0.6, 1.0, 2.0]), st.data())
@examples(max_examples=40, deadline=None)
def test_beam_search_equals_its_definition(problem, beam, alpha, data):
    models, ids = problem
    settings = SearchSettings(
        beam=beam,
        length_penalty=alpha,
        max_length_a=0.5,
        max_length_b=5,
        nbest=data.draw(st.integers(1, beam)),
    )
    for hypotheses, source in zip(search(models, source_batch(ids), settings), ids, strict=True):
        assert_same(hypotheses, SlowSearch(models, source, settings).search())


@pytest.mark.parametrize("beam", [1, 4])
def test_finished_sentences_that_fill_a_batch_do_not_change_the_others(beam, monkeypatch):
    model = recurrent(7, 40, eos_bias=1.0)
    ids = sources(7, 40, [1 + (5 * i) % 17 for i in range(3 * ROUND + 5)])
    filled, stay = [], beam_module._stay

    def watched(going, halves):
        staying = stay(going, halves)
        filled.append(len(staying) < len(going) and not all(going[i] for i in staying))
        return staying

    monkeypatch.setattr(beam_module, "_stay", watched)
    settings = SearchSettings(beam=beam, nbest=beam, max_length_b=4)
    together = search([model], source_batch(ids), settings)
    assert any(filled)
    for source, hypotheses in zip(ids, together, strict=True):
        assert_same(hypotheses, *search([model], source_batch([source]), settings))


def sentences_that_stay(going, **options):
    """The result of `_stay`, after a check that it has every unfinished sentence, in order."""
    staying = beam_module._stay(going, **options)
    assert staying == sorted(set(staying))
    assert {i for i, goes in enumerate(going) if goes} <= set(staying)
    return staying


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_a_batch_shrinks_by_an_eighth_or_more_to_a_multiple_of_sixteen(going):
    staying = len(sentences_that_stay(going))
    leaving = len(going) - staying
    assert leaving == 0 or (
        leaving * 8 >= len(going) and (staying % ROUND == 0 or staying == sum(going) <= ROUND // 2)
    )


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_a_batch_is_halved_if_steps_are_graphs(going):
    sizes = [len(going)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    possible = [n for n in sizes if n == len(going) or n >= max(sum(going), ROUND)]
    assert len(sentences_that_stay(going, halves=True)) == min(possible)


def late_winner(first_stop):
    """A model that ends at once with this probability, and otherwise surely after 3 tokens."""
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
        # lp(4) = 1.275 for α = 0.6: going on gains at most that factor. Here the longer hypothesis
        # ends at the limit itself, so the bound is reached.
        (0.5, 0.6, [4, 4, 4], 4),
        (0.54, 0.6, [4, 4, 4], 4),
        (0.6, 0.6, [], 1),  # log 0.4 / lp(4) < log 0.6: the search stops after the first step
        (0.5, 0.0, [], 1),  # at best equal: the earlier hypothesis stays the best
        (0.49, 0.0, [4, 4, 4], 4),
    ],
)
def test_search_stops_when_no_live_hypothesis_can_win(
    first_stop, alpha, ids, steps_taken, each_path
):
    model = late_winner(first_stop)
    settings = SearchSettings(beam=2, length_penalty=alpha, max_length_a=0, max_length_b=4)
    ((hypothesis,),) = search([model], source_batch([[4, EOS]]), settings)
    assert hypothesis.ids == ids
    assert model.steps == (steps_taken if each_path == "cpu" else min(4, max(3, steps_taken)))


def test_search_of_a_sentence_goes_on_to_its_own_length_limit_after_a_shorter_one_has_left():
    settings = SearchSettings(beam=2, length_penalty=0.6, max_length_a=1, max_length_b=0)
    batch = source_batch([[EOS], [4, 4, 4, EOS]])
    _, (hypothesis,) = search([late_winner(0.54)], batch, settings)
    assert hypothesis.ids == [4, 4, 4]


def test_equal_candidates_are_taken_in_the_order_of_beam_then_token():
    settings = SearchSettings(beam=4, nbest=4, length_penalty=0, max_length_a=0, max_length_b=2)
    (hypotheses,) = search([Table([0.0] * 8)], source_batch([[4, EOS]]), settings)
    # Step 1 keeps </s>, 3, 4, 5, which are equal. Three slots are left, and in step 2 the
    # candidates of beam 0 come first: </s>, 3, 4.
    expected = [([], True), ([3], True), ([3, 3], False), ([3, 4], False)]
    assert [(h.ids, h.finished) for h in hypotheses] == expected


@pytest.mark.parametrize("values", [{"beam": 1}, {"beam": 3}, {"sample": True}])
def test_probabilities_that_are_not_finite_raise_training_diverged(values):
    settings = SearchSettings(max_length_b=4, **values)
    with pytest.raises(TrainingDiverged, match="not finite"):
        decode([Table([math.nan] * 6)], source_batch([[4, EOS]]), settings, [Demand()])


def assert_top_sorted_is_a_stable_sort(values, k):
    top, columns = steps.top_sorted(values, k)
    expected, order = values.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top, expected[:, :k])
    assert torch.equal(columns, order[:, :k])


@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3000), st.integers(1, 9), st.booleans()
)
@examples(max_examples=50, deadline=None)
def test_top_sorted_equals_a_stable_sort(seed, rows, columns, k, coarse):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    assert_top_sorted_is_a_stable_sort(values.round() if coarse else values, k)


@pytest.mark.parametrize("k", [1, 2, 9])
def test_top_sorted_equals_a_stable_sort_if_the_best_entries_are_equal(k):
    generator = torch.Generator().manual_seed(1)
    values = (2 * torch.randn(200, 3000, generator=generator)).round()
    assert_top_sorted_is_a_stable_sort(values, k)
