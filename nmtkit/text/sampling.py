"""Random segmentations of a word for subword regularisation: BPE-dropout, and sampling from a
unigram language model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from random import Random

Draw = Callable[[str, Random], list[str]]
"""Draws one segmentation of a word; an empty list if the word has none."""
_Starts = list[list[tuple[int, float]]]


def merge_with_dropout(
    symbols: list[str],
    rank: Callable[[tuple[str, str]], float | None],
    dropout: float,
    random: Callable[[], float],
) -> list[str]:
    """Merge pairs, the lowest rank first, and leave out merges at random.

    In each step each possible merge is left out with probability `dropout`; there is one draw for
    each merge from left to right. The best of the other merges is made in all places where it is
    not left out. The word is done when no merge is left.

    Args:
        symbols: characters of a word.
        rank: of a pair; None if it is never merged.
        dropout: 0 gives the usual segmentation, 1 the characters.
        random: draws from [0, 1).
    Source: Provilkov et al. 2020, Algorithm 1, as subword-nmt has it.
    """
    while True:
        possible = [
            (value, place)
            for place, pair in enumerate(itertools.pairwise(symbols))
            if (value := rank(pair)) is not None and random() >= dropout
        ]
        if not possible:
            return symbols
        best = min(possible)[0]
        places: list[int] = []
        for value, place in possible:
            if value == best and place - 1 not in places[-1:]:  # in aaa only the first aa is merged
                places.append(place)
        for place in reversed(places):
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def unigram_draw(scores: Mapping[str, float], alpha: float) -> Draw:
    """Return a function that draws a segmentation with probability ∝ exp(α · sum of its scores).

    Args:
        scores: log-probability of each piece that may be used.
        alpha: 0 makes all segmentations equally likely.
    Source: Kudo 2018, section 3.2, over all segmentations: forward filtering, backward sampling.
    """
    longest = max(map(len, scores), default=0)
    weights = {piece: alpha * score for piece, score in scores.items()}
    lattice: tuple[str, _Starts] = ("", [])

    def draw(text: str, random: Random) -> list[str]:
        nonlocal lattice
        if text != lattice[0]:
            lattice = text, _lattice(text, weights, longest)
        pieces: list[str] = []
        end = len(text)
        while end:
            options = lattice[1][end]
            if not options:
                return []
            left = random.random() * options[-1][1]
            start = next((start for start, total in options if left < total), options[-1][0])
            pieces.append(text[start:end])
            end = start
        return pieces[::-1]

    return draw


def _lattice(text: str, weights: Mapping[str, float], longest: int) -> _Starts:
    """Return for each end of a piece its possible starts, each with the cumulative probability (not
    normalised) of this start and those before it. An end that no segmentation reaches has none.
    """
    forward = [0.0]  # log of the sum over all segmentations up to here
    result: _Starts = [[]]
    for end in range(1, len(text) + 1):
        logs = [
            (start, forward[start] + weights[piece])
            for start in range(max(0, end - longest), end)
            if (piece := text[start:end]) in weights and forward[start] != -math.inf
        ]
        top = max((value for _, value in logs), default=-math.inf)
        total, options = 0.0, []
        for start, value in logs:
            total += math.exp(value - top)
            options.append((start, total))
        forward.append(top + math.log(total) if total else -math.inf)
        result.append(options)
    return result
