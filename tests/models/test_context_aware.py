"""The context-aware Transformer (Voita et al. 2018): size, equations loop by loop, captured names."""

from functools import partial

import pytest

from nmtkit.errors import ConfigError
from nmtkit.nn.capture import capture
from nmtkit.text.vocabulary import BOS
from tests.models import contract, test_transformer
from tests.models.contexts import ONE, TWO, batch_of, without_idea  # noqa: F401
from tests.models.contract import paper_size
from tests.models.slow import mixed, sigmoid

BASELINE = "transformer"


def count(s, v):
    """Return the Transformer's parameters, a layer for the context, the attention to it and the
    gate, and with pre-norm a norm of the context's states.
    """
    d, (attention, feed_forward) = s.d_model, test_transformer.sublayers(s)
    layer, gate = attention + feed_forward + 2 * 2 * d, 2 * d * d + d
    norm = 2 * d if s.norm == "pre" else 0
    return test_transformer.count(s, v) + layer + attention + gate + norm


class Slow(test_transformer.Slow):
    """One sentence and one context at a time."""

    def self_attention(self, layer, xs):
        found = super().self_attention(layer, xs)
        if layer != f"encoder.{self.s.encoder_layers - 1}" or not self.states:
            return found
        read = self.attend(f"{layer}.context", xs, self.states)
        return [
            mixed(sigmoid(self.linear(f"{layer}.gate", x + c)), c, x)
            for x, c in zip(found, read, strict=True)
        ]

    def encode(self, src, contexts=()):
        self.states = None
        for context in contexts:
            cs = self.embed("src_embedder.table.weight", [BOS, *context])
            for i in range(self.s.encoder_layers - 1):
                cs = self.layer(f"encoder.{i}", cs)
            self.states = self.last_norm("context_norm", self.layer("context_layer", cs))
        return super().encode(src)


def slow_logits(weights, s, src, tgt_in, contexts=()):
    slow = Slow(weights, s)
    return slow.logits(slow.decode(slow.encode(src, contexts), tgt_in))


def test_size_of_the_paper(audit):
    """+4.73 million at d = 512."""
    size = partial(paper_size, preset="amn", vocabulary=32_000, shared=False)
    more = size("context-aware") - size("transformer")
    assert more == audit["enc_layer"](512, 2048, 1) + audit["mha"](512, 1) + audit["lin"](1024, 512)
    assert round(more / 1e6, 2) == 4.73


def test_attention_to_context_is_captured_under_its_own_names():
    """A context is one word longer than its ids: <s> comes before it."""
    model = contract.Case("context-aware").build()
    with capture() as seen:
        model.encode(batch_of(ONE, TWO, rows=[[0], [1], [], [1]]))
    shapes = {
        name: [tuple(w.shape) for w in weights]
        for name, weights in seen.items()
        if "_context" not in name
    }
    assert shapes == {
        "context.gate": [(4, 7)],
        "encoder.0.attention": [(4, 4, 7, 7)],
        "encoder.1.attention": [(4, 4, 7, 7)],
        "encoder.1.context": [(4, 4, 7, 5)],
        "context.encoder.0.attention": [(2, 4, 5, 5)],
        "context.context_layer.attention": [(2, 4, 5, 5)],
    }
    gate = seen["context.gate"][0]
    assert [bool(row.isnan().all()) for row in gate] == [False, False, True, False]


def test_model_without_encoder_layers_is_refused():
    with pytest.raises(ConfigError, match="last layer"):
        contract.Case("context-aware").build(encoder_layers=0)
