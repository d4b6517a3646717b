"""What prep reports of its own work: what was dropped and changed, how fast it went, with which
tools, and the fingerprint of the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import nmtkit
from nmtkit import console
from nmtkit.prep.clean import SIDES
from nmtkit.settings import PrepSettings
from nmtkit.text import chinese
from nmtkit.text.tokenizer import tokenizer_name

FORMAT = 1
IDENTIFYING = (
    *("vocab.", "codes.", "truecase.", "bpe-vocab.", "subwords."),
    *("train/", "dev/", "docs/train.", "docs/dev."),
)
"""The beginnings of the names of files that a trained system depends on: test sets are none."""
YOUNGER: dict[str, Any] = {
    **dict.fromkeys(("src_tokenizer", "tgt_tokenizer"), "auto"),
    **{"deduplicate": False, "drop_overlap": "none"},
    **{"subwords": "bpe", "sentencepiece": "unigram", "vocab_size": 0},
}
"""Settings that are younger than the format, at their defaults."""


@dataclass
class Tally:
    """What happened to the training text on the way."""

    pairs_in: int = 0
    pairs_kept: int = 0
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: list[Counter[str]] = field(default_factory=list)
    speed: list[dict[str, Any]] = field(default_factory=list)
    corpus: dict[str, int] = field(default_factory=dict)

    def dropped(self) -> dict[str, dict[str, int]]:
        """Return dropped pairs by reason, most frequent first, and the sides to blame."""
        reasons = sorted(
            {reason for reason, _ in self.reasons},
            key=lambda reason: (-self.reasons[reason, "pairs"], reason),
        )
        return {
            reason: {key: self.reasons[reason, key] for key in ("pairs", *SIDES)}
            for reason in reasons
        }

    @contextlib.contextmanager
    def timed(self, stage: str, lines: int) -> Iterator[None]:
        """Print and record how fast a step was (lines count each side)."""
        start = time.perf_counter()
        yield
        seconds = max(time.perf_counter() - start, 1e-6)
        speed = lines / seconds
        facts = {"stage": stage, "lines": lines, "seconds": round(seconds, 3)}
        self.speed.append(facts | {"lines_per_second": round(speed)})
        console.say(f"{stage}: {lines:,} lines in {seconds:.1f}s ({speed:,.0f} lines/s)")

    def learnt(self, types: int, seconds: float, given: bool) -> None:
        """Print and record how long the step without a line took.

        Args:
            types: words of both sides; seconds: of the step; given: models were, not learnt.
        """
        stage = "truecaser, BPE, vocabulary"
        self.speed.append({"stage": stage, "types": types, "seconds": round(seconds, 3)})
        if not given:
            console.say(f"{stage}: from {types:,} words in {seconds:.1f}s")


def as_counts(changes: Sequence[Counter[str]]) -> dict[str, dict[str, int]]:
    """Return what was changed in the text of each side, as the manifest has it."""
    return {side: dict(sorted(count.items())) for side, count in zip(SIDES, changes, strict=True)}


def fingerprint(
    languages: tuple[str, str], settings: PrepSettings, hashes: Mapping[str, str]
) -> str:
    """Return the checksum of what a trained system depends on: languages, settings and files."""
    identifying = {name: value for name, value in hashes.items() if name.startswith(IDENTIFYING)}
    # dev and test are names of sets, not text
    # and a setting that is younger than the format counts once it is changed
    values = sorted(settings.model_dump(exclude={"dev", "test"}).items() - YOUNGER.items())
    text = repr((FORMAT, *languages, values, sorted(identifying.items())))
    return hashlib.sha256(text.encode()).hexdigest()


def tools(languages: tuple[str, str], settings: PrepSettings) -> dict[str, str]:
    """Return the versions of what shaped the text, and the checksum of jieba's dictionary."""
    names = [
        tokenizer_name(s, language, settings) for s, language in zip(SIDES, languages, strict=True)
    ]
    with_chinese = "jieba" in names
    packages = ["sacremoses", "subword-nmt", *["jieba"] * with_chinese]
    packages += ["sentencepiece"] * (settings.subwords == "sentencepiece")
    versions = {name: importlib.metadata.version(name) for name in packages}
    dictionary = {"jieba's dictionary": chinese.dictionary_sha256()} if with_chinese else {}
    python = {"nmtkit": nmtkit.__version__, "python": platform.python_version()}
    return python | versions | dictionary
