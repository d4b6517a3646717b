"""The context-aware Transformer against models.md section 5: its size, its equations loop by
loop, what contexts may and may not change.
"""

import contextlib
import io
import runpy

import pytest
import torch

from nmtkit.errors import ConfigError
from nmtkit.nn.capture import capture
from nmtkit.text.vocabulary import BOS, PAD
from tests.models import contract, test_transformer
from tests.models.slow import affine, sigmoid
from tests.models.test_memory import (  # noqa: F401
    BASELINE,
    ONE,
    PAIRS,
    THREE,
    TWO,
    batch_of,
    of,
    parameters,
    weights_of,
    without_idea,
)


def count(s, v):
    """A layer for the context, the attention to it, the gate; with pre-norm a norm of the
    context's states.
    """
    d, bias = s.d_model, 1 if s.attn_bias else 0
    attention = 4 * d * d + 4 * bias * d
    layer = attention + 2 * d * s.d_ff + s.d_ff + d + 2 * 2 * d
    return (
        test_transformer.count(s, v)
        + layer
        + attention
        + 2 * d * d
        + d
        + (2 * d if s.norm == "pre" else 0)
    )


class Slow(test_transformer.Slow):
    """One sentence and one context at a time, as section 5 words it."""

    def layer(self, name, xs, attend=None):
        attend = attend or (lambda hs: self.attend(f"{name}.attention", hs, hs, lambda t, s: True))
        xs = self.sublayer(f"{name}.attention_residual", xs, attend)
        return self.sublayer(
            f"{name}.feed_forward_residual",
            xs,
            lambda h: self.feed_forward(f"{name}.feed_forward", h),
        )

    def encode(self, src, contexts=()):
        if not contexts:
            return super().encode(src)
        (context,), table, last = (
            contexts,
            "src_embedder.table.weight",
            f"encoder.{self.s.encoder_layers - 1}",
        )
        xs, cs = self.embed(table, src), self.embed(table, [BOS, *context])
        for i in range(self.s.encoder_layers - 1):
            xs, cs = self.layer(f"encoder.{i}", xs), self.layer(f"encoder.{i}", cs)
        cs = self.layer("context_layer", cs)
        if self.s.norm == "pre":
            cs = self.norm("context_norm", cs)

        def both(hs):
            a_s = self.attend(f"{last}.attention", hs, hs, lambda t, s: True)
            a_c = self.attend(f"{last}.context", hs, cs, lambda t, s: True)
            out = []
            for own, other in zip(a_s, a_c, strict=True):
                gate = sigmoid(
                    affine(
                        own + other, self.get(f"{last}.gate.weight"), self.get(f"{last}.gate.bias")
                    )
                )
                out.append([g * a + (1 - g) * b for g, a, b in zip(gate, own, other, strict=True)])
            return out

        xs = self.layer(last, xs, both)
        return self.norm("encoder_norm", xs) if self.s.norm == "pre" else xs


def slow_logits(weights, s, src, tgt_in, contexts=()):
    slow = Slow(weights, s)
    return slow.logits(slow.decode(slow.encode(src, contexts), tgt_in))


def test_size_of_the_paper(shared):
    """+4.73 million at d = 512."""
    with contextlib.redirect_stdout(io.StringIO()):
        audit = runpy.run_path(str(shared / "reference" / "parameter_counts.py"))
    more = parameters("context-aware") - parameters("transformer")
    assert more == audit["enc_layer"](512, 2048, 1) + audit["mha"](512, 1) + audit["lin"](1024, 512)
    assert round(more / 1e6, 2) == 4.73


@pytest.mark.parametrize(
    "values", [{}, {"norm": "pre", "attn_bias": False}, {"encoder_layers": 1}], ids=str
)
def test_equations_with_and_without_context(values):
    model = contract.Case("context-aware", tuple(values.items())).build()
    texts, rows = [ONE, TWO, THREE], [[2], [], [0], [2]]
    memory = model.encode(batch_of(of(*texts, rows=rows)))["states"]
    slow = Slow(weights_of(model), model.settings)
    for row, own, (src, _) in zip(memory, rows, PAIRS, strict=True):
        expected = torch.tensor(slow.encode(src, [texts[i] for i in own]), dtype=torch.float64)
        torch.testing.assert_close(row[: len(src)], expected, rtol=1e-10, atol=1e-10)


def test_each_context_is_encoded_once_and_is_told_apart_from_the_source():
    model, rows = contract.Case("context-aware").build(), []
    model.context_layer.register_forward_hook(
        lambda m, args, out: rows.append(tuple(args[0].shape))
    )
    with capture() as seen:
        model.encode(batch_of(of(ONE, TWO, rows=[[0], [1], [], [1]])))
    assert rows == [(2, 5, 16)]  # two contexts of four sentences, <s> before them
    shapes = {
        name: [tuple(w.shape) for w in found]
        for name, found in seen.items()
        if "_context" not in name
    }
    assert shapes.pop("context.gate") == [(4, 7)]
    assert shapes == {
        "encoder.0.attention": [(4, 4, 7, 7)],
        "encoder.1.attention": [(4, 4, 7, 7)],
        "encoder.1.context": [(4, 4, 7, 5)],
        "context.encoder.0.attention": [(2, 4, 5, 5)],
        "context.context_layer.attention": [(2, 4, 5, 5)],
    }
    assert [bool(row.isnan().all()) for row in seen["context.gate"][0]] == [
        False,
        False,
        True,
        False,
    ]


def test_gradients_are_finite_and_none_comes_from_sentences_without_context():
    model = contract.Case("context-aware").build().train()
    own = ("context_layer.", "encoder.1.context.", "encoder.1.gate.")
    for chosen, any_at_all in (([0], False), ([1], True)):
        model.zero_grad()
        batch = batch_of(of(ONE, TWO, rows=[[], [1]]), PAIRS[:2])
        logits = contract.full(model, batch)[chosen]
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.tgt_out[chosen].flatten(), ignore_index=PAD
        ).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if name.startswith(own)}
        assert gradients and all(
            g.isfinite().all() and bool(g.any()) == any_at_all for g in gradients.values()
        )


def test_it_needs_an_encoder():
    with pytest.raises(ConfigError, match="last layer"):
        contract.Case("context-aware", (("encoder_layers", 0),)).build()
