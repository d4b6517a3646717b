"""Beam search by its definition, slow and for one sentence; problems to compare searches on."""

import pytest
from hypothesis import strategies as st
from toy_models import encoded, next_log_probs, recurrent, sources

from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.translate.hypotheses import Hypothesis


class SlowSearch:
    """The search that the top of beam.py defines, with Python lists. It decodes whole prefixes and
    goes on until every slot is used.
    """

    def __init__(self, models, source, settings, prefix=()):
        self.memories, self.settings, self.prefix = encoded(models, source), settings, prefix
        self.limit = max(1, int(settings.max_length_a * len(source) + settings.max_length_b))
        self.slots = settings.beam
        self.live = [((), 0.0)]  # token ids and log P
        self.ended = []

    def allows(self, ids, token):
        """True if a hypothesis with these ids may continue with a token."""
        return token not in {PAD, BOS} and self.prefix[len(ids) :][:1] in {(), (token,)}

    def penalty(self, token):
        return 0.0

    def choose(self, candidates):
        """The candidates (cost, beam, ids, log P) that fill the free slots."""
        return sorted(candidates)[: self.slots]

    def step(self):
        rows = next_log_probs(self.memories, [ids for ids, _ in self.live])
        candidates = []
        for beam, ((ids, log_p), row) in enumerate(zip(self.live, rows, strict=True)):
            for token in range(len(row)):
                if self.allows(ids, token):
                    total = log_p + row[token]
                    candidates.append((self.penalty(token) - total, beam, (*ids, token), total))
        self.live = []
        for _, _, ids, log_p in self.choose(candidates):
            if ids[-1] == EOS or len(ids) == self.limit:
                self.end(ids, log_p)
                self.slots -= 1
            else:
                self.live.append((ids, log_p))

    def end(self, ids, log_p):
        finished = ids[-1] == EOS
        # Wu et al. 2016, eq. 14: log P / lp(Y), lp(Y) = ((5+|Y|)/6)^α
        score = log_p / ((5 + len(ids)) / 6) ** self.settings.length_penalty
        words = list(ids[:-1] if finished else ids)
        self.ended.append(Hypothesis(words, log_p, score, finished))

    def ranked(self):
        """The n best hypotheses that have ended."""
        return best(self.ended, self.settings.nbest)

    def search(self):
        while self.live:
            self.step()
        return self.ranked()


def best(hypotheses, nbest):
    """The n best hypotheses: finished ones first, then by score."""
    return sorted(hypotheses, key=lambda h: (not h.finished, -h.score))[:nbest]


@st.composite
def problems(draw, smallest=5):
    """One or two random models of one vocabulary, and one to four sources."""
    seed, vocabulary = draw(st.integers(0, 10_000)), draw(st.integers(smallest, 30))
    eos_bias = draw(st.sampled_from([-2.0, 0.0, 2.0]))
    count = draw(st.integers(1, 2))
    models = [recurrent(seed + i, vocabulary, eos_bias=eos_bias) for i in range(count)]
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    return models, sources(seed, vocabulary, lengths)


def assert_same(hypotheses, expected):
    """Assert that two n-best lists are equal, with numbers equal but for rounding."""
    assert [(h.ids, h.finished) for h in hypotheses] == [(h.ids, h.finished) for h in expected]
    for name in ("log_prob", "score"):
        numbers = [getattr(h, name) for h in expected]
        assert [getattr(h, name) for h in hypotheses] == pytest.approx(numbers, abs=1e-10)
