"""Count repeated text: duplicate training pairs, pairs whose sides are identical, and pairs of dev
and test sets that the training text contains. Choose the training pairs to drop.

Pairs are compared by two 64-bit hashes, 16 bytes a pair. They are compared in parts, each with the
hashes of one range, so memory is bounded.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit import files
from nmtkit.arrays import Ints, Mask
from nmtkit.prep.shards import Shard
from nmtkit.prep.tasks import Outcome
from nmtkit.prep.word_table import word_hashes
from nmtkit.settings import PrepSettings
from nmtkit.text.scripts import ForeignLines
from nmtkit.text.tidy import tidy

Hashes = NDArray[np.uint64]
HELD_OUT, DUPLICATE = "in dev or test", "duplicate"
"""Reasons why a training pair is dropped. A file with row numbers for each is named after it."""
ASCII_IGNORED = (string.punctuation + " \t\r\v\f").encode()
_IGNORED_KINDS = "Pc Pd Pe Pf Pi Po Ps Zl Zp Zs Cf Sk"
_IGNORED = [c for c in map(chr, range(0xA0, 0x10000)) if unicodedata.category(c) in _IGNORED_KINDS]
WIDE_IGNORED = re.compile(f"[{''.join(_IGNORED)}¢-©¬®-±]+")
"""Punctuation, white space and invisible characters beyond ASCII, and symbols of Latin-1."""


def normalised(text: bytes) -> bytes:
    """Return text in lower case and NFKC, without punctuation and white space except the LF of each
    line.
    """
    wide = WIDE_IGNORED.sub("", text.decode(errors="replace").casefold())
    # NFKC comes last: without nonbreaking spaces and … most text is in this form already.
    return unicodedata.normalize("NFKC", wide).encode().translate(None, ASCII_IGNORED)


def tidy_text(text: bytes) -> bytes:
    """Return lines as cleaning leaves them, so that a pair with CRLF is the same pair."""
    return "\n".join(map(tidy, text.decode(errors="replace").split("\n"))).encode()


def pair_hashes(src: Iterable[bytes], tgt: Iterable[bytes]) -> Hashes:
    """Return a hash of each pair of lines."""
    return word_hashes(map(b"\n".join, zip(src, tgt, strict=True)))


def survey_shard(
    work: Path, index: int, shard: Shard, sides: tuple[str, ...], languages: tuple[str, str]
) -> Outcome:
    """Hash the pairs of a shard of any set before cleaning. Write the hashes (2, references, pairs)
    of the exact pairs and of the normalised pairs (0 for a pair without text).

    Args:
        sides: the names of the shard's streams.
        languages: of source and target.
    Returns: for each side the number of lines in another script, and of lines that equal the
        source and are not blank; the file.
    """
    finders = {side: ForeignLines(languages[side != "src"]) for side in sides}
    foreign = dict.fromkeys(sides, 0)
    identical = dict.fromkeys(sides[1:], 0)
    hashes = []
    for chunk in shard.chunks():
        for (side, finder), text in zip(finders.items(), chunk, strict=True):
            foreign[side] += finder.count(text)
        texts = list(map(tidy_text, chunk))
        src, *references = (text.split(b"\n")[:-1] for text in texts)
        plain_src, *plain = (normalised(text).split(b"\n")[:-1] for text in texts)
        of_chunk = []
        for side, tgt, plain_tgt in zip(sides[1:], references, plain, strict=True):
            identical[side] += sum(a == b != b"" for a, b in zip(src, tgt, strict=True))
            folded = pair_hashes(plain_src, plain_tgt).copy()
            folded[[not (a or b) for a, b in zip(plain_src, plain_tgt, strict=True)]] = 0
            of_chunk.append(np.stack([pair_hashes(src, tgt), folded]))
        hashes.append(np.stack(of_chunk, axis=1))
    path = hashes_path(work, index)
    files.write_array(path, np.concatenate(hashes, axis=2))
    return {"identical": identical, "foreign": foreign}, [path]


def hashes_path(work: Path, index: int) -> Path:
    """Return the file with the hashes of a surveyed shard."""
    return work / "survey" / f"{index:05}.hashes.npy"


def compare_hashes(
    work: Path,
    index: int,
    step: str,
    parts: int,
    train: int,
    held_out: tuple[range, ...],
    settings: PrepSettings,
) -> Outcome:
    """Compare the pairs whose hash is in range `index` of `parts` equal ranges. Write the row
    numbers of the training pairs to drop, by reason.

    Args:
        step: the folder of the results in the work folder.
        parts: the number of ranges.
        train: the number of training shards, which were surveyed first.
        held_out: for each dev or test set the numbers of its surveyed shards.
    Returns: the number of duplicates; for each dev or test set the rows with a pair that the
        training text contains, exactly and normalised; the files.
    """
    # Both ends belong to the range, because the first hash of the next range may be 2 ** 64.
    of_part = np.uint64((index << 64) // parts), np.uint64(((index + 1 << 64) // parts) - 1)
    train_pairs = [_hashes_between(work, range(train), kind, *of_part) for kind in (0, 1)]
    overlap: list[list[list[int]]] = [[] for _ in held_out]
    dropped = {}
    for kind, (train_hashes, train_rows) in enumerate(train_pairs):
        sets = [
            _hashes_between(work, shards, kind, *of_part, text_only=True) for shards in held_out
        ]
        for of_set, (hashes, rows) in zip(overlap, sets, strict=True):
            of_set.append(np.unique(rows[np.isin(hashes, train_hashes)]).tolist())
        if settings.drop_overlap == ("exact", "normalised")[kind]:
            leaked = np.isin(train_hashes, np.concatenate([hashes for hashes, _ in sets]))
            dropped[HELD_OUT] = train_rows[leaked]
    exact, rows = train_pairs[0]
    first = np.unique(exact, return_index=True)[1]
    if settings.deduplicate:
        dropped[DUPLICATE] = np.delete(rows, first)
    paths = [
        files.write_array(work / step / f"{index:05}.{reason}.npy", np.sort(rows))
        for reason, rows in dropped.items()
    ]
    return {"duplicates": len(exact) - len(first), "overlap": overlap}, paths


def _hashes_between(
    work: Path, shards: range, kind: int, low: np.uint64, high: np.uint64, text_only: bool = False
) -> tuple[Hashes, Ints]:
    """Return the hashes of some shards from `low` to `high`, and the row of each hash.

    Args:
        kind: 0 for exact, 1 for normalised pairs.
        text_only: True to leave out pairs without text.
    """
    hashes = [np.zeros(0, np.uint64)]
    rows = [np.zeros(0, np.int64)]
    before = 0
    for shard in shards:
        both = np.load(hashes_path(work, shard), "r", allow_pickle=False)
        inside = (both[kind] >= low) & (both[kind] <= high)
        if text_only:
            inside &= both[1] != 0
        hashes.append(both[kind][inside])
        rows.append(before + np.nonzero(inside)[1])
        before += both.shape[2]
    return np.concatenate(hashes), np.concatenate(rows)


def overlaps(values: Sequence[files.JsonObject]) -> list[list[int]]:
    """Return for each dev or test set the number of rows with a pair that the training text
    contains, exactly and normalised. A row with several references may be in several parts.
    """
    return [
        [len(set().union(*rows)) for rows in zip(*parts, strict=True)]
        for parts in zip(*(value["overlap"] for value in values), strict=True)
    ]


def read_wanted(folder: Path, shard: Shard) -> tuple[Mask, dict[str, dict[str, int]]]:
    """Read which rows of a training shard are not dropped.

    Args:
        folder: the results of `compare_hashes`; all rows are wanted if it has none.
        shard: of the training text.
    Returns: True for each row that is wanted, and the other rows by reason.
    """
    wanted = np.ones(shard.rows, bool)
    reasons = {}
    for reason in (HELD_OUT, DUPLICATE):
        before = np.count_nonzero(wanted)
        for path in folder.glob(f"*.{reason}.npy"):
            numbers = np.load(path, "r", allow_pickle=False)
            low, high = np.searchsorted(numbers, [shard.first, shard.first + shard.rows])
            wanted[numbers[low:high] - shard.first] = False
        pairs = before - np.count_nonzero(wanted)
        reasons[reason] = {"pairs": int(pairs), "src": 0, "tgt": 0}
    return wanted, reasons
