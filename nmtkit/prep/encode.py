"""Encode text as token ids. The training text is encoded from its word numbers; dev and test sets
line by line, as in translation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nmtkit import files
from nmtkit.arrays import Array, Ints, Mask
from nmtkit.data.store import id_type, write_store
from nmtkit.prep.clean import blamed, read_kept, write_kept
from nmtkit.prep.lookup import SideLookup
from nmtkit.prep.shards import Shard
from nmtkit.prep.tasks import Outcome, read_fact, step_cache
from nmtkit.prep.work import OUT
from nmtkit.text.segmented import joined, starts_of
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy, utf8_lines
from nmtkit.text.tokenizer import SIDES
from nmtkit.text.vocabulary import UNK, Vocabulary, load_vocabularies


def encode_shard(
    work: Path, index: int, shard: Shard, vocabulary: int, max_subwords: int
) -> Outcome:
    """Encode a cleaned shard of the training text, and drop pairs with too many subwords. Write the
    token ids of the kept pairs, and which rows are kept.

    Args:
        vocabulary: size of the larger vocabulary.
        max_subwords: the setting.
    Returns: counts of subwords, unknown subwords, kept and dropped pairs; the files.
    """
    read_fact(work, "clean", index)  # a damaged shard is cleaned again
    lookups = step_cache(lambda: _lookups(work))
    cleaned = work / "clean" / shard.name
    ids, lengths = zip(*(lookup.encode(cleaned) for lookup in lookups), strict=True)
    long = np.stack(lengths) - 1 > max_subwords
    kept = np.logical_not(long.any(0))
    flat, sizes = interleaved(ids, lengths, kept)
    paths = write_store(work / OUT / "train", index, vocabulary, flat, sizes)
    rows = read_kept(work / "clean", shard)
    rows[rows] = kept
    paths.append(write_kept(work / "encode", shard, rows))
    value = {
        "subwords": subword_counts(flat, sizes),
        "kept": int(kept.sum()),
        "reasons": {"too many subwords": blamed(long)},
    }
    return value, paths


def _lookups(work: Path) -> list[SideLookup]:
    """Return the token ids of the words of both sides."""
    read_fact(work, "learn", 0)  # a damaged model is learnt again
    return [SideLookup(work, side) for side in SIDES]


def encoded_rows(work: Path, shard: Shard, train: bool) -> Mask:
    """Return which rows of a shard are encoded: all, except in the training text."""
    return read_kept(work / "encode", shard) if train else np.ones(shard.rows, bool)


def interleaved(ids: Sequence[Array], lengths: Sequence[Ints], kept: Mask) -> tuple[Array, Ints]:
    """Return the ids of the kept pairs in the order src 0, tgt 0, src 1, …, and the length of each
    sentence.

    Args:
        ids: of all source sentences, and of all target sentences.
        lengths: of the sentences of each side.
        kept: True for each pair that is kept.
    """
    sizes = np.stack(lengths, axis=1)
    starts = np.stack([starts_of(lengths[0]), starts_of(lengths[1]) + len(ids[0])], axis=1)
    kept_sizes = sizes[kept].ravel()
    return joined(np.concatenate(ids), starts[kept].ravel(), kept_sizes), kept_sizes


def subword_counts(ids: Array, lengths: Ints) -> dict[str, int]:
    """Return the number of subwords (without </s>) and of <unk> on each side, with the keys of
    the manifest.
    """
    line = np.searchsorted(np.cumsum(lengths), np.flatnonzero(ids == UNK), "right")
    counts = [*(lengths - 1).reshape(-1, 2).sum(0), *np.bincount(line % 2, minlength=2)]
    keys = ("src_tokens", "tgt_tokens", "src_unknown", "tgt_unknown")
    return dict(zip(keys, map(int, counts), strict=True))


def encode_set(
    work: Path, index: int, shard: Shard, name: str, streams: tuple[str, ...]
) -> Outcome:
    """Encode every line of a dev or test set. Write the token ids of the source and the first
    reference, and the tidy text of all streams.

    Args:
        shard: all rows of the set.
        name: of the set.
        streams: src, ref, ref1, …
    Returns: counts of subwords, unknown subwords, changes and blank lines; the files.
    """
    out = work / OUT
    sides, vocabularies = step_cache(lambda: _text(out))
    changes: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    blank: Counter[str] = Counter()
    paths, lines = [], []
    for stream, chunks in zip(streams, zip(*shard.chunks(), strict=True), strict=True):
        counts = changes["src" if stream == "src" else "tgt"]
        text = [tidy(line or "", counts) for line in utf8_lines(b"".join(chunks), counts)]
        blank[stream] = sum(not line.strip() for line in text)
        paths.append(out / "text" / f"{name}.{stream}")
        files.write_lines(paths[-1], text)
        lines.append(text)
    size = max(map(len, vocabularies))
    encoded = [
        np.array(vocabulary.encode(side.encode(line)), id_type(size))
        for row in zip(lines[0], lines[1], strict=True)
        for vocabulary, side, line in zip(vocabularies, sides, row, strict=True)
    ]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ids = np.concatenate(encoded)
    store = write_store(out / name, 0, size, ids, lengths)
    value = {
        "subwords": subword_counts(ids, lengths),
        "changes": {side: dict(sorted(counts.items())) for side, counts in changes.items()},
        "blank": dict(+blank),
    }
    return value, [*paths, *store]


def _text(prep: Path) -> tuple[list[TextSide], Sequence[Vocabulary]]:
    """Return the text of both sides and their vocabularies."""
    return [TextSide.load(prep, side) for side in SIDES], load_vocabularies(prep)
