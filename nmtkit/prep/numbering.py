"""The truecased words of both sides by number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmtkit.arrays import Ints
from nmtkit.prep.clean import SIDES
from nmtkit.prep.word_table import WordTable
from nmtkit.text.truecase import Truecaser
from nmtkit.text.words import Words


@dataclass
class SideWords:
    """The truecased words of a side."""

    words: Words
    """By number; of both sides if they share them."""
    counts: Ints
    """How often each occurs on this side."""
    at_start: Ints
    """For each word of the table, the number of its form where a sentence starts; -1 if it never
    occurs there."""
    elsewhere: Ints


def number_words(
    tables: Sequence[WordTable], truecasers: Sequence[Truecaser | None], shared: bool
) -> list[SideWords]:
    """Number the words of both sides.

    Args:
        tables, truecasers: of each side.
        shared: True if the sides share one list of words.
    """
    src: dict[str, int] = {}
    numbers = [src, src if shared else {}]
    forms = [
        _forms(table, truecaser, number)
        for table, truecaser, number in zip(tables, truecasers, numbers, strict=True)
    ]
    words = [Words.of([*number]) for number in numbers[: 1 if shared else 2]]
    result = []
    for table, (at_start, elsewhere), text in zip(
        tables, forms, words * (len(SIDES) // len(words)), strict=True
    ):
        counts = np.zeros(len(text), np.int64)
        for places, field in ((at_start, "at_start"), (elsewhere, "elsewhere")):
            used = places >= 0
            np.add.at(counts, places[used], table.rows[field][used])
        result.append(SideWords(text, counts, at_start, elsewhere))
    return result


def _forms(
    table: WordTable, truecaser: Truecaser | None, number: dict[str, int]
) -> tuple[Ints, Ints]:
    """Return the number of the truecased form of each word, where a sentence starts and elsewhere.

    New forms are added to `number`.
    """
    words = table.words()
    result = []
    for field, first in (("at_start", True), ("elsewhere", False)):
        used = table.rows[field] > 0
        some = list(itertools.compress(words, used.tolist()))
        cased = truecaser.words(some, first) if truecaser else some
        places = np.full(len(words), -1)
        places[used] = [number.setdefault(word, len(number)) for word in cased]
        result.append(places)
    return result[0], result[1]
