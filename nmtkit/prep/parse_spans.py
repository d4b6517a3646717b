"""The spans of a prepared set from the parses of its source, after its ids are written; memory
does not grow with the text.
"""

from __future__ import annotations

import functools
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.data.spans import SpansWriter
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.parallel import ordered_map
from nmtkit.prep.encoders import load_sides
from nmtkit.prep.trees import Unusable, parse_phrases
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import JOINER, tidy, utf8_lines

PARSED = "parsed"
"""Sentences with phrases of their own, among the counts; the others' reasons are those of
`Unusable`.
"""
BLANK = "blank"
FEW = 0.05
"""Up to this share of the lines that are not blank may have no usable tree before that is warned
of.
"""


class Parser(Protocol):
    """A constituency parser."""

    tools: dict[str, str]
    """What it is, and its version."""

    def __call__(self, sentences: list[list[str]]) -> list[str]:
        """Sentences of words to bracketed trees, one line each; "" where there is none."""
        ...


class Kept:
    """Which rows of a set's files are in its store.

    Args:
        dropped: rows dropped by cleaning and, counted among those kept then, by encoding; rising.
    """

    def __init__(self, *dropped: array[int]) -> None:
        self._dropped = [
            np.frombuffer(rows, np.int64) if rows else np.empty(0, np.int64) for rows in dropped
        ]
        self._read = [0] * len(dropped)

    def following(self, count: int) -> NDArray[np.bool_]:
        """The next so many rows of the files: whether each is kept."""
        kept = np.ones(count, bool)
        for i, dropped in enumerate(self._dropped):
            places = np.flatnonzero(kept)
            start = self._read[i]
            self._read[i] += len(places)
            first, last = np.searchsorted(dropped, (start, self._read[i]))
            kept[places[dropped[first:last] - start]] = False
        return kept


class Made(NamedTuple):
    """The spans of a chunk of sentences."""

    lengths: bytes
    counts: NDArray[np.int64]
    sums: NDArray[np.int64]
    """Tokens of all spans of each sentence together."""
    reasons: Counter[str]
    first: dict[str, int]
    """Of each reason, the first sentence of the chunk that has it."""


class SpanMaker:
    """Cuts sentences by their parses.

    Args:
        prep: as of `encoders.SetEncoder`.
    """

    def __init__(self, prep: Path) -> None:
        self._side = load_sides(prep)[0][0]

    def __call__(self, chunk: Sequence[bytes]) -> Made:
        """Cut the sentences of a chunk: raw source lines, and a parse for each."""
        src, parses = (utf8_lines(text, Counter()) for text in chunk)
        cuts: list[list[int]] = []
        reasons: Counter[str] = Counter()
        first: dict[str, int] = {}
        for number, (line, parse) in enumerate(zip(src, parses, strict=True)):
            reason, cut = PARSED, []
            try:
                cut = self._cut(line or "", parse or "")
            except Unusable as why:
                reason = str(why)
            cuts.append(cut)
            reasons[reason] += 1
            first.setdefault(reason, number)
        lengths = bytes(length for cut in cuts for length in cut)
        return Made(
            lengths,
            np.array(list(map(len, cuts)), np.int64),
            np.array(list(map(sum, cuts)), np.int64),
            reasons,
            first,
        )

    def _cut(self, line: str, parse: str) -> list[int]:
        words = self._side.tokens(line) if parse.strip() else []
        return parse_phrases(parse, words, _subwords(self._side, words))


def _subwords(side: TextSide, words: list[str]) -> list[int]:
    """Subwords of each word."""
    if side.bpe is None:
        return [1] * len(words)
    ends = [
        i for i, subword in enumerate(side.bpe.segment(words), 1) if not subword.endswith(JOINER)
    ]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class Outcome:
    """What became of the parses of a set."""

    counts: dict[str, int]
    """How many sentences were cut by their parse, and how many not by reason, most frequent
    first.
    """
    first: dict[str, int]
    """Of each reason the first line of the file, from 1."""

    @property
    def many_unusable(self) -> bool:
        """Whether more than a few of the lines that are not blank gave no phrases."""
        given = sum(self.counts.values()) - self.counts.get(BLANK, 0)
        return given - self.counts[PARSED] > FEW * given


def write_spans(
    folder: Path, name: str, chunks: Iterable[Sequence[bytes]], kept: Kept, jobs: int
) -> Outcome:
    """Write the spans of a set that is in the prep folder.

    Args:
        folder: the prep folder as far as it is written: ids, models, vocabularies and a manifest
            with languages and settings.
        name: of the set.
        chunks: all lines of its source and of its parses, as texts of so many lines.
        kept: which of them are in the set.
        jobs: worker processes; the output doesn't depend on it.
    Raises: DataError if the text is not that of the set.
    """
    lengths = Store(folder / name).src_lengths
    row = 0
    reasons: Counter[str] = Counter({PARSED: 0})
    first: dict[str, int] = {}
    places: deque[NDArray[np.int64]] = (
        deque()
    )  # of the chunks that are being cut, where in the file their lines are
    with (
        console.progress(f"parses of {name}", len(lengths)) as advance,
        SpansWriter(folder / name) as writer,
    ):
        for done in ordered_map(
            functools.partial(SpanMaker, folder), _only(chunks, kept, places), jobs
        ):
            made: Made = done
            expected = lengths[row : row + len(made.counts)]
            row += len(made.counts)
            if len(expected) != len(made.counts) or (made.sums != expected)[made.counts > 0].any():
                raise DataError(
                    "the files changed while they were read: text and parses are not those of"
                    " the set",
                    where=name,
                )
            writer.add_block(made.lengths, made.counts)
            reasons += made.reasons
            lines = places.popleft()
            first = {
                reason: int(lines[number]) + 1 for reason, number in made.first.items()
            } | first
            advance(len(made.counts))
    if row != len(lengths):
        raise DataError(
            "the files changed while they were read: their line counts differ", where=name
        )
    counts = {PARSED: reasons.pop(PARSED, 0)} | dict(
        sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    )
    return Outcome(counts, {reason: first[reason] for reason in counts if reason != PARSED})


def _only(
    chunks: Iterable[Sequence[bytes]], kept: Kept, places: deque[NDArray[np.int64]]
) -> Iterator[list[bytes]]:
    """What of the chunks is kept; where its lines stand is put into `places`."""
    start = 0
    for texts in chunks:
        mask = kept.following(texts[0].count(b"\n"))
        places.append(start + np.flatnonzero(mask))
        start += len(mask)
        yield list(texts) if mask.all() else [b"".join(_lines(text, mask)) for text in texts]


def _lines(text: bytes, mask: NDArray[np.bool_]) -> Iterator[bytes]:
    return (
        line + b"\n"
        for line, keep in zip(text.split(b"\n")[:-1], mask.tolist(), strict=True)
        if keep
    )


def parse_text(
    parser: Parser, side: TextSide, chunks: Iterable[Sequence[bytes]], kept: Kept, path: Path
) -> None:
    """Parse the source of a set on our own words and write the trees, one a line; blank for what is
    dropped or empty.

    Args:
        parser: of the source language.
        side: tokenizes the source; neither truecased nor segmented.
        chunks: all lines of the source, as texts of so many lines.
        kept: which of them are in the set; the others are not parsed.
        path: of the trees, a file that `--parses` takes again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.writing(path) as out:
        for (text,) in chunks:
            mask = kept.following(text.count(b"\n")).tolist()
            lines = [
                tidy(line or "") if keep else ""
                for line, keep in zip(utf8_lines(text, Counter()), mask, strict=True)
            ]
            trees = iter(parser([side.tokenized(line).split(" ") for line in lines if line]))
            out.write(
                "".join([(" ".join(next(trees).split()) if line else "") + "\n" for line in lines])
            )
