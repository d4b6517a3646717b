"""The truecased words of both sides by number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmtkit.arrays import Ints
from nmtkit.prep.word_table import WordTable
from nmtkit.text.tokenizer import SIDES
from nmtkit.text.truecase import Truecaser
from nmtkit.text.words import Words

PLACES = "elsewhere", "at_start"
"""Where a word stands, by the column of `SideWords.forms`."""


@dataclass
class SideWords:
    """The truecased words of a side."""

    words: Words
    """By number; of both sides if they share them."""
    counts: Ints
    """How often each occurs on this side."""
    forms: Ints
    """For each word of the table, the number of its form elsewhere and where a sentence starts; -1
    if it never occurs there (W, 2)."""


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
    for table, places, text in zip(tables, forms, words * (len(SIDES) // len(words)), strict=True):
        counts = np.zeros(len(text), np.int64)
        for column, field in enumerate(PLACES):
            used = places[:, column] >= 0
            np.add.at(counts, places[used, column], table.rows[field][used])
        result.append(SideWords(text, counts, places))
    return result


def _forms(table: WordTable, truecaser: Truecaser | None, number: dict[str, int]) -> Ints:
    """Return the numbers of the truecased forms of each word, as `SideWords.forms`.

    New forms are added to `number`.
    """
    words = table.words()
    forms = np.full((len(words), 2), -1)
    for column, first in ((1, True), (0, False)):
        used = table.rows[PLACES[column]] > 0
        some = list(itertools.compress(words, used.tolist()))
        cased = truecaser.words(some, first) if truecaser else some
        forms[used, column] = [number.setdefault(word, len(number)) for word in cased]
    return forms
