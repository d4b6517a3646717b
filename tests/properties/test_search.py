"""Beam search against all sequences of a five-word vocabulary, for any table of probabilities,
length penalty and number of translations.
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

WORDS = range(3, 8)  # <unk> and four more
SIZE, LONGEST = 8, 4
ALL = sum(
    len(WORDS) ** n for n in range(LONGEST + 1)
)  # sequences that a beam must hold to miss none


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
        return {"sentence": batch.src[:, 0]}  # the first source token names the sentence

    def decode(self, tgt_in, memory, state=None):
        start = state.get("start", 0) if state else 0
        sentence = memory["sentence"].repeat_interleave(len(tgt_in) // len(memory["sentence"]))[
            :, None
        ]
        position = torch.arange(start, start + tgt_in.shape[1])[None].clamp(max=LONGEST - 1)
        place = (sentence * LONGEST + position) * SIZE + tgt_in
        return place[..., None].double(), (
            None if state is None else {"start": start + tgt_in.shape[1]}
        )

    def logits(self, hidden):
        return self.table.reshape(-1, SIZE)[hidden[..., 0].long()]


@st.composite
def problems(draw):
    """A model, sources of 1 to 4 tokens, which are also the limits, and settings of the search."""
    count = draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    logits = draw(st.sampled_from([0.3, 1.0, 4.0])) * torch.randn(
        count, LONGEST, SIZE, SIZE, generator=generator, dtype=torch.float64
    )
    never = torch.rand(logits.shape, generator=generator) < draw(st.sampled_from([0.0, 0.0, 0.3]))
    never[..., EOS] = False  # what is impossible everywhere has no translation
    limits = draw(st.lists(st.integers(1, LONGEST), min_size=count, max_size=count))
    chosen = SearchSettings(
        beam=ALL,
        nbest=draw(st.integers(1, 40)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 3.0])),
        max_length_a=1.0,
        max_length_b=0,
    )
    sources = [
        [sentence] * (limit - 1) + [EOS] if limit > 1 else [sentence]
        for sentence, limit in enumerate(limits)
    ]
    return Chain(logits.masked_fill(never, -math.inf)), sources, limits, chosen


def everything(model, sentence, limit, alpha):
    """Every sequence that is possible within the limit, best first, the unfinished ones behind:
    (finished, ids, log P, score).
    """
    table = model.table[sentence].log_softmax(-1).tolist()
    found = []
    for length in range(limit + 1):
        for ids in itertools.product(WORDS, repeat=length):
            before = [BOS, *ids]
            log_p = sum(
                table[position][before[position]][token] for position, token in enumerate(ids)
            )
            finished = length < limit
            if finished:
                log_p += table[length][before[-1]][EOS]
            if log_p > -math.inf:
                found.append(
                    (finished, list(ids), log_p, log_p / ((5 + length + finished) / 6) ** alpha)
                )
    return sorted(found, key=lambda one: (not one[0], -one[3]))


@given(problems())
def test_a_beam_that_holds_everything_finds_the_best_of_all_sequences(problem):
    model, sources, limits, chosen = problem
    for sentence, found in enumerate(search([model.eval()], source_batch(sources), chosen)):
        best = everything(model, sentence, limits[sentence], chosen.length_penalty)[: chosen.nbest]
        assert [(h.finished, h.ids) for h in found] == [
            (finished, ids) for finished, ids, _, _ in best
        ]
        assert [h.log_prob for h in found] == pytest.approx(
            [log_p for _, _, log_p, _ in best], abs=1e-10
        )
        assert [h.score for h in found] == pytest.approx(
            [score for _, _, _, score in best], abs=1e-10
        )
