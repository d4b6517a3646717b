"""Products whose rows are filled up to few sizes: same results and gradients as plain products."""

import pytest
import torch
from torch.nn import functional as F

from nmtkit.nn.cpu import FILLED
from nmtkit.nn.linear import Linear
from nmtkit.nn.sublayer import Residual


@pytest.fixture
def rows(monkeypatch):
    """The number of rows of each affine product."""
    seen, plain = [], F.linear
    monkeypatch.setattr(
        F, "linear", lambda x, *others: seen.append(x.shape[:-1].numel()) or plain(x, *others)
    )
    return seen


@pytest.mark.parametrize("shape", [(7,), (33,), (5, 13), (2, 3, 11), (64,), (4, 16)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_filled_products_equal_plain_products(rows, shape, relu, bias):
    torch.manual_seed(1)
    layer = Linear(6, 10, bias).double()
    x = torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
    wanted = x @ layer.weight.mT + (layer.bias if bias else 0)
    wanted = wanted.relu() if relu else wanted
    grad = torch.randn_like(wanted)
    inputs = (x, *layer.parameters())
    gradients = torch.autograd.grad(wanted, inputs, grad)
    with torch.autocast("cpu", torch.bfloat16):  # which leaves 64 bits as they are
        y = layer(x, relu)
    assert y.shape == (*shape, 10) and rows and not any(count % FILLED for count in rows)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
    for found, expected in zip(torch.autograd.grad(y, inputs, grad), gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_rows_are_filled_only_in_training_in_bfloat16(rows):
    layer, x = Linear(6, 10), torch.randn(7, 6)
    layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
        with torch.no_grad():
            layer(x)
    assert rows == [7, FILLED, 7]


def test_filled_rows_add_nothing_to_results_and_gradients():
    """The product of the rounded factors is rounded once."""
    torch.manual_seed(2)
    layer, x = Linear(40, 24), torch.randn(5, 9, 40, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    rounded, weight = x.detach().bfloat16().double(), layer.weight.detach().bfloat16().double()
    for found, expected, error in (
        (y, rounded @ weight.mT, 2**-7),
        (x.grad, weight.sum(0).expand(5, 9, -1), 2**-7),
        (layer.weight.grad, rounded.sum((0, 1)).expand(24, -1), 2**-5),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=error)


@pytest.mark.parametrize("form", ["post", "pre"])
def test_residual_on_the_meta_device_has_the_right_shape(form):
    """Autocast does not know this device."""
    x = torch.empty(5, 6, device="meta")
    with torch.device("meta"):
        layer, residual = Linear(6, 6), Residual(6, 0.1, form)
    assert residual(x, layer).shape == x.shape
