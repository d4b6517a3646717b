"""Counted multiply-accumulates equal the closed formulas of each model; parameters are split."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nmtkit.analyze.cost import Count
from nmtkit.measures import macs, recording
from nmtkit.models.base import Vocabularies, target_states
from nmtkit.models.variants import build_model
from tests.models import contract
from tests.toy_recurrent import ToyRecurrent


def encoder(d, f, layers, n):
    """Return the MACs of encoding n tokens: 4d² + 2nd + 2df a token and layer (models.md, 7)."""
    return layers * n * (4 * d * d + 2 * n * d + 2 * d * f)


def decoder(d, f, layers, n, m):
    """Return the MACs of decoding m tokens at once, without keys and values of the source."""
    return layers * m * ((4 * d * d + 2 * m * d) + (2 * d * d + 2 * n * d) + 2 * d * f)


def source_keys(d, layers, n):
    return layers * n * 2 * d * d


def built(variant, d, f, layers, vocabulary=211, **values):
    """Return a model with one vocabulary and equal numbers of encoder and decoder layers."""
    sizes = {"d_model": d, "d_ff": f, "heads": 4, "encoder_layers": layers}
    values = {**sizes, "decoder_layers": layers, **values}
    return build_model(variant, values, Vocabularies(vocabulary, vocabulary, True))


@pytest.mark.parametrize(
    ("d", "f", "heads", "enc", "dec", "n", "m", "norm"),
    [(64, 128, 4, 2, 1, 7, 4, "post"), (32, 96, 2, 1, 2, 3, 5, "pre")],
)
def test_macs_of_a_transformer_equal_its_formulas(d, f, heads, enc, dec, n, m, norm):
    model = built("transformer", d, f, enc, decoder_layers=dec, heads=heads, norm=norm).eval()
    counted = macs.count_macs(model, n, m)
    encode = encoder(d, f, enc, n) + source_keys(d, dec, n)
    # Two gradients for every product.
    train = 3 * (encode + decoder(d, f, dec, n, m) + m * 211 * d)
    one_by_one = sum(
        dec * (4 * d * d + 2 * t * d + 2 * d * d + 2 * n * d + 2 * d * f) + 211 * d
        for t in range(1, m + 1)
    )
    totals = counted.train * m, counted.encode * n, counted.step * m
    assert totals == pytest.approx((train, encode, one_by_one), abs=1e-6)
    assert not model.training
    assert all(p.grad is None for p in model.parameters())


def test_macs_of_a_gru_model_equal_its_formulas():
    """torch's GRU: 3·(input·D + D·D) a token."""
    d, v, n, m = 24, 211, 9, 6
    model = build_model(
        "tests.toy_recurrent:ToyRecurrent", {"d_model": d}, Vocabularies(v, v, True)
    )
    counted = macs.count_macs(model, n, m)
    read, step = 3 * (d * d + d * d), 3 * (2 * d * d + d * d) + v * d
    assert (counted.encode, counted.step) == (read, step)
    no_gradient = 3 * d * d  # the first state is zeros, which need no gradient
    assert counted.train * m == pytest.approx(3 * (n * read + m * step) - no_gradient, abs=1e-6)


def test_macs_of_amn_include_its_contexts():
    """A GRU, self-attention of source and context, attention between them, a feed-forward layer
    and a gate.
    """
    d, f, layers, n, m = 32, 96, 2, 11, 3
    model = built("amn", d, f, layers, norm="pre")
    plain = macs.count_macs(built("transformer", d, f, layers, norm="pre"), n, m)
    assert macs.count_macs(model, n, m) == plain
    whole, half = (macs.count_macs(model, n, m, contexts=count) for count in (1, 0.5))
    read = 6 * d * d + 2 * (4 * d * d + 2 * n * d) + (4 * d * d + 2 * n * d) + 2 * d * f + 2 * d * d
    assert whole.encode == pytest.approx(plain.encode + read, abs=1e-6)
    assert whole.step == plain.step
    # The first state of the GRU needs no gradient.
    assert (whole.train - plain.train) * m == pytest.approx(3 * read * n, rel=0.02)
    assert half.train == pytest.approx((whole.train + plain.train) / 2)
    assert half.encode == pytest.approx((whole.encode + plain.encode) / 2)


def test_macs_of_han_include_every_context():
    """Each of three contexts is encoded, and read by words and as a sentence."""
    d, f, layers, n, m = 32, 96, 2, 11, 3
    model = built("han", d, f, layers)
    whole, plain = (macs.count_macs(model, n, m, contexts) for contexts in (3, 0))
    words, sentences = d * d + 3 * (2 * d * d + 2 * n * d + d * d), d * d + 3 * 2 * d * d + d * d
    read = 3 * encoder(d, f, layers, n) / n + words + sentences + 2 * d * f + 2 * d * d
    assert whole.encode == pytest.approx(plain.encode + read, abs=1e-6)


def test_macs_of_pr_grow_with_the_number_of_phrases():
    """Each phrase has a vector at every level, keys and values in every layer, and a place in the
    mixture of the levels.
    """
    d, layers, n, m = 32, 2, 12, 2
    model = built("pr", d, 96, layers, segmentation="parse")
    few, many = (macs.count_macs(model, n, m, spans=spans) for spans in ([3] * 4, [1] * n))
    assert few == macs.count_macs(model, n, m)  # n-grams of three
    # A phrase has at most 3 tokens in a sentence of 12.
    vector, keys, attention = d * d + 3 * d, 2 * d * d, 2 * n * d
    mixture = (layers + 1) * layers * d
    more = (layers + 1) * vector + layers * (keys + attention) + layers * keys + mixture
    assert (many.encode - few.encode) * n == pytest.approx((n - 4) * more, abs=1e-6)
    assert many.step - few.step == pytest.approx((n - 4) * layers * 2 * d, abs=1e-6)


def test_fused_attention_counts_like_explicit_products():
    q, k, v = (torch.randn(2, 3, steps, 8, requires_grad=True) for steps in (5, 9, 9))

    def fused():
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    def explicit():
        (torch.softmax(q @ k.transpose(2, 3), -1) @ v).sum().backward()

    expected = 3 * 2 * (2 * 3 * 5 * 9 * 8)
    assert macs._macs(fused) == macs._macs(explicit) == expected


class FromTorch(ToyRecurrent):
    """A reader that is torch's LSTM, then its self-attention."""

    def __init__(self, settings, vocabularies):
        super().__init__(settings, vocabularies)
        d = settings.d_model
        self.reader = nn.LSTM(d, d, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(d, 4, 3 * d, batch_first=True)

    def encode(self, batch):
        states, _ = self.reader(self.src_embedding(batch.src))
        return {"summary": self.layer(states).mean(1)}


def test_lstm_and_encoder_layer_of_torch_are_counted():
    d, n = 24, 9
    model = FromTorch(FromTorch.Settings(d_model=d), Vocabularies(211, 211, True))
    fast = torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()
    counted = macs.count_macs(model, n, 2)
    assert counted.encode == 4 * (d * d + d * d) + (4 * d * d + 2 * n * d) + 2 * d * 3 * d
    assert (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()) == fast


def test_matrix_vector_products_are_counted():
    matrix, vector = torch.randn(6, 7), torch.randn(7)
    assert macs._macs(lambda: matrix @ vector) == 42
    assert macs._macs(lambda: torch.addmv(torch.randn(6), matrix, vector)) == 42


@pytest.mark.parametrize("variant", ["csan", "rnnsearch", "caru", "gatt"])
def test_training_has_two_gradients_for_every_product(variant):
    """A backward pass that computes some products again, to save memory, costs no more. The first
    products need no gradient of their inputs.
    """
    model = contract.Case(variant).build().float()
    counted = macs.count_macs(model, 12, 7).train * 7 * macs._ROWS
    batch = recording.made_up((12, 7), torch.device("cpu"), macs._ROWS)
    with torch.no_grad():
        forward = macs._macs(lambda: model.logits(target_states(model, batch)))
    assert 0.97 * 3 * forward < counted <= 3 * forward


def test_macs_of_searches_are_compared_with_the_beam_of_each():
    small, large = (
        Count(macs.Parameters(n, 1), macs.Macs(3, 4, n, n, n), None, None, beam)
        for n, beam in ((10, 2), (20, 5))
    )
    assert large.relative_to(small) == (2, 2, 2, 20 * (3 + 5 * 4) / (10 * (3 + 2 * 4)))


@pytest.mark.parametrize(("tie", "matrices"), [("none", 3), ("target", 2), ("all", 1)])
@pytest.mark.parametrize("v", [203, 256])  # 256: as many tokens as a layer is wide
def test_parameters_are_split_into_embeddings_and_rest(v, tie, matrices):
    d = 64
    model = built("transformer", d, 256, 2, v, tie=tie, softmax_bias=True)
    counted = macs.count_parameters(model)
    assert counted.embeddings == matrices * v * d + v
    assert counted.rest == sum(p.numel() for p in model.parameters()) - counted.embeddings


def test_rest_of_the_parameters_equals_the_reference_count(audit):
    for bias in (False, True):
        model = built("transformer", 64, 256, 2, 203, attn_bias=bias)
        assert macs.count_parameters(model).rest == audit["body"](64, 256, 2, bias)
