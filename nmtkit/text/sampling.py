"""Random segmentations of a word for subword regularisation: BPE-dropout, and sampling from a
unigram language model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random

Draw = Callable[[str, Random], list[str]]
"""Draws one segmentation of a word; empty if there is none."""
_Starts = list[list[tuple[int, float]]]
_NONE = math.inf


def merge_with_dropout(
    symbols: list[str],
    rank: Callable[[tuple[str, str]], float | None],
    dropout: float,
    random: Callable[[], float],
) -> list[str]:
    """Merge pairs, the lowest rank first, while each possible merge is left out at random.

    In each step every possible merge is left out with probability `dropout`, one draw for each from
    left to right. The best of the others is made, in all its places that are not left out. The word
    is done when none is left.

    Args:
        symbols: characters of a word.
        rank: of a pair; None if it is never merged.
        dropout: 0 gives the usual segmentation, 1 the characters.
        random: draws from [0, 1).
    Source: Provilkov et al. 2020, Algorithm 1, as subword-nmt has it.
    """

    def rank_of(place: int) -> float:
        value = rank((symbols[place], symbols[place + 1]))
        return _NONE if value is None else value

    ranks = [rank_of(place) for place in range(len(symbols) - 1)]
    while True:
        best, places = _NONE, list[int]()
        for place, value in enumerate(ranks):
            if value != _NONE and random() >= dropout:
                if value < best:
                    best, places = value, [place]
                elif value == best:
                    places.append(place)
        if not places:
            return symbols
        end = -1
        merged: list[int] = []  # places of merged symbols, moved left by the merges before
        for place in places:
            if place >= end:  # in aaa only the first aa is merged
                merged.append(place - len(merged))
                end = place + 2
        for place in merged:
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
            ranks[place : place + 1] = []
        for place in {p for m in merged for p in (m - 1, m) if 0 <= p < len(ranks)}:
            ranks[place] = rank_of(place)


def unigram_draw(scores: Mapping[str, float], alpha: float) -> Draw:
    """Return what draws a segmentation of a text with probability ∝ exp(α · sum of its scores).

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
    """Return for each end of a piece its possible starts, each with the sum of the probabilities up
    to it (not normalised); none for an end that no segmentation of the text so far has.
    """
    forward = [0.0]  # log of the sum over all segmentations up to here
    result: _Starts = [[]]
    for end in range(1, len(text) + 1):
        logs = [
            (start, forward[start] + weights[piece])
            for start in range(max(0, end - longest), end)
            if (piece := text[start:end]) in weights and forward[start] != -_NONE
        ]
        top = max((value for _, value in logs), default=-_NONE)
        total, options = 0.0, []
        for start, value in logs:
            total += math.exp(value - top)
            options.append((start, total))
        forward.append(top + math.log(total) if total else -_NONE)
        result.append(options)
    return result
