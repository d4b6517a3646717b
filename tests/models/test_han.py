"""Hierarchical attention networks (Miculicich et al. 2018): size, equations word by word, contexts."""

import dataclasses
from functools import partial

import pytest
import torch

from nmtkit.data.documents import ContextRule
from nmtkit.errors import ConfigError
from nmtkit.nn.capture import capture
from nmtkit.text.vocabulary import BOS
from tests.device import DEVICE
from tests.models import contract, test_transformer
from tests.models.contexts import (  # noqa: F401
    MIXED,
    ONE,
    PAIRS,
    SHORT,
    TGT_IN,
    THREE,
    TWO,
    batch_of,
    without_idea,
)
from tests.models.contract import paper_size
from tests.models.slow import affine, block, dropped, mixed, plus, sigmoid, softmax, times

BASELINE = "transformer"


def count(s, v):
    """Return the Transformer's parameters and, for each side, two attentions, a feed-forward layer,
    a gate and five norms.
    """
    d, (attention, feed_forward) = s.d_model, test_transformer.sublayers(s)
    side = 2 * attention + feed_forward + 2 * d * d + d + 5 * 2 * d
    return test_transformer.count(s, v) + side * (2 if s.side == "joint" else 1)


class Slow(test_transformer.Slow):
    """One word at a time: Eqs. 2-6, with the layer norms of the authors' code."""

    def one_norm(self, name, x):
        return self.norm(name, [x])[0]

    def summaries(self, part, h, memories):
        q_w = self.one_norm(f"{part}.words_query_norm", h)
        found = [self.attend(f"{part}.words", [q_w], states)[0] for states in memories]
        return [self.one_norm(f"{part}.words_norm", x) for x in found]

    def read(self, part, h, memories):
        q_s = self.one_norm(f"{part}.sentences_query_norm", h)
        x = self.attend(f"{part}.sentences", [q_s], self.summaries(part, h, memories))[0]
        fed = self.norm(f"{part}.feed_forward_residual.norm", [x])
        fed = self.feed_forward(f"{part}.feed_forward", fed)[0]
        return plus(x, dropped(fed, self.s.dropout))

    def mix(self, part, h, memories):
        d = self.read(part, h, memories)
        gate = sigmoid(self.linear(f"{part}.gate", h + d))
        return self.one_norm(f"{part}.norm", mixed(gate, d, h))


def slow_logits(weights, s, src, tgt_in, contexts=()):
    """Contexts are source ids, or pairs of source ids and decoder input if the decoder reads them."""
    slow = Slow(weights, s)
    memories = [slow.encode(context if s.side == "encoder" else context[0]) for context in contexts]
    states = slow.encode(src)
    if memories and s.side != "decoder":
        states = [slow.mix("encoder_context", h, memories) for h in states]
    hidden = slow.decode(states, tgt_in)
    if memories and s.side != "encoder":
        earlier = [
            slow.decode(*pair) for pair in zip(memories, (c[1] for c in contexts), strict=True)
        ]
        hidden = [slow.mix("decoder_context", h, earlier) for h in hidden]
    return slow.logits(hidden)


def test_size_of_the_paper(audit):
    """+4.73 million at d = 512."""
    size = partial(paper_size, preset="amn", vocabulary=32_000, shared=False)
    more = size("han") - size("transformer")
    attentions, gate = 2 * audit["mha"](512, 1), audit["lin"](1024, 512)
    assert more == attentions + audit["ffn"](512, 2048) + gate + 5 * audit["ln"](512)
    assert round(more / 1e6, 2) == 4.73
    assert size("han", side="decoder") == size("han")
    assert size("han", side="joint") - size("transformer") == 2 * more


def built(values):
    return contract.Case("han").build(**values)


@pytest.fixture
def captured():
    """A model, and what it records of sentences with contexts `MIXED`."""
    model = built({})
    with capture() as seen:
        model.encode(batch_of(ONE, TWO, THREE, rows=MIXED))
    return model, {name: tensors[0] for name, tensors in seen.items()}


def test_sentence_weights_equal_the_slow_equations_for_one_word(captured):
    model, seen = captured
    slow = Slow(contract.numbers(model), model.settings)
    part, d = "encoder_context", model.settings.d_model
    h = slow.encode(PAIRS[2][0])[0]
    summaries = slow.summaries(part, h, [slow.encode(text) for text in (ONE, TWO, THREE)])
    q = slow.one_norm(f"{part}.sentences_query_norm", h)
    q = slow.linear(f"{part}.sentences.query", q)
    w, b = (slow.get(f"{part}.sentences.kv.{kind}")[:d] for kind in ("weight", "bias"))
    keys = [affine(x, w, b) for x in summaries]
    for head in range(4):
        scores = [sum(times(block(q, head, 4), block(k, head, 4))) / (d // 4) ** 0.5 for k in keys]
        weights = seen[f"{part}.sentences"][2, head, 0].tolist()
        assert weights == pytest.approx(softmax(scores), abs=1e-12)


def test_sentence_weights_sum_to_1_over_existing_contexts(captured):
    _, seen = captured
    weights = seen["encoder_context.sentences"]
    assert weights.shape == (4, 4, 7, 3) and seen["encoder_context.words"].shape == (12, 4, 7, 7)
    ones = torch.ones(3, 4, 7, dtype=torch.float64)
    torch.testing.assert_close(weights[[0, 2, 3]].sum(-1), ones)
    assert (weights[0, ..., 0] == 1).all()
    assert not weights[0, ..., 1:].any() and not weights[3, ..., 2].any()


def test_gate_is_recorded_for_sentences_with_contexts(captured):
    gate = captured[1]["encoder_context.gate"]
    assert gate.shape == (4, 7)
    assert [bool(row.isnan().all()) for row in gate] == [False, True, False, False]


def test_attention_inside_contexts_is_captured_under_separate_names():
    with capture() as seen:
        built({"side": "joint"}).encode(batch_of(ONE, TWO, rows=[[0, 1], [1], [0, 1], [1]]))
    assert seen["context.decoder.0.attention"][0].shape == (2, 4, 5, 5)
    assert seen["context.encoder.0.attention"][0].shape == (2, 4, 4, 4)
    assert "decoder.0.attention" not in seen and len(seen["encoder.0.attention"]) == 1


@pytest.mark.parametrize("gradients", [True, False])
def test_packed_row_and_contexts_share_an_encoder_pass_unless_contexts_are_constants(gradients):
    model, passes = built({"context_gradients": gradients}), []
    model.encoder[0].register_forward_hook(lambda *_: passes.append(1))
    batch = contract.packed_for(model)
    model.encode(batch)
    assert batch.context.copies and len(passes) == (1 if gradients else 2)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("side", ["encoder", "decoder", "joint"])
def test_context_words_learn_unless_contexts_are_constants(side, gradients):
    """Words that occur only in contexts have no gradient if contexts are constants. The module that
    reads the contexts always learns.
    """
    sentences = contract.pairs(count=2)
    batch = batch_of(ONE, TWO, rows=[[], [1, 0]], sentences=sentences)
    model, other = (
        built({"side": side, "context_gradients": on}) for on in (gradients, not gradients)
    )
    loss = contract.loss_of(model, batch)
    assert loss == contract.loss_of(other, batch)
    loss.backward()
    outside_contexts = {i for src, tgt in sentences for i in src + tgt}
    tgt_in = TGT_IN[tuple(ONE)] + TGT_IN[tuple(TWO)]
    for table, words, read in (
        ("src", set(ONE + TWO) - outside_contexts, True),
        ("tgt", set(tgt_in) - {BOS} - outside_contexts, side != "encoder"),
    ):
        gradient = model.get_submodule(f"{table}_embedder").table.weight.grad
        assert words and all(bool(gradient[i].any()) == (gradients and read) for i in words)
    for reader in ("encoder", "decoder"):
        if side in (reader, "joint"):
            assert model.get_submodule(f"{reader}_context").words.kv.weight.grad.any()


def test_only_decoder_contexts_read_target_sides():
    """Exchanged target sides change the results of sentences with contexts, on the decoder side
    only.
    """
    batch = batch_of(ONE, TWO, rows=[[], [1], [0, 1], [0]])
    context = batch.context
    turned = {"tgt_in": context.tgt_in.flip(0), "tgt_lengths": context.tgt_lengths.flip(0)}
    other = dataclasses.replace(batch, context=dataclasses.replace(context, **turned))
    for side, differs in (
        ("encoder", [False] * 4),
        ("decoder", [False, True, True, True]),
        ("joint", [False, True, True, True]),
    ):
        model = built({"side": side})
        change = (contract.full(model, other) - contract.full(model, batch)).abs().amax((1, 2))
        assert (change > 1e-4).tolist() == differs and not change[0]
    sources = dataclasses.replace(context, tgt_in=None, tgt_lengths=None)
    with pytest.raises(ValueError, match="target sides"):
        built({"side": "decoder"}).encode(dataclasses.replace(batch, context=sources))


def test_target_sides_of_sources_of_one_length_are_padded():
    """The sources of the contexts have no padding, their target sides have."""
    model, rows, texts = built({"side": "decoder"}), [[0, 1], [], [1], [0]], [TWO, SHORT]
    batch = batch_of(*texts, rows=rows)
    assert batch.context.tgt_padded and not batch.context.padded
    weights = contract.numbers(model)
    for row, numbers, (src, tgt) in zip(contract.full(model, batch), rows, PAIRS, strict=True):
        contexts = [(texts[i], TGT_IN[tuple(texts[i])]) for i in numbers]
        slow = slow_logits(weights, model.settings, src, [BOS, *tgt[:-1]], contexts)
        contract.close(row[: len(tgt)], torch.tensor(slow, dtype=torch.float64))


def test_sentence_weights_of_several_rows_a_sentence_are_captured_row_by_row():
    model = built({"side": "decoder"})
    batch = batch_of(ONE, TWO, THREE, rows=MIXED)
    memory, seen = model.encode(batch), []
    for rows in (1, 3):
        with capture() as captured:
            model.decode(batch.tgt_in.repeat_interleave(rows, dim=0), memory)
        seen.append(captured["decoder_context.sentences"][0])  # (B, H, K·T, J)
    of_rows = seen[1].unflatten(2, (3, -1))
    contract.close(of_rows, seen[0].unsqueeze(2).expand_as(of_rows))


def test_sentence_scores_stay_in_float32_under_bfloat16():
    """bfloat16 rounds scores around 50 to multiples of a quarter."""
    model, batch = built({"dtype": torch.float32}), batch_of(ONE, TWO, THREE, rows=MIXED)
    sentences, seen = model.encoder_context.sentences, []
    with torch.no_grad():
        for part in (sentences.query, sentences.kv):  # the same number of all queries and keys
            part.weight[:16:4], part.bias[:16:4] = 0, 10
    for narrow in (False, True):
        with capture() as captured, torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            model.encode(batch)
        seen.append(captured["encoder_context.sentences"][0].float())
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0.02)


def test_context_rule_follows_the_settings():
    assert built({}).context_rule == ContextRule("previous", 3, "parallel", 1)
    random = {"context": "random", "context_size": 1, "context_seed": 7}
    assert built(random).context_rule == ContextRule("random", 1, "parallel", 7)
    joint = ContextRule("previous", 2, "parallel", 1, targets=True)
    assert built({"side": "joint", "context_size": 2}).context_rule == joint
    for side, context in (("decoder", "next"), ("decoder", "random"), ("joint", "foreign")):
        with pytest.raises(ConfigError, match="translated before"):
            built({"side": side, "context": context})
