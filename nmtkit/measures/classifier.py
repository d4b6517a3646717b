"""A classifier on fixed vectors: two layers, trained until a development set gains no more.

The gradients are written out, because classifiers are trained in forked processes: torch's
automatic differentiation starts a thread for each GPU, and a fork cannot use a GPU of its parent.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RATE, BATCH, PENALTY, EPOCHS = 2.5e-4, 64, 1e-4, 100
PATIENCE = 5
"""Training ends after this many epochs without a better accuracy on dev (the paper is silent)."""


@dataclass(frozen=True)
class Examples:
    """Vectors x (N, D) and their classes y (N), int64."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Fitted:
    """The result of a training.

    Attributes:
        predicted: class of each test example (N).
        dev: accuracy on dev of the best epoch, 0..1.
        best_epoch, epochs: the epoch whose weights predict; epochs in all.
    """

    predicted: Tensor
    dev: float
    best_epoch: int
    epochs: int


def _layers(width: int, classes: int, dtype: torch.dtype, draw: torch.Generator) -> nn.Sequential:
    """Return W2 · relu(W1 · x + b1) + b2 with D hidden units: (N, D) -> (N, C).

    Args:
        width, classes: D, C.
        dtype: of weights and inputs.
        draw: draws W1ᵀ, b1, W2ᵀ, b2 in this order, uniform within ±1/√D.
    """
    layers = nn.Linear(width, width, dtype=dtype), nn.Linear(width, classes, dtype=dtype)
    for layer in layers:
        for weights in (layer.weight.t(), layer.bias):
            drawn = torch.rand(weights.shape, generator=draw, dtype=dtype)
            weights.copy_((2 * drawn - 1) * width**-0.5)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def _backward(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """Set the gradients of the mean cross-entropy of examples: x (B, D), y (B)."""
    first, second = model[0], model[2]
    h = first(x).relu_()
    scores = second(h)
    error = (scores.softmax(1) - F.one_hot(y, scores.size(1))) / len(y)
    back = (error @ second.weight) * (h > 0)
    first.weight.grad, first.bias.grad = back.t() @ x, back.sum(0)
    second.weight.grad, second.bias.grad = error.t() @ h, error.sum(0)


def _predict(model: nn.Sequential, x: Tensor) -> Tensor:
    """Return the best class of each vector: (N, D) -> (N)."""
    return torch.cat([model(part).argmax(1) for part in torch.split(x, 4096)])


@torch.no_grad()
def fit(train: Examples, dev: Examples, test_x: Tensor, classes: int, seed: int) -> Fitted:
    """Train a classifier and predict with the weights of the epoch that is best on dev.

    It has as many hidden units as a vector has numbers. The loss is the cross-entropy
    + PENALTY · |W1|², and RMSprop minimises it.

    Args:
        train, dev: examples.
        test_x: (N, D).
        classes: C.
        seed: of the first weights and of the order of examples in each epoch.
    Source: Ampomah et al. 2021, §7.1; activation, hidden width, patience and first weights are
        not stated there.
    """
    generator = torch.Generator().manual_seed(seed)
    model = _layers(train.x.size(1), classes, train.x.dtype, generator)
    first, *others = model.parameters()
    # RMSprop adds weight_decay · W1 to the gradient, which is that of the penalty.
    optimizer = torch.optim.RMSprop(others, lr=RATE)
    optimizer.add_param_group({"params": [first], "weight_decay": 2 * PENALTY})
    best, best_epoch, best_state, epoch = -1.0, 0, model.state_dict(), 0
    while epoch < EPOCHS and epoch - best_epoch < PATIENCE:
        epoch += 1
        for rows in torch.split(torch.randperm(len(train.y), generator=generator), BATCH):
            _backward(model, train.x[rows], train.y[rows])
            optimizer.step()
        accuracy = (_predict(model, dev.x) == dev.y).double().mean().item()
        if accuracy > best:
            best, best_epoch, best_state = accuracy, epoch, deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return Fitted(_predict(model, test_x), best, best_epoch, epoch)


def standardised(parts: list[Tensor]) -> list[Tensor]:
    """Scale vectors in place to mean 0 and variance 1 over the first part.

    Learning rate and penalty then mean the same for all systems.

    Args:
        parts: (N_i, D); a number that does not vary in the first part becomes 0 there.
    Returns: the parts.
    """
    first = parts[0].double()
    mean, spread = first.mean(0), first.std(0, correction=0)
    spread[spread < 1e-6 * mean.abs().clamp(min=1e-6)] = torch.inf
    for part in parts:
        part.sub_(mean.to(part.dtype)).div_(spread.to(part.dtype))
    return parts
