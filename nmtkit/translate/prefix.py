"""What is asked of the translation of a sentence, and how its beginning is forced.

A forced prefix, exactly. Of a sentence with a prefix of p tokens, token t ≤ p of every hypothesis
is token t of the prefix. Every other token is impossible there; nothing else changes. So the
log-probability of a translation is the model's own, that of the prefix included.

Legend: M sentences still searched, R rows, R' some of them, V vocabulary, P longest prefix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

NONE = -1
"""Stands where a prefix has no token."""


@dataclass(frozen=True)
class Demand:
    """What is asked of the translation of a sentence.

    Attributes:
        key: names the sentence; its samples are drawn from the seed and this.
        prefix: token ids that the translation begins with.
        phrases: token ids of phrases that the translation has.
        unfinished: ids of subwords that do not end a word; none if there are no phrases.
        source: the text, which a utility may read.
    """

    key: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    phrases: tuple[tuple[int, ...], ...] = ()
    unfinished: frozenset[int] = frozenset()
    source: str = ""


class ForcedPrefixes:
    """The prefixes (M, P) of the sentences still searched, filled up with NONE."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    @classmethod
    def of(cls, demands: Sequence[Demand], device: torch.device) -> Self | None:
        """Return the prefixes of sentences; None if no sentence has one."""
        longest = max((len(demand.prefix) for demand in demands), default=0)
        if not longest:
            return None
        rows = [[*d.prefix, *[NONE] * (longest - len(d.prefix))] for d in demands]
        return cls(torch.tensor(rows, device=device))

    def restrict(self, logits: Tensor, rows: slice, width: int, step: int) -> Tensor:
        """Return logits (R', V) with -inf for every token but the one that a prefix has next.

        Args:
            logits: (R', V).
            rows: which of all rows they are.
            width: K, the hypotheses of each sentence.
            step: their tokens so far.
        """
        if step >= self._tokens.shape[1]:
            return logits
        wanted = self._tokens[:, step].repeat_interleave(width)[rows, None]  # (R', 1)
        other = (wanted != NONE) & (wanted != torch.arange(logits.shape[1], device=logits.device))
        return logits.masked_fill(other, -math.inf)

    def keep(self, rows: Tensor) -> Self:
        """Return the prefixes of some of the M sentences."""
        return type(self)(self._tokens[rows])
