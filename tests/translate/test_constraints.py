"""Search for phrases that must appear, against its definition."""

import itertools

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from slow_search import SlowSearch, assert_same, best, problems
from toy_models import Table, recurrent, sources

from nmtkit.data.batches import source_batch
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS
from nmtkit.translate.demands import Demand
from nmtkit.translate.methods import decode

pytestmark = pytest.mark.usefixtures("each_path")


class SlowConstrainedSearch(SlowSearch):
    """The search that the top of constraints.py defines, with all tokens as candidates."""

    def __init__(self, models, source, settings, demand):
        super().__init__(models, source, settings, demand.prefix)
        self.phrases, self.unfinished = demand.phrases, demand.unfinished

    def occurrences(self, ids, phrase):
        return sum(
            ids[i : i + len(phrase)] == phrase and (i == 0 or ids[i - 1] not in self.unfinished)
            for i in range(len(ids) - len(phrase) + 1)
        )

    def missing(self, ids):
        """The phrases that must occur more often."""
        count = self.phrases.count
        return [p for p in set(self.phrases) if self.occurrences(ids, p) < count(p)]

    def coverage(self, ids):
        occurring = sum(
            len(p) * min(self.phrases.count(p), self.occurrences(ids, p)) for p in set(self.phrases)
        )
        begun = [0]
        for phrase in self.missing(ids):
            for n in range(1, min(len(phrase), len(ids) + 1)):
                before = ids[: len(ids) - n]
                joined = before and before[-1] in self.unfinished
                if ids[len(ids) - n :] == phrase[:n] and not joined:
                    begun.append(n)
        return occurring + max(begun)

    def allows(self, ids, token):
        return super().allows(ids, token) and not (token == EOS and self.missing(ids))

    def choose(self, candidates):
        groups = {}
        for candidate in sorted(candidates):
            groups.setdefault(self.coverage(candidate[2]), []).append(candidate)
        rounds = itertools.zip_longest(*(groups[c] for c in sorted(groups, reverse=True)))
        in_order = [c for c in itertools.chain.from_iterable(rounds) if c is not None]
        return sorted(in_order[: self.slots])

    def ranked(self):
        complete = [h for h in self.ended if not self.missing(tuple(h.ids))]
        return best(complete or self.ended, self.settings.nbest)


@st.composite
def demands_of(draw, vocabulary, count):
    """Prefixes and phrases of a few tokens, so that phrases repeat and overlap."""
    token = st.integers(EOS + 2, EOS + 4)
    prefix = st.lists(token, max_size=2).map(tuple)
    phrases = st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)
    unfinished = frozenset(draw(st.sets(st.integers(EOS + 4, vocabulary - 1), max_size=3)))
    return [Demand((i,), draw(prefix), draw(phrases), unfinished) for i in range(count)]


@given(problems(smallest=8), st.integers(1, 6), st.data())
@examples(max_examples=20, deadline=None)
def test_constrained_search_equals_its_definition(problem, beam, data):
    models, ids = problem
    demands = data.draw(demands_of(models[0].vocabularies.tgt, len(ids)))
    nbest = data.draw(st.integers(1, beam))
    settings = SearchSettings(beam=beam, max_length_a=0.5, max_length_b=12, nbest=nbest)
    results = decode(models, source_batch(ids), settings, demands)
    for hypotheses, source, demand in zip(results, ids, demands, strict=True):
        slow = SlowConstrainedSearch(models, source, settings, demand)
        assert_same(hypotheses, slow.search())
        if not demand.unfinished:
            assert not any(slow.missing(tuple(h.ids)) for h in hypotheses)


@pytest.mark.parametrize("beam", [2, 3, 4, 5])
def test_equal_candidates_with_phrases_are_taken_in_the_order_of_beam_then_token(beam):
    settings = SearchSettings(beam=beam, nbest=beam, max_length_a=0, max_length_b=5)
    model, source, demand = Table([0.0] * 9), [4, EOS], Demand(phrases=((6, 7), (5,)))
    (hypotheses,) = decode([model], source_batch([source]), settings, [demand])
    assert_same(hypotheses, SlowConstrainedSearch([model], source, settings, demand).search())


def test_phrases_stay_with_their_rows_when_logits_come_in_blocks(monkeypatch):
    model, batch = recurrent(3, 40), source_batch(sources(3, 40, [7, 3, 5]))
    demands = [Demand((i,), phrases=((9 + i, 10),)) for i in range(3)]
    settings = SearchSettings(beam=4, max_length_b=8)
    at_once = decode([model], batch, settings, demands)
    monkeypatch.setattr("nmtkit.translate.steps.BLOCK_LOGITS", 40 * 5)  # 5 rows of the 12
    for hypotheses, expected in zip(
        decode([model], batch, settings, demands), at_once, strict=True
    ):
        assert_same(hypotheses, expected)
