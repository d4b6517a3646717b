"""Diverse beam search against its definition."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from slow_search import SlowSearch, assert_same, best, problems

from nmtkit.data.batches import source_batch
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS
from nmtkit.translate.demands import Demand
from nmtkit.translate.methods import decode

pytestmark = pytest.mark.usefixtures("each_path")


class SlowGroup(SlowSearch):
    """A group of the search that the top of diverse.py defines.

    Args:
        used: the tokens that earlier groups have chosen at this step.
        ended: the hypotheses of all groups.
    """

    def __init__(self, models, source, settings, prefix, used, ended):
        super().__init__(models, source, settings, prefix)
        self.slots = settings.beam // settings.diverse_groups
        self.used, self.ended = used, ended

    def penalty(self, token):
        return self.settings.diversity * self.used.count(token)

    def choose(self, candidates):
        chosen = super().choose(candidates)
        self.used += [ids[-1] for _, _, ids, _ in chosen]
        return chosen


def slow_diverse_search(models, source, settings, prefix):
    used, ended, distinct = [], [], {}
    groups = [
        SlowGroup(models, source, settings, prefix, used, ended)
        for _ in range(settings.diverse_groups)
    ]
    while any(group.live for group in groups):
        used.clear()
        for group in groups:
            if group.live:
                group.step()
    for hypothesis in ended:
        distinct.setdefault(tuple(hypothesis.ids), hypothesis)
    return best(distinct.values(), settings.nbest)


@given(
    problems(smallest=8),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    st.data(),
)
@examples(max_examples=30, deadline=None)
def test_diverse_search_equals_its_definition(problem, groups, size, diversity, data):
    models, ids = problem
    settings = SearchSettings(
        beam=groups * size,
        diverse_groups=groups,
        diversity=diversity,
        nbest=data.draw(st.integers(1, groups * size)),
        max_length_a=0.5,
        max_length_b=5,
    )
    prefix = st.lists(st.integers(EOS + 1, EOS + 4), max_size=2).map(tuple)
    demands = [Demand((i,), data.draw(prefix)) for i in range(len(ids))]
    results = decode(models, source_batch(ids), settings, demands)
    for hypotheses, source, demand in zip(results, ids, demands, strict=True):
        assert_same(hypotheses, slow_diverse_search(models, source, settings, demand.prefix))
