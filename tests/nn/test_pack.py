"""Weights packed for search: same products as plain weights, never used where a gradient is needed."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.data.batches import source_batch
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.nn import cpu, private
from nmtkit.nn.embeddings import Embedding, OutputLayer
from nmtkit.nn.linear import WIDE, Linear, inference, pack, rounds


def plain_product(layer, x):
    return torch.nn.functional.linear(x, layer.weight, layer.bias)


@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (130, 24), (3, 5, 24), (0, 24)])
@pytest.mark.parametrize(("out", "bias"), [(40, True), (40, False), (1, True)])
@pytest.mark.parametrize("relu", [False, True])
def test_packed_product_equals_plain_product(onednn, shape, out, bias, relu):
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


def test_packed_output_layer_stays_tied(onednn):
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


def test_packed_weights_are_unused_with_gradients_or_other_types(onednn):
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
def test_weights_are_packed_only_on_a_cpu_with_long_vectors(
    packs, default_path, monkeypatch, long_vectors
):
    """Other CPUs multiply faster without."""
    monkeypatch.setattr(private, "multiplies_bfloat16", lambda: long_vectors)
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
        monkeypatch.setattr(private, "multiplies_bfloat16", lambda: False)


@pytest.mark.parametrize("path", ["medium", "highest"])
@pytest.mark.parametrize(("shape", "relu"), [((7, 160), False), ((2, 5, 160), True)])
def test_bfloat16_products_round_factors_but_not_sums(default_path, any_cpu, path, shape, relu):
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


@pytest.mark.parametrize("bias", [True, False])
def test_bfloat16_copies_save_a_cast_and_change_no_product(bias):
    torch.manual_seed(1)
    layer, x = Linear(64, 160, bias), torch.randn(6, 64)
    layer.narrow = torch.bfloat16
    with inference([layer]):
        rounded = layer(x)
        layer.keep_copies(torch.bfloat16)
        operations = Casts()
        with operations:
            assert torch.equal(layer(x), rounded)
    assert operations.count == 1  # of x
    assert layer(x).dtype == torch.float32
    layer.keep_copies(None)
    assert layer.copies is None


def test_narrow_layers_and_logits_stay_float32_in_bfloat16(onednn):
    torch.manual_seed(1)
    narrow, output = Linear(64, 160), OutputLayer(160, 160, None, bias=True)
    for layer, width in ((narrow, 64), (output, 160)):
        pack(layer, "bfloat16")
        x = torch.randn(6, width)
        with inference([layer]):
            torch.testing.assert_close(layer(x), plain_product(layer, x), rtol=0, atol=1e-5)


def test_transformer_in_bfloat16_stays_near_float32(onednn, any_cpu):
    """Feed-forward layers pass 16 bits between their products; the logits have 32."""
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


class Casts(TorchDispatchMode):
    """Counts changes of number types."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += operation._schema.name == "aten::to"
        return operation(*args, **(kwargs or {}))


class NoOperators:
    """torch.ops.mkldnn or torch.ops.onednn of a version that lacks these functions."""


@pytest.fixture(params=["oneDNN's int8", "no operators", "a CPU that sums in 16 bits"])
def any_int8(request, monkeypatch):
    if request.param == "no operators":
        monkeypatch.setattr(torch.ops, "onednn", NoOperators())
    elif request.param == "a CPU that sums in 16 bits":
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False, raising=False)


def rounded(row):
    """Return a row rounded to multiples -127 … 127 of the 127th part of its largest number."""
    distance = max(abs(number) for number in row) / 127
    return [round(number / distance) * distance if distance else 0.0 for number in row]


def slow_int8(layer, x, relu):
    """Quantise, multiply and sum one number at a time."""
    weight = [rounded(row) for row in layer.weight.double().tolist()]
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.double().tolist()
    results = []
    for row in x.double().flatten(0, -2).tolist():
        given = rounded(row)
        sums = [
            sum(a * b for a, b in zip(given, column, strict=True)) + added
            for column, added in zip(weight, bias, strict=True)
        ]
        results.append([max(0.0, y) if relu else y for y in sums])
    return torch.tensor(results, dtype=torch.float64).view(*x.shape[:-1], len(weight))


@pytest.mark.parametrize("shape", [(1, 136), (7, 136), (3, 2, 136), (0, 136)])
@pytest.mark.parametrize(("relu", "bias"), [(False, True), (True, True), (False, False)])
def test_int8_products_equal_the_product_of_rounded_factors(onednn, any_int8, shape, relu, bias):
    torch.manual_seed(1)
    layer = Linear(136, 130, bias)
    if bias:
        torch.nn.init.normal_(layer.bias)
    with torch.no_grad():
        layer.weight[3] = 0
        layer.weight[4] *= 1000
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))
    x[1:2] = 0
    pack(layer, "int8")
    exact = slow_int8(layer, x, relu)
    with inference([layer]):
        y = layer(x, relu)
        assert y.dtype == torch.float32
        size = x.double().abs().amax(-1, keepdim=True) * layer.weight.double().abs().amax(1) * 136
        assert ((y.double() - exact).abs() <= 1e-6 * size + 1e-6).all()
        turned = x.mT.contiguous().mT  # the same numbers, not contiguous
        assert torch.equal(layer(turned, relu), y)


def test_int8_rows_do_not_depend_on_one_another(onednn, any_int8):
    torch.manual_seed(1)
    layer, x = Linear(256, 256), torch.randn(150, 256) * torch.logspace(-2, 2, 150)[:, None]
    pack(layer, "int8")
    with inference([layer]):
        few = torch.cat([layer(rows) for rows in x.split([1, cpu.FEW, 149 - cpu.FEW])])
        assert torch.equal(layer(x), few)


def test_int8_rounds_the_output_layer_but_no_narrow_layer(onednn):
    torch.manual_seed(1)
    narrow, output = Linear(64, 160), OutputLayer(160, 160, None, bias=True)
    for layer in (narrow, output):
        pack(layer, "int8")
    with inference([narrow]):
        x, y = torch.randn(6, 64), torch.randn(6, 160)
        torch.testing.assert_close(narrow(x), plain_product(narrow, x), rtol=0, atol=1e-5)
        assert (output(y) - slow_int8(output, y, relu=False)).abs().max() < 1e-5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_products_without_torchs_private_functions_are_plain(onednn, monkeypatch, precision):
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


def test_relu_of_an_affine_map_without_torchs_private_function(monkeypatch):
    x, weight, bias = torch.randn(5, 7), torch.randn(3, 7), torch.randn(3)
    right = torch.relu(x @ weight.t() + bias)
    torch.testing.assert_close(private.relu_of_affine(x, weight, bias), right)
    monkeypatch.delattr(torch, "_addmm_activation")
    torch.testing.assert_close(private.relu_of_affine(x, weight, bias), right)


def test_softmax_gradient_without_torchs_private_function(monkeypatch):
    torch.manual_seed(1)
    weights, grad = torch.randn(2, 3, 5).softmax(-1), torch.randn(2, 3, 5)
    wanted = private.softmax_backward(grad, weights)
    monkeypatch.delattr(torch, "_softmax_backward_data")
    torch.testing.assert_close(private.softmax_backward(grad, weights), wanted)


@pytest.mark.parametrize(
    ("layer", "rounded_by"),
    [
        (Linear(WIDE, WIDE, False), {"bfloat16", "int8"}),
        (Linear(WIDE, WIDE - 1, False), set()),
        (OutputLayer(WIDE, WIDE, None, False), {"int8"}),
        (torch.nn.Linear(WIDE, WIDE), set()),
    ],
)
def test_precision_rounds_only_layers_that_gain(layer, rounded_by):
    assert {by for by in ("float32", "bfloat16", "int8") if rounds([layer], by)} == rounded_by
