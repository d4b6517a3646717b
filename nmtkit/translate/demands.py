"""Prefixes and phrases that a user demands of translations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit import files
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.settings import SearchSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import UNK, Vocabulary
from nmtkit.translate.hypotheses import length_limit
from nmtkit.translate.windows import is_marker


@dataclass(frozen=True)
class LineDemand:
    """What the user demands of the translation of a line.

    Attributes:
        number: of the line in its file, from 0.
        prefix: text that the translation begins with.
        phrases: texts that the translation contains.
    """

    number: int
    prefix: str = ""
    phrases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Demand:
    """What the user demands of the translation of a sentence: a line or a piece of it.

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


def read_demands(
    prefix: Path | None = None, constraints: Path | None = None
) -> Iterator[LineDemand]:
    """Yield the demand of each line; without files, yield empty demands without end.

    Args:
        prefix: a file with the prefix of each source line.
        constraints: a file with the phrases of each source line, separated by tabs.
    """
    columns = [
        itertools.repeat("") if path is None else files.text_lines(path)
        for path in (prefix, constraints)
    ]
    for number, line in enumerate(zip(*columns, strict=False)):
        begins, phrases = ("" if is_marker(text) else text for text in line)
        texts = map(str.strip, phrases.split("\t"))
        yield LineDemand(number, begins, tuple(filter(None, texts)))


def phrase_ids(
    side: TextSide, vocabulary: Vocabulary, demand: LineDemand
) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of the phrases of a line.

    Args:
        side, vocabulary: of the target.
        demand: of the line.
    Raises: DataError if the vocabulary lacks a subword.
    """
    phrases = []
    for text in demand.phrases:
        subwords = side.encode_inside(text)
        ids = tuple(vocabulary.encode(subwords)[:-1])
        if UNK in ids:
            unknown = subwords[ids.index(UNK)]
            raise DataError(
                f"no system of this run can write '{text}': '{unknown}' is not in the vocabulary",
                where=f"the constraints, line {demand.number + 1:,}",
                hint="leave the phrase out, or use another one",
            )
        phrases.append(ids)
    return tuple(filter(None, phrases))


def check_demand(
    number: int,
    prefix: Sequence[int],
    phrases: Sequence[Sequence[int]],
    pieces: Sequence[Sequence[int]],
    settings: SearchSettings,
) -> None:
    """Raise DataError if no translation of a line can have a prefix and phrases; ConfigError if
    there are phrases and the settings' method cannot search for phrases.

    Args:
        number: of the line, from 0.
        prefix, phrases: token ids.
        pieces: the ids of each piece of the source line.
        settings: of the search.
    """
    place = f"line {number + 1:,}"
    if phrases and (settings.sample or settings.diverse_groups > 1):
        raise ConfigError(
            "phrases that must appear need a beam search without groups",
            where="search.sample" if settings.sample else "search.diverse_groups",
            hint="leave it out, or leave out the constraints",
        )
    if not pieces and (prefix or phrases):
        raise DataError(
            "the source line is blank, so its translation is blank",
            where=f"the {'prefixes' if prefix else 'constraints'}, {place}",
            hint="give a blank line there",
        )
    if phrases and len(pieces) > 1:
        raise DataError(
            "the source line is translated in pieces, so the place of the phrases is unknown",
            where=f"the constraints, {place}",
            hint="split the line, or translate it whole: --set search.max_source=…",
        )
    length = len(prefix) + sum(map(len, phrases))
    if pieces and length > (room := length_limit(len(pieces[0]), settings) - 1):  # </s> counts
        what = "what must appear" if phrases else "the prefix"
        raise DataError(
            f"{what} has {counted(length, 'subword')}, but a translation of this line has at most"
            f" {room:,}",
            where=place,
            hint="shorten it, or raise the limit: --set search.max_length_b=…",
        )
