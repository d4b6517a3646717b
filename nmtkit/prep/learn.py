"""From counts of words alone: truecasers, BPE and vocabularies. A word's truecased form depends on
the word and on whether it starts a sentence, its subwords on that form; so no step reads the text
again.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.parallel import ordered_map
from nmtkit.prep.encoders import BOTH, Numbers, Segmenter
from nmtkit.prep.workers import SideCounts
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import JOINER, Bpe, learn_bpe
from nmtkit.text.segmented import Segmented
from nmtkit.text.truecase import Truecaser
from nmtkit.text.vocabulary import Vocabulary, by_frequency

Ints = NDArray[np.int64]
WORDS_PER_CHUNK = 2000


@dataclass
class Words:
    """The truecased words of a side: list, how often each occurs (0 for those of the other side
    only), numbers of words as they are in the text.
    """

    words: list[str]
    counts: Ints
    numbers: Numbers


def numbered(
    counts: Mapping[str, SideCounts], truecasers: Mapping[str, Truecaser | None], shared: bool
) -> dict[str, Words]:
    """Number the words of both sides; the target's numbers follow the source's.

    Args:
        counts, truecasers: of each side.
        shared: the sides share one list of words.
    """
    shared_numbers: dict[str, int] = {}
    numbers = {side: shared_numbers if shared else {} for side in BOTH}
    found: dict[str, list[tuple[Counter[str], Ints]]] = {}
    for side in BOTH:
        number, truecaser = numbers[side], truecasers[side]
        found[side] = []
        for words, first in ((counts[side].at_start, True), (counts[side].elsewhere, False)):
            cased = truecaser.words(words, first) if truecaser else words
            found[side].append(
                (
                    words,
                    np.array([number.setdefault(word, len(number)) for word in cased], np.int64),
                )
            )
    result = {}
    for side, before in zip(BOTH, (0, len(numbers["src"])), strict=True):
        sums = sum(
            np.bincount(of, list(words.values()), len(numbers[side])) for words, of in found[side]
        )
        forms = [dict(zip(words, (of + before).tolist(), strict=True)) for words, of in found[side]]
        result[side] = Words(list(numbers[side]), np.asarray(sums, np.int64), Numbers(*forms))
    return result


@dataclass
class Models:
    """What is learnt of both sides' words."""

    bpe: dict[str, Bpe | None]
    segmented: dict[str, Segmented]
    vocabularies: tuple[Vocabulary, Vocabulary]


def learn(
    words: Mapping[str, Words],
    settings: PrepSettings,
    folder: Path,
    jobs: int,
    facts: dict[str, int],
) -> Models:
    """Learn BPE and vocabularies and write codes.bpe (codes.SIDE.bpe), bpe-vocab.SIDE.txt and
    vocab.txt (vocab.SIDE.txt).

    Args:
        words: of each side.
        folder: where the files go.
        jobs: worker processes.
        facts: the numbers of merges learnt are added.
    """
    bpe: dict[str, Bpe | None] = dict.fromkeys(BOTH)
    segmented = {side: Segmented.whole(words[side].words) for side in BOTH}
    if settings.merges:
        codes = {
            side: folder / ("codes.bpe" if settings.joint_vocab else f"codes.{side}.bpe")
            for side in BOTH
        }
        segmented = _learn_merges(words, settings, codes, jobs, facts)
    tokens = {side: segmented[side].counts(words[side].counts) for side in BOTH}
    if settings.merges:
        for side in BOTH:
            count = tokens[side]
            files.write_lines(
                folder / f"bpe-vocab.{side}.txt",
                [f"{token} {count[token]}" for token in by_frequency(count)],
            )
            allowed = (
                {token for token in count if count[token] >= settings.vocab_threshold}
                if settings.vocab_threshold
                else None
            )
            shares = side == "tgt" and settings.joint_vocab and allowed is None
            bpe[side] = bpe["src"] if shares else Bpe(codes[side], allowed)
            if allowed:
                segmented[side] = _undone(
                    segmented[side],
                    words[side],
                    functools.partial(Segmenter, codes[side], allowed),
                    allowed,
                    jobs,
                )
                tokens[side] = segmented[side].counts(words[side].counts)
    if settings.joint_vocab:
        shared = Vocabulary.from_counts(tokens["src"] + tokens["tgt"], settings.min_frequency)
        shared.save(folder / "vocab.txt")
        return Models(bpe, segmented, (shared, shared))
    src, tgt = (Vocabulary.from_counts(tokens[side], settings.min_frequency) for side in BOTH)
    src.save(folder / "vocab.src.txt")
    tgt.save(folder / "vocab.tgt.txt")
    return Models(bpe, segmented, (src, tgt))


def _learn_merges(
    words: Mapping[str, Words],
    settings: PrepSettings,
    codes: Mapping[str, Path],
    jobs: int,
    facts: dict[str, int],
) -> dict[str, Segmented]:
    if settings.joint_vocab:
        counts = words["src"].counts + words["tgt"].counts
        learnt = [
            learn_bpe(
                dict(zip(words["src"].words, counts.tolist(), strict=True)),
                settings.merges,
                codes["src"],
            )
        ] * 2
    else:
        learnt = list(
            ordered_map(
                functools.partial(_SideLearner, words, settings.merges, codes), BOTH, min(jobs, 2)
            )
        )
    for side, segmented in zip(BOTH[: 1 if settings.joint_vocab else 2], learnt, strict=False):
        facts["merges" if settings.joint_vocab else f"{side}_merges"] = segmented.merges
        if segmented.merges < settings.merges:
            console.say(
                f"BPE: learned {segmented.merges:,} of {settings.merges:,} merges; the corpus has"
                " no more"
            )
    return dict(zip(BOTH, learnt, strict=True))


class _SideLearner:
    """Learns the merges of a side in a process of its own."""

    def __init__(self, words: Mapping[str, Words], merges: int, codes: Mapping[str, Path]) -> None:
        self._words, self._merges, self._codes = words, merges, codes

    def __call__(self, side: str) -> Segmented:
        words = self._words[side]
        return learn_bpe(
            dict(zip(words.words, words.counts.tolist(), strict=True)),
            self._merges,
            self._codes[side],
        )


def _undone(
    segmented: Segmented, words: Words, make: Callable[[], Segmenter], allowed: set[str], jobs: int
) -> Segmented:
    """Segment those words anew of which a subword is too rare on their side."""
    odd = {number for number, word in enumerate(words.words) if word.endswith(JOINER)}
    numbers = [
        number for number in sorted({*segmented.outside(allowed), *odd}) if words.counts[number]
    ]
    chunks = [
        [words.words[number] for number in numbers[i : i + WORDS_PER_CHUNK]]
        for i in range(0, len(numbers), WORDS_PER_CHUNK)
    ]
    pieces = itertools.chain.from_iterable(
        ordered_map(make, chunks, jobs if len(chunks) > 2 else 1)
    )
    return segmented.changed(dict(zip(numbers, pieces, strict=True)))
