"""A classifier on fixed vectors: two layers, trained until a development set gains no more.

Its gradients are written out and its weights lie side by side in one vector: a step on 64 vectors is some twenty small operations, of which
automatic differentiation and an optimiser that goes through four tensors would make a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RATE, BATCH, PENALTY, EPOCHS = 2.5e-4, 64, 1e-4, 100
PATIENCE = 5
"""Epochs without a better accuracy on the development set after which training ends; the paper says nothing of it."""
DECAY, TINY = 0.99, 1e-8
"""Of RMSprop, as torch has it."""


@dataclass(frozen=True)
class Examples:
    """Vectors x (N, D) and their classes y (N), int64."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Fitted:
    """What came of a training: the class predicted for each test example (N), the accuracy on dev (0..1) of the epoch kept, epochs made."""

    predicted: Tensor
    dev: float
    best_epoch: int
    epochs: int


class Classifier:
    """Scores W2 · relu(W1 · x + b1) + b2, with RMSprop on cross-entropy + PENALTY · |W1|².

    Args:
        inputs, hidden, classes: D, H, C.
        dtype: of weights and inputs.
        generator: draws W1, b1, W2, b2 in this order, each uniform within ±1/√(its inputs).
    """

    def __init__(self, inputs: int, hidden: int, classes: int, dtype: torch.dtype, generator: torch.Generator) -> None:
        shapes = ((inputs, hidden), (hidden,), (hidden, classes), (classes,))
        self.values = torch.cat(
            [
                (2 * torch.rand(shape, generator=generator, dtype=dtype) - 1).flatten() * (inputs if place < 2 else hidden) ** -0.5
                for place, shape in enumerate(shapes)
            ]
        )
        self.gradients, self.squares = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self._weights, self._slopes = _views(self.values, shapes), _views(self.gradients, shapes)
        self._minus = torch.full((BATCH, 1), -1.0, dtype=dtype)

    def scores(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, C)."""
        w1, b1, w2, b2 = self._weights
        return torch.addmm(b2, torch.addmm(b1, x, w1).relu_(), w2)

    def predict(self, x: Tensor) -> Tensor:
        """The best class of each vector: (N, D) -> (N)."""
        return torch.cat([self.scores(part).argmax(1) for part in torch.split(x, 4096)])

    def step(self, x: Tensor, y: Tensor) -> None:
        """One update with at most BATCH examples: x (B, D), y (B, 1)."""
        w1, b1, w2, b2 = self._weights
        of_w1, of_b1, of_w2, of_b2 = self._slopes
        h = torch.addmm(b1, x, w1).relu_()
        wrong = torch.addmm(b2, h, w2).softmax(1).scatter_add_(1, y, self._minus[: len(y)]).div_(len(y))
        torch.mm(h.t(), wrong, out=of_w2)
        torch.sum(wrong, 0, out=of_b2)
        back = torch.mm(wrong, w2.t()).mul_(h > 0)
        torch.addmm(w1, x.t(), back, beta=2 * PENALTY, out=of_w1)
        torch.sum(back, 0, out=of_b1)
        self.squares.mul_(DECAY).addcmul_(self.gradients, self.gradients, value=1 - DECAY)
        self.values.addcdiv_(self.gradients, self.squares.sqrt().add_(TINY), value=-RATE)


def _views(flat: Tensor, shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)]


def fit(train: Examples, dev: Examples, test_x: Tensor, classes: int, seed: int) -> Fitted:
    """Train a classifier with as many hidden units as its vectors have numbers, and predict with the weights of the epoch that is best on dev.

    Args:
        train, dev: examples; test_x: (N, D).
        classes: C.
        seed: of the first weights and of the order of examples in each epoch.
    Source: Ampomah et al. 2021, §7.1; activation, hidden width, patience and first weights are not stated there.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        width = train.x.size(1)
        classifier = Classifier(width, width, classes, train.x.dtype, generator)
        best, best_epoch, kept = -1.0, 0, classifier.values.clone()
        shuffled, epoch = torch.empty_like(train.x), 0
        while epoch < EPOCHS and epoch - best_epoch < PATIENCE:
            epoch += 1
            order = torch.randperm(len(train.y), generator=generator)
            torch.index_select(train.x, 0, order, out=shuffled)  # once an epoch, so that batches are slices
            for x, y in zip(torch.split(shuffled, BATCH), torch.split(train.y[order].unsqueeze(1), BATCH), strict=True):
                classifier.step(x, y)
            accuracy = (classifier.predict(dev.x) == dev.y).double().mean().item()
            if accuracy > best:
                best, best_epoch = accuracy, epoch
                kept.copy_(classifier.values)
        classifier.values.copy_(kept)
        return Fitted(classifier.predict(test_x), best, best_epoch, epoch)


def standardised(parts: list[Tensor]) -> list[Tensor]:
    """Vectors whose numbers have mean 0 and variance 1 over the first part, in place, so that rate and penalty mean the same for all systems.

    Args:
        parts: (N_i, D); a number that does not vary in the first part becomes 0 there.
    """
    mean, spread = parts[0].double().mean(0), parts[0].double().std(0, correction=0)
    spread[spread < 1e-6 * mean.abs().clamp(min=1e-6)] = torch.inf
    for part in parts:
        part.sub_(mean.to(part.dtype)).div_(spread.to(part.dtype))
    return parts
