"""Additive attention's further forms against models.md sections 4.3, 4.4 and 10: a bias, bounded
scores, L1(exp(Nx)).
"""

import pytest
import torch

from nmtkit.nn.alignment import AdditiveAttention, normalise
from nmtkit.nn.masks import additive, visible_positions
from tests.models.slow import affine, plus, softmax, tanh, times
from tests.nn.test_recurrent import LENGTHS, shaken


def test_the_golden_weights_of_l1_exp_nx():
    scores = torch.tensor([[[0.1, 0.2, 0.4]]], dtype=torch.float64)
    for scale, expected in (
        (3, [0.207923, 0.280667, 0.511409]),
        (1, [0.289433, 0.319873, 0.390694]),
        (None, [0.289433, 0.319873, 0.390694]),
    ):
        found = normalise(
            scores,
            None,
            None if scale is None else torch.full((1, 1, 1), float(scale), dtype=torch.float64),
        )
        assert found.flatten().tolist() == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l1_exp_nx_is_stable_where_its_exponentials_are_not(dtype):
    """N = 100 and scores up to 60: exp(6000) is no number; weights are those of the differences,
    and its gradient is N α (δ - α).
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


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_scores_equal_their_equations(bounded, scaled):
    attention = shaken(AdditiveAttention(5, 4, 6, bias=True, bounded=bounded))
    states, s = (
        torch.randn(len(LENGTHS), 6, 4, dtype=torch.float64),
        torch.randn(2 * len(LENGTHS), 5, dtype=torch.float64),
    )
    scale = LENGTHS.double().view(-1, 1, 1) if scaled else None
    alpha = attention.loop(
        attention.prepare(states), visible_positions(LENGTHS, 6), 1, torch.float64, scale
    )(s)
    w, b, u = (
        p.tolist() for p in (attention.query.weight, attention.query.bias, attention.key.weight)
    )
    for i, length in enumerate(LENGTHS.tolist()):
        for k in range(2):
            query, scores = affine(s[2 * i + k].tolist(), w, b), []
            for h in states[i, :length].tolist():
                t = tanh(plus(query, affine(h, u)))
                scores.append(
                    (length if scaled else 1)
                    * (t[0] if bounded else sum(times(attention.score.weight[0].tolist(), t)))
                )
            torch.testing.assert_close(
                alpha[i, k, :length].tolist(), softmax(scores), rtol=1e-11, atol=1e-13
            )
    assert len(list(attention.parameters())) == (3 if bounded else 4)
