"""Ended hypotheses, and the steps of a search, from which the tokens of a hypothesis are read back.

Legend: B sentences of a batch, M of them still searched, K slots a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nmtkit.settings import SearchSettings


@dataclass(frozen=True)
class Hypothesis:
    """One translation: token ids without </s>.

    log_prob is the natural logarithm of its probability, that of </s> included if it is finished;
    score = log_prob / lp. finished is False if it reached the length limit without </s>.
    """

    ids: list[int]
    log_prob: float
    score: float
    finished: bool


NBest = list[Hypothesis]
"""The hypotheses of a sentence, the best first."""


def length_penalty(length: int, alpha: float) -> float:
    """GNMT's lp(|Y|) = ((5+|Y|)/6)^α (Wu et al. 2016, eq. 14).

    Args:
        length: |Y|, tokens of the hypothesis including </s>.
        alpha: 0 = no penalty.
    """
    return float(((5 + length) / 6) ** alpha)


def length_limit(source_length: int, settings: SearchSettings) -> int:
    """Return the most tokens that a hypothesis may have, at least 1; </s> counts on both sides."""
    return max(1, int(settings.max_length_a * source_length + settings.max_length_b))


class End(NamedTuple):
    """A hypothesis that has ended: of a sentence, in a slot, after `length` steps."""

    sentence: int
    slot: int
    length: int
    log_prob: float
    score: float
    finished: bool


class Step(NamedTuple):
    """The choices of one search step, on the host.

    Attributes:
        rows: (B) the row of each sentence.
        tokens: (M, K) chosen.
        parents: (M, K) the slot of the step before that each token continues.
    """

    rows: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray


class StepLog:
    """The choices of all steps of a search that the host has read.

    Args:
        sentences: B.
    Attributes:
        steps: the first one first.
    """

    def __init__(self, sentences: int) -> None:
        self.steps: list[Step] = []
        self._rows = np.arange(sentences)

    def add(self, tokens: np.ndarray, parents: np.ndarray) -> None:
        """Add a step (M, K)."""
        self.steps.append(Step(self._rows, tokens, parents))

    def keep(self, sentences: np.ndarray) -> None:
        """Drop all sentences but these (M')."""
        self._rows = np.zeros_like(self._rows)
        self._rows[sentences] = np.arange(len(sentences))

    def tokens_of(
        self, sentences: Sequence[int], slots: Sequence[int], lengths: Sequence[int]
    ) -> list[list[int]]:
        """Return the tokens of hypotheses, followed back from the last token.

        Args:
            sentences, slots: where each hypothesis is after its last step.
            lengths: number of steps of each.
        """
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        of, slot, length = (np.array(x, dtype=int)[order] for x in (sentences, slots, lengths))
        ids = np.zeros((len(of), max(lengths, default=0)), dtype=int)
        for i in range(ids.shape[1] - 1, -1, -1):
            long = np.searchsorted(
                -length, -i
            )  # the first `long` hypotheses have more than i tokens
            step = self.steps[i]
            place = step.rows[of[:long]], slot[:long]
            ids[:long, i], slot[:long] = step.tokens[place], step.parents[place]
        ids[order] = ids.copy()
        return [row[:n] for row, n in zip(ids.tolist(), lengths, strict=True)]

    def hypotheses(self, ended: Sequence[Sequence[End]]) -> list[NBest]:
        """Return hypotheses, some of each sentence, with their tokens."""
        flat = [end for of_sentence in ended for end in of_sentence]
        columns = zip(*(end[:3] for end in flat), strict=True) if flat else [(), (), ()]
        ids = iter(self.tokens_of(*columns))
        return [[_hypothesis(next(ids), end) for end in of_sentence] for of_sentence in ended]


def _hypothesis(ids: list[int], end: End) -> Hypothesis:
    return Hypothesis(ids[:-1] if end.finished else ids, end.log_prob, end.score, end.finished)
