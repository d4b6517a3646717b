"""Transformer Cycle (Takase & Kiyono 2023): layers that share parameters, in all Transformer
variants.
"""

import pytest
import torch

from nmtkit.errors import ConfigError
from nmtkit.models.loading import weights_of
from nmtkit.models.variants import VARIANTS, count_parameters, load_variant
from nmtkit.nn.capture import capture
from nmtkit.nn.linear import pack
from tests.models import contract, test_transformer
from tests.models.contract import paper_size

BASELINE = "transformer"
count, slow_logits = test_transformer.count, test_transformer.slow_logits


def without_idea(case):
    """The model equals a Transformer whose layers have equal numbers in place of shared parameters."""
    model = case.build()
    base = contract.transformer_of(model)
    assert count_parameters(base) > count_parameters(model)
    batch = contract.batch_for(model)
    contract.close(contract.full(model, batch), contract.full(base, batch))


@pytest.mark.parametrize("share", ["sequence", "cycle", "cycle-rev"])
def test_size_is_that_of_the_distinct_layers(share):
    """The paper's base: 12 layers with the parameters of 6."""
    deep = {"encoder_layers": 12, "decoder_layers": 12}
    for preset, v in (("base", 32_000), ("pr-base", 42_875)):
        shallow = paper_size("transformer", preset, v)
        assert paper_size("transformer", preset, v, **deep) > 1.3 * shallow
        assert paper_size("transformer", preset, v, **deep, distinct_layers=6, share=share) == (
            shallow
        )
        assert paper_size("transformer-cycle", preset, v, **deep, share=share) == shallow


@pytest.mark.parametrize(
    ("sizes", "adapted"),
    [
        (
            {"d_model": 8, "encoder_layers": 3, "decoder_layers": 4, "d_hidden": 1},
            {"d_model": 8, "encoder_layers": 6, "decoder_layers": 8, "distinct_layers": 3},
        ),
        ({"d_model": 8}, {"d_model": 8}),
        ({"encoder_layers": 9, "distinct_layers": 2}, {"encoder_layers": 9, "distinct_layers": 2}),
    ],
)
def test_preset_layers_become_the_distinct_layers(sizes, adapted):
    assert load_variant("transformer-cycle").adapt(sizes) == adapted


def test_every_transformer_variant_can_share_layers():
    """With as many distinct layers as there are layers, nothing is shared."""
    transformer = load_variant("transformer")
    variants = [name for name in VARIANTS if issubclass(load_variant(name), transformer)]
    assert {"enc-dc", "pr", "amn", "context-aware", "han", "concat"} <= set(variants)
    sizes = {"encoder_layers": 4, "decoder_layers": 4}
    for name in variants:
        plain, all_distinct, shared = (
            count_parameters(contract.Case(name).build(**sizes, distinct_layers=n))
            for n in (0, 4, 2)
        )
        assert all_distinct == plain > shared, name


def test_gradient_of_a_shared_parameter_is_the_sum_over_its_layers():
    model = contract.Case("transformer-cycle").build().train()
    base, batch = contract.transformer_of(model).train(), contract.batch_for(model)
    for each in (model, base):
        contract.loss_of(each, batch).backward()
    of_base = {name: p.grad for name, p in base.named_parameters()}
    assert model.encoder[0] is not model.encoder[3]
    for name, parameter in model.encoder[0].named_parameters():
        assert parameter is model.encoder[3].get_parameter(name)
        both = of_base[f"encoder.0.{name}"] + of_base[f"encoder.3.{name}"]
        torch.testing.assert_close(parameter.grad, both, rtol=1e-9, atol=1e-12)


def test_shared_parameter_is_saved_once():
    names = weights_of(contract.Case("transformer-cycle").build())
    assert {name.split(".")[1] for name in names if name.startswith("encoder.")} == {"0", "1"}


def test_layers_that_share_are_captured_under_separate_names():
    model = contract.Case("transformer-cycle").build()
    with capture() as seen:
        contract.full(model, contract.batch_for(model))
    for i in range(4):
        for site in (f"encoder.{i}.attention", f"decoder.{i}.attention", f"decoder.{i}.cross"):
            assert len(seen[site]) == 1, site
    assert not torch.equal(seen["encoder.0.attention"][0], seen["encoder.3.attention"][0])


def test_shared_weights_are_packed_once(default_path):
    model = contract.Case("transformer-cycle").build(dtype=torch.float32, d_model=128)
    batch = contract.batch_for(model)
    with torch.inference_mode():
        before = contract.full(model, batch)
        pack(model, "bfloat16")
        after = contract.full(model, batch)
    first, last = (model.encoder[i].attention.qkv for i in (0, 3))
    assert first.packed is not None and first.packed is last.packed
    torch.testing.assert_close(after, before, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("variant", "values", "message"),
    [
        ("transformer", {"distinct_layers": 3}, "2 layers cannot use 3 distinct ones"),
        ("transformer", {"share": "cycle"}, "no layers share parameters"),
        (
            "enc-dc",
            {"layers": "1-1", "distinct_layers": 1, "share": "cycle"},
            "layers 1 and 2 differ and cannot share parameters",
        ),
    ],
)
def test_incompatible_settings_are_refused(variant, values, message):
    with pytest.raises(ConfigError, match=message):
        contract.Case(variant).build(**values)


def test_extra_part_of_one_layer_is_not_shared():
    """In context-aware, the last layer shares self-attention and feed-forward, not attention to
    context.
    """
    values = {"encoder_layers": 4, "decoder_layers": 2, "distinct_layers": 2, "share": "cycle"}
    model = contract.Case("context-aware").build(**values)
    last, same = model.encoder[3], model.encoder[1]
    assert last.attention.qkv.weight is same.attention.qkv.weight
    assert last.feed_forward.inner.bias is same.feed_forward.inner.bias
    assert hasattr(last, "context") and not hasattr(same, "context")
    assert not any(p is q for p in last.context.parameters() for q in same.parameters())
