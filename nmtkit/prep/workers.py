"""What the worker processes of prep do with raw lines: tidy, tokenize, clean, and count what
truecaser and BPE are learnt from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice, repeat
from operator import add, not_
from pathlib import Path

from nmtkit.prep.clean import PairFilter
from nmtkit.prep.encoders import BOTH
from nmtkit.prep.parts import Part, PartWriter
from nmtkit.settings import PrepSettings
from nmtkit.text.chinese import is_chinese
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy, utf8_lines
from nmtkit.text.truecase import (
    DELAYED_START,
    SENTENCE_END,
    TruecaseTrainer,
    evidence,
    sentence_starts,
)

LONGEST_WORD = 1000
_SPECIAL = SENTENCE_END | DELAYED_START


def row_chunks(
    streams: Sequence[Iterator[bytes]],
    max_rows: int = 4000,
    max_bytes: int = 1 << 20,
    step: int = 200,
) -> Iterator[list[list[bytes]]]:
    """Group the lines of parallel texts into chunks of bounded size, always the same whatever the
    number of workers.

    Args:
        streams: the lines of each text.
        max_rows, max_bytes: a chunk ends when it has so much.
        step: rows taken at a time, and so how far a chunk may go beyond `max_bytes`.
    Returns: for each chunk, the lines of each text.
    Raises: ValueError if one text has more lines than another.
    """
    chunk: list[list[bytes]] = [[] for _ in streams]
    size = 0
    while True:
        taken = [list(islice(stream, min(step, max_rows - len(chunk[0])))) for stream in streams]
        rows = len(taken[0])
        if any(len(lines) != rows for lines in taken):
            raise ValueError("different numbers of lines")
        for lines, more in zip(chunk, taken, strict=True):
            lines += more
            size += sum(map(len, more))
        if chunk[0] and (not rows or len(chunk[0]) >= max_rows or size >= max_bytes):
            yield chunk
            chunk, size = [[] for _ in streams], 0
        if not rows:
            return


def truecased(settings: PrepSettings, side: str, language: str) -> bool:
    """Whether a side is truecased: not Chinese, where no capital begins a sentence, which
    `iPhone` can.
    """
    return (
        not settings.lowercase and settings.truecase in (side, "both") and not is_chinese(language)
    )


@dataclass
class SideCounts:
    """What is learnt about a side while it is cleaned; its memory grows with the words that
    exist, not with the text.
    """

    truecase: bool = True
    trainer: TruecaseTrainer = field(default_factory=TruecaseTrainer)
    at_start: Counter[str] = field(default_factory=Counter)
    """Words where a sentence starts, as the truecaser sees it."""
    changes: Counter[str] = field(default_factory=Counter)
    """What `tidy` found, by kind."""
    _passed: Counter[str] = field(
        default_factory=Counter
    )  # words elsewhere that the trainer doesn't count
    _twice: Counter[str] = field(
        default_factory=Counter
    )  # words that it counts though they are at a start

    def add(self, lines: Iterable[str]) -> None:
        """Count tokenized lines, none of them empty, of text that follows what was counted before.

        Most lines are one sentence without quotes or brackets inside; all their words but the first
        and a last mark are truecasing's evidence.
        """
        starts: list[str] = []
        kept: list[str] = []
        passed: list[str] = []
        for line in lines:
            tokens = line.split(" ")
            if not self.truecase:
                passed += tokens
            elif _SPECIAL.isdisjoint(tokens[:-1]) and "<" not in line:
                starts.append(tokens[0])
                if tokens[-1] in _SPECIAL:
                    kept += tokens[1:-1]
                    passed += tokens[1:][-1:]
                else:
                    kept += tokens[1:]
            else:
                first = list(sentence_starts(tokens))
                starts += compress(tokens, first)
                passed += compress(tokens, map(not_, first))
                counted = evidence(tokens)
                kept += counted
                self._twice.update(counted)
        self.at_start.update(starts)
        self.trainer.counts.update(kept)
        self._passed.update(passed)

    @property
    def elsewhere(self) -> Counter[str]:
        """Words where no sentence starts."""
        counts = Counter(self.trainer.counts)
        counts.subtract(self._twice)
        _add(counts, self._passed)
        return +counts if self._twice else counts

    def merge(self, other: SideCounts) -> None:
        """Add what another counted, but for `trainer`."""
        _add(self.at_start, other.at_start)
        _add(self.changes, other.changes)
        _add(self._passed, other._passed)
        _add(self._twice, other._twice)


def _add(counts: Counter[str], more: Mapping[str, int]) -> None:
    """`counts.update(more)` without a loop of Python's."""
    dict.update(
        counts, zip(more, map(add, map(counts.get, more, repeat(0)), more.values()), strict=True)
    )


@dataclass
class Counts:
    """What one worker has counted of both sides."""

    sides: dict[str, SideCounts]
    seen: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """By chunk: its number, and how many words of each side's `trainer` had been seen at its
    end.
    """

    @classmethod
    def together(cls, parts: Sequence[Counts]) -> dict[str, SideCounts]:
        """The sides' counts of a whole corpus, as if one worker had read it: the truecasers go
        by the order in which words appear.
        """
        if len(parts) == 1:
            return parts[0].sides
        chunks = sorted(
            (number, worker, ends)
            for worker, part in enumerate(parts)
            for number, ends in part.seen
        )
        result = {side: SideCounts(counts.truecase) for side, counts in parts[0].sides.items()}
        for i, (side, counts) in enumerate(result.items()):
            words = [iter(part.sides[side].trainer.counts.items()) for part in parts]
            read = [0] * len(parts)
            for _, worker, ends in chunks:
                _add(counts.trainer.counts, dict(islice(words[worker], ends[i] - read[worker])))
                read[worker] = ends[i]
            for part in parts:
                counts.merge(part.sides[side])
        return result


@dataclass
class Cleaned:
    """A chunk of training pairs, tidied, tokenized and filtered."""

    part: Part
    """Where the tokenized pairs kept are: src line, tgt line, … as UTF-8."""
    pairs: int
    """Pairs kept."""
    dropped: list[int]
    """Rows of the chunk that are not kept."""
    reasons: Counter[tuple[str, str]]
    """Pairs dropped by reason, once under "pairs" and once under each side that is to blame."""


class Cleaner:
    """Tidies, tokenizes, filters and counts training pairs.

    Args:
        languages: source and target.
        settings: of prep.
        text: what the names of the files for the tokenized text begin with.
    """

    def __init__(self, languages: tuple[str, str], settings: PrepSettings, text: Path) -> None:
        self._sides = [TextSide(language, settings) for language in languages]
        self._filter = PairFilter(settings.min_words, settings.max_words, settings.max_ratio)
        self._settings = settings
        self._hopeless = (
            10 * settings.max_words
        )  # blank-separated words; tokenization joins two at most, so these can only be too long
        self._counts = Counts(
            {
                side: SideCounts(truecased(settings, side, lang))
                for side, lang in zip(BOTH, languages, strict=True)
            }
        )
        self._writer = PartWriter(text)

    def __call__(self, chunk: tuple[int, Sequence[bytes]]) -> Cleaned:
        """Clean one chunk of pairs: its number, its source lines and its target lines, each line
        with its LF.
        """
        number, texts = chunk
        sides = list(self._counts.sides.values())
        lines: list[str] = []
        dropped: list[int] = []
        reasons: Counter[tuple[str, str]] = Counter()
        drop = self._settings.on_bad_utf8 == "drop"
        decoded = [
            utf8_lines(text, None if drop else counts.changes)
            for text, counts in zip(texts, sides, strict=True)
        ]
        for row, pair in enumerate(zip(*decoded, strict=True)):
            tokenized: list[str] = []
            reason: str | None
            for raw, text_side, counts in zip(pair, self._sides, sides, strict=True):
                if raw is None:
                    reason, blame = "not UTF-8", (not tokenized, bool(tokenized))
                    break
                line = tidy(raw, counts.changes)
                tokenized.append(
                    "x " * self._hopeless + "x"
                    if line.count(" ") > self._hopeless
                    else text_side.tokenized(line)
                )
            else:
                reason, blame = self._reason(*tokenized)
            if reason is None:
                lines += tokenized
            else:
                dropped.append(row)
                reasons[reason, "pairs"] += 1
                reasons.update(
                    (reason, side) for side, guilty in zip(BOTH, blame, strict=True) if guilty
                )
        for i, counts in enumerate(sides):
            counts.add(lines[i::2])
        self._counts.seen.append((number, tuple(len(counts.trainer.counts) for counts in sides)))
        part = self._writer.write("".join([line + "\n" for line in lines]).encode())
        return Cleaned(part, len(lines) // 2, dropped, reasons)

    def hand_over(self) -> Counts:
        """What this worker has counted in all its chunks."""
        return self._counts

    def _reason(self, src_line: str, tgt_line: str) -> tuple[str | None, tuple[bool, bool]]:
        """Why a pair is dropped (None: it is kept), and which sides are to blame."""
        src, tgt = (line.count(" ") + 1 if line else 0 for line in (src_line, tgt_line))
        reason = self._filter.reason(src, tgt)
        if reason is None:
            giant = [
                len(line) > LONGEST_WORD and max(map(len, line.split(" "))) > LONGEST_WORD
                for line in (src_line, tgt_line)
            ]
            return ("word too long" if any(giant) else None), (giant[0], giant[1])
        if reason == "empty":
            return reason, (not src, not tgt)
        if reason == "too long":
            return reason, (src > self._settings.max_words, tgt > self._settings.max_words)
        if reason == "too short":
            return reason, (src < self._settings.min_words, tgt < self._settings.min_words)
        return reason, (src > tgt, tgt > src)
