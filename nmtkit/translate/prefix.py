"""Demands on the translation of a sentence, and the search with forced prefixes.

A forced prefix, exactly. If a sentence has a prefix of p tokens, token t ≤ p of every hypothesis is
token t of the prefix. Every other token is impossible there; nothing else changes. So the
log-probability of a translation, prefix included, is the model's own.

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
"""Fills a shorter prefix up."""


@dataclass(frozen=True)
class Demand:
    """What the user demands of the translation of a sentence.

    Attributes:
        key: the numbers of the sentence; its samples are drawn from the seed and the key.
        prefix: token ids that the translation begins with.
        phrases: token ids of the phrases that the translation contains.
        unfinished: ids of subwords that do not end a word; empty without phrases.
        source: the source text, which an external metric may read.
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
        """Return the prefixes of sentences; None if no sentence has a prefix."""
        longest = max((len(demand.prefix) for demand in demands), default=0)
        if not longest:
            return None
        rows = [[*d.prefix, *[NONE] * (longest - len(d.prefix))] for d in demands]
        return cls(torch.tensor(rows, device=device))

    def restrict(self, logits: Tensor, rows: slice, width: int, step: int) -> Tensor:
        """Return logits with -inf for every token but the next token of the prefix.

        Args:
            logits: (R', V).
            rows: the slice of all rows that they are.
            width: K, the hypotheses of each sentence.
            step: the number of their tokens so far.
        """
        if step >= self._tokens.shape[1]:
            return logits
        wanted = self._tokens[:, step].repeat_interleave(width)[rows, None]  # (R', 1)
        other = (wanted != NONE) & (wanted != torch.arange(logits.shape[1], device=logits.device))
        return logits.masked_fill(other, -math.inf)

    def keep(self, rows: Tensor) -> Self:
        """Return the prefixes of some of the M sentences."""
        return type(self)(self._tokens[rows])
