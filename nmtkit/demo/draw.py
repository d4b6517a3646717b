"""Random choices that are the same for a seed on every machine and Python: only `Random.random` is used, whose values are guaranteed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices.

    Args:
        seed: the user's seed. stream: which of the independent streams under that seed.
    """

    __slots__ = ("random",)

    def __init__(self, seed: int, stream: int = 0) -> None:
        self.random = Random(seed * 1_000_003 + stream).random

    def pick(self, options: Sequence[T]) -> T:
        """One of `options`, each as likely."""
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self.random() * (high - low + 1))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A shuffled copy (Fisher and Yates)."""
        found = list(items)
        for at in range(len(found) - 1, 0, -1):
            other = int(self.random() * (at + 1))
            found[at], found[other] = found[other], found[at]
        return found
