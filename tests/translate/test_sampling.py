"""Samples against their definition in plain loops, against the probabilities of all sequences, and
against themselves in other batches.
"""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from toy_models import Table, batch_of, log_probs, recurrent, sources

from nmtkit.errors import ConfigError, TrainingDiverged
from nmtkit.settings import SearchSettings, build
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.translate import sampling
from nmtkit.translate.demands import Demand
from nmtkit.translate.forced import forced_scores, pair_batch
from nmtkit.translate.methods import decode
from nmtkit.translate.sampling import draw
from nmtkit.translate.steps import top_sorted

pytestmark = pytest.mark.usefixtures("each_path")


def options(nbest=3, **values):
    values = {"max_length_a": 0.5, "max_length_b": 5, "length_penalty": 0.6, **values}
    return SearchSettings(sample=True, nbest=nbest, **values)


def samples(models, ids, o, prefixes=None):
    prefixes = prefixes or [()] * len(ids)
    demands = [Demand((i,), tuple(prefix)) for i, prefix in enumerate(prefixes)]
    return decode(models, batch_of(ids), o, demands)


def slow_draw(row, number, o):
    """The token of a number in [0, 1) from log-probabilities."""
    order = [token for token in range(len(row)) if token not in (PAD, BOS)]
    if o.top_k or o.top_p < 1:
        order = sorted(order, key=lambda token: (-row[token], token))[: o.top_k or None]
    weights = [math.exp(row[token] / o.temperature) for token in order]
    shares = [weight / sum(weights) for weight in weights]
    kept = []
    for share in shares:
        if sum(kept) >= o.top_p:
            break
        kept.append(share)
    below = 0.0
    for token, share in zip(order, kept, strict=False):
        below += share
        if below > number * sum(kept):
            return token
    raise AssertionError("a number of [0, 1) names a token")


def slow_sample(models, source, o, key, i, prefix):
    limit = max(1, int(o.max_length_a * len(source) + o.max_length_b))
    numbers = np.random.default_rng([o.seed, key, i]).random(limit)
    ids, log_p = [], 0.0
    for step, number in enumerate(numbers):
        row = log_probs(models, source, ids)
        token = prefix[step] if step < len(prefix) else slow_draw(row, number, o)
        ids.append(token)
        log_p += row[token]
        if token == EOS:
            return ids[:-1], log_p, True
    return ids, log_p, False


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(5, 30),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    nbest=st.integers(1, 4),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 100]),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    data=st.data(),
)
@examples(max_examples=30, deadline=None)
def test_samples_are_those_of_the_definition(
    seed, vocabulary, lengths, nbest, temperature, top_k, top_p, data
):
    models = [recurrent(seed + i, vocabulary) for i in range(data.draw(st.integers(1, 2)))]
    ids = sources(seed, vocabulary, lengths)
    token = st.integers(EOS + 1, vocabulary - 1)
    prefixes = [data.draw(st.lists(token, max_size=3)) for _ in ids]
    o = options(nbest, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    found = samples(models, ids, o, prefixes)
    for key, (source, prefix) in enumerate(zip(ids, prefixes, strict=True)):
        slow = [slow_sample(models, source, o, key, i, prefix) for i in range(nbest)]
        assert [(h.ids, h.finished) for h in found[key]] == [(s[0], s[2]) for s in slow]
        assert [h.log_prob for h in found[key]] == pytest.approx([s[1] for s in slow], abs=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_have_the_probabilities_of_the_model(temperature):
    """Chi-square over all sequences of a table with known probabilities; </s> and <pad> as well."""
    count, limit = 10_000, 3
    rows = [[0.4, 0.1, 0.3, 0.9, -0.2], [0.0, 0.0, 1.0, 0.2, 0.7], [0.3, -9.0, 0.1, 0.5, 0.0]]
    o = options(count, temperature=temperature, max_length_a=0, max_length_b=limit)
    (found,) = samples([Table(*rows)], [[4, EOS]], o)
    seen = Counter(tuple(h.ids) + (EOS,) * h.finished for h in found)
    shares = []
    for row in rows:
        weights = {t: math.exp(row[t] / temperature) for t in (2, 3, 4)}
        shares.append({t: w / sum(weights.values()) for t, w in weights.items()})
    expected = {}
    for length in range(1, limit + 1):
        for ids in itertools.product((3, 4), repeat=length - 1):
            for last in (EOS,) if length < limit else (EOS, 3, 4):
                tokens = (*ids, last)
                expected[tokens] = count * math.prod(shares[i][t] for i, t in enumerate(tokens))
    assert sum(expected.values()) == pytest.approx(count)
    assert seen.keys() <= expected.keys()
    statistic = sum((seen[tokens] - e) ** 2 / e for tokens, e in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_a_sample_depends_on_no_other_sentence_and_on_no_other_sample():
    model = recurrent(7, 40, eos_bias=1.0)
    ids = sources(7, 40, [1 + (5 * i) % 17 for i in range(40)])
    together = samples([model], ids, options(4))
    few = decode([model], batch_of(ids[5:7]), options(2), [Demand((5,)), Demand((6,))])
    for many, alone in zip(together[5:7], few, strict=True):
        assert [h.ids for h in many[:2]] == [h.ids for h in alone]
    assert len({tuple(h.ids) for h in together[9]}) > 1
    other = samples([model], ids, options(4, seed=2))
    assert [h.ids for h in together[9]] != [h.ids for h in other[9]]


def test_the_reported_probability_is_the_forced_score():
    models = [recurrent(3, 25), recurrent(4, 25)]
    (source,) = sources(3, 25, [6])
    o = options(8, temperature=1.7, top_k=9, top_p=0.95, max_length_b=9)
    found = [h for h in samples(models, [source], o)[0] if h.finished]
    assert len(found) > 2
    for h in found:
        (scores,) = forced_scores(models, pair_batch([source], [[*h.ids, EOS]]))
        assert h.log_prob == pytest.approx(sum(scores), abs=1e-9)


def test_not_finite_is_an_error():
    with pytest.raises(TrainingDiverged, match="not finite"):
        samples([Table([math.nan] * 6)], [[4, EOS]], options())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sample": True, "temperature": 0}, "search.temperature"),
        ({"sample": True, "top_p": 0}, "search.top_p"),
        ({"sample": True, "top_p": 1.5}, "search.top_p"),
        ({"sample": True, "top_k": -1}, "search.top_k"),
        ({"top_k": 5}, "search.top_k = 5 has no effect without search.sample"),
        ({"seed": 5}, "search.seed = 5 has no effect without search.sample"),
        ({"nbest": 6}, "more than search.beam"),
    ],
)
def test_wrong_settings(values, message):
    with pytest.raises(ConfigError) as caught:
        build(SearchSettings, values, "search")
    assert message in str(caught.value)


def test_only_rows_whose_best_tokens_lack_top_p_are_sorted_whole(each_path, monkeypatch):
    o, sizes = options(top_p=0.95, temperature=1.2), []

    def counted(values, k):
        sizes.append((len(values), k))
        return top_sorted(values, k)

    logits = torch.randn(9, 3000, generator=torch.Generator().manual_seed(1))
    logits[:6, ::100] += torch.arange(6.0)[:, None] + 5
    numbers = torch.rand(9, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole = draw(logits, numbers, o.model_copy(update={"top_k": 3000}))
    monkeypatch.setattr(sampling, "top_sorted", counted)
    assert all(map(torch.equal, draw(logits, numbers, o), whole))
    best = (logits.double() / 1.2).softmax(-1).topk(sampling.HEAD)[0].sum(1)
    lacking = int((best < 0.95).sum())
    assert 3 <= lacking < 9
    assert sizes == ([(9, sampling.HEAD), (lacking, 3000)] if each_path == "cpu" else [(9, 3000)])


def test_the_smallest_and_the_largest_number_name_possible_tokens():
    """0 names the first possible token. A number just below 1 names the last possible token, though
    sums are rounded.
    """
    first = torch.tensor([[-math.inf, 0.0, 1.0]])
    assert draw(first, torch.zeros(1, 1, dtype=torch.float64), options())[1].item() == 1
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(1)).float()
    logits[:, 60:] = -math.inf
    nearly = torch.full((1, 3), 1 - 2**-53, dtype=torch.float64)
    assert draw(logits, nearly, options())[1].tolist() == [[59] * 3]
