"""Transformer Cycle (Takase & Kiyono 2021): layers that share parameters, in the Transformer
and in its variants.
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
    """A Transformer whose layers all have parameters of their own, with the same numbers in each
    pair of layers.
    """
    model = case.build()
    base = contract.transformer_of(model)
    assert count_parameters(base) > count_parameters(model)
    batch = contract.batch_for(model)
    contract.close(contract.full(model, batch), contract.full(base, batch))


@pytest.mark.parametrize("share", ["sequence", "cycle", "cycle-rev"])
def test_parameters_are_those_of_the_distinct_layers(share):
    """The paper's base: 12 layers with the parameters of 6."""
    deep = {"encoder_layers": 12, "decoder_layers": 12}
    for preset, v in (("base", 32_000), ("pr-base", 42_875)):
        shallow = paper_size("transformer", preset, v)
        assert paper_size("transformer", preset, v, **deep) > 1.3 * shallow
        assert paper_size("transformer", preset, v, **deep, distinct_layers=6, share=share) == (
            shallow
        )
        assert paper_size("transformer-cycle", preset, v, **deep, share=share) == shallow


def test_a_preset_gives_the_distinct_layers():
    adapt = load_variant("transformer-cycle").adapt
    assert adapt({"d_model": 8, "encoder_layers": 3, "decoder_layers": 4, "d_hidden": 1}) == {
        "d_model": 8,
        "encoder_layers": 6,
        "decoder_layers": 8,
        "distinct_layers": 3,
    }
    assert adapt({"d_model": 8}) == {"d_model": 8}
    assert adapt({"encoder_layers": 9, "distinct_layers": 2}) == {
        "encoder_layers": 9,
        "distinct_layers": 2,
    }


def test_every_transformer_has_the_settings():
    """With as many distinct layers as there are, nothing is shared."""
    transformer = load_variant("transformer")
    variants = [name for name in VARIANTS if issubclass(load_variant(name), transformer)]
    assert {"enc-dc", "pr", "amn", "context-aware", "han", "concat"} <= set(variants)
    for name in variants:
        sizes = {"encoder_layers": 4, "decoder_layers": 4}
        own = contract.Case(name).build(**sizes, distinct_layers=0)
        same = contract.Case(name).build(**sizes, distinct_layers=4)
        fewer = contract.Case(name).build(**sizes, distinct_layers=2)
        assert count_parameters(same) == count_parameters(own) > count_parameters(fewer)


def test_an_update_changes_a_shared_parameter_once():
    """Its gradient is the sum of those of its layers, and the optimiser has it once."""
    model = contract.Case("transformer-cycle").build().train()
    base = contract.transformer_of(model).train()
    batch = contract.batch_for(model)
    for each in (model, base):
        contract.loss_of(each, batch).backward()
    of_base = {name: p.grad for name, p in base.named_parameters()}
    layers = [model.encoder[0], model.encoder[3]]
    assert layers[0] is not layers[1]
    for name, parameter in layers[0].named_parameters():
        assert parameter is layers[1].get_parameter(name)
        both = of_base[f"encoder.0.{name}"] + of_base[f"encoder.3.{name}"]
        torch.testing.assert_close(parameter.grad, both, rtol=1e-9, atol=1e-12)
    names = [name for name in weights_of(model) if name.startswith("encoder.")]
    assert names and {name.split(".")[1] for name in names} == {"0", "1"}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] - parameter.grad)


def test_every_layer_is_captured_under_its_own_name():
    model = contract.Case("transformer-cycle").build()
    with capture() as seen:
        contract.full(model, contract.batch_for(model))
    for i in range(4):
        for site in (f"encoder.{i}.attention", f"decoder.{i}.attention", f"decoder.{i}.cross"):
            assert len(seen[site]) == 1, site
    assert not torch.equal(seen["encoder.0.attention"][0], seen["encoder.3.attention"][0])


def test_shared_weights_are_laid_out_once():
    torch.set_float32_matmul_precision("highest")
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
def test_settings_that_cannot_be(variant, values, message):
    with pytest.raises(ConfigError, match=message):
        contract.Case(variant).build(**values)


def test_a_part_that_one_layer_has_alone_remains_its_own():
    """context-aware: the last layer shares its self-attention, not its attention to the context."""
    values = {"encoder_layers": 4, "decoder_layers": 2, "distinct_layers": 2, "share": "cycle"}
    model = contract.Case("context-aware").build(**values)
    last, same = model.encoder[3], model.encoder[1]
    assert last.attention.qkv.weight is same.attention.qkv.weight
    assert last.feed_forward.inner.bias is same.feed_forward.inner.bias
    assert hasattr(last, "context") and not hasattr(same, "context")
    assert not any(p is q for p in last.context.parameters() for q in same.parameters())
