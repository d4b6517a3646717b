"""Weights laid out for a search give what plain ones give, and never come between a model and
its gradients.
"""

import pytest
import torch

from nmtkit.data.batches import source_batch
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.nn import private
from nmtkit.nn.embeddings import Embedding, OutputLayer
from nmtkit.nn.linear import Linear, inference, pack


def plain_product(layer, x):
    return torch.nn.functional.linear(x, layer.weight, layer.bias)


@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (130, 24), (3, 5, 24), (0, 24)])
@pytest.mark.parametrize(("out", "bias"), [(40, True), (40, False), (1, True)])
@pytest.mark.parametrize("relu", [False, True])
def test_packed_equals_plain(onednn, shape, out, bias, relu):
    torch.manual_seed(1)
    layer = Linear(24, out, bias)
    if bias:
        torch.nn.init.normal_(layer.bias)
    x = torch.randn(shape)
    exact = x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    exact = exact.clamp(min=0) if relu else exact
    pack(layer)
    assert layer.packed is not None
    with inference([layer]):
        torch.testing.assert_close(layer(x, relu).double(), exact, rtol=0, atol=1e-5)
        columns = torch.randn(24, 9).T  # not contiguous
        torch.testing.assert_close(
            layer(columns),
            plain_product(layer, columns),
            rtol=0,
            atol=1e-5,
        )


def test_packed_output_layer_keeps_its_tie(onednn):
    torch.manual_seed(1)
    table = Embedding(50, 24)
    layer = OutputLayer(50, 24, table, bias=True)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(6, 24)
    pack(layer)
    assert layer.packed is not None
    assert layer.weight is table.weight
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ table.weight.T + layer.bias, rtol=0, atol=1e-5)


def test_packed_weights_are_not_used_where_a_gradient_or_another_type_is_wanted(onednn):
    torch.manual_seed(1)
    layer = Linear(24, 40)
    pack(layer)
    layer.weight.data.add_(1)  # what is packed is stale now: whoever reads it shows it
    x = torch.randn(6, 24)
    plain = plain_product(layer, x)
    y = layer(x)
    assert torch.equal(y, plain)
    y.sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        assert not torch.allclose(layer(x), plain)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
            torch.testing.assert_close(layer(x).float(), plain, rtol=0.02, atol=0.2)
        assert torch.equal(
            layer.double()(x.double()),
            plain_product(layer, x.double()),
        )


@pytest.mark.parametrize("long_vectors", [True, False])
def test_packed_where_onednn_knows_the_cpu_s_long_vectors(default_path, monkeypatch, long_vectors):
    """A CPU that multiplies numbers of 16 bits has them; on others plain products are the faster
    ones.
    """
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: long_vectors)
    layer = Linear(24, 40)
    pack(layer)
    assert (layer.packed is not None) == long_vectors


def test_every_product_of_a_transformer_is_packed(onednn):
    settings = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = build_model("transformer", settings, Vocabularies(30, 30, True)).eval()
    pack(model)
    plain = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (Linear, OutputLayer)) and module.packed is None
    ]
    assert plain == []


@pytest.fixture(params=["this CPU", "a CPU without products of 16 bits"])
def any_cpu(request, monkeypatch):
    if request.param != "this CPU":
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)


@pytest.mark.parametrize("path", ["medium", "highest"])
@pytest.mark.parametrize(("shape", "relu"), [((7, 160), False), ((2, 5, 160), True)])
def test_factors_are_rounded_and_sums_are_not_in_bfloat16(default_path, any_cpu, path, shape, relu):
    torch.set_float32_matmul_precision(path)
    torch.manual_seed(1)
    layer = Linear(160, 192)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(shape)
    pack(layer, "bfloat16")
    exact = x.bfloat16().double() @ layer.weight.bfloat16().double().T + layer.bias.double()
    exact = exact.clamp(min=0) if relu else exact
    with inference([layer]):
        y = layer(x, relu)
        assert y.dtype == (torch.bfloat16 if relu else torch.float32)
        torch.testing.assert_close(
            y.double(), exact, rtol=2**-8, atol=1e-5
        )  # the result is rounded once
        assert torch.equal(layer(x.bfloat16(), relu), y)


def test_narrow_layers_and_scores_stay_float32_in_bfloat16(onednn):
    torch.manual_seed(1)
    narrow, output = Linear(64, 160), OutputLayer(160, 160, None, bias=True)
    for layer, width in ((narrow, 64), (output, 160)):
        pack(layer, "bfloat16")
        x = torch.randn(6, width)
        with inference([layer]):
            torch.testing.assert_close(layer(x), plain_product(layer, x), rtol=0, atol=1e-5)


def test_a_transformer_in_bfloat16_is_close_to_itself(onednn, any_cpu):
    """Feed-forward layers hand 16 bits from one product to the next; what comes out has 32."""
    torch.manual_seed(1)
    settings = {"d_model": 128, "d_ff": 256, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    batch = source_batch([[5, 6, 7, 2], [8, 9, 2]], "cpu")
    read = torch.tensor([[1, 5, 6], [1, 8, 9]])
    logits = []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(2)
        model = build_model("transformer", settings, Vocabularies(30, 30, True)).eval()
        pack(model, precision)
        with inference([model]):
            logits.append(model.logits(model.decode(read, model.encode(batch))[0]))
    assert logits[1].dtype == torch.float32
    error = float((logits[0] - logits[1]).norm() / logits[0].norm())
    assert 1e-4 < error < 2e-2


class NoOperators:
    """torch.ops.mkldnn of a version without its private functions."""


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_without_torchs_private_functions_products_are_the_plain_ones(
    onednn, monkeypatch, precision
):
    torch.manual_seed(1)
    layer, x = Linear(160, 192), torch.randn(7, 160)
    with inference([layer]):
        pack(layer, precision)
        packed = layer(x)
        monkeypatch.setattr(torch.ops, "mkldnn", NoOperators())
        pack(layer, precision)
        assert layer.packed is None or not layer.packed.is_mkldnn
        # A product of 16 bits rounds its result, too.
        rounding = 2**-8 if precision == "bfloat16" else 0
        torch.testing.assert_close(layer(x), packed, rtol=rounding, atol=1e-5)


def test_the_softmax_has_its_gradient_without_torchs_private_function(monkeypatch):
    torch.manual_seed(1)
    weights, grad = torch.randn(2, 3, 5).softmax(-1), torch.randn(2, 3, 5)
    wanted = private.softmax_backward(grad, weights)
    monkeypatch.delattr(torch, "_softmax_backward_data")
    torch.testing.assert_close(private.softmax_backward(grad, weights), wanted)
