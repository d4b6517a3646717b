"""Diverse beam search against its definition, one sentence, in Python lists."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from test_beam import assert_same, score, slow_search
from toy_models import batch_of, of_prefixes, recurrent, sources

from nmtkit.errors import ConfigError
from nmtkit.settings import SearchSettings, build
from nmtkit.text.vocabulary import BOS, EOS, PAD
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


def slow_diverse(models, source, o):
    """Every group from its live hypotheses, all tokens as candidates."""
    size = o.beam // o.diverse_groups
    limit = max(1, int(o.max_length_a * len(source) + o.max_length_b))
    live = [[((), 0.0)] for _ in range(o.diverse_groups)]
    slots = [size] * o.diverse_groups
    ended = {}
    for length in range(1, limit + 1):
        used = []
        for group, hypotheses in enumerate(live):
            prefixes = [prefix for prefix, _ in hypotheses]
            candidates, rows = [], of_prefixes(models, source, prefixes) if prefixes else []
            for beam, ((_, log_p), row) in enumerate(zip(hypotheses, rows, strict=True)):
                candidates += [
                    (-(log_p + row[t] - o.diversity * used.count(t)), beam, t, log_p + row[t])
                    for t in range(len(row))
                    if t not in (PAD, BOS)
                ]
            kept = sorted(candidates)[: slots[group]]
            used += [token for _, _, token, _ in kept]
            extended = [((*hypotheses[beam][0], t), log_p) for _, beam, t, log_p in kept]
            live[group] = [(ids, p) for ids, p in extended if ids[-1] != EOS and length < limit]
            slots[group] = len(live[group]) if length < limit else 0
            for ids, log_p in extended:
                if ids[-1] == EOS or length == limit:
                    ended.setdefault(ids, log_p)
    rows = [
        (ids[-1] == EOS, score(len(ids), p, o.length_penalty), ids, p) for ids, p in ended.items()
    ]
    ranked = sorted(rows, key=lambda row: (not row[0], -row[1]))[: o.nbest]
    return [(end, s, ids[:-1] if end else ids, p) for end, s, ids, p in ranked]


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(8, 30),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    groups=st.integers(2, 4),
    size=st.integers(1, 3),
    diversity=st.sampled_from([0.3, 1.0, 5.0]),
    eos_bias=st.sampled_from([-2.0, 0.0, 2.0]),
    data=st.data(),
)
@examples(max_examples=30, deadline=None)
def test_the_search_is_the_slow_search(
    seed, vocabulary, lengths, groups, size, diversity, eos_bias, data
):
    count = data.draw(st.integers(1, 2))
    models = [recurrent(seed + i, vocabulary, eos_bias=eos_bias) for i in range(count)]
    ids = sources(seed, vocabulary, lengths)
    o = options(groups, size, diversity, nbest=data.draw(st.integers(1, groups * size)))
    found = decode(models, batch_of(ids), o, [Demand()] * len(ids))
    for of_sentence, source in zip(found, ids, strict=True):
        assert_same(of_sentence, slow_diverse(models, source, o))


def test_without_a_penalty_every_group_is_the_same_beam_search():
    model, ids = recurrent(5, 20), sources(5, 20, [6, 3])
    o = options(3, 2, 0.0, 6)
    found = decode([model], batch_of(ids), o, [Demand()] * 2)
    plain = o.model_copy(update={"beam": 2, "nbest": 2, "diverse_groups": 1})
    for of_sentence, source in zip(found, ids, strict=True):
        assert_same(of_sentence, slow_search([model], source, plain))


def test_a_prefix_holds_in_all_groups_and_a_stronger_penalty_gives_more_words():
    model, ids = recurrent(5, 40, eos_bias=-1), sources(5, 40, [8])

    def found(diversity):
        o = options(4, 1, diversity, 4)
        return [h.ids for h in decode([model], batch_of(ids), o, [Demand((0,), (7, 8))])[0]]

    assert all(ids[:2] == [7, 8] for ids in found(0.0) + found(9.0))
    assert len(found(0.0)) == 1 and len({ids[2] for ids in found(9.0)}) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam": 5, "diverse_groups": 2}, "search.beam = 5 cannot be shared"),
        ({"diversity": 1.0}, "search.diversity = 1.0 has no effect without search.diverse_groups"),
        ({"diverse_groups": 5, "sample": True}, "search.diverse_groups is for a beam"),
        ({"diverse_groups": 5, "diversity": -1}, "search.diversity"),
    ],
)
def test_wrong_settings(values, message):
    with pytest.raises(ConfigError) as caught:
        build(SearchSettings, values, "search")
    assert message in str(caught.value)
