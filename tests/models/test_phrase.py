"""Source phrase representations (Xu et al. 2020): sizes of the paper, equations phrase by phrase,
cuts into phrases.
"""

import dataclasses
import math
import random
from functools import partial

import numpy as np
import pytest
import torch

from nmtkit.data.batches import Batch
from nmtkit.data.packing import in_one_row, segments
from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.phrase import PhraseGenerator, PhraseSettings
from nmtkit.models.phrase_cuts import in_rows, ngrams, parsed
from nmtkit.models.variants import build_model
from nmtkit.nn.capture import capture
from nmtkit.text.vocabulary import BOS, EOS
from tests.device import DEVICE
from tests.models import contract, test_transformer
from tests.models.contract import paper_size
from tests.models.slow import affine, dropped, plus, sigmoid, softmax
from tests.models.test_contract import check_packed_equals_padded

BASELINE = "transformer"


def count(s, v):
    """Return the Transformer's parameters, an attention, a combiner and a norm in every layer, L +
    1 generators, and the weights of the mixtures.
    """
    d, h = s.d_model, s.combiner_hidden or 3 * s.d_model
    sublayer = test_transformer.sublayers(s)[0] + 2 * d * h + h + h * d + d + 2 * d
    stacks = [test_transformer.distinct(s, n) for n in (s.encoder_layers, s.decoder_layers)]
    generators = (stacks[0] + 1) * (2 * d * d + d + d) if s.attentive else 0
    mixtures = (s.transparent + s.ta_tokens) * (s.encoder_layers + 1) * s.decoder_layers
    norms = 2 * 2 * d if s.embed_norm else 0
    layers = sum(stacks) * sublayer
    return test_transformer.count(s, v) + layers + generators + mixtures + norms


def cut(n):
    """Return the phrases of the paper for a sentence of n tokens, as (start, end): ceil(n / 6)
    tokens, but 3 to 8 (Xu et al. 2020, section 3.1).
    """
    size = max(min(8, math.ceil(n / 6)), 3)
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def weighted(shares, vectors):
    return plus(*([p * a for a in x] for p, x in zip(shares, vectors, strict=True)))


class Slow(test_transformer.Slow):
    """One phrase at a time."""

    cut = staticmethod(cut)

    def at_positions(self, name, ids):
        xs = super().at_positions(name, ids)
        return self.norm(name.replace("table.weight", "norm"), xs) if self.s.embed_norm else xs

    def generate(self, level, xs):
        s, vectors = self.s, []
        for start, end in self.cut(len(xs)):
            tokens = xs[start:end]
            columns = list(zip(*tokens, strict=True))
            view = [max(c) if s.glance == "max" else math.fsum(c) / len(c) for c in columns]
            if s.attentive:
                part = f"generators.{level}"
                halves = self.get(f"{part}.token.weight"), self.get(f"{part}.summary.weight")
                w1 = [a + b for a, b in zip(*halves, strict=True)]
                b1, w2 = self.get(f"{part}.summary.bias"), self.get(f"{part}.score.weight")
                hidden = [affine(token + view, w1, b1) for token in tokens]
                hidden = [sigmoid(dropped(x, s.dropout)) for x in hidden]
                scores = [affine(x, w2)[0] for x in hidden]
                if s.generator == "softmax":
                    view = weighted(softmax(scores), tokens)
                else:
                    gates = [q / len(tokens) for q in sigmoid(scores)]
                    view = weighted([1 - math.fsum(gates), *gates], [view, *tokens])
            vectors.append(view)
        return vectors

    def phrase_sublayer(self, layer, xs, vectors):
        name, p = f"{layer}.phrases", self.s.dropout
        hs = self.entered(layer, xs)
        found = self.attend(f"{name}.attention", hs, vectors)
        out = []
        for x, h, o in zip(xs, hs, found, strict=True):
            hidden = dropped(sigmoid(self.linear(f"{name}.inner", h + o)), p)
            combined = dropped(self.linear(f"{name}.outer", hidden), p)
            out.append(plus(x, combined, *([o] if self.s.combiner_residual == "x+o" else [])))
        return out if self.s.norm == "pre" else self.norm(f"{name}.residual.norm", out)

    def entered(self, layer, xs):
        """The tokens, as the residual connection of the phrases reads them."""
        return self.last_norm(f"{layer}.phrases.residual.norm", xs)

    def mixed(self, name, levels):
        """The mixture of levels for each decoder layer."""
        w = self.get(name)
        if w is None:
            return [levels[-1]] * self.s.decoder_layers
        mixtures = []
        for j in range(self.s.decoder_layers):
            shares = softmax(dropped([row[j] for row in w], self.s.dropout))
            mixtures.append([weighted(shares, vectors) for vectors in zip(*levels, strict=True)])
        return mixtures

    def encode(self, src):
        xs = self.embed("src_embedder.table.weight", src)
        tokens, phrases = [xs], []
        for i in range(self.s.encoder_layers):
            layer = f"encoder.{i}"
            phrases.append(self.generate(i, self.entered(layer, xs)))
            xs = self.layer(layer, self.phrase_sublayer(layer, xs, phrases[-1]))
            tokens.append(xs)
        tokens[-1] = self.last_norm("encoder_norm", xs)
        phrases.append(self.generate(self.s.encoder_layers, tokens[-1]))
        return self.mixed("token_mixture", tokens), self.mixed("phrase_mixture", phrases)

    def read_source(self, layer, xs, memory):
        tokens, phrases = (mixtures[int(layer.removeprefix("decoder."))] for mixtures in memory)
        return super().read_source(layer, self.phrase_sublayer(layer, xs, phrases), tokens)


def slow_logits(weights, s, src, tgt_in, spans=None):
    slow, spans = Slow(weights, s), contract.spans_of(src) if spans is None else spans
    if s.segmentation == "parse" and spans:
        slow.cut = lambda n: ends_of(spans)
    return slow.logits(slow.decode(slow.encode(src), tgt_in))


def without_idea(case):
    """Without the phrase sublayers and their norms, the model is the Transformer of the same
    weights.
    """
    model = case.build(embed_norm=False, ta_tokens=False)
    base = contract.transformer_of(model)
    for layer in [*model.encoder, *model.decoder]:
        layer.phrases.forward = lambda x, *_: x
    batch = contract.collate(contract.pairs())
    contract.close(contract.full(model, batch), contract.full(base, batch))


def test_sizes_of_table_2(audit):
    """The paper's 88.1 and 129.0 million; its 173.0 cannot follow from Eqs. 3-5, ours is 132.66."""
    size = partial(paper_size, preset="pr-base", vocabulary=42_875)
    plain = {"attentive": False, "transparent": False}
    rows = [
        size("transformer"),
        size("pr", glance="mean", **plain),
        size("pr", **plain),
        size("pr", transparent=False),
        size("pr"),
    ]
    assert [round(row / 1e6, 2) for row in rows] == [88.05, 128.98, 128.98, 132.66, 132.66]
    assert rows[4] - rows[3] == 42
    assert round(size("pr", combiner_hidden=4 * 512, **plain) / 1e6, 1) == 138.4
    assert round(size("pr", preset="pr-big") / 1e6, 1) == 442.5
    assert rows[2] - rows[0] == 12 * (audit["mha"](512, False) + audit["comb"](512, 3 * 512))
    assert rows[3] - rows[2] == 7 * audit["gen"](512, 512)


GOLDEN = {
    1: (3, 1),
    7: (3, 3),
    18: (3, 6),
    19: (4, 5),
    25: (5, 5),
    43: (8, 6),
    48: (8, 6),
    49: (8, 7),
    100: (8, 13),
}
"""Tokens of a sentence: tokens of its first phrase, number of phrases."""


def test_slow_cut_has_the_golden_sizes():
    for n, (size, number) in GOLDEN.items():
        assert len(cut(n)) == number and cut(n)[0] == (0, min(size, n))


def as_spans(phrases, row, rows):
    """Return the phrases of one sentence as (start, end), and check that all tensors of the cut
    agree.
    """
    spans, width = [], phrases.tokens.size(1)
    number = len(phrases.tokens) // rows
    for phrase in range(row * number, (row + 1) * number):
        real = phrases.real[phrase, 0]
        inside = phrases.tokens[phrase][real].tolist()
        if phrases.visible is not None:
            assert bool(phrases.visible[row, 0, phrase % number]) == bool(inside)
        if inside:
            assert inside == list(range(inside[0], inside[-1] + 1))
            assert phrases.owners[inside].unique().tolist() == [phrase]
            assert phrases.cells[inside].tolist() == [
                phrase * width + i for i in range(len(inside))
            ]
            first = row * (len(phrases.cells) // rows)
            spans.append((inside[0] - first, inside[-1] + 1 - first))
    return spans


def test_sentences_of_every_length_are_cut_as_the_paper_says():
    for columns in [*range(1, 26), 43, 48, 49, 50, 101, 102]:
        lengths = torch.arange(1, columns + 1)
        phrases = in_rows(ngrams(lengths, columns, padded=True), columns, padded=True)
        for row, n in enumerate(lengths.tolist()):
            assert as_spans(phrases, row, columns) == cut(n)
        # The gradient of padding is that of a cell without a token.
        real = torch.arange(columns) < lengths[:, None]
        assert not phrases.real.flatten()[phrases.cells[~real.flatten()]].any()


def test_batch_of_one_length_is_cut_without_padding():
    for columns in range(1, 103):
        sizes = ngrams(torch.tensor([columns]), columns, padded=False)
        assert as_spans(in_rows(sizes, columns, padded=False), 0, 1) == cut(columns)
        assert sizes.size(1) == len(cut(columns))


@pytest.fixture
def packed_cut():
    """A function that cuts a packed batch of random sentences: tokens of each sentence and of what
    fills the row, rows, and phrases.
    """
    model = contract.Case("pr").build()

    def make(seed):
        draw = random.Random(seed)
        lengths = np.array([draw.randint(1, 60) for _ in range(draw.randint(1, 9))])
        row, filled = in_one_row(np.ones(lengths.sum(), np.int64), lengths, 16)
        sides = segments(filled, filled, few_shapes=draw.random() < 0.5)
        lengths = sides.keys.lengths
        batch = Batch(torch.from_numpy(row)[None], lengths, rows=lengths, segments=sides)
        return filled, len(sides.keys.offsets) - 1, model._cut(batch)

    return make


@pytest.mark.parametrize("seed", range(10))
def test_packed_batch_is_cut_sentence_by_sentence(packed_cut, seed):
    filled, rows, phrases = packed_cut(seed)
    where, first = phrases.visible.keys, 0
    sentences = (where.cells // where.positions.size(1)).tolist()
    for i, (start, n) in enumerate(zip(np.cumsum(filled) - filled, filled, strict=True)):
        assert where.offsets[i] == first
        for phrase, span in enumerate(cut(n), first):
            tokens = [*range(start + span[0], start + span[1])]
            assert phrases.tokens[phrase][phrases.real[phrase, 0]].tolist() == tokens
            assert (phrases.owners[tokens] == phrase).all() and sentences[phrase] == i
        first += len(cut(n))
    # Left-over phrases are empty and belong to the last row.
    assert not phrases.real[first:].any() and set(sentences[first:]) <= {rows - 1}
    assert (where.offsets[len(filled) : -1] == first).all() and len(where.offsets) == rows + 1


@pytest.mark.parametrize("seed", range(10))
def test_number_of_packed_phrases_has_a_bound_by_the_shapes(packed_cut, seed):
    filled, rows, phrases = packed_cut(seed)
    number = len(phrases.tokens)
    assert sum(len(cut(n)) for n in filled) <= number <= (sum(filled) + 2 * rows) // 3
    assert phrases.visible.keys.offsets[-1] == number


def test_phrase_length_batch_cuts_by_the_longest_sentence():
    sizes = ngrams(torch.tensor([30, 7]), 30, padded=True, by_batch=True)
    phrases = in_rows(sizes, 30, padded=True)
    assert as_spans(phrases, 0, 2) == cut(30)
    assert as_spans(phrases, 1, 2) == [(0, 5), (5, 7)]
    model = contract.Case("pr").build(phrase_length="batch")
    short, long = ([3, 4, 5, 6, EOS], [3, EOS]), (list(range(3, 22)) * 2 + [EOS], [4, EOS])
    alone, together = (
        contract.full(model, contract.collate(pairs))[0, :2] for pairs in ([short], [short, long])
    )
    assert not torch.allclose(alone, together)


def test_packed_phrases_are_cut_before_encoding(monkeypatch):
    model = contract.Case("pr").build()
    batch = contract.packed_for(model)
    monkeypatch.setattr(model, "_cut", None)
    memory = model.encode(batch)
    keys, seen = memory["layers"][0]["phrases"]
    assert keys[0].shape[::2] == (1, len(batch.prepared.tokens)) == (1, len(seen.keys.cells))
    assert seen.queries is batch.segments.queries


def drawn_spans(draw, n):
    """Return a random cut of n tokens, no phrase longer than the paper's, or none."""
    most, lengths = max(min(8, math.ceil(n / 6)), 3), []
    while draw.random() < 0.9 and sum(lengths) < n:
        lengths.append(min(draw.randint(1, most), n - sum(lengths)))
    return lengths if sum(lengths) == n else []


def as_tensor(lengths):
    return contract.padded(lengths)[0].long()


def ends_of(lengths):
    return [(sum(lengths[:i]), sum(lengths[: i + 1])) for i in range(len(lengths))]


def test_parsed_phrases_replace_ngrams_where_a_parse_exists():
    draw = random.Random(2)
    for _ in range(60):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 5))]
        spans = [drawn_spans(draw, n) if draw.random() < 0.8 else [] for n in lengths]
        columns = max(lengths) + draw.randint(0, 3)
        for by_batch in (False, True):
            own = ngrams(torch.tensor(lengths), columns, padded=True, by_batch=by_batch)
            phrases = in_rows(parsed(as_tensor(spans), own), columns, padded=True)
            own, rows = in_rows(own, columns, padded=True), len(lengths)
            for row in range(rows):
                expected = ends_of(spans[row]) or as_spans(own, row, rows)
                assert as_spans(phrases, row, rows) == expected


PAIRS = [([3 + i % 19 for i in range(n - 1)] + [EOS], [4, 7, 9, EOS]) for n in (21, 12, 5, 1)]
SPANS = [[4, 1, 2, 4, 3, 3, 1, 2, 1], [], [1, 1, 3], [1]]


@pytest.mark.parametrize(
    "values", [(), (("glance", "mean"), ("generator", "sigmoid_residual"), ("ta_tokens", True))]
)
def test_parsed_sentences_beside_others_equal_the_slow_equations(values):
    model = contract.Case("pr", (*values, ("segmentation", "parse"))).build()
    weights = contract.numbers(model)
    for more in (0, 2):
        batch = dataclasses.replace(contract.collate(PAIRS, more), spans=as_tensor(SPANS))
        fast = contract.full(model, batch)
        for row, ((src, tgt), spans) in enumerate(zip(PAIRS, SPANS, strict=True)):
            slow = slow_logits(weights, model.settings, src, [BOS, *tgt[:-1]], spans)
            contract.close(fast[row, : len(tgt)], torch.tensor(slow, dtype=torch.float64))


def test_packed_batch_may_have_a_phrase_for_each_token(monkeypatch):
    monkeypatch.setattr(contract, "spans_of", lambda src: [1] * len(src))
    check_packed_equals_padded(contract.Case("pr").build(segmentation="parse"))


def test_without_parses_phrases_are_ngrams():
    parse, ngram = (contract.Case("pr").build(segmentation=name) for name in ("parse", "ngram"))
    plain = contract.collate(PAIRS)
    parsed = dataclasses.replace(plain, spans=as_tensor(SPANS))
    assert torch.equal(contract.full(parse, plain), contract.full(ngram, plain))
    assert torch.equal(contract.full(ngram, parsed), contract.full(ngram, plain))
    assert not torch.allclose(contract.full(parse, parsed)[0], contract.full(parse, plain)[0])
    assert (parse.reads_spans, ngram.reads_spans) == (True, False)


@pytest.mark.parametrize(
    ("init", "bound"), [("fan_in", (1 / 256) ** 0.5), ("xavier", (6 / (256 + 128)) ** 0.5)]
)
def test_halves_of_w1_are_initialised_as_one_matrix(init, bound):
    torch.manual_seed(0)
    sizes = {"d_model": 128, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "init": init}
    model = build_model("pr", sizes, Vocabularies(20, 20, shared=True))
    for part in model.generators:
        for half in (part.token, part.summary):
            assert 0.98 * bound < half.weight.abs().max() <= bound
            assert abs(float(half.weight.detach().std()) / (bound / 3**0.5) - 1) < 0.03
        assert (part.summary.bias == 0).all()


def test_weights_of_mixtures_begin_uniform_within_their_bound():
    """U(±√(1/(L+1))) for L encoder layers."""
    torch.manual_seed(0)
    sizes = {"d_model": 8, "heads": 2, "encoder_layers": 6, "decoder_layers": 20}
    weights = build_model("pr", sizes, Vocabularies(9, 9, shared=True)).phrase_mixture.detach()
    bound = (1 / 7) ** 0.5
    assert weights.shape == (7, 20) and weights.abs().max() <= bound
    assert weights.max() > 0.95 * bound and weights.min() < -0.95 * bound


def test_max_glance_passes_gradients_to_the_largest_numbers():
    torch.manual_seed(5)
    generator = PhraseGenerator(PhraseSettings(d_model=8, heads=2, attentive=False)).double()
    x = torch.randn(3, 20, 8, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([20, 11, 1])
    phrases = in_rows(ngrams(lengths, 20, padded=True), 20, padded=True).of_type(torch.float64)
    weights = torch.randn(3, 6, 8, dtype=torch.float64) * phrases.visible.mT
    (gradient,) = torch.autograd.grad((generator(x, phrases) * weights).sum(), x)
    expected = torch.zeros_like(x)
    for row, n in enumerate(lengths.tolist()):
        for i, (start, end) in enumerate(cut(n)):
            best = x[row, start:end].argmax(0) + start
            expected[row, best, torch.arange(8)] += weights[row, i]
    torch.testing.assert_close(gradient, expected)


def test_mixture_with_one_level_equals_the_level():
    model = contract.Case("pr").build()
    levels = [torch.randn(2, 3, 16, dtype=torch.float64) for _ in range(3)]
    with torch.no_grad():
        model.phrase_mixture.fill_(-1e9)
        model.phrase_mixture[1, 0] = model.phrase_mixture[2, 1] = 0
    with capture() as seen:
        mixed = model._mixed(levels, model.phrase_mixture, "phrase_mixture")
    assert seen["decoder.phrase_mixture"][0][:, :2].tolist() == [[0, 0], [1, 0], [0, 1]]
    torch.testing.assert_close(mixed[0], levels[1])
    torch.testing.assert_close(mixed[1], levels[2])


def test_decoding_steps_project_no_phrases(monkeypatch):
    """Keys and values of phrases are computed in `encode`."""
    model, batch, calls = contract.Case("pr").build(), contract.collate(contract.pairs()), []
    for layer in [*model.encoder, *model.decoder]:
        attention = layer.phrases.attention
        source = lambda states, f=attention.source: calls.append(states.shape) or f(states)  # noqa: E731
        monkeypatch.setattr(attention, "source", source)
    memory, state = model.encode(batch), {}
    assert len(calls) == len(model.encoder) + len(model.decoder)
    for t in range(3):
        _, state = model.decode(batch.tgt_in[:, t : t + 1], memory, state)
    assert len(calls) == len(model.encoder) + len(model.decoder)


def test_states_of_the_memory_are_those_that_the_decoder_reads():
    model = contract.Case("pr").build(norm="pre")
    memory = model.encode(contract.collate(contract.pairs()))
    keys = model.decoder[0].cross.source(memory["states"])
    torch.testing.assert_close(keys, memory["layers"][0]["source"])


def test_generator_without_attentive_phrases_is_refused():
    with pytest.raises(ConfigError, match="no weights") as error:
        contract.Case("pr").build(attentive=False, generator="sigmoid_residual")
    assert error.value.where == "model.generator, model.attentive"


@pytest.mark.parametrize("make", [contract.batch_for, contract.packed_for])
def test_low_scores_stay_finite_in_float16(make):
    """Also those of phrases that only fill up a batch."""
    model = contract.Case("pr").build(dtype=torch.float32, dropout=0.0).train()
    with torch.no_grad():
        for generator in model.generators:
            generator.score.weight.fill_(-3.0)
    with torch.autocast(DEVICE, torch.float16):
        loss = contract.loss_of(model, make(model))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients)
