"""Models that read contexts one by one: equations, encoding of each context once, gradients."""

import dataclasses

import pytest
import torch

from nmtkit.nn.dropout import seed_dropout
from nmtkit.text.vocabulary import BOS, PAD
from tests.models import contract, test_context_aware, test_han, test_memory
from tests.models.contexts import MIXED, ONE, PAIRS, TGT_IN, THREE, TWO, batch_of
from tests.models.contract import transformer_of

SLOW = {"amn": test_memory, "han": test_han, "context-aware": test_context_aware}
"""The slow implementation of each variant."""
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
BATCH_MEMORY = [
    ("amn", {"memory_scope": "batch"}),
    ("amn", {"memory_scope": "batch", "inter_attention": False}),
]
ONE_CONTEXT = [  # at most one context a sentence
    ("context-aware", {}),
    ("context-aware", {"norm": "pre", "attn_bias": False}),
    ("context-aware", {"encoder_layers": 1}),
]


def built(variant, values, **more):
    """Return a model without dropout, in training mode if its memory is that of a batch."""
    return contract.Case(variant).build(**values, **more).train("memory_scope" in values)


def for_each(settings):
    return pytest.mark.parametrize(("variant", "values"), settings, ids=str)


@for_each(SETTINGS + BATCH_MEMORY + ONE_CONTEXT)
def test_sentences_with_0_to_3_contexts_equal_the_slow_equations(variant, values):
    model, texts = built(variant, values), [ONE, TWO, THREE]
    rows = [[2], [], [0], [2]] if variant == "context-aware" else MIXED
    weights, s = contract.numbers(model), model.settings
    if model.context_rule.targets:
        texts = [(text, TGT_IN[tuple(text)]) for text in texts]
    logits = contract.full(model, batch_of(ONE, TWO, THREE, rows=rows))
    for row, numbers, (src, tgt) in zip(logits, rows, PAIRS, strict=True):
        if numbers and "memory_scope" in values:
            numbers = range(3)
        contexts = [texts[i] for i in numbers]
        slow = SLOW[variant].slow_logits(weights, s, src, [BOS, *tgt[:-1]], contexts)
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
    """Each of two contexts is encoded and projected to keys and values once, for all four
    sentences; in a search without gradients.
    """
    model, rows = built(variant, values), {}

    def count(name, rows_of_input):
        assert not torch.is_grad_enabled()
        rows.setdefault(name, []).append(rows_of_input)

    for name in expected:
        model.get_submodule(name).register_forward_hook(
            lambda m, args, out, name=name: count(name, len(args[0]))
        )
    with torch.no_grad():
        model.encode(batch_of(ONE, TWO, rows=[[0], [1], [], [1]]))
    assert rows == expected


@for_each(SETTINGS + BATCH_MEMORY + ONE_CONTEXT)
def test_only_sentences_with_contexts_give_gradients_to_context_parameters(variant, values):
    model = built(variant, values, dropout=0.1, attention_dropout=0.1).train()
    context_parameters = set(model.state_dict()) - set(transformer_of(model).state_dict())
    rows = [[], [1]] if variant == "context-aware" else [[], [1, 0]]
    batch = batch_of(ONE, TWO, rows=rows, sentences=contract.pairs(count=2))
    for without_loss, reached in (([], True), ([0], True), ([1], False)):
        tgt_out = batch.tgt_out.clone()
        tgt_out[without_loss] = PAD
        seed_dropout(1, 1)
        model.zero_grad()
        contract.loss_of(model, dataclasses.replace(batch, tgt_out=tgt_out)).backward()
        for name in context_parameters:
            gradient = model.get_parameter(name).grad
            assert gradient.isfinite().all() and bool(gradient.any()) == reached, name


def test_models_with_the_same_contexts_have_equal_rules():
    """Ensembles need equal rules; the form of contexts in a packed batch is no part of a rule."""
    variants = ("amn", "context-aware", "concat")
    assert len({contract.Case(variant).build().context_rule for variant in variants}) == 1
