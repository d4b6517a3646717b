"""Ended hypotheses, and the log of a search's steps, from which their tokens are read.

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
    """One translation.

    Attributes:
        ids: without </s>.
        log_prob: natural logarithm of its probability, </s> included if it is finished.
        score: log_prob / lp.
        finished: False if it reached the length limit without </s>.
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
    """The choices of one search step.

    Attributes:
        rows: (B) the row of each sentence in the M.
        tokens: (M, K) the chosen tokens.
        parents: (M, K) the slot of the previous step that each token continues.
    """

    rows: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray


class StepLog:
    """The choices of all steps of a search.

    Args:
        sentences: B.
    """

    def __init__(self, sentences: int) -> None:
        self.steps: list[Step] = []
        self._rows = np.arange(sentences)

    def add(self, tokens: np.ndarray, parents: np.ndarray) -> None:
        """Add a step (M, K)."""
        self.steps.append(Step(self._rows, tokens, parents))

    def keep(self, sentences: np.ndarray) -> None:
        """Keep only these sentences (M')."""
        self._rows = np.zeros_like(self._rows)
        self._rows[sentences] = np.arange(len(sentences))

    def tokens_of(self, places: Sequence[tuple[int, int, int]]) -> list[list[int]]:
        """Return the tokens of hypotheses, followed back from the last token.

        Args:
            places: of each hypothesis its sentence, its slot after the last step, and its length.
        """
        array = np.array(places, dtype=int).reshape(-1, 3)
        order = np.argsort(-array[:, 2], kind="stable")  # longest first
        sentence, slot, length = array[order].T
        ids = np.zeros((len(array), length.max(initial=0)), dtype=int)
        for i in reversed(range(ids.shape[1])):
            long = np.searchsorted(-length, -i)  # this many hypotheses have more than i tokens
            step = self.steps[i]
            place = step.rows[sentence[:long]], slot[:long]
            ids[:long, i], slot[:long] = step.tokens[place], step.parents[place]
        ids[order] = ids.copy()
        return [row[:n] for row, (_, _, n) in zip(ids.tolist(), places, strict=True)]

    def hypotheses(self, ended: Sequence[Sequence[End]]) -> list[NBest]:
        """Return the hypotheses of each sentence, with their tokens."""
        places = [(end.sentence, end.slot, end.length) for ends in ended for end in ends]
        tokens = iter(self.tokens_of(places))

        def hypothesis(end: End) -> Hypothesis:
            ids = next(tokens)[: -1 if end.finished else None]
            return Hypothesis(ids, end.log_prob, end.score, end.finished)

        return [list(map(hypothesis, ends)) for ends in ended]
