"""The small blocks: dropout, positions, embeddings, residuals, feed-forward, capture."""

import math

import numpy as np
import pytest
import torch

from nmtkit.nn.capture import capture, capturing, record
from nmtkit.nn.dropout import Dropout, dropout, seed_dropout
from nmtkit.nn.embeddings import Embedder, Embedding, OutputLayer, sinusoids
from nmtkit.nn.sublayer import FeedForward, Residual
from tests.models.slow import position


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.001])
def test_dropout_drops_with_probability_p_and_scales_by_one_factor(p):
    seed_dropout(1, 1)
    n = 2_000_000
    out = dropout(torch.ones(n, dtype=torch.float64), p)
    kept = out != 0
    assert abs(float((~kept).double().mean()) - p) < 5 * math.sqrt(p * (1 - p) / n) + 2**-17
    assert len(out[kept].unique()) == 1  # one factor for all
    level = round(p * 65536) / 65536
    # The factor fits the probability really used, to the last bit.
    assert float(out[kept][0]) == 1 / (1 - level)
    lagged = np.corrcoef(kept[:-1].numpy(), kept[1:].numpy())[0, 1]
    assert abs(lagged) < 5 / math.sqrt(n)


def test_dropout_has_the_gradient_of_its_mask():
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)

    def dropped(x):
        seed_dropout(5, 6)
        return dropout(x, 0.3) * 2 + dropout(x, 0.4)

    assert torch.autograd.gradcheck(dropped, (x,))


def test_dropout_acts_in_training_only():
    x = torch.ones(100)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0).train()(x) is x
    assert (Dropout(0.5).train()(x) == 0).any()


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_equal_the_paper(width):
    table = sinusoids(50, width)
    for number in range(50):
        assert table[number].tolist() == pytest.approx(position(number, width), abs=1e-12)


@pytest.mark.parametrize("width", [6, 7])
def test_embedder_has_positions_for_any_length(width):
    embedder = Embedder(Embedding(9, width), width, 0.0)
    wide, narrow = torch.empty(0, dtype=torch.float64), torch.empty(0)
    for start, length in ((0, 3), (250, 20), (5000, 2)):
        expected = sinusoids(start + length, width)[start:]
        torch.testing.assert_close(embedder.positions(start, length, wide), expected)
    assert embedder.positions(0, 2, narrow).dtype == torch.float32
    assert list(embedder.state_dict()) == ["table.weight"]
    with torch.inference_mode():
        inside = embedder.positions(0, 9000, narrow)
    assert not inside.is_inference()


def test_embedder_adds_positions_to_scaled_vectors():
    table, ids = Embedding(500, 64).double(), torch.tensor([[4, 7, 7]])
    found = Embedder(table, 64, 0.0)(ids, start=2)
    torch.testing.assert_close(found, 8 * table.weight[ids] + sinusoids(5, 64)[2:])
    torch.testing.assert_close(table(ids), 8 * table.weight[ids])


def test_output_layer_shares_a_table_or_has_its_own_weights():
    torch.manual_seed(0)
    table = Embedding(500, 64)
    assert abs(float(table.weight.detach().std()) - 1 / 8) < 0.003
    tied, separate = OutputLayer(500, 64, table, bias=False), OutputLayer(500, 64, None, bias=True)
    assert tied.weight is table.weight and tied.bias is None
    assert separate.weight is not table.weight
    assert float(separate.weight.detach().abs().max()) <= math.sqrt(6 / 564)


def test_residual_norms_before_or_after_the_sublayer():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)
    post, pre = Residual(8, 0.0, "post"), Residual(8, 0.0, "pre")
    norm = torch.nn.functional.layer_norm
    torch.testing.assert_close(post(x, lambda h: 3 * h), norm(x + 3 * x, (8,)))
    torch.testing.assert_close(pre(x, lambda h: 3 * h), x + 3 * norm(x, (8,)))
    dropping = Residual(8, 0.5, "pre")
    for mode in (True, False):
        seed_dropout(1, 1)
        kept = (dropping.train(mode)(x, torch.ones_like) - x) != 0
        assert kept.all() != mode


def test_inner_capture_is_hidden_from_the_outer_and_ends_at_an_error():
    record("a", torch.ones(1))
    assert not capturing()
    with capture() as outer:
        record("a", torch.ones(1))
        with capture() as inner:
            record("b", torch.ones(1, requires_grad=True))
        record("a", torch.zeros(1))
        assert capturing()
    assert {name: len(tensors) for name, tensors in outer.items()} == {"a": 2}
    assert list(inner) == ["b"] and not inner["b"][0].requires_grad
    with pytest.raises(KeyError), capture():
        raise KeyError
    assert not capturing()


def test_feed_forward_drops_hidden_units_in_training_only():
    layer, x = FeedForward(4, 64, 0.5), torch.ones(1, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
