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
from nmtkit.text.vocabulary import Vocabulary
from nmtkit.translate.beam import length_limit
from nmtkit.translate.prefix import Demand
from nmtkit.translate.windows import is_marker


@dataclass(frozen=True)
class LineDemand:
    """What is asked of the translation of a line.

    Attributes:
        number: of the line in its file, from 0.
        prefix: text that the translation begins with.
    """

    number: int
    prefix: str = ""


def read_demands(prefix: Path | None = None) -> Iterator[LineDemand]:
    """Yield what is asked of each line; without a file, of any number of lines."""
    prefixes = itertools.repeat("") if prefix is None else files.text_lines(prefix)
    for number, line in enumerate(prefixes):
        yield LineDemand(number, "" if is_marker(line) else line)


class LineDemands:
    """What is asked of each piece of some lines.

    A prefix is asked of the first piece.

    Args:
        side, vocabulary: of the target.
        settings: of the search.
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
        demands: Sequence[LineDemand] | None,
        ids: Sequence[Sequence[Sequence[int]]],
    ) -> None:
        self._side, self._vocabulary, self._settings = side, vocabulary, settings
        lines = [LineDemand(i) for i in range(len(ids))] if demands is None else demands
        self.prefixes = [side.encode(d.prefix) if d.prefix.strip() else [] for d in lines]
        self.demands = [
            self._of_pieces(demand, prefix, pieces)
            for demand, prefix, pieces in zip(lines, self.prefixes, ids, strict=True)
        ]

    def _of_pieces(
        self, demand: LineDemand, prefix: list[str], pieces: Sequence[Sequence[int]]
    ) -> list[Demand]:
        if prefix and not pieces:
            raise DataError(
                "the source line is blank, so its translation is blank and has no prefix",
                where=f"the prefixes, line {demand.number + 1:,}",
                hint="give a blank line there",
            )
        forced = tuple(self._vocabulary.encode(prefix)[:-1])
        if pieces:
            self._check_room(demand.number, "the prefix", len(forced), len(pieces[0]))
        numbers = range(len(pieces))
        return [Demand((demand.number, i), () if i else forced) for i in numbers]

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
