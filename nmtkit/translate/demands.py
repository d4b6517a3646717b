"""What people ask of the translation of a line, and what of this is asked of each piece of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError, counted
from nmtkit.settings import SearchSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import UNK, Vocabulary
from nmtkit.translate.hypotheses import length_limit
from nmtkit.translate.prefix import Demand
from nmtkit.translate.windows import is_marker


@dataclass(frozen=True)
class LineDemand:
    """What is asked of the translation of a line.

    Attributes:
        number: of the line in its file, from 0.
        prefix: text that the translation begins with.
        phrases: texts that the translation has.
    """

    number: int
    prefix: str = ""
    phrases: tuple[str, ...] = ()


def read_demands(
    prefix: Path | None = None, constraints: Path | None = None
) -> Iterator[LineDemand]:
    """Yield what is asked of each line; without a file, of any number of lines.

    Args:
        prefix: a line for each source line: its prefix.
        constraints: a line for each source line: its phrases, separated by tabs.
    """
    columns = [
        itertools.repeat("") if path is None else files.text_lines(path)
        for path in (prefix, constraints)
    ]
    for number, line in enumerate(zip(*columns, strict=False)):
        begins, phrases = ("" if is_marker(text) else text for text in line)
        texts = (text.strip() for text in phrases.split("\t"))
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


class LineDemands:
    """What is asked of each piece of some lines.

    A prefix is asked of the first piece. Phrases are asked of whole lines only.

    Args:
        side, vocabulary: of the target.
        settings: of the search.
        lines: the source.
        demands: of each line; None = nothing.
        ids: of each line the ids of its pieces.
    Attributes:
        prefixes: of each line the subwords that its translation begins with.
        demands: of each piece of each line.
    Raises: DataError if a demand cannot be met.
    """

    def __init__(
        self,
        side: TextSide,
        vocabulary: Vocabulary,
        settings: SearchSettings,
        lines: Sequence[str],
        demands: Sequence[LineDemand] | None,
        ids: Sequence[Sequence[Sequence[int]]],
    ) -> None:
        self._side, self._vocabulary, self._settings = side, vocabulary, settings
        asked = [LineDemand(i) for i in range(len(ids))] if demands is None else demands
        self.prefixes = [side.encode(d.prefix) if d.prefix.strip() else [] for d in asked]
        self._unfinished: frozenset[int] = frozenset()
        if any(demand.phrases for demand in asked):
            subwords = enumerate(vocabulary)
            joins_next = side.splitter.joins_next
            self._unfinished = frozenset(i for i, subword in subwords if joins_next(subword))
        self.demands = [
            self._of_pieces(demand, prefix, pieces, line)
            for demand, prefix, pieces, line in zip(asked, self.prefixes, ids, lines, strict=True)
        ]

    def _of_pieces(
        self, demand: LineDemand, prefix: list[str], pieces: Sequence[Sequence[int]], line: str
    ) -> list[Demand]:
        if not pieces and (prefix or demand.phrases):
            file = "prefixes" if prefix else "constraints"
            raise DataError(
                "the source line is blank, so its translation is blank",
                where=f"the {file}, line {demand.number + 1:,}",
                hint="give a blank line there",
            )
        forced = tuple(self._vocabulary.encode(prefix)[:-1])
        if pieces:
            self._check_room(demand.number, "the prefix", len(forced), len(pieces[0]))
        if demand.phrases:
            if len(pieces) > 1:
                raise DataError(
                    "the source line is translated in pieces, so the place of the phrases is"
                    " unknown",
                    where=f"the constraints, line {demand.number + 1:,}",
                    hint="split the line, or translate it whole: --set search.max_source=…",
                )
            phrases = phrase_ids(self._side, self._vocabulary, demand)
            length = len(forced) + sum(map(len, phrases))
            self._check_room(demand.number, "what must appear", length, len(pieces[0]))
            key = (demand.number, 0)
            return [Demand(key, forced, phrases, self._unfinished, line)]
        numbers = range(len(pieces))
        return [Demand((demand.number, i), () if i else forced, source=line) for i in numbers]

    def _check_room(self, number: int, what: str, length: int, source_length: int) -> None:
        """Refuse a demand of more subwords than a translation may have."""
        room = length_limit(source_length, self._settings) - 1  # </s> counts
        if length > room:
            raise DataError(
                f"{what} has {counted(length, 'subword')}, but a translation of this line has at"
                f" most {room:,}",
                where=f"line {number + 1:,}",
                hint="shorten it, or raise the limit: --set search.max_length_b=…",
            )
