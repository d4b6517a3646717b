"""Samples against their definition, and against the probabilities of all sequences."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from slow_search import problems
from toy_models import Table, encoded, next_log_probs

from nmtkit.data.batches import source_batch
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.translate import sampling
from nmtkit.translate.demands import Demand
from nmtkit.translate.methods import decode
from nmtkit.translate.sampling import draw
from nmtkit.translate.steps import top_sorted

pytestmark = pytest.mark.usefixtures("each_path")


def options(nbest=3, **values):
    values = {"max_length_a": 0.5, "max_length_b": 5, **values}
    return SearchSettings(sample=True, nbest=nbest, **values)


def samples(models, ids, settings, prefixes=None):
    prefixes = prefixes or [()] * len(ids)
    demands = [Demand((i,), tuple(prefix)) for i, prefix in enumerate(prefixes)]
    return decode(models, source_batch(ids), settings, demands)


def slow_draw(log_probs, number, settings):
    """The token that a number in [0, 1) draws."""
    tokens = [token for token in range(len(log_probs)) if token not in {PAD, BOS}]
    if settings.top_k or settings.top_p < 1:
        tokens = sorted(tokens, key=lambda token: (-log_probs[token], token))[
            : settings.top_k or None
        ]
    weights = [math.exp(log_probs[token] / settings.temperature) for token in tokens]
    probable = []
    for weight in weights:
        if sum(probable) >= settings.top_p:
            break
        probable.append(weight / sum(weights))
    up_to = itertools.accumulate(probable)
    return next(
        token for token, total in zip(tokens, up_to, strict=False) if total > number * sum(probable)
    )


def slow_sample(memories, limit, settings, key, i, prefix):
    """Sample i of a sentence: its ids, its log-probability, and whether it is finished."""
    ids, total = [], 0.0
    for step, number in enumerate(np.random.default_rng([settings.seed, key, i]).random(limit)):
        (log_probs,) = next_log_probs(memories, [ids])
        token = prefix[step] if step < len(prefix) else slow_draw(log_probs, number, settings)
        ids.append(token)
        total += log_probs[token]
        if token == EOS:
            return ids[:-1], total, True
    return ids, total, False


@given(
    problems(),
    st.builds(
        options,
        nbest=st.integers(1, 4),
        temperature=st.sampled_from([0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 3, 100]),
        top_p=st.sampled_from([0.2, 0.9, 1.0]),
        seed=st.integers(0, 10_000),
    ),
    st.data(),
)
@examples(max_examples=30, deadline=None)
def test_samples_equal_their_definition(problem, settings, data):
    models, ids = problem
    token = st.integers(EOS + 1, models[0].vocabularies.tgt - 1)
    prefixes = [data.draw(st.lists(token, max_size=3)) for _ in ids]
    results = samples(models, ids, settings, prefixes)
    for key, (source, prefix) in enumerate(zip(ids, prefixes, strict=True)):
        memories, limit = encoded(models, source), int(0.5 * len(source) + 5)
        slow = [
            slow_sample(memories, limit, settings, key, i, prefix) for i in range(settings.nbest)
        ]
        words, log_probs, finished = zip(*slow, strict=True)
        assert [h.ids for h in results[key]] == list(words)
        assert [h.finished for h in results[key]] == list(finished)
        assert [h.log_prob for h in results[key]] == pytest.approx(log_probs, abs=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_have_the_probabilities_of_the_model(temperature):
    """Pearson's chi-square statistic over all sequences of three steps; its mean is the number of
    degrees of freedom f, and its variance is 2f.
    """
    count = 10_000
    rows = [[0.4, 0.1, 0.3, 0.9, -0.2], [0.0, 0.0, 1.0, 0.2, 0.7], [0.3, -9.0, 0.1, 0.5, 0.0]]
    settings = options(count, temperature=temperature, max_length_a=0, max_length_b=len(rows))
    (drawn,) = samples([Table(*rows)], [[4, EOS]], settings)
    seen = Counter((*h.ids, EOS) if h.finished else tuple(h.ids) for h in drawn)
    shares = []
    for row in rows:
        weights = {token: math.exp(row[token] / temperature) for token in (EOS, 3, 4)}
        shares.append({token: w / sum(weights.values()) for token, w in weights.items()})
    expected = Counter()
    for tokens in itertools.product((EOS, 3, 4), repeat=len(rows)):
        sequence = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
        probabilities = [of_row[token] for of_row, token in zip(shares, tokens, strict=True)]
        expected[sequence] += count * math.prod(probabilities)
    assert seen.keys() <= expected.keys()
    statistic = sum((seen[tokens] - e) ** 2 / e for tokens, e in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_cpu_sorts_only_the_rows_whose_best_tokens_lack_top_p(each_path, monkeypatch):
    settings, sizes = options(top_p=0.95, temperature=1.2), []

    def counted(values, k):
        sizes.append((len(values), k))
        return top_sorted(values, k)

    logits = torch.randn(9, 3000, generator=torch.Generator().manual_seed(1))
    logits[:6, ::100] += torch.arange(6.0)[:, None] + 5
    numbers = torch.rand(9, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = draw(logits, numbers, settings.model_copy(update={"top_k": 3000}))
    monkeypatch.setattr(sampling, "top_sorted", counted)
    assert all(map(torch.equal, draw(logits, numbers, settings), expected))
    best = (logits.double() / 1.2).softmax(-1).topk(sampling.HEAD)[0].sum(1)
    lacking = int((best < 0.95).sum())
    assert 3 <= lacking < 9
    assert sizes == ([(9, sampling.HEAD), (lacking, 3000)] if each_path == "cpu" else [(9, 3000)])


def test_smallest_and_largest_number_draw_possible_tokens():
    """0 draws the first possible token. A number just below 1 draws the last possible token, though
    sums are rounded.
    """
    first = torch.tensor([[-math.inf, 0.0, 1.0]])
    assert draw(first, torch.zeros(1, 1, dtype=torch.float64), options())[1].item() == 1
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(1)).float()
    logits[:, 60:] = -math.inf
    nearly_one = torch.full((1, 3), 1 - 2**-53, dtype=torch.float64)
    assert draw(logits, nearly_one, options())[1].tolist() == [[59] * 3]
