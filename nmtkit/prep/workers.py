"""What the worker processes of prep do with raw lines: tidy, tokenize, clean, and count what truecaser and BPE are learnt from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_

from nmtkit.prep.clean import PairFilter, tidy
from nmtkit.prep.encoders import BOTH
from nmtkit.prep.text import TextSide
from nmtkit.prep.truecase import Truecaser, TruecaseTrainer, sentence_starts
from nmtkit.settings import PrepSettings

LONGEST_WORD = 1000


def rows_in_chunks(rows: Iterable[Sequence[bytes]], max_rows: int = 4000, max_bytes: int = 1 << 20) -> Iterator[list[Sequence[bytes]]]:
    """Group rows of parallel lines into chunks of bounded size, always the same whatever the number of workers."""
    chunk: list[Sequence[bytes]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(map(len, row))
        if len(chunk) >= max_rows or size >= max_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def truecased(settings: PrepSettings, side: str) -> bool:
    """Whether a side is truecased."""
    return not settings.lowercase and settings.truecase in (side, "both")


@dataclass
class SideCounts:
    """What is learnt about a side while it is cleaned; its memory grows with the words that exist, not with the text."""

    trainer: TruecaseTrainer = field(default_factory=TruecaseTrainer)
    at_start: Counter[str] = field(default_factory=Counter)
    """Words where a sentence starts, as the truecaser sees it."""
    elsewhere: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    """What `tidy` found, by kind."""

    def add(self, tokens: list[str], truecase: bool) -> None:
        """Count one tokenized line."""
        if not truecase:
            self.elsewhere.update(tokens)
            return
        self.trainer.add(tokens)
        starts = list(sentence_starts(tokens))
        self.at_start.update(compress(tokens, starts))
        self.elsewhere.update(compress(tokens, map(not_, starts)))

    def merge(self, other: SideCounts) -> None:
        """Add the counts of the text that follows."""
        self.trainer.merge(other.trainer)
        self.at_start.update(other.at_start)
        self.elsewhere.update(other.elsewhere)
        self.changes.update(other.changes)

    def words(self, truecaser: Truecaser | None) -> Counter[str]:
        """How often each word occurs once the text is truecased: a word's case depends on itself and on whether it starts a sentence."""
        counts: Counter[str] = Counter()
        for word, count in self.at_start.items():
            counts[truecaser.truecase([word])[0] if truecaser else word] += count
        for word, count in self.elsewhere.items():
            counts[truecaser.truecase(["x", word])[1] if truecaser else word] += count
        return counts


@dataclass
class Cleaned:
    """A chunk of training pairs, tidied, tokenized and filtered."""

    text: bytes
    """src line, tgt line, … of the pairs kept, UTF-8."""
    pairs: int
    """Pairs kept."""
    dropped: list[int]
    """Rows of the chunk that are not kept."""
    reasons: Counter[tuple[str, str]]
    """Pairs dropped by reason, once under "pairs" and once under each side that is to blame."""
    sides: dict[str, SideCounts]


class Cleaner:
    """Tidies, tokenizes and filters training pairs.

    Args:
        languages: source and target.
        settings: of prep.
    """

    def __init__(self, languages: tuple[str, str], settings: PrepSettings) -> None:
        self._sides = [TextSide(language, settings) for language in languages]
        self._truecase = [truecased(settings, side) for side in BOTH]
        self._filter = PairFilter(settings.min_words, settings.max_words, settings.max_ratio)
        self._settings = settings
        self._hopeless = 10 * settings.max_words  # blank-separated words; tokenization joins two at most, so these can only be too long

    def __call__(self, chunk: list[Sequence[bytes]]) -> Cleaned:
        """Clean one chunk of (src, tgt) rows."""
        sides = {side: SideCounts() for side in BOTH}
        lines: list[str] = []
        dropped: list[int] = []
        reasons: Counter[tuple[str, str]] = Counter()
        for row, pair in enumerate(chunk):
            tokens: list[list[str]] = []
            reason, blame = None, (True, True)
            for raw, text_side, counts in zip(pair, self._sides, sides.values(), strict=True):
                line = self._decode(raw, counts)
                if line is None:
                    reason, blame = "not UTF-8", (not tokens, bool(tokens))
                    break
                line = tidy(line, counts.changes)
                tokens.append(["x"] * (self._hopeless + 1) if line.count(" ") > self._hopeless else text_side.tokens(line))
            else:
                reason, blame = self._reason(tokens)
            if reason is not None:
                dropped.append(row)
                reasons[reason, "pairs"] += 1
                reasons.update((reason, side) for side, guilty in zip(BOTH, blame, strict=True) if guilty)
                continue
            for words, counts, truecase in zip(tokens, sides.values(), self._truecase, strict=True):
                counts.add(words, truecase)
                lines.append(" ".join(words) + "\n")
        return Cleaned("".join(lines).encode(), len(chunk) - len(dropped), dropped, reasons, sides)

    def _decode(self, raw: bytes, counts: SideCounts) -> str | None:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            if self._settings.on_bad_utf8 == "drop":
                return None
            counts.changes["lines not UTF-8"] += 1
            return raw.decode(errors="replace")

    def _reason(self, tokens: list[list[str]]) -> tuple[str | None, tuple[bool, bool]]:
        """Why a pair is dropped (None: it is kept), and which sides are to blame."""
        src, tgt = len(tokens[0]), len(tokens[1])
        reason = self._filter.reason(src, tgt)
        if reason == "empty":
            return reason, (not src, not tgt)
        if reason == "too long":
            return reason, (src > self._settings.max_words, tgt > self._settings.max_words)
        if reason == "too short":
            return reason, (src < self._settings.min_words, tgt < self._settings.min_words)
        if reason is not None:
            return reason, (src > tgt, tgt > src)
        giant = [max(map(len, words)) > LONGEST_WORD for words in tokens]
        return ("word too long" if any(giant) else None), (giant[0], giant[1])
