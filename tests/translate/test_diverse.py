"""Diverse beam search against its definition."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from slow_search import SlowSearch, assert_same, best, problems
from toy_models import recurrent, sources

from nmtkit.data.batches import source_batch
from nmtkit.settings import SearchSettings
from nmtkit.translate.demands import Demand
from nmtkit.translate.methods import decode

pytestmark = pytest.mark.usefixtures("each_path")


def options(groups, size, diversity, nbest):
    return SearchSettings(
        beam=groups * size,
        diverse_groups=groups,
        diversity=diversity,
        nbest=nbest,
        max_length_a=0.5,
        max_length_b=5,
    )


class SlowGroup(SlowSearch):
    """A group of the search that the top of diverse.py defines.

    Args:
        used: the tokens that earlier groups have chosen at this step.
        ended: the hypotheses of all groups.
    """

    def __init__(self, models, source, settings, used, ended):
        super().__init__(models, source, settings)
        self.slots = settings.beam // settings.diverse_groups
        self.used, self.ended = used, ended

    def penalty(self, token):
        return self.settings.diversity * self.used.count(token)

    def choose(self, candidates):
        chosen = super().choose(candidates)
        self.used += [ids[-1] for _, _, ids, _ in chosen]
        return chosen


def slow_diverse_search(models, source, o):
    used, ended, distinct = [], [], {}
    groups = [SlowGroup(models, source, o, used, ended) for _ in range(o.diverse_groups)]
    while any(group.live for group in groups):
        used.clear()
        for group in groups:
            if group.live:
                group.step()
    for hypothesis in ended:
        distinct.setdefault(tuple(hypothesis.ids), hypothesis)
    return best(distinct.values(), o.nbest)


@given(
    problems(smallest=8),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from([0.3, 1.0, 5.0]),
    st.data(),
)
@examples(max_examples=30, deadline=None)
def test_diverse_search_equals_its_definition(problem, groups, size, diversity, data):
    models, ids = problem
    o = options(groups, size, diversity, nbest=data.draw(st.integers(1, groups * size)))
    results = decode(models, source_batch(ids), o, [Demand()] * len(ids))
    for hypotheses, source in zip(results, ids, strict=True):
        assert_same(hypotheses, slow_diverse_search(models, source, o))


def test_groups_without_a_penalty_find_the_hypotheses_of_one_group():
    model, ids = recurrent(5, 20), sources(5, 20, [6, 3])
    results = decode([model], source_batch(ids), options(3, 2, 0.0, 6), [Demand()] * 2)
    for hypotheses, source in zip(results, ids, strict=True):
        assert_same(hypotheses, SlowSearch([model], source, options(1, 2, 0.5, 2)).search())


def test_all_groups_keep_the_prefix_and_differ_after_it_under_a_penalty():
    model, batch = recurrent(5, 40, eos_bias=-1), source_batch(sources(5, 40, [8]))

    def translations(diversity):
        (hypotheses,) = decode([model], batch, options(4, 1, diversity, 4), [Demand((0,), (7, 8))])
        return [h.ids for h in hypotheses]

    alike, diverse = translations(0.0), translations(9.0)
    assert all(ids[:2] == [7, 8] for ids in alike + diverse)
    assert len(alike) == 1 and len({ids[2] for ids in diverse}) == 4
