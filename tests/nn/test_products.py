"""The softmax for short rows against torch's, on both sides of every length at which it goes another way."""

import pytest
import torch

from nmtkit.nn.products import SHORT_ROW, softmax_, softmax_gradient

LENGTHS = [1, 2, 7, SHORT_ROW - 1, SHORT_ROW, SHORT_ROW + 1, 33]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_softmax_and_its_gradient(length, dtype):
    torch.manual_seed(length)
    scores = (8 * torch.randn(3, 5, length)).to(dtype)
    scores[0, 0] = torch.finfo(dtype).min  # a blind query: uniform
    scores[1, :, : length // 2] = torch.finfo(dtype).min
    exact = scores.double().requires_grad_()
    expected = exact.softmax(-1)
    found = softmax_(scores.clone())
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6}[dtype]
    torch.testing.assert_close(found.double(), expected.detach(), rtol=tolerance, atol=tolerance / 100)
    assert found.dtype == dtype and (found[1, :, : length // 2] == 0).all() if length > 1 else found.dtype == dtype

    grad = torch.randn(3, 5, length).to(dtype)
    (wanted,) = torch.autograd.grad(expected, exact, grad.double())
    gradient = softmax_gradient(grad, found)
    torch.testing.assert_close(gradient.double(), wanted, rtol=10 * tolerance, atol=tolerance)
    assert gradient.dtype == dtype


def test_scores_with_a_gradient_are_left_alone():
    scores = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax_, (scores,))
