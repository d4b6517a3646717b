"""The probing classifier against a plain loop with automatic differentiation and torch's own
optimiser.
"""

import pytest
import torch
from torch import nn

from nmtkit.measures import classifier
from nmtkit.measures.classifier import Examples, fit, standardised


def generator(seed):
    return torch.Generator().manual_seed(seed)


def drawn(n, classes, width, seed, noise):
    """Points around one centre a class; a share of `noise` of the labels is drawn at random."""
    draw, float64 = generator(seed), {"dtype": torch.float64}
    centres = 3 * torch.randn(classes, width, generator=generator(99), **float64)
    y = torch.randint(classes, (n,), generator=draw)
    x = centres[y] + torch.randn(n, width, generator=draw, **float64)
    wrong = torch.rand(n, generator=draw) < noise
    return Examples(x, torch.where(wrong, torch.randint(classes, (n,), generator=draw), y))


def slow(train, dev, test_x, classes, seed):
    """The protocol as it is said: modules, cross-entropy plus the penalty, RMSprop, one example
    of code a sentence of text.
    """
    draw, width = generator(seed), train.x.size(1)

    def uniform(*shape):
        return (2 * torch.rand(shape, generator=draw, dtype=torch.float64) - 1) * width**-0.5

    first, second = nn.Linear(width, width).double(), nn.Linear(width, classes).double()
    for layer, size in ((first, width), (second, classes)):
        layer.weight.data = uniform(width, size).t().contiguous()
        layer.bias.data = uniform(size)
    model = nn.Sequential(first, nn.ReLU(), second)
    optimiser = torch.optim.RMSprop(model.parameters(), lr=2.5e-4)
    best, best_epoch, state = -1.0, 0, None
    for epoch in range(1, 101):
        order = torch.randperm(len(train.y), generator=draw)
        for rows in order.split(64):
            loss = nn.functional.cross_entropy(model(train.x[rows]), train.y[rows])
            optimiser.zero_grad()
            (loss + 1e-4 * first.weight.square().sum()).backward()
            optimiser.step()
        right = sum(int(model(x).argmax()) == int(y) for x, y in zip(dev.x, dev.y, strict=True))
        if right / len(dev.y) > best:
            best, best_epoch = right / len(dev.y), epoch
            state = {key: value.clone() for key, value in model.state_dict().items()}
        if epoch - best_epoch == 5:
            break
    model.load_state_dict(state)
    return model(test_x).argmax(1), best, best_epoch, epoch


@pytest.mark.parametrize(("classes", "noise", "seed"), [(2, 0.3, 1), (7, 0.2, 5), (3, 0.0, 2)])
def test_the_same_numbers_as_a_plain_loop(classes, noise, seed):
    train, dev, test = (
        drawn(n, classes, 12, 10 * seed + i, noise) for i, n in enumerate((300, 90, 50))
    )  # 300 is no multiple of 64
    test_x = test.x / 3  # where classes are not so far apart that any classifier agrees
    found = fit(train, dev, test_x, classes, seed)
    predicted, best, best_epoch, epochs = slow(train, dev, test_x, classes, seed)
    assert (found.best_epoch, found.epochs) == (best_epoch, epochs)
    assert found.dev == pytest.approx(best, abs=1e-12)
    assert found.predicted.tolist() == predicted.tolist()
    assert fit(train, dev, test_x, classes, seed).predicted.equal(found.predicted)


def test_the_weights_are_those_of_a_plain_loop():
    """To the last but few digits, after 20 updates in double precision."""
    train = drawn(1280, 4, 9, 3, 0.1)
    ours, fresh = (classifier.Classifier(9, 4, torch.float64, generator(7)) for _ in range(2))
    w1, b1, w2, b2 = (w.clone().requires_grad_() for w in ours._weights)
    optimiser = torch.optim.RMSprop([w1, b1, w2, b2], lr=classifier.RATE)
    for x, y in zip(train.x.split(64), train.y.split(64), strict=True):
        ours.step(x, y[:, None])
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy((x @ w1 + b1).relu() @ w2 + b2, y)
        (loss + 1e-4 * w1.square().sum()).backward()
        optimiser.step()
    for own, wanted in zip(ours._weights, (w1, b1, w2, b2), strict=True):
        torch.testing.assert_close(own, wanted.detach(), rtol=1e-10, atol=1e-12)
    assert not torch.equal(ours._weights[0], fresh._weights[0])


def test_numbers_are_standardised_by_the_training_part_alone():
    train, test = (
        torch.tensor([[1.0, 5.0, 1e4], [3.0, 5.0, 1e4 + 2]]),
        torch.tensor([[4.0, 6.0, 1e4]]),
    )
    assert [part.tolist() for part in standardised([train, test])] == [
        [[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]],
        [[2.0, 0.0, -1.0]],
    ]
