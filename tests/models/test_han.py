"""Hierarchical attention networks against models.md section 5: their size, their equations word
by word, what contexts may and may not change.
"""

import contextlib
import dataclasses
import io
import runpy

import pytest
import torch

from nmtkit.data.documents import ContextRule
from nmtkit.errors import ConfigError
from nmtkit.nn.capture import capture
from nmtkit.nn.dropout import seed_dropout
from nmtkit.text.vocabulary import BOS, PAD
from tests.models import contract, test_memory, test_transformer
from tests.models.differences import similarity_in_bfloat16
from tests.models.slow import affine, layer_norm, plus, sigmoid, softmax, times
from tests.models.test_memory import (  # noqa: F401
    BASELINE,
    ONE,
    PAIRS,
    THREE,
    TWO,
    batch_of,
    parameters,
    transformer_of,
    weights_of,
    without_idea,
)

sources_of = test_memory.of


def count(s, v):
    """On each side two attentions, a feed-forward layer, a gate and five norms."""
    d, bias, sides = s.d_model, 1 if s.attn_bias else 0, 2 if s.side == "joint" else 1
    attention = 4 * d * d + 4 * bias * d
    return test_transformer.count(s, v) + sides * (
        2 * attention + 2 * d * s.d_ff + s.d_ff + d + 2 * d * d + d + 5 * 2 * d
    )


class Slow(test_transformer.Slow):
    """One word at a time, as Eqs. 2-6 of the paper go, with the layer norms of section 5."""

    def one_norm(self, name, x):
        return layer_norm(x, self.get(f"{name}.weight"), self.get(f"{name}.bias"))

    def summaries(self, part, h, memories):
        q_w = self.one_norm(f"{part}.words_query_norm", h)
        found = [
            self.attend(f"{part}.words", [q_w], states, lambda t, i: True)[0] for states in memories
        ]
        return [self.one_norm(f"{part}.words_norm", x) for x in found]

    def read(self, part, h, memories):
        q_s = self.one_norm(f"{part}.sentences_query_norm", h)
        x = self.attend(
            f"{part}.sentences", [q_s], self.summaries(part, h, memories), lambda t, i: True
        )[0]
        return plus(
            x,
            self.feed_forward(
                f"{part}.feed_forward", [self.one_norm(f"{part}.feed_forward_residual.norm", x)]
            )[0],
        )

    def mix(self, part, h, memories):
        d = self.read(part, h, memories)
        gate = sigmoid(
            affine(h + d, self.get(f"{part}.gate.weight"), self.get(f"{part}.gate.bias"))
        )
        return self.one_norm(
            f"{part}.norm", [g * a + (1 - g) * b for g, a, b in zip(gate, h, d, strict=True)]
        )


def slow_logits(weights, s, src, tgt_in, contexts=()):
    """Contexts are source ids or, where the decoder reads them, these and what it read to say
    their target sides.
    """
    slow = Slow(weights, s)
    memories = [slow.encode(context if s.side == "encoder" else context[0]) for context in contexts]
    states = slow.encode(src)
    if memories and s.side != "decoder":
        states = [slow.mix("encoder_context", h, memories) for h in states]
    hidden = slow.decode(states, tgt_in)
    if memories and s.side != "encoder":
        earlier = [
            slow.decode(memory, said) for memory, (_, said) in zip(memories, contexts, strict=True)
        ]
        hidden = [slow.mix("decoder_context", h, earlier) for h in hidden]
    return slow.logits(hidden)


SAID = {tuple(ONE): [BOS, 6, 13], tuple(TWO): [BOS, 17, 4, 8, 12], tuple(THREE): [BOS]}
"""What the decoder read to say the target sides of contexts."""


def of(*contexts, rows):
    """A context tensor of texts with their target sides; rows may name one several times."""
    said = [SAID[tuple(text)] for text in contexts]
    longest = max(map(len, said))
    tgt_in, lengths = (
        torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in said]),
        torch.tensor([len(ids) for ids in said]),
    )
    return dataclasses.replace(
        sources_of(*contexts, rows=rows),
        tgt_in=tgt_in,
        tgt_lengths=lengths,
        tgt_padded=bool((lengths < longest).any()),
    )


def test_size_of_the_paper(shared):
    """+4.73 million at d = 512."""
    with contextlib.redirect_stdout(io.StringIO()):
        audit = runpy.run_path(str(shared / "reference" / "parameter_counts.py"))
    more = parameters("han") - parameters("transformer")
    assert more == 2 * audit["mha"](512, 1) + audit["ffn"](512, 2048) + audit["lin"](
        1024, 512
    ) + 5 * audit["ln"](512)
    assert round(more / 1e6, 2) == 4.73
    assert (
        parameters("han", side="decoder") == parameters("han")
        and parameters("han", side="joint") - parameters("transformer") == 2 * more
    )


SETTINGS = [
    {},
    {"norm": "pre", "attn_bias": False},
    {"side": "decoder"},
    {"side": "joint", "norm": "pre"},
]
MIXED = [[2], [], [0, 1, 2], [1, 0]]
"""Contexts of the four sentences of `PAIRS`."""


def built(values, **more):
    return contract.Case("han", tuple((values | more).items())).build()


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_equations_with_none_one_and_three_contexts(values):
    model, texts = built(values), [ONE, TWO, THREE]
    batch = batch_of(of(*texts, rows=MIXED))
    weights, s = weights_of(model), model.settings
    for row, own, (_, tgt), (src, _) in zip(
        contract.full(model, batch), MIXED, PAIRS, PAIRS, strict=True
    ):
        contexts = [
            texts[i] if s.side == "encoder" else (texts[i], SAID[tuple(texts[i])]) for i in own
        ]
        expected = torch.tensor(
            slow_logits(weights, s, src, [BOS, *tgt[:-1]], contexts), dtype=torch.float64
        )
        torch.testing.assert_close(row[: len(tgt)], expected, rtol=1e-10, atol=1e-10)


def test_weights_of_sentences_are_a_softmax_over_those_there_are():
    """By the slow equations for one word; nothing for a sentence that is missing; with one
    sentence 1 whatever the scores.
    """
    model, texts = built({}), [ONE, TWO, THREE]
    slow = Slow(weights_of(model), model.settings)
    with capture() as seen:
        model.encode(batch_of(of(*texts, rows=MIXED)))
    (found,) = seen["encoder_context.sentences"]
    assert found.shape == (4, 4, 7, 3) and seen["encoder_context.words"][0].shape == (12, 4, 7, 7)
    part, width = "encoder_context", model.settings.d_model // 4
    h = slow.encode(PAIRS[2][0])[0]
    summaries = slow.summaries(part, h, [slow.encode(text) for text in texts])
    q = affine(
        slow.one_norm(f"{part}.sentences_query_norm", h),
        slow.get(f"{part}.sentences.query.weight"),
        slow.get(f"{part}.sentences.query.bias"),
    )
    w, b = slow.get(f"{part}.sentences.kv.weight")[:16], slow.get(f"{part}.sentences.kv.bias")[:16]
    for head in range(4):
        own = slice(head * width, (head + 1) * width)
        scores = [sum(times(q[own], affine(x, w, b)[own])) / width**0.5 for x in summaries]
        assert found[2, head, 0].tolist() == pytest.approx(softmax(scores), abs=1e-12)
    torch.testing.assert_close(found[[0, 2, 3]].sum(-1), torch.ones(3, 4, 7, dtype=torch.float64))
    assert (
        (found[0, ..., 0] == 1).all() and not found[0, ..., 1:].any() and not found[3, ..., 2].any()
    )
    (gate,) = seen["encoder_context.gate"]
    assert gate.shape == (4, 7) and [bool(row.isnan().all()) for row in gate] == [
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_the_same_sentence_several_times_is_the_sentence_once(values):
    model = built(values)
    once = contract.full(model, batch_of(of(ONE, rows=[[0]] * 4)))
    for context in (
        of(ONE, rows=[[0, 0, 0]] * 4),
        of(ONE, ONE, rows=[[0, 1]] * 4),
        of(ONE, TWO, ONE, rows=[[2, 0]] * 4),
    ):
        contract.close(contract.full(model, batch_of(context)), once)


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_neither_the_order_of_contexts_nor_that_of_the_store_matters(values):
    model = built(values)
    expected = contract.full(model, batch_of(of(ONE, TWO, THREE, rows=MIXED)))
    contract.close(
        contract.full(model, batch_of(of(ONE, TWO, THREE, rows=[[2], [], [2, 0, 1], [0, 1]]))),
        expected,
    )
    contract.close(
        contract.full(model, batch_of(of(THREE, ONE, TWO, rows=[[0], [], [1, 2, 0], [2, 1]]))),
        expected,
    )
    order = [2, 0, 3, 1]
    turned = contract.full(
        model,
        batch_of(of(ONE, TWO, THREE, rows=[MIXED[i] for i in order]), [PAIRS[i] for i in order]),
    )
    contract.close(turned, expected[order])


def test_each_context_is_encoded_once():
    """U contexts go through encoder, decoder and the projections of keys and values, however
    many sentences have them.
    """
    model, seen = built({"side": "joint"}), {}
    for name in (
        "encoder.0",
        "encoder.1",
        "decoder.0",
        "encoder_context.words.kv",
        "decoder_context.words.kv",
    ):
        model.get_submodule(name).register_forward_hook(
            lambda m, args, out, n=name: seen.setdefault(n, []).append(len(args[0]))
        )
    with capture() as captured:
        model.encode(batch_of(of(ONE, TWO, rows=[[0, 1], [1], [0, 1], [1]])))
    assert seen == {
        "encoder.0": [4, 2],
        "encoder.1": [4, 2],
        "decoder.0": [2],
        "encoder_context.words.kv": [2],
        "decoder_context.words.kv": [2],
    }
    assert (
        captured["context.decoder.0.attention"][0].shape == (2, 4, 5, 5)
        and "decoder.0.attention" not in captured
    )
    assert (
        captured["context.encoder.0.attention"][0].shape == (2, 4, 4, 4)
        and len(captured["encoder.0.attention"]) == 1
    )


def gradients(model, rows, chosen):
    """Of the loss of chosen sentences among two."""
    seed_dropout(1, 1)
    model.zero_grad()
    batch = batch_of(of(ONE, TWO, rows=rows), contract.pairs(count=2))
    logits = contract.full(model, batch)
    torch.nn.functional.cross_entropy(
        logits[chosen].flatten(0, 1), batch.tgt_out[chosen].flatten(), ignore_index=PAD
    ).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_gradients_are_finite_and_none_comes_from_sentences_without_context(values):
    model = built(values, dropout=0.1, attention_dropout=0.1).train()
    assert all(
        gradient.isfinite().all() for gradient in gradients(model, [[], [1, 0]], [0, 1]).values()
    )
    own = [name for name, _ in model.named_parameters() if "_context." in name]
    of_none, of_two = (gradients(model, [[], [1, 0]], chosen) for chosen in ([0], [1]))
    assert (
        own
        and not any(of_none[name].any() for name in own)
        and all(of_two[name].any() for name in own)
    )


@pytest.mark.parametrize("side", ["encoder", "decoder", "joint"])
def test_contexts_teach_their_reader_or_are_taken_as_they_are(side):
    """Words that only contexts hold: their embeddings learn from them, unless contexts are
    constants; what reads their states always learns.
    """
    said = set(SAID[tuple(ONE)] + SAID[tuple(TWO)]) - {BOS}
    for learning in (True, False):
        model = built({"side": side, "context_gradients": learning}).train()
        found = gradients(model, [[], [1, 0]], [1])
        spoken = {i for src, tgt in contract.pairs(count=2) for i in src + tgt}
        for table, only, read in (
            ("src", set(ONE + TWO) - spoken, True),
            ("tgt", said - spoken, side != "encoder"),
        ):
            assert only and all(
                bool(found[f"{table}_embedder.table.weight"][i].any()) == (learning and read)
                for i in only
            )
        assert all(
            found[f"{own}_context.words.kv.weight"].any()
            for own in ("encoder", "decoder")
            if side in (own, "joint")
        )
    batch = batch_of(of(ONE, TWO, rows=[[0, 1]] * 4))
    assert torch.equal(
        *(
            contract.full(built({"side": side, "context_gradients": on}), batch)
            for on in (True, False)
        )
    )


def test_what_was_said_before_counts_for_the_decoder_alone():
    """Other target sides of contexts change what a decoder's side gives, for the sentences that
    have contexts; an encoder's side never reads them.
    """
    batch = batch_of(of(ONE, TWO, rows=[[], [1], [0, 1], [0]]))
    other = batch_of(
        dataclasses.replace(
            batch.context,
            tgt_in=batch.context.tgt_in.flip(0),
            tgt_lengths=batch.context.tgt_lengths.flip(0),
        )
    )
    for side, differs in (
        ("encoder", [False] * 4),
        ("decoder", [False, True, True, True]),
        ("joint", [False, True, True, True]),
    ):
        model = built({"side": side})
        change = (contract.full(model, other) - contract.full(model, batch)).abs().amax((1, 2))
        assert (change > 1e-4).tolist() == differs and not change[0]
    with pytest.raises(ValueError, match="target sides"):
        built({"side": "decoder"}).encode(batch_of(sources_of(ONE, rows=[[0]] * 4)))


def test_which_sentences_it_wants():
    assert built({}).context_rule == ContextRule("previous", 3, "parallel", 1)
    assert built(
        {"context": "random", "context_size": 1, "context_seed": 7}
    ).context_rule == ContextRule("random", 1, "parallel", 7)
    assert built({"side": "joint", "context_size": 2}).context_rule == ContextRule(
        "previous", 2, "parallel", 1, targets=True
    )
    with pytest.raises(ConfigError, match="translated before"):
        built({"side": "decoder", "context": "next"})


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_bfloat16_autocast_stays_near_float32(values):
    """With either of two seeds: among so few words, one hidden unit next to 0 that rounding
    turns on or off is seen.
    """
    batch = batch_of(of(ONE, TWO, THREE, rows=MIXED))
    models = [
        contract.Case("han", tuple(values.items()))
        .build(seed, torch.float32, dropout=0.1, attention_dropout=0.1)
        .train()
        for seed in (1, 2)
    ]
    assert max(similarity_in_bfloat16(model, batch) for model in models) > 0.999
