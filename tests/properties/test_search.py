"""Beam search against all sequences of a five-word vocabulary, for any probabilities, length
penalty and number of translations.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.data.batches import source_batch
from nmtkit.models.base import Model, ModelSettings, Vocabularies
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.translate.beam import search
from nmtkit.translate.hypotheses import Hypothesis

WORDS = range(3, 8)  # <unk> and four more
SIZE, LONGEST = 8, 4
# A beam of this size holds all sequences.
ALL = sum(len(WORDS) ** n for n in range(LONGEST + 1))


class Chain(Model):
    """Probabilities that depend on sentence, position and the token before: logits (sentences,
    positions, V, V).
    """

    def __init__(self, logits):
        super().__init__(ModelSettings(), Vocabularies(src=SIZE, tgt=SIZE, shared=True))
        self.table = logits

    @property
    def width(self):
        return 1

    def encode(self, batch):
        return {"sentence": batch.src[:, 0]}  # the first source token is the sentence's number

    def decode(self, tgt_in, memory, state=None):
        start = state.get("start", 0) if state else 0
        end = start + tgt_in.shape[1]
        beam = len(tgt_in) // len(memory["sentence"])
        sentence = memory["sentence"].repeat_interleave(beam)[:, None]
        position = torch.arange(start, end)[None].clamp(max=LONGEST - 1)
        place = (sentence * LONGEST + position) * SIZE + tgt_in
        return place[..., None].double(), None if state is None else {"start": end}

    def logits(self, hidden):
        return self.table.reshape(-1, SIZE)[hidden[..., 0].long()]


@st.composite
def problems(draw):
    """A model, sources of 1 to 4 tokens, whose lengths are the limits, and settings."""
    limits = draw(st.lists(st.integers(1, LONGEST), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    shape = len(limits), LONGEST, SIZE, SIZE
    logits = draw(st.sampled_from([0.3, 1.0, 4.0])) * torch.randn(
        shape, generator=generator, dtype=torch.float64
    )
    impossible = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.0, 0.3]))
    impossible[..., EOS] = False  # so that every sentence has a translation
    settings = SearchSettings(
        beam=ALL,
        nbest=draw(st.integers(1, 40)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 3.0])),
        max_length_a=1.0,
        max_length_b=0,
    )
    sources = [[*[number] * (limit - 1), EOS] for number, limit in enumerate(limits)]
    sources = [source if len(source) > 1 else [number] for number, source in enumerate(sources)]
    return Chain(logits.masked_fill(impossible, -math.inf)).eval(), sources, settings


def all_hypotheses(table, limit, alpha):
    """Every possible sequence within the limit: finished ones first, then by score.

    Args:
        table: log P of each token, by position and the token before.
    """
    hypotheses = []
    for length in range(limit + 1):
        finished = length < limit
        for words in itertools.product(WORDS, repeat=length):
            tokens = [BOS, *words, EOS] if finished else [BOS, *words]
            steps = enumerate(itertools.pairwise(tokens))
            log_p = sum(table[position][before][token] for position, (before, token) in steps)
            # Wu et al. 2016, eq. 14, with </s> in the length.
            score = log_p / ((5 + length + finished) / 6) ** alpha
            if log_p > -math.inf:
                hypotheses.append(Hypothesis(list(words), log_p, score, finished))
    return sorted(hypotheses, key=lambda h: (not h.finished, -h.score))


@given(problems())
def test_beam_that_holds_all_sequences_finds_the_best(problem):
    model, sources, settings = problem
    results = search([model], source_batch(sources), settings)
    tables = model.table.log_softmax(-1).tolist()
    for hypotheses, source, table in zip(results, sources, tables, strict=True):
        best = all_hypotheses(table, len(source), settings.length_penalty)[: settings.nbest]
        assert [(h.finished, h.ids) for h in hypotheses] == [(h.finished, h.ids) for h in best]
        for name in ("log_prob", "score"):
            expected = [getattr(h, name) for h in best]
            assert [getattr(h, name) for h in hypotheses] == pytest.approx(expected, abs=1e-10)
