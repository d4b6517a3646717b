"""What is true of every model that reads contexts one by one."""

import dataclasses

import pytest
import torch

from nmtkit.nn.dropout import seed_dropout
from nmtkit.text.vocabulary import BOS
from tests.models import contract, test_context_aware, test_han, test_memory
from tests.models.contexts import MIXED, ONE, PAIRS, THREE, TWO, batch_of, transformer_of

ORACLES = {"amn": test_memory, "han": test_han, "context-aware": test_context_aware}
PARALLEL = {"context_join": "parallel"}
SETTINGS = [
    ("amn", PARALLEL),
    ("amn", PARALLEL | {"share_first_attention": False, "context_encoder": "lstm"}),
    (
        "amn",
        PARALLEL | {"query_from": "encoder", "context_residual": True, "context_encoder": "bigru"},
    ),
    ("amn", PARALLEL | {"context_encoder": "none", "norm": "pre", "attn_bias": False}),
    ("amn", PARALLEL | {"inter_attention": False, "context_residual": True}),
    ("amn", PARALLEL | {"inter_attention": False, "context_encoder": "transformer"}),
    ("han", {}),
    ("han", {"norm": "pre", "attn_bias": False}),
    ("han", {"side": "decoder"}),
    ("han", {"side": "joint", "norm": "pre"}),
]
OF_BATCH = [
    ("amn", {"memory_scope": "batch"}),
    ("amn", {"memory_scope": "batch", "inter_attention": False}),
]
WITH_ONE = [  # at most one context a sentence
    ("context-aware", {}),
    ("context-aware", {"norm": "pre", "attn_bias": False}),
    ("context-aware", {"encoder_layers": 1}),
]


def built(variant, values, **more):
    """A model without dropout; the memory of a batch is one of training."""
    return contract.Case(variant).build(**values, **more).train("memory_scope" in values)


def for_each(settings):
    return pytest.mark.parametrize(("variant", "values"), settings, ids=str)


@for_each(SETTINGS + OF_BATCH + WITH_ONE)
def test_equations_with_none_one_and_three_contexts(variant, values):
    model, texts = built(variant, values), [ONE, TWO, THREE]
    rows = [[2], [], [0], [2]] if variant == "context-aware" else MIXED
    batch, oracle = batch_of(*texts, rows=rows), ORACLES[variant]
    weights, s = contract.numbers(model), model.settings
    for row, own, (src, tgt) in zip(contract.full(model, batch), rows, PAIRS, strict=True):
        everything = range(3) if "memory_scope" in values and own else own
        contexts = [oracle.as_read(s, texts[i]) for i in everything]
        slow = oracle.slow_logits(weights, s, src, [BOS, *tgt[:-1]], contexts)
        contract.close(row[: len(tgt)], torch.tensor(slow, dtype=torch.float64))


@pytest.mark.parametrize(
    ("variant", "values", "expected"),
    [
        (
            "amn",
            PARALLEL,
            {"memory.encoder.rnn": [2], "memory.first": [4, 2], "memory.inter.kv": [2]},
        ),
        (
            "han",
            {"side": "joint"},
            {
                "encoder.0": [4, 2],
                "encoder.1": [4, 2],
                "decoder.0": [2],
                "encoder_context.words.kv": [2],
                "decoder_context.words.kv": [2],
            },
        ),
        ("context-aware", {}, {"context_layer": [2]}),
    ],
)
def test_each_context_is_encoded_once(variant, values, expected):
    """Two contexts go through the encoder and the projections of keys and values, however many
    of the four sentences have them.
    """
    model, rows = built(variant, values), {}
    for name in expected:
        model.get_submodule(name).register_forward_hook(
            lambda m, args, out, name=name: rows.setdefault(name, []).append(len(args[0]))
        )
    model.encode(batch_of(ONE, TWO, rows=[[0], [1], [], [1]]))
    assert rows == expected


@for_each(SETTINGS + OF_BATCH + WITH_ONE)
def test_gradients_are_finite_and_none_comes_from_sentences_without_context(variant, values):
    model = built(variant, values, dropout=0.1, attention_dropout=0.1).train()
    own = set(model.state_dict()) - set(transformer_of(model).state_dict())
    sentences = contract.pairs(count=2)
    rows = [[], [1]] if variant == "context-aware" else [[], [1, 0]]
    batch = batch_of(ONE, TWO, rows=rows, sentences=sentences)
    for silenced, reached in ((None, True), (0, True), (1, False)):
        tgt_out = batch.tgt_out.clone()
        if silenced is not None:
            tgt_out[silenced] = 0
        seed_dropout(1, 1)
        model.zero_grad()
        contract.loss_of(model, dataclasses.replace(batch, tgt_out=tgt_out)).backward()
        for name, parameter in model.named_parameters():
            if name in own:
                assert parameter.grad.isfinite().all(), name
                assert bool(parameter.grad.any()) == reached, name


def test_models_that_read_the_same_sentences_may_be_searched_together():
    """What a packed batch makes of contexts is no part of the rule, which an ensemble shares."""
    variants = ("amn", "context-aware", "concat")
    assert len({contract.Case(variant).build().context_rule for variant in variants}) == 1
