"""Parameters that are copied to 16 bits, and gradients that are summed, all at once: the same
gradients as with autocast.
"""

import pytest
import torch

from nmtkit.models.variants import VARIANTS
from nmtkit.nn.linear import Linear
from nmtkit.train import loss as losses
from nmtkit.train.multi_tensor import multi_tensor_pass
from tests.models.contract import Case, batch_for

NARROW = torch.bfloat16
AUTOCAST = torch.autocast("cpu", NARROW)


def add_gradients(model, batch):
    with AUTOCAST:
        hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
    losses.backward(AUTOCAST(model.logits), hidden, batch, 0.1, 0.01, 8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_equal_those_of_autocast(variant):
    """Up to the rounding of sums, and added to those of an earlier batch; shared weights, too."""
    model = Case(variant).build(dtype=torch.float32, dropout=0.0).train()
    batch, first = batch_for(model), {}
    for dtype in (None, NARROW):
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.5)
        add_gradients(model, batch)
        expected = [p.grad.clone() for p in model.parameters()]
        for p in model.parameters():
            p.grad = first[p] = torch.full_like(p, 0.5)
        with multi_tensor_pass(model, dtype):
            add_gradients(model, batch)
        for p, right in zip(model.parameters(), expected, strict=True):
            assert p.grad is first[p]
            torch.testing.assert_close(p.grad, right, rtol=1e-6, atol=1e-7)
    assert not torch.equal(expected[0], torch.full_like(expected[0], 0.5))
    assert all(m.copies is None for m in model.modules() if isinstance(m, Linear))


def test_layers_read_copies_and_compiled_layers_their_weights():
    model = Case("transformer").build(dtype=torch.float32, tie="none").train()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    layer = next(m for m in model.modules() if isinstance(m, Linear))
    with multi_tensor_pass(model, NARROW):
        assert layer.copies[0].dtype == layer.copies[1].dtype == NARROW
        with AUTOCAST:
            torch.compile(layer, backend="eager")(torch.ones(1, layer.in_features)).sum().backward()
        assert layer.copies[0].grad is None and layer.weight.grad is not None
        layer.weight.grad = None
        with AUTOCAST:
            layer(torch.ones(1, layer.in_features)).sum().backward()
        assert layer.copies[0].grad is not None and layer.weight.grad is None
    assert torch.equal(layer.weight.grad, torch.ones_like(layer.weight))


@pytest.mark.filterwarnings("error")
def test_weights_with_hooks_and_computed_weights_learn_without_copies():
    """A user's variant may have such layers."""
    layers = torch.nn.Sequential(*(Linear(4, 4) for _ in range(3)))
    torch.nn.utils.parametrizations.weight_norm(layers[1])
    layers[0].weight.register_hook(lambda gradient: 0 * gradient)
    seen = []
    layers[2].weight.register_post_accumulate_grad_hook(seen.append)
    for p in layers.parameters():
        p.grad = torch.zeros_like(p)
    with multi_tensor_pass(layers, NARROW), AUTOCAST:
        layers(torch.ones(1, 4)).sum().backward()
    assert not layers[0].weight.grad.any() and seen[0] is layers[2].weight
    assert all(p.grad.any() for p in layers[1].parameters())


def test_gradients_keep_their_memory_after_an_error():
    model = Case("transformer").build(dtype=torch.float32)
    places = {}
    for p in model.parameters():
        p.grad = places[p] = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match="stop"), multi_tensor_pass(model, NARROW):
        raise RuntimeError("stop")
    assert all(p.grad is place for p, place in places.items())
