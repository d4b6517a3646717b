"""Sentences of different lengths as one padded array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nmtkit.arrays import Array, Ints
from nmtkit.text.vocabulary import BOS, PAD

Ids = Ints
Sentences = Sequence[Sequence[int] | Array]
"""The numbers of each sentence: its ids, or the number of tokens of each of its spans."""
ROUND_TO = 8
"""With `few_shapes`, positions and rows are multiples of at least this number."""


def padded(sentences: Sentences, fill: int = PAD) -> tuple[Ids, Ids]:
    """Return sentences as rows (B, longest), filled up with `fill`, and their lengths (B)."""
    ids, lengths = joined(sentences)
    return as_rows(ids, lengths, fill), lengths


def joined(sentences: Sentences) -> tuple[Array, Ids]:
    """Return the ids of sentences (B), one sentence after another, and their lengths (B)."""
    lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    return np.concatenate(sentences), lengths


def as_rows(ids: Array, lengths: Ids, fill: int = PAD) -> Ids:
    """Return sentences, given one after another, as rows (B, longest), filled up with `fill`."""
    out = np.full((len(lengths), int(lengths.max())), fill, dtype=np.int64)
    # One assignment is faster than one for each sentence.
    out[np.arange(out.shape[1]) < lengths[:, None]] = ids
    return out


def rounded(ids: Ids, lengths: Ids, least: int, rows: int = 0) -> tuple[Ids, Ids]:
    """Return padded ids (B, S) and lengths with B and S rounded up, so that few shapes occur.

    Args:
        ids, lengths: padded rows.
        least: the length of new rows (1 for sources: a model reads at least one position).
        rows: the new B; 0 = round up to one of four sizes per octave.
    """
    more = (rows or next_size(len(ids), 4)) - len(ids)
    wide = np.pad(rounded_steps(ids), ((0, more), (0, 0)), constant_values=PAD)
    return wide, np.pad(lengths, (0, more), constant_values=least)


def rounded_steps(ids: Ids) -> Ids:
    """Return padded ids (B, S) with S rounded up to a multiple of ROUND_TO."""
    more = -ids.shape[1] % ROUND_TO
    return np.pad(ids, ((0, 0), (0, more)), constant_values=PAD)


def next_size(size: int, per_octave: int, least: int = ROUND_TO) -> int:
    """Round a size up, so that few sizes occur.

    Args:
        per_octave: N, the number of sizes between 2^i and 2^(i+1).
        least: the smallest difference between two sizes.
    """
    return size + -size % max(least, (1 << size.bit_length()) // (2 * per_octave))


def like_length(lengths: Ids, least: int) -> list[int]:
    """Cut rows into parts of similar length, and return the first row of each part.

    The rows are sorted, longest first. The first cut is the one that saves most padding. Both parts
    are cut in the same way, as long as a cut saves at least `least` positions.
    """
    starts, uncut = [0], [(0, len(lengths))]
    while uncut:
        start, end = uncut.pop()
        saved = (end - np.arange(start, end)) * (lengths[start] - lengths[start:end])
        cut = start + int(saved.argmax())
        if saved[cut - start] >= least:
            starts.append(cut)
            uncut += [(start, cut), (cut, end)]
    return sorted(starts)


def shifted(targets: Ids, lengths: Ids) -> Ids:
    """Return the decoder input for padded targets (B, T): <s>, then all but the last token."""
    out = np.empty_like(targets)
    out[:, 0] = BOS
    out[:, 1:] = targets[:, :-1]
    # A shorter row still holds its </s> where padding belongs.
    out[np.arange(out.shape[1]) >= lengths[:, None]] = PAD
    return out
