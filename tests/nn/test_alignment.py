"""Additive attention (Bahdanau et al. 2015) against its equation, and its forms in Im & Chan 2024:
a bias, bounded scores, L1(exp(Nx)).
"""

import pytest
import torch
from torch import nn

from nmtkit.nn.alignment import AdditiveAttention, normalise
from nmtkit.nn.masks import additive, visible_positions
from tests.models.slow import affine, plus, softmax, tanh, times
from tests.nn.test_recurrent import LENGTHS, shaken


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (3.0, [0.207923, 0.280667, 0.511409]),
        (1.0, [0.289433, 0.319873, 0.390694]),
        (None, [0.289433, 0.319873, 0.390694]),
    ],
)
def test_l1_exp_nx_gives_the_golden_weights(scale, expected):
    scores = torch.tensor([[[0.1, 0.2, 0.4]]], dtype=torch.float64)
    scale = scale and torch.full((1, 1, 1), scale, dtype=torch.float64)
    assert normalise(scores, None, scale).flatten().tolist() == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l1_exp_nx_with_large_scores_is_stable(dtype):
    """N = 100 and scores up to 60: exp(6000) overflows. Weights follow from differences of scores;
    the gradient is N α (δ - α).
    """
    scores = torch.tensor([[[60.0, 59.99, -60.0, 60.0, 7.0]]], dtype=dtype, requires_grad=True)
    mask = additive(visible_positions(torch.tensor([4]), 5), dtype)
    alpha = normalise(scores, mask, torch.full((1, 1, 1), 100.0, dtype=dtype))
    expected = torch.tensor(softmax([0.0, -1.0, -12000.0, 0.0]) + [0.0], dtype=dtype)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9  # 100 · 59.99 has so many digits only
    torch.testing.assert_close(alpha.detach().flatten(), expected, rtol=0, atol=tolerance)
    (gradient,) = torch.autograd.grad(alpha[0, 0, 0], scores)
    jacobian = 100 * expected[0] * (torch.tensor([1.0, 0, 0, 0, 0], dtype=dtype) - expected)
    torch.testing.assert_close(gradient.flatten(), jacobian, rtol=0, atol=100 * tolerance)


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"bias": True, "bounded": True}], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_attention_weights_equal_the_equations(options, rows, scaled):
    """softmax(N vᵀ tanh(W s + U h)), or of N tanh(w s + u h)."""
    attention = shaken(AdditiveAttention(5, 4, 6, **options))
    states = torch.randn(len(LENGTHS), 6, 4, dtype=torch.float64)
    s = torch.randn(rows * len(LENGTHS), 5, dtype=torch.float64)
    scale = LENGTHS.double().view(-1, 1, 1) if scaled else None
    keys, visible = attention.prepare(states), visible_positions(LENGTHS, 6)
    alpha = attention.loop(keys, visible, 2, torch.float64, scale)(s)
    assert alpha.shape == (len(LENGTHS), rows, 6)
    w = {name: parameter.tolist() for name, parameter in attention.named_parameters()}
    assert ("query.bias" in w, "score.weight" in w) == ("bias" in options, "bounded" not in options)
    for i, length in enumerate(LENGTHS.tolist()):
        assert (alpha[i, :, length:] == 0).all()
        for k in range(rows):
            scores = slow_scores(w, s[rows * i + k].tolist(), states[i, :length].tolist())
            expected = softmax([score * (length if scaled else 1) for score in scores])
            torch.testing.assert_close(
                alpha[i, k, :length].tolist(), expected, rtol=1e-11, atol=1e-13
            )


def slow_scores(w, s, states):
    query, (v,) = affine(s, w["query.weight"], w.get("query.bias")), w.get("score.weight", [[1.0]])
    return [sum(times(v, tanh(plus(query, affine(h, w["key.weight"]))))) for h in states]


def test_row_without_visible_positions_has_even_weights():
    attention = AdditiveAttention(5, 4, 6)
    keys, visible = (
        attention.prepare(torch.randn(2, 6, 4)),
        visible_positions(torch.tensor([4, 0]), 6),
    )
    alpha = attention.loop(keys, visible, 1, torch.float32)(torch.randn(2, 5))
    torch.testing.assert_close(alpha[1], torch.full_like(alpha[1], 1 / 6))


def test_additive_attention_has_the_gradients_of_finite_differences():
    attention = shaken(AdditiveAttention(3, 2, 4))
    names, parameters = zip(*attention.named_parameters(), strict=True)
    shapes = [(2, 5, 2), (4, 3), *(p.shape for p in parameters)]
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    visible = visible_positions(torch.tensor([5, 3]), 5)

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, states, s):
            attend = attention.loop(attention.prepare(states), visible, 2, torch.float64)
            return attend(s) + 2 * attend(s.flip(0)).square()

    def twice(states, s, *values):
        weights = {f"attention.{name}": p for name, p in zip(names, values, strict=True)}
        return torch.func.functional_call(Steps(), weights, (states, s))

    assert torch.autograd.gradcheck(twice, leaves)


def test_backward_keeps_only_the_keys():
    """Backward computes the (B, K, S, A) numbers again."""
    b, s, a, steps = 3, 5, 64, 4
    attention = AdditiveAttention(8, 8, a)
    keys = attention.prepare(torch.randn(b, s, 8))
    large = set()

    def pack(tensor):
        if tensor.numel() >= b * s * a:
            large.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attend = attention.loop(keys, None, steps, torch.float32)
        sum(attend(torch.randn(b, 8)).square().sum() for _ in range(steps)).backward()
    assert large == {keys.data_ptr()}
