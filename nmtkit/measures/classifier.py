"""A classifier on fixed vectors: two layers, trained until the accuracy on dev stops rising.

Gradients are written out, and all weights are one vector, so that a step on 64 vectors takes about
20 small operations. Automatic differentiation and an optimiser over four tensors would take about
100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RATE, BATCH, PENALTY, EPOCHS = 2.5e-4, 64, 1e-4, 100
PATIENCE = 5
"""Training ends after this many epochs without a better accuracy on dev (our choice)."""
DECAY, TINY = 0.99, 1e-8
"""The decay and epsilon of RMSprop: torch's defaults."""


@dataclass(frozen=True)
class Examples:
    """Vectors x (N, D) and their classes y (N), int64."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Fitted:
    """The result of a training.

    Attributes:
        predicted: (N) the class of each test example.
        dev: accuracy on dev of the best epoch, 0..1.
        best_epoch: the epoch whose weights predict; epochs: the number of epochs.
    """

    predicted: Tensor
    dev: float
    best_epoch: int
    epochs: int


class Classifier:
    """Scores W2 · relu(W1 · x + b1) + b2, with RMSprop on cross-entropy + PENALTY · |W1|².

    Args:
        width, classes: D, C; there are D hidden units.
        dtype: of weights and inputs.
        generator: draws W1, b1, W2, b2 in this order, uniform within ±1/√D.
    """

    def __init__(
        self, width: int, classes: int, dtype: torch.dtype, generator: torch.Generator
    ) -> None:
        shapes = ((width, width), (width,), (width, classes), (classes,))
        drawn = [torch.rand(shape, generator=generator, dtype=dtype) for shape in shapes]
        scaled = [(2 * w - 1).flatten() * width**-0.5 for w in drawn]
        self.values = torch.cat(scaled)
        self.gradients = torch.zeros_like(self.values)
        self.squares = torch.zeros_like(self.values)
        self._weights = _views(self.values, shapes)
        self._slopes = _views(self.gradients, shapes)
        self._minus_one = torch.full((BATCH, 1), -1.0, dtype=dtype)

    def predict(self, x: Tensor) -> Tensor:
        """Return the best class of each vector: (N, D) -> (N)."""
        w1, b1, w2, b2 = self._weights
        parts = torch.split(x, 4096)
        hidden = (torch.addmm(b1, part, w1).relu_() for part in parts)
        return torch.cat([torch.addmm(b2, h, w2).argmax(1) for h in hidden])

    def train(self, examples: Examples, generator: torch.Generator) -> None:
        """Update the weights with each example once, in random order."""
        order = torch.randperm(len(examples.y), generator=generator)
        # Examples are reordered once, so that batches are slices.
        x, y = examples.x[order], examples.y[order].unsqueeze(1)
        for batch in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
            self.step(*batch)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Update the weights with at most BATCH examples: x (B, D), y (B, 1)."""
        w1, b1, w2, b2 = self._weights
        of_w1, of_b1, of_w2, of_b2 = self._slopes
        h = torch.addmm(b1, x, w1).relu_()
        error = torch.addmm(b2, h, w2).softmax(1)  # then minus the one-hot target, divided by B
        error.scatter_add_(1, y, self._minus_one[: len(y)]).div_(len(y))
        torch.mm(h.t(), error, out=of_w2)
        torch.sum(error, 0, out=of_b2)
        back = torch.mm(error, w2.t()).mul_(h > 0)
        torch.addmm(w1, x.t(), back, beta=2 * PENALTY, out=of_w1)
        torch.sum(back, 0, out=of_b1)
        # RMSprop.
        self.squares.mul_(DECAY).addcmul_(self.gradients, self.gradients, value=1 - DECAY)
        self.values.addcdiv_(self.gradients, self.squares.sqrt().add_(TINY), value=-RATE)


def _views(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = torch.split(flat, sizes)
    return [part.view(*shape) for part, shape in zip(parts, shapes, strict=True)]


def fit(train: Examples, dev: Examples, test_x: Tensor, classes: int, seed: int) -> Fitted:
    """Train a classifier and predict with the weights of the epoch that is best on dev.

    It has as many hidden units as a vector has numbers.

    Args:
        train, dev: examples.
        test_x: (N, D) vectors of the test examples.
        classes: the number of classes.
        seed: the seed of the initial weights and of the order of examples in each epoch.
    Source: Ampomah et al. 2021, §7.1; activation, hidden width, patience and initial weights are
        not stated there.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        classifier = Classifier(train.x.size(1), classes, train.x.dtype, generator)
        best, best_epoch, best_values, epoch = -1.0, 0, classifier.values.clone(), 0
        while epoch < EPOCHS and epoch - best_epoch < PATIENCE:
            epoch += 1
            classifier.train(train, generator)
            accuracy = (classifier.predict(dev.x) == dev.y).double().mean().item()
            if accuracy > best:
                best, best_epoch = accuracy, epoch
                best_values.copy_(classifier.values)
        classifier.values.copy_(best_values)
        return Fitted(classifier.predict(test_x), best, best_epoch, epoch)


def standardised(parts: list[Tensor]) -> list[Tensor]:
    """Scale vectors in place to mean 0 and variance 1 over the first part, and return the parts.

    Learning rate and penalty then mean the same for all systems. A dimension that does not vary in
    the first part becomes 0.

    Args:
        parts: (N_i, D).
    """
    first = parts[0].double()
    mean, spread = first.mean(0), first.std(0, correction=0)
    spread[spread < 1e-6 * mean.abs().clamp(min=1e-6)] = torch.inf
    for part in parts:
        part.sub_(mean.to(part.dtype)).div_(spread.to(part.dtype))
    return parts
