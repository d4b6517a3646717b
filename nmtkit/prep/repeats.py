"""Count repeated text, and choose which of it training leaves out: duplicate training pairs, pairs
whose sides are identical, and pairs of dev and test sets that the training text contains.

Only 64-bit hashes are kept, 16 bytes a pair. The training text is never kept.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.records import Overlap, Repeats
from nmtkit.settings import PrepSettings

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]
DUPLICATE, HELD_OUT = "duplicate", "in dev or test"
"""Reasons why a training pair is dropped."""
ASCII_IGNORED = (string.punctuation + " \t\r\v\f").encode()
WIDE_IGNORED = re.compile("[\u00a0-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]+")
"""Punctuation and white space beyond ASCII: Latin-1, general, Chinese and Japanese, full width."""
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number. It keeps the hash of (a, b) apart from that of (b, a)."""


def normalised(text: bytes) -> bytes:
    """Return text in one case, without punctuation and white space except the LF of each line."""
    wide = WIDE_IGNORED.sub("", text.decode(errors="replace").casefold())
    return wide.encode().translate(None, ASCII_IGNORED)


def line_hashes(text: bytes) -> Hashes:
    """Return a 64-bit hash of each line; equal lines have equal hashes within this process."""
    lines = text.split(b"\n")[:-1]
    return np.fromiter(map(hash, lines), np.int64, len(lines)).view(np.uint64)


@dataclass
class PairHashes:
    """Hashes of the pairs of a set, exact and normalised, filled while the set is read."""

    exact: list[Hashes] = field(default_factory=list)
    normalised: list[Hashes] = field(default_factory=list)
    identical: int = 0
    """Pairs whose source and target are the same text, not blank."""

    def watched(self, chunks: Iterable[Any]) -> Iterator[Any]:
        """Yield the chunks of `clean.row_chunks` unchanged, and hash their pairs."""
        blank = line_hashes(b"\n")[0]
        for chunk in chunks:
            src, tgt = map(line_hashes, chunk[:2])
            self.identical += int(((src == tgt) & (src != blank)).sum())
            self.exact.append(src * MIX + tgt)
            src, tgt = (line_hashes(normalised(text)) for text in chunk[:2])
            pairs = src * MIX + tgt
            pairs[(src == blank) & (tgt == blank)] = 0  # nothing but punctuation: never counted
            self.normalised.append(pairs)
            yield chunk


def unwanted(
    train: PairHashes, held_out: Sequence[PairHashes], settings: PrepSettings
) -> dict[str, Mask]:
    """Return the training pairs that the settings drop, by reason; each has one reason.

    Args:
        train: the training text.
        held_out: dev and test sets.
        settings: of prep.
    """
    exact = np.concatenate(train.exact)
    leaked, duplicate = np.zeros((2, len(exact)), bool)
    if settings.drop_overlap != "none":
        ours, *theirs = (
            np.concatenate(getattr(pairs, settings.drop_overlap)) for pairs in (train, *held_out)
        )
        text = [np.concatenate(pairs.normalised) != 0 for pairs in held_out]
        leaked = np.isin(ours, np.concatenate([a[b] for a, b in zip(theirs, text, strict=True)]))
    if settings.deduplicate:
        duplicate = ~leaked
        duplicate[np.unique(exact, return_index=True)[1]] = False  # each pair's first place
    return {HELD_OUT: leaked, DUPLICATE: duplicate}


def kept_rows(chunks: Iterable[list[bytes]], kept: Mask) -> Iterator[list[bytes]]:
    """Yield the chunks of `clean.row_chunks` with only the rows that are kept."""
    start = 0
    for chunk in chunks:
        sides = [text.split(b"\n")[:-1] for text in chunk]
        rows = kept[start : start + len(sides[0])].tolist()
        start += len(rows)
        if any(rows):
            yield [b"".join(line + b"\n" for line in compress(side, rows)) for side in sides]


def repeats(train: PairHashes, held_out: Sequence[tuple[str, PairHashes]]) -> Repeats:
    """Return the counts of the manifest.

    Args:
        train: the training text.
        held_out: dev and test sets by name.
    """
    exact, folded = (np.unique(np.concatenate(part)) for part in (train.exact, train.normalised))
    overlap = []
    for name, pairs in held_out:
        ours, ours_folded = np.concatenate(pairs.exact), np.concatenate(pairs.normalised)
        text = ours_folded != 0
        same = np.isin(ours, exact) & text
        overlap.append(
            Overlap(
                name=name,
                exact=int(same.sum()),
                normalised=int((np.isin(ours_folded, folded) & text).sum()),
            )
        )
    total = sum(map(len, train.exact))
    return Repeats(duplicates=total - len(exact), identical=train.identical, overlap=overlap)
