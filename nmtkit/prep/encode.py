"""Encode text as token ids: shards of the training text by the numbers of their words, dev and test
sets line by line, as translation will.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nmtkit import files
from nmtkit.arrays import Array, Ints, Mask
from nmtkit.data.ragged import ragged_files
from nmtkit.data.store import id_type, shard_path, store_writer
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
    token ids of the pairs that are kept, and which rows they are.

    Args:
        vocabulary: size of the larger one.
        max_subwords: of the settings.
    Returns: subwords and unknown ones of both sides, pairs kept, dropped pairs; the files.
    """
    read_fact(work, "clean", index)  # a damaged shard is cleaned again
    lookups = step_cache(SideLookup, lambda: _lookups(work))
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
    """Return src 0, tgt 0, src 1, … of the pairs that are kept, and the length of each.

    Args:
        ids: of source and target, sentence after sentence.
        lengths: of the sentences of each.
        kept: for each pair.
    """
    sizes = np.stack(lengths, axis=1)
    starts = np.stack([starts_of(lengths[0]), starts_of(lengths[1]) + len(ids[0])], axis=1)
    kept_sizes = sizes[kept].ravel()
    return joined(np.concatenate(ids), starts[kept].ravel(), kept_sizes), kept_sizes


def subword_counts(ids: Array, lengths: Ints) -> dict[str, int]:
    """Return the number of subwords without </s>, and of <unk>, of source and target, as a set's
    entry of the manifest has them.
    """
    line = np.searchsorted(np.cumsum(lengths), np.flatnonzero(ids == UNK), "right")
    counts = [*(lengths - 1).reshape(-1, 2).sum(0), *np.bincount(line % 2, minlength=2)]
    keys = ("src_tokens", "tgt_tokens", "src_unknown", "tgt_unknown")
    return dict(zip(keys, map(int, counts), strict=True))


def write_store(folder: Path, index: int, vocabulary: int, ids: Array, lengths: Ints) -> list[Path]:
    """Write a shard of a store, and return its files."""
    with store_writer(folder, index, vocabulary) as store:
        store.add_block(ids.tobytes(), lengths)
    return [*ragged_files(shard_path(folder, index))]


def encode_set(
    work: Path, index: int, shard: Shard, name: str, streams: tuple[str, ...]
) -> Outcome:
    """Encode a dev or test set line for line; nothing is dropped. Write the token ids of source and
    first reference, and the tidied text of all.

    Args:
        shard: all rows of the set.
        name: of the set.
        streams: src, ref, ref1, …
    Returns: subwords and unknown ones of both sides, changes of the text, blank lines; the files.
    """
    out = work / OUT
    sides, vocabularies = step_cache(TextSide, lambda: _text(out))
    changes: list[Counter[str]] = [Counter(), Counter()]
    blank: Counter[str] = Counter()
    paths = {stream: out / "text" / f"{name}.{stream}" for stream in streams}
    size = max(map(len, vocabularies))
    kind = id_type(size)
    encoded = [
        np.array(vocabulary.encode(side.encode(line)), kind)
        for texts in _written(shard, paths, changes, blank)
        for row in zip(texts[0], texts[1], strict=True)
        for vocabulary, side, line in zip(vocabularies, sides, row, strict=True)
    ]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ids = np.concatenate(encoded)
    store = write_store(out / name, 0, size, ids, lengths)
    value = {
        "subwords": subword_counts(ids, lengths),
        "changes": {
            side: dict(sorted(count.items())) for side, count in zip(SIDES, changes, strict=True)
        },
        "blank": dict(+blank),
    }
    return value, [*paths.values(), *store]


def _written(
    shard: Shard, paths: dict[str, Path], changes: list[Counter[str]], blank: Counter[str]
) -> Iterator[list[list[str]]]:
    """Write the tidied text of a set, and yield chunks of it: the lines of every stream.

    Args:
        shard: all rows of the set.
        paths: where to write each stream.
        changes: counts of the changes of source and references, which are added up here.
        blank: counts of the blank lines of each stream, which are added up here.
    """
    counters = [changes[stream != "src"] for stream in paths]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(files.writing(path)) for path in paths.values()]
        for chunk in shard.chunks():
            texts = []
            for stream, output, text, counts in zip(paths, outputs, chunk, counters, strict=True):
                lines = [tidy(line or "", counts) for line in utf8_lines(text, counts)]
                output.writelines([line + "\n" for line in lines])
                blank[stream] += sum(not line.strip() for line in lines)
                texts.append(lines)
            yield texts


def _text(prep: Path) -> tuple[list[TextSide], Sequence[Vocabulary]]:
    """Return the text of both sides and their vocabularies."""
    return [TextSide.load(prep, side) for side in SIDES], load_vocabularies(prep)
