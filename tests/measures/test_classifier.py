"""The probing classifier against a plain loop with autograd and torch's RMSprop."""

import pytest
import torch
from torch import nn

from nmtkit.measures import classifier
from nmtkit.measures.classifier import Examples, fit, standardised


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_points(n, classes, width, seed, noise):
    """Return points around a centre for each class; a share of `noise` of the labels is random."""
    draw, float64 = generator(seed), {"dtype": torch.float64}
    centres = 3 * torch.randn(classes, width, generator=generator(99), **float64)
    y = torch.randint(classes, (n,), generator=draw)
    x = centres[y] + torch.randn(n, width, generator=draw, **float64)
    wrong = torch.rand(n, generator=draw) < noise
    return Examples(x, torch.where(wrong, torch.randint(classes, (n,), generator=draw), y))


class Plain:
    """A hidden layer of ReLU units: uniform initial weights, cross-entropy plus a penalty on the
    hidden weights, RMSprop.
    """

    def __init__(self, width, classes, draw):
        shapes = (width, width), (width,), (width, classes), (classes,)
        self.weights = [
            ((2 * torch.rand(shape, generator=draw, dtype=torch.float64) - 1) * width**-0.5)
            for shape in shapes
        ]
        for weight in self.weights:
            weight.requires_grad_()
        self.optimiser = torch.optim.RMSprop(self.weights, lr=2.5e-4)

    def __call__(self, x):
        w1, b1, w2, b2 = self.weights
        return (x @ w1 + b1).relu() @ w2 + b2

    def step(self, x, y):
        loss = nn.functional.cross_entropy(self(x), y) + 1e-4 * self.weights[0].square().sum()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def fit_plainly(train, dev, test_x, classes, seed):
    """Train with early stopping: epochs of shuffled batches of 64 until dev accuracy has not risen
    for 5 epochs; return predictions of the best epoch, its accuracy and number, and all epochs.
    """
    draw = generator(seed)
    model = Plain(train.x.size(1), classes, draw)
    best, best_epoch, predicted = -1.0, 0, None
    for epoch in range(1, 101):
        for rows in torch.randperm(len(train.y), generator=draw).split(64):
            model.step(train.x[rows], train.y[rows])
        accuracy = (model(dev.x).argmax(1) == dev.y).double().mean().item()
        if accuracy > best:
            best, best_epoch, predicted = accuracy, epoch, model(test_x).argmax(1)
        if epoch - best_epoch == 5:
            break
    return predicted, best, best_epoch, epoch


@pytest.mark.parametrize(("classes", "noise", "seed"), [(2, 0.3, 1), (7, 0.2, 5), (3, 0.0, 2)])
def test_fit_equals_a_plain_training_loop(classes, noise, seed):
    train, dev, test = (
        random_points(n, classes, 12, 10 * seed + i, noise) for i, n in enumerate((300, 90, 50))
    )  # 300 is no multiple of 64
    test_x = test.x / 3  # points near the borders of classes
    fitted = fit(train, dev, test_x, classes, seed)
    predicted, best, best_epoch, epochs = fit_plainly(train, dev, test_x, classes, seed)
    assert (fitted.best_epoch, fitted.epochs) == (best_epoch, epochs)
    assert fitted.dev == pytest.approx(best, abs=1e-12)
    assert fitted.predicted.tolist() == predicted.tolist()
    assert fit(train, dev, test_x, classes, seed).predicted.equal(fitted.predicted)


def test_weights_after_20_updates_equal_those_of_a_plain_loop():
    train = random_points(1280, 4, 9, 3, 0.1)
    ours, plain = (
        classifier.Classifier(9, 4, torch.float64, generator(7)),
        Plain(9, 4, generator(7)),
    )
    for x, y in zip(train.x.split(64), train.y.split(64), strict=True):
        ours.step(x, y[:, None])
        plain.step(x, y)
    for weight, expected in zip(ours._weights, plain.weights, strict=True):
        torch.testing.assert_close(weight, expected.detach(), rtol=1e-10, atol=1e-12)


def test_features_are_standardised_by_the_training_part():
    train = torch.tensor([[1.0, 5.0, 1e4], [3.0, 5.0, 1e4 + 2]])
    test = torch.tensor([[4.0, 6.0, 1e4]])
    assert [part.tolist() for part in standardised([train, test])] == [
        [[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]],
        [[2.0, 0.0, -1.0]],
    ]
