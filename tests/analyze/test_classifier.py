"""The probing classifier against a plain loop with automatic differentiation and torch's own
optimiser, and on data with a known answer.
"""

import pytest
import torch
from torch import nn

from nmtkit.analyze.shared import classifier
from nmtkit.analyze.shared.classifier import Examples, fit, standardised


def drawn(n, classes, width, seed, noise=0.0, spread=1.0):
    """Points around one centre a class; with `noise` that share of labels is another."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(
        classes, width, generator=torch.Generator().manual_seed(99), dtype=torch.float64
    )
    y = torch.randint(classes, (n,), generator=generator)
    x = centres[y] + spread * torch.randn(n, width, generator=generator, dtype=torch.float64)
    wrong = torch.rand(n, generator=generator) < noise
    return Examples(x, torch.where(wrong, torch.randint(classes, (n,), generator=generator), y))


def slow(train, dev, test_x, classes, seed):
    """The protocol as it is said: modules, cross-entropy plus the penalty, RMSprop, one example
    of code a sentence of text.
    """
    generator = torch.Generator().manual_seed(seed)
    width = train.x.size(1)

    def uniform(*shape):
        return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * width**-0.5

    first, second = nn.Linear(width, width).double(), nn.Linear(width, classes).double()
    for layer, size in ((first, width), (second, classes)):
        layer.weight.data = uniform(width, size).t().contiguous()
        layer.bias.data = uniform(size)
    model = nn.Sequential(first, nn.ReLU(), second)
    optimiser = torch.optim.RMSprop(model.parameters(), lr=2.5e-4)
    best, best_epoch, state, epochs = -1.0, 0, None, 0
    for epoch in range(1, 101):
        epochs = epoch
        order = torch.randperm(len(train.y), generator=generator)
        for rows in order.split(64):
            loss = (
                nn.functional.cross_entropy(model(train.x[rows]), train.y[rows])
                + 1e-4 * first.weight.square().sum()
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        right = sum(int(model(x).argmax()) == int(y) for x, y in zip(dev.x, dev.y, strict=True))
        if right / len(dev.y) > best:
            best, best_epoch, state = (
                right / len(dev.y),
                epoch,
                {k: v.clone() for k, v in model.state_dict().items()},
            )
        if epoch - best_epoch == 5:
            break
    model.load_state_dict(state)
    return model(test_x).argmax(1), best, best_epoch, epochs


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
    ours = classifier.Classifier(9, 9, 4, torch.float64, torch.Generator().manual_seed(7))
    w1, b1, w2, b2 = (w.clone().requires_grad_() for w in ours._weights)
    optimiser = torch.optim.RMSprop([w1, b1, w2, b2], lr=classifier.RATE)
    for x, y in zip(train.x.split(64), train.y.split(64), strict=True):
        ours.step(x, y[:, None])
        optimiser.zero_grad()
        (
            nn.functional.cross_entropy((x @ w1 + b1).relu() @ w2 + b2, y)
            + 1e-4 * w1.square().sum()
        ).backward()
        optimiser.step()
    for own, wanted in zip(ours._weights, (w1, b1, w2, b2), strict=True):
        torch.testing.assert_close(own, wanted.detach(), rtol=1e-10, atol=1e-12)
    assert not torch.equal(
        ours._weights[0],
        classifier.Classifier(9, 9, 4, torch.float64, torch.Generator().manual_seed(7))._weights[0],
    )


def test_what_can_be_told_apart_is_and_shuffled_labels_are_chance():
    train, dev, test = (
        Examples(e.x.float(), e.y)
        for e in (drawn(n, 4, 16, n, spread=0.3) for n in (600, 200, 1000))
    )
    assert (fit(train, dev, test.x, 4, 1).predicted == test.y).all()
    orders = [
        torch.randperm(len(e.y), generator=torch.Generator().manual_seed(len(e.y)))
        for e in (train, dev, test)
    ]
    train, dev, test = (
        Examples(e.x, e.y[order]) for e, order in zip((train, dev, test), orders, strict=True)
    )
    right = (fit(train, dev, test.x, 4, 1).predicted == test.y).double().mean().item()
    assert 0.2 < right < 0.3  # a quarter, four standard deviations either way


def test_it_ends_after_five_epochs_without_gain_and_keeps_the_best():
    train, dev = drawn(640, 2, 8, 1), drawn(100, 2, 8, 2)
    found = fit(train, dev, dev.x, 2, 1)
    assert found.dev == 1.0 and found.epochs == found.best_epoch + 5 < classifier.EPOCHS
    assert (found.predicted == dev.y).all()


def test_numbers_are_standardised_by_the_training_part_alone():
    train, test = (
        torch.tensor([[1.0, 5.0, 1e4], [3.0, 5.0, 1e4 + 2]]),
        torch.tensor([[4.0, 6.0, 1e4]]),
    )
    assert [part.tolist() for part in standardised([train, test])] == [
        [[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]],
        [[2.0, 0.0, -1.0]],
    ]
