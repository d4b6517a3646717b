"""The first pass over the training text: tidy, tokenize and filter pairs, and count the words from
which truecaser and BPE are learnt.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import add, not_
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit import files
from nmtkit.errors import DataError
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.splitter import Splitter
from nmtkit.text.tidy import tidy, utf8_lines
from nmtkit.text.tokenizer import Side, tokenizer_name, usual_tokenizer
from nmtkit.text.truecase import SPECIAL, evidence, sentence_starts

SIDES: tuple[Side, Side] = ("src", "tgt")
LONGEST_WORD = 1000


def row_chunks(
    streams: Sequence[Sequence[Path]], max_rows: int = 4000, max_bytes: int = 1 << 20
) -> Iterator[list[bytes]]:
    """Read the lines of parallel texts in chunks of bounded size.

    Args:
        streams: the files of each text.
        max_rows, max_bytes: a chunk ends when it has so much.
    Returns: for each chunk the lines of each text, each line with its LF.
    Raises: DataError if one text has more lines than another.
    """
    lines = [
        itertools.chain.from_iterable(itertools.chain.from_iterable(map(files.line_blocks, paths)))
        for paths in streams
    ]
    try:
        for rows in _bounded(zip(*lines, strict=True), max_rows, max_bytes):
            yield list(map(b"".join, zip(*rows, strict=True)))
    except ValueError as error:
        problem = "the files changed while they were read: their line counts differ"
        raise DataError(problem, where=streams[0][0]) from error


def _bounded(
    rows: Iterable[tuple[bytes, ...]], max_rows: int, max_bytes: int
) -> Iterator[list[tuple[bytes, ...]]]:
    chunk: list[tuple[bytes, ...]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(map(len, row))
        if len(chunk) >= max_rows or size >= max_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def truecased(settings: PrepSettings, side: Side, language: str) -> bool:
    """True if a side is truecased.

    Only text that Moses tokenizes is: in Chinese no capital begins a sentence, and `iPhone` would
    get one; text that is tokenized already stays as it is.
    """
    wanted = settings.truecase in (side, "both") and not settings.lowercase
    return wanted and tokenizer_name(side, language, settings) == "moses"


@dataclass
class WordCounts:
    """How often each word of a side occurs; memory grows with the words, not with the text."""

    at_start: Counter[str] = field(default_factory=Counter)
    """Words where a sentence starts, as the truecaser sees it."""
    inside: Counter[str] = field(default_factory=Counter)
    """The truecaser's evidence (`truecase.evidence`), in the order of first appearance."""
    difference: Counter[str] = field(default_factory=Counter)
    """Words where no sentence starts, minus `inside`; so a word may have a negative count."""
    changes: Counter[str] = field(default_factory=Counter)
    """What `tidy` changed, by kind."""

    def add(self, lines: Iterable[str], truecase: bool) -> None:
        """Count tokenized lines, none of them empty.

        Most lines are one sentence without quotes or brackets inside: all their words but the first
        and a last mark are evidence.
        """
        starts: list[str] = []
        inside: list[str] = []
        no_evidence: list[str] = []
        for line in lines:
            tokens = line.split(" ")
            if not truecase:
                no_evidence += tokens
            elif SPECIAL.isdisjoint(tokens[:-1]) and "<" not in line:
                starts.append(tokens.pop(0))
                if tokens and tokens[-1] in SPECIAL:
                    no_evidence.append(tokens.pop())
                inside += tokens
            else:
                first = list(sentence_starts(tokens))
                starts += compress(tokens, first)
                no_evidence += compress(tokens, map(not_, first))
                counted = evidence(tokens)
                inside += counted
                self.difference.subtract(counted)
        self.at_start.update(starts)
        self.inside.update(inside)
        self.difference.update(no_evidence)

    @property
    def elsewhere(self) -> Counter[str]:
        """Words where no sentence starts."""
        counts = self.inside.copy()
        counts.update(self.difference)
        return +counts

    def merge(self, following: WordCounts) -> None:
        """Add the counts of the text that follows."""
        for name, counts in vars(following).items():
            total = getattr(self, name)
            sums = map(add, map(total.get, counts, repeat(0)), counts.values())
            # half the time of Counter.update
            dict.update(total, zip(counts, sums, strict=True))


@dataclass
class Cleaned:
    """A chunk of training pairs, tidied, tokenized and filtered."""

    text: bytes
    """The pairs that are kept, tokenized: src line, tgt line, … as UTF-8."""
    kept: NDArray[np.bool_]
    """For each row of the chunk, True if it is kept."""
    reasons: Counter[tuple[str, str]]
    """Dropped pairs by reason, under "pairs" and under each side that is to blame."""
    counts: tuple[WordCounts, WordCounts]


class Cleaner:
    """Tidies, tokenizes, filters and counts training pairs.

    Args:
        languages: source and target.
        settings: of prep.
        splitters: of both sides, whose normalisation the text gets.
    """

    def __init__(
        self,
        languages: tuple[str, str],
        settings: PrepSettings,
        splitters: Sequence[Splitter | None] = (None, None),
    ) -> None:
        names = list(map(tokenizer_name, SIDES, languages, [settings] * 2))
        self._sides = [
            TextSide(language, settings, None, splitter, name)
            for language, splitter, name in zip(languages, splitters, names, strict=True)
        ]
        self._by_character = [
            name == "raw" and usual_tokenizer(language) != "moses"
            for name, language in zip(names, languages, strict=True)
        ]
        self._truecase = list(map(truecased, [settings] * 2, SIDES, languages))
        self._settings = settings
        # A longer line cannot become short enough: tokenization joins two words at most.
        self._hopeless = 10 * settings.max_words
        self._too_long = "x " * self._hopeless + "x"

    def __call__(self, texts: Sequence[bytes]) -> Cleaned:
        """Clean the source lines and the target lines of a chunk, each line with its LF."""
        counts = (WordCounts(), WordCounts())
        lines: list[str] = []
        kept: list[bool] = []
        reasons: Counter[tuple[str, str]] = Counter()
        drop = self._settings.on_bad_utf8 == "drop"
        decoded = [
            utf8_lines(text, None if drop else count.changes)
            for text, count in zip(texts, counts, strict=True)
        ]
        for pair in zip(*decoded, strict=True):
            tokenized = self._tokenized(pair, counts)
            if len(tokenized) == len(pair):
                reason, blame = drop_reason(tokenized, self._settings, self._by_character)
            else:
                reason, blame = "not UTF-8", [not tokenized, bool(tokenized)]
            kept.append(not reason)
            if reason:
                reasons.update((reason, name) for name in ("pairs", *compress(SIDES, blame)))
            else:
                lines += tokenized
        for i, (count, truecase) in enumerate(zip(counts, self._truecase, strict=True)):
            count.add(lines[i::2], truecase)
        text = "".join([line + "\n" for line in lines]).encode()
        return Cleaned(text, np.array(kept, bool), reasons, counts)

    def _tokenized(self, pair: Sequence[str | None], counts: Sequence[WordCounts]) -> list[str]:
        """Tidy and tokenize the lines of a pair, up to one that is not UTF-8 (None)."""
        tokenized: list[str] = []
        for raw, side, count in zip(pair, self._sides, counts, strict=True):
            if raw is None:
                break
            line = tidy(raw, count.changes)
            hopeless = line.count(" ") > self._hopeless
            tokenized.append(self._too_long if hopeless else side.tokenized(line))
        return tokenized


def drop_reason(
    pair: Sequence[str],
    settings: PrepSettings,
    by_character: Sequence[bool] = (False, False),
) -> tuple[str, list[bool]]:
    """Return why a training pair is dropped, and for each side True if it is to blame.

    The rules are those of Moses' clean-corpus-n.perl, and a limit for single words.

    Args:
        pair: both sides, tokenized.
        settings: of prep.
        by_character: True for a side without spaces between words, whose characters are counted.
    Returns: "empty", "too long", "too short", "ratio", "word too long", or "" for a pair that is
        kept.
    """
    words = [
        len(line) - line.count(" ") if characters else line.count(" ") + 1 if line else 0
        for line, characters in zip(pair, by_character, strict=True)
    ]
    shorter, longer = sorted(words)
    if not shorter:
        return "empty", [count == 0 for count in words]
    if longer > settings.max_words:
        return "too long", [count > settings.max_words for count in words]
    if shorter < settings.min_words:
        return "too short", [count < settings.min_words for count in words]
    if longer / shorter > settings.max_ratio:
        return "ratio", [count == longer for count in words]
    giant = [
        len(line) > LONGEST_WORD and max(map(len, line.split(" "))) > LONGEST_WORD for line in pair
    ]
    return "word too long" if any(giant) else "", giant
