"""The chunked loss with its analytic gradient against the plain formula, in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from nmtkit.data.batches import Batch
from nmtkit.nn import cpu, gpu
from nmtkit.train import loss as losses
from tests.train.test_costs_of_a_step import Operations

LENGTHS = torch.tensor([7, 3, 5, 1])
V, D = 11, 6


def make(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 7, D, generator=generator, dtype=dtype)
    tgt = torch.randint(4, V, (4, 7), generator=generator) * (torch.arange(7) < LENGTHS[:, None])
    torch.manual_seed(2)
    return hidden, Batch(tgt, LENGTHS, LENGTHS, tgt, tgt, LENGTHS), nn.Linear(D, V).to(dtype)


def plain(logits_of, hidden, batch, smoothing):
    """The oracle, one position and one class at a time: the sum over real positions of
    -Σ_v q_v log p_v with q = (1-ε)·onehot(y) + ε/V (Szegedy et al. 2016).
    """
    total = nll = 0.0
    for row, length in enumerate(batch.tgt_lengths.tolist()):
        for position in range(length):
            x = logits_of(hidden[row, position])
            log_p = x - x.exp().sum().log()
            y = int(batch.tgt_out[row, position])
            q = [smoothing / V + (1 - smoothing if v == y else 0) for v in range(V)]
            total = total - sum(q[v] * log_p[v] for v in range(V))
            nll = nll - log_p[y].item()
    return total, nll


class Tanh(nn.Module):
    """Logits whose backward needs their own values: they must not be overwritten."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, hidden):
        return torch.tanh(self.linear(hidden))


def overwrite_logits(x, y, smoothing, scale):
    """Do as the GPU's kernel: the gradient replaces the logits."""
    sums, gradient = losses.chunk_loss(x.clone(), y, smoothing, scale)
    x.copy_(gradient)
    return sums[None]


@pytest.fixture(params=["cpu", "as on a GPU", "with a GPU's kernel"])
def device_path(request, monkeypatch):
    """Take the code path of a CPU, or those of a GPU on a CPU."""
    if "kernel" in request.param:
        monkeypatch.setattr(gpu, "computes_loss", lambda x: True)
        monkeypatch.setattr(gpu, "loss", overwrite_logits)
    if request.param != "cpu":
        monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)


@pytest.mark.parametrize("chunk", [1, 3, 16, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("top", ["linear", "tanh", "scaled"])
def test_loss_and_gradients_equal_the_formula(chunk, smoothing, top, device_path):
    hidden, batch, linear = make()
    logits_of = {"linear": linear, "tanh": Tanh(linear), "scaled": lambda h: linear(h) * 2.5}[top]
    hidden.requires_grad_()
    total, nll = plain(logits_of, hidden, batch, smoothing)
    expected = torch.autograd.grad(total / 16, [hidden, linear.weight, linear.bias])
    found = losses.backward(logits_of, hidden, batch, smoothing, 1 / 16, chunk)
    assert float(found[0]) == pytest.approx(total.item(), abs=1e-10)
    assert float(found[1]) == pytest.approx(nll, abs=1e-10)
    for gradient, exact in zip(
        [hidden.grad, linear.weight.grad, linear.bias.grad], expected, strict=True
    ):
        assert torch.allclose(gradient, exact, atol=1e-12, rtol=1e-10)
    again = losses.evaluate(logits_of, hidden, batch, chunk)
    assert float(again) == pytest.approx(nll, abs=1e-10)
    assert not again.requires_grad


def test_large_logits_do_not_overflow(device_path):
    hidden, batch, linear = make(torch.float32)
    exact = losses.evaluate(linear.double(), 1e4 * hidden.double(), batch, 16)
    linear.float()
    big = (1e4 * hidden).requires_grad_()
    found = losses.backward(linear, big, batch, 0.1, 1.0, 16)
    assert float(found[1]) == pytest.approx(float(exact), rel=1e-5)
    assert float(found[1]) / 16 > 1000  # far beyond what a probability can be told apart from zero
    assert torch.isfinite(big.grad).all()


def test_large_bfloat16_logits_have_the_loss_of_float64(device_path):
    x = (1000 * torch.randn(16, V, generator=torch.Generator().manual_seed(1))).bfloat16()
    y = torch.arange(16)[:, None] % V
    (found, _), (expected, _) = (losses.chunk_loss(z, y, 0.1, 1.0) for z in (x, x.double()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("chunk", [1, 2])
def test_sum_of_float32_losses_has_the_digits_of_float64(chunk):
    """The losses are 2^24 and log V; float32 has even numbers only from there on."""
    hidden = torch.full((1, 2, V), -1e9)
    hidden[0, 0, 4], hidden[0, 0, 5], hidden[0, 1] = -(2.0**24), 0, 0
    tgt, length = torch.full((1, 2), 4), torch.tensor([2])
    batch = Batch(tgt, length, length, tgt, tgt, length)
    found = losses.evaluate(lambda h: h.clone(), hidden, batch, chunk)
    assert float(found) == pytest.approx(2**24 + math.log(V), abs=1e-3)


def test_logits_are_computed_in_equal_chunks():
    hidden, batch, linear = make()
    sizes = []

    def logits_of(h):
        sizes.append(len(h))
        return linear(h)

    losses.backward(logits_of, hidden.requires_grad_(), batch, 0.1, 1.0, chunk=5)
    assert sizes == [4, 4, 4, 4]


def test_chunks_fit_into_their_memory_and_have_a_minimum_size():
    rows, row = losses.chunk_rows(8000, "cpu"), 8000 * 4
    assert losses.CHUNK_BYTES["cpu"] - row < rows * row <= losses.CHUNK_BYTES["cpu"]
    assert losses.chunk_rows(10**6, "cpu") == losses.CHUNK_ROWS


def test_batches_without_padding_have_the_same_loss():
    hidden, batch, linear = make()
    tgt, lengths = batch.tgt_out.clamp(min=4), torch.full((4,), 7)
    batch = Batch(tgt, lengths, lengths, tgt, tgt, lengths)
    one, two = (
        losses.evaluate(linear, hidden, replace(batch, tgt_padded=padded), 9).item()
        for padded in (False, True)
    )
    assert one == pytest.approx(two, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-3, torch.tensor(1e-3)], ids=["number", "tensor"])
def test_loss_on_a_gpu_moves_at_most_32_bytes_a_logit(monkeypatch, scale):
    """Each operation reads and writes its tensors once; matrix products are not counted."""
    monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)
    logits = torch.randn(512, 1000).bfloat16()
    targets = torch.randint(0, 1000, (512, 1))
    with Operations() as operations:
        losses.chunk_loss(logits, targets, 0.1, scale)
    moved = {}
    for name, tensors in operations.done:
        if name in {"gather", "scatter_add_", "new_full", "empty_like"}:  # a number of a row; none
            continue
        size = sum(x.numel() * x.element_size() for x in tensors if x.numel() == logits.numel())
        moved[name] = moved.get(name, 0) + size / logits.numel()
    assert sum(moved.values()) <= 32, moved
