"""The Transformer (Vaswani et al. 2017): sizes of the papers, equations loop by loop."""

import math
import re
from functools import partial

import pytest
import torch

from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.nn.capture import capture
from tests.models import contract
from tests.models.contract import paper_size
from tests.models.slow import affine, block, dropped, layer_norm, multi_head, plus, position

BASELINE = None  # it is one itself


def sublayers(s):
    """Return the parameters of an attention and of a feed-forward sublayer."""
    d = s.d_model
    return 4 * d * d + (4 * d if s.attn_bias else 0), 2 * d * s.d_ff + s.d_ff + d


def distinct(s, layers):
    """Return how many layers of a stack have their own parameters."""
    return min(s.distinct_layers or layers, layers)


def count(s, v):
    d, (attention, feed_forward) = s.d_model, sublayers(s)
    encoder = distinct(s, s.encoder_layers) * (attention + feed_forward + 2 * 2 * d)
    decoder = distinct(s, s.decoder_layers) * (2 * attention + feed_forward + 3 * 2 * d)
    final_norms = 2 * 2 * d if s.norm == "pre" else 0
    tables = {"none": 3, "target": 2, "all": 1}[s.tie]
    return encoder + decoder + final_norms + tables * v * d + (v if s.softmax_bias else 0)


def used(i, n, m, share):
    """Return which of m distinct layers layer i of n uses, both from 1 (Takase & Kiyono 2023)."""
    if share == "sequence":
        return math.floor((i - 1) / (n / m)) + 1
    if share == "cycle" or i <= n - m:
        return (i - 1) % m + 1
    return m - (i - 1) % m


LAYER = re.compile(r"(encoder|decoder|generators|memory\.encoder\.layers)\.(\d+)\.(.+)")
"""The name of a parameter of a layer."""


def with_shared(weights, s):
    """Return weights in which each layer has the weights of the first layer that shares with it,
    for all names that this layer has.
    """

    def first(name):
        found = LAYER.fullmatch(name)
        if not found or not s.distinct_layers:
            return name
        stack, i = found[1], int(found[2]) + 1
        n = s.decoder_layers if stack == "decoder" else s.encoder_layers
        if i > n:  # the generator of the phrases that only the decoder reads
            return name
        numbers = [used(j, n, s.distinct_layers, s.share) for j in range(1, n + 1)]
        return f"{stack}.{numbers.index(numbers[i - 1])}.{found[3]}"

    return {name: weights.get(first(name), values) for name, values in weights.items()}


def everything(query, key):
    return True


def causal(query, key):
    return key <= query


class Slow:
    """One sentence at a time; vectors are lists of floats. Stacks, layers and sublayers as
    Vaswani et al. 2017, section 3, words them.
    """

    def __init__(self, weights, s):
        self.w, self.s = with_shared(weights, s), s

    def get(self, name):
        return self.w.get(name)

    def linear(self, name, x):
        return affine(x, self.get(f"{name}.weight"), self.get(f"{name}.bias"))

    def attend(self, name, queries, keys, allowed=everything):
        q, k, v = self.projected(name, queries, keys)
        read = multi_head(q, k, v, self.s.heads, allowed, self.s.attention_dropout)
        return [self.linear(f"{name}.out", x) for x in read]

    def projected(self, name, queries, keys=None):
        """q of the queries, k and v of the keys. Self-attention has one matrix `qkv`, attention to
        a source `query` and `kv`.
        """
        keys, parts = keys or queries, [f"{name}.qkv"]
        if f"{name}.qkv.weight" not in self.w:
            parts = [f"{name}.query", f"{name}.kv"]
        w = sum((self.get(f"{part}.weight") for part in parts), [])
        b = sum((self.get(f"{part}.bias") or [] for part in parts), [])
        return [
            [affine(x, block(w, i, 3), b and block(b, i, 3)) for x in xs]
            for i, xs in enumerate((queries, keys, keys))
        ]

    def feed_forward(self, name, xs):
        hidden = [[max(0.0, a) for a in self.linear(f"{name}.inner", x)] for x in xs]
        p = self.s.activation_dropout
        return [self.linear(f"{name}.outer", dropped(x, p)) for x in hidden]

    def norm(self, name, xs):
        return [layer_norm(x, self.get(f"{name}.weight"), self.get(f"{name}.bias")) for x in xs]

    def sublayer(self, name, xs, function):
        """Post-norm LN(x + Dropout(f(x))); pre-norm x + Dropout(f(LN(x)))."""
        read = function(self.last_norm(f"{name}.norm", xs))
        sums = [plus(x, dropped(y, self.s.dropout)) for x, y in zip(xs, read, strict=True)]
        return self.norm(f"{name}.norm", sums) if self.s.norm == "post" else sums

    def embed(self, name, ids):
        return [dropped(x, self.s.dropout) for x in self.at_positions(name, ids)]

    def at_positions(self, name, ids):
        d = self.s.d_model
        return [
            plus([d**0.5 * a for a in self.get(name)[i]], position(t, d)) for t, i in enumerate(ids)
        ]

    def self_attention(self, layer, xs):
        allowed = causal if layer.startswith("decoder") else everything
        return self.attend(f"{layer}.attention", xs, xs, allowed)

    def read_source(self, layer, xs, memory):
        cross = lambda h: self.attend(f"{layer}.cross", h, memory)  # noqa: E731
        return self.sublayer(f"{layer}.cross_residual", xs, cross)

    def layer(self, name, xs, memory=None):
        """Self-attention, attention to a source if there is one, feed-forward."""
        xs = self.sublayer(f"{name}.attention_residual", xs, partial(self.self_attention, name))
        if memory is not None:
            xs = self.read_source(name, xs, memory)
        feed_forward = partial(self.feed_forward, f"{name}.feed_forward")
        return self.sublayer(f"{name}.feed_forward_residual", xs, feed_forward)

    def last_norm(self, name, xs):
        """The norm of a pre-norm model."""
        return self.norm(name, xs) if self.s.norm == "pre" else xs

    def encode(self, src):
        xs = self.embed("src_embedder.table.weight", src)
        for i in range(self.s.encoder_layers):
            xs = self.layer(f"encoder.{i}", xs)
        return self.last_norm("encoder_norm", xs)

    def decode(self, memory, tgt_in):
        xs = self.embed("tgt_embedder.table.weight", tgt_in)
        for i in range(self.s.decoder_layers):
            xs = self.layer(f"decoder.{i}", xs, memory)
        return self.last_norm("decoder_norm", xs)

    def logits(self, hidden):
        return [self.linear("output", x) for x in hidden]


def slow_logits(weights, s, src, tgt_in, slow_class=Slow):
    slow = slow_class(weights, s)
    return slow.logits(slow.decode(slow.encode(src), tgt_in))


def check_sentences_beside_others(model, slow_class, longest):
    """Compare sentences of 1 and 2 words and the longest (src, tgt) in one padded batch with the
    slow form.
    """
    weights, sentences = contract.numbers(model), [([3], [4]), ([5, 6], [7, 8, 9]), longest]
    together = contract.full(model, contract.collate(sentences, more=2))
    for i, (src, tgt) in enumerate(sentences):
        slow = slow_logits(weights, model.settings, src, [1, *tgt[:-1]], slow_class)
        contract.close(together[i, : len(tgt)], torch.tensor(slow, dtype=torch.float64))


PAPERS = [  # millions, as the papers print them; and by hand, body + tables (+ bias)
    ("dc-wmt", 33_432, 61.26, 44_138_496 + 33_432 * 512),
    ("pr-base", 42_875, 88.05, 44_101_632 + 42_875 * 1025),
    ("pr-big", 42_875, 264.13, 176_283_648 + 42_875 * 2049),
    ("dc-iwslt", 32_000, 15.565, 7_372_800 + 32_000 * 256),
]


@pytest.mark.parametrize(("preset", "size", "millions", "exactly"), PAPERS)
def test_presets_have_the_sizes_of_the_papers(preset, size, millions, exactly):
    assert paper_size("transformer", preset, size) == exactly
    assert abs(exactly / 1e6 - millions) < 0.005


def test_sizes_without_embeddings_equal_the_audit(audit):
    sizes = {"base": (512, 2048, 6), "big": (1024, 4096, 6), "dc-iwslt": (256, 1024, 4)}
    for preset, (d, d_ff, layers) in sizes.items():
        for bias in (False, True):
            values = {"attn_bias": bias, "softmax_bias": False, "tie": "all"}
            body = paper_size("transformer", preset, 1000, **values) - 1000 * d
            assert body == audit["body"](d, d_ff, layers, bias)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tie": "all"}, "one vocabulary"),
        ({"d_model": 10, "heads": 4}, "heads"),
        ({"d_modell": 10}, "d_modell"),
    ],
)
def test_incompatible_settings_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        vocabularies = Vocabularies(20, 20, shared=values.get("tie") != "all")
        build_model("transformer", values, vocabularies)


STACKED = {
    "qkv": 3,
    "kv": 2,
    "own": 4,
    "local_kv": 2,
    "convolution": 2,
    "input": 3,  # of a GRU
    "gates": 2,
}
"""How many matrices a product holds, one below the other."""


@pytest.mark.parametrize("init", ["xavier", "fan_in"])
@pytest.mark.parametrize("variant", ["transformer", "full-dc", "pr", "amn", "context-aware", "han"])
def test_initial_matrices_are_uniform_biases_0_gains_1_and_embeddings_normal(variant, init):
    """Xavier's bound holds for each of the matrices that share a product."""
    torch.manual_seed(0)
    sizes = {"d_model": 128, "d_ff": 512, "heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    values, vocabularies = sizes | {"init": init}, Vocabularies(999, 999, shared=True)
    for name, parameter in build_model(variant, values, vocabularies).named_parameters():
        kind, numbers = name.split(".")[-2:][0], parameter.detach()
        if name.endswith("bias"):
            assert (numbers == 0).all(), name
        elif parameter.dim() == 1:
            assert (numbers == 1).all(), name
        elif kind == "table":
            assert abs(float(numbers.std()) - 128**-0.5) < 0.002
        elif kind not in {"token", "summary", "phrase_mixture"}:  # see test_phrase.py
            check_initial_matrices(name, numbers, STACKED.get(kind, 1), init)


def check_initial_matrices(name, product, number, init="xavier"):
    """Check the initial weights of a product that holds some matrices, one below the other."""
    for matrix in product.chunk(number):
        d_out, d_in = matrix.shape
        bound = (6 / (d_in + d_out)) ** 0.5 if init == "xavier" else d_in**-0.5
        assert 0.97 * bound < matrix.abs().max() <= bound, name
        error = max(0.03, 1.5 / matrix.numel() ** 0.5)
        assert float(matrix.std()) == pytest.approx(bound / 3**0.5, rel=error), name


def test_capture_reads_every_attention_and_changes_no_logits():
    model, batch = contract.Case("transformer").build(), contract.collate(contract.pairs())
    plain = contract.full(model, batch)
    with capture() as seen:
        torch.testing.assert_close(contract.full(model, batch), plain, rtol=1e-12, atol=1e-12)
    b, s, t = len(batch.src), batch.src.size(1), batch.tgt_in.size(1)
    shapes = {}
    for i in range(2):
        for name, queries, keys in (
            (f"encoder.{i}.attention", s, s),
            (f"decoder.{i}.attention", t, t),
            (f"decoder.{i}.cross", t, s),
        ):
            shapes[name], shapes[f"{name}_context"] = (b, 4, queries, keys), (b, queries, 16)
    assert {name: [w.shape for w in found] for name, found in seen.items()} == {
        name: [shape] for name, shape in shapes.items()
    }
    for name, (weights,) in seen.items():
        if not name.endswith("_context"):
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    real = torch.arange(s) < batch.src_lengths[:, None]
    assert (seen["decoder.0.cross"][0].amax((1, 2)) > 0).equal(real)
