"""The account prep gives of itself: what was dropped and changed, how fast it went, with which
tools, and the fingerprint of the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import nmtkit
from nmtkit import console
from nmtkit.corpora.corpus import Corpus
from nmtkit.prep.encoders import BOTH
from nmtkit.settings import PrepSettings
from nmtkit.text import chinese

FORMAT = 1


@dataclass
class Tally:
    """What happened to the text on the way, for the report and the manifest."""

    pairs_in: int = 0
    pairs_kept: int = 0
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: dict[str, Counter[str]] = field(
        default_factory=lambda: {side: Counter() for side in BOTH}
    )
    """Of the training text, like all counts here; those of other sets are in their entries of
    the manifest.
    """
    speed: list[dict[str, Any]] = field(default_factory=list)
    corpus: dict[str, int] = field(default_factory=dict)

    def dropped(self) -> dict[str, dict[str, int]]:
        """Dropped pairs by reason, most frequent first, and the sides to blame."""
        reasons = sorted(
            {reason for reason, _ in self.reasons},
            key=lambda reason: (-self.reasons[reason, "pairs"], reason),
        )
        return {
            reason: {key: self.reasons[reason, key] for key in ("pairs", *BOTH)}
            for reason in reasons
        }

    @contextlib.contextmanager
    def timed(self, stage: str, lines: int) -> Iterator[None]:
        """Say and record how fast a step was (lines count each side)."""
        start = time.perf_counter()
        yield
        seconds = max(time.perf_counter() - start, 1e-6)
        self.speed.append(
            {
                "stage": stage,
                "lines": lines,
                "seconds": round(seconds, 3),
                "lines_per_second": round(lines / seconds),
            }
        )
        console.say(f"{stage}: {lines:,} lines in {seconds:.1f}s ({lines / seconds:,.0f} lines/s)")


def as_counts(changes: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """What was changed in the text of each side, as the manifest has it."""
    return {side: dict(sorted(changes[side].items())) for side in BOTH}


def fingerprint(src: str, tgt: str, settings: PrepSettings, hashes: Mapping[str, str]) -> str:
    """What a trained system depends on: train and dev store, vocabularies, truecasers, BPE and
    settings; not the test sets.
    """
    kept = {
        name: value
        for name, value in hashes.items()
        if name.startswith(
            (
                "vocab.",
                "codes.",
                "truecase.",
                "bpe-vocab.",
                "train.",
                "dev.",
                "docs/train.",
                "docs/dev.",
            )
        )
    }
    values = sorted(
        (key, value) for key, value in settings.model_dump().items() if key not in {"dev", "test"}
    )  # names, not text
    text = repr((FORMAT, src, tgt, values, sorted(kept.items())))
    return hashlib.sha256(text.encode()).hexdigest()


def tools(corpus: Corpus) -> dict[str, str]:
    """Versions of what shaped the text, and the checksum of jieba's dictionary."""
    with_chinese = any(map(chinese.is_chinese, (corpus.src, corpus.tgt)))
    names = ["sacremoses", "subword-nmt", *(["jieba"] if with_chinese else [])]
    versions = {name: importlib.metadata.version(name) for name in names}
    dictionary = {"jieba's dictionary": chinese.dictionary_sha256()} if with_chinese else {}
    return (
        {"nmtkit": nmtkit.__version__, "python": platform.python_version()} | versions | dictionary
    )
