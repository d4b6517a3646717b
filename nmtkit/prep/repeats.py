"""Count repeated text, and choose which of it training leaves out: duplicate training pairs, pairs
whose sides are identical, and pairs of dev and test sets that the training text contains.

Only 64-bit hashes are kept, 16 bytes a pair. Pairs are compared part by part, each part with the
hashes in some range, so memory is bounded.
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
DUPLICATE, HELD_OUT = "duplicate", "in dev or test"
"""Reasons why a training pair is dropped."""
LEAKED, REPEATED = "leaked", "repeated"
"""Files of a comparison, with the numbers of such pairs."""
ASCII_IGNORED = (string.punctuation + " \t\r\v\f").encode()
_IGNORED_KINDS = "Pc Pd Pe Pf Pi Po Ps Zl Zp Zs Cf Sk"
_IGNORED = [c for c in map(chr, range(0xA0, 0x10000)) if unicodedata.category(c) in _IGNORED_KINDS]
WIDE_IGNORED = re.compile(f"[{''.join(_IGNORED)}¢-©¬®-±]+")
"""Punctuation, white space and invisible characters beyond ASCII, and symbols of Latin-1."""


def normalised(text: bytes) -> bytes:
    """Return text in one case and one form of composed characters (NFKC), without punctuation and
    white space except the LF of each line.
    """
    wide = WIDE_IGNORED.sub("", text.decode(errors="replace").casefold())
    # Last: without nonbreaking spaces and dots (…) most text is in this form already.
    return unicodedata.normalize("NFKC", wide).encode().translate(None, ASCII_IGNORED)


def tidy_text(text: bytes) -> bytes:
    """Return lines as cleaning leaves them: CRLF makes no other pair."""
    return "\n".join(map(tidy, text.decode(errors="replace").split("\n"))).encode()


def pair_hashes(src: Iterable[bytes], tgt: Iterable[bytes]) -> Hashes:
    """Return a hash of each pair of lines."""
    return word_hashes(map(b"\n".join, zip(src, tgt, strict=True)))


def survey_shard(
    work: Path, index: int, shard: Shard, sides: tuple[str, ...], languages: tuple[str, str]
) -> Outcome:
    """Read a shard of any set as it is, and write the hashes of its pairs (2, references, pairs):
    exact, and normalised (0 if there is only punctuation).

    Args:
        sides: the names of its streams.
        languages: source and target.
    Returns: by side, lines in another script than the side's, and lines that are the same as the
        source, not blank.
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
    """Compare the pairs whose hash is in one of equal ranges, and write the numbers of the training
    pairs that the settings drop, by reason.

    Args:
        step: the folder of the results in the work folder.
        parts: how many ranges there are.
        train: shards of the training text, the first of those surveyed.
        held_out: for each dev or test set its shards among those surveyed.
    Returns: duplicates; for each dev or test set the rows with a pair that training has, exactly
        and normalised.
    """
    # the last hash of the range, because the first of the next one may be 2 ** 64
    of_part = np.uint64((index << 64) // parts), np.uint64(((index + 1 << 64) // parts) - 1)
    ours = [_hashes_between(work, range(train), kind, *of_part) for kind in (0, 1)]
    others = [
        [_hashes_between(work, shards, kind, *of_part, text_only=True) for kind in (0, 1)]
        for shards in held_out
    ]
    overlap = [
        [
            np.unique(rows[np.isin(hashes, known)]).tolist()
            for (hashes, rows), (known, _) in zip(pairs, ours, strict=True)
        ]
        for pairs in others
    ]
    exact, rows = ours[0]
    first = np.unique(exact, return_index=True)[1]
    dropped = {}
    if settings.drop_overlap != "none":
        kind = int(settings.drop_overlap == "normalised")
        hashes, places = ours[kind]
        leaked = np.isin(hashes, np.concatenate([pairs[kind][0] for pairs in others]))
        dropped[LEAKED] = places[leaked]
    if settings.deduplicate:
        dropped[REPEATED] = np.delete(rows, first)
    paths = [work / step / f"{index:05}.{reason}.npy" for reason in dropped]
    for path, numbers in zip(paths, dropped.values(), strict=True):
        files.write_array(path, np.sort(numbers))
    return {"duplicates": len(exact) - len(first), "overlap": overlap}, paths


def _hashes_between(
    work: Path, shards: range, kind: int, low: np.uint64, high: np.uint64, text_only: bool = False
) -> tuple[Hashes, Ints]:
    """Return the hashes of some shards in a range, both ends included, and the rows that have
    them.
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
    """Return for each dev or test set the rows with a pair that training has, exactly and
    normalised: a row is in several ranges of hashes if it has several references.
    """
    return [
        [len(set().union(*rows)) for rows in zip(*parts, strict=True)]
        for parts in zip(*(value["overlap"] for value in values), strict=True)
    ]


def read_wanted(folder: Path, shard: Shard) -> tuple[Mask, dict[str, dict[str, int]]]:
    """Return which rows of a shard of training text are wanted, and how many are not, by reason;
    each row has one reason. All are wanted if the folder drops none.
    """
    wanted = np.ones(shard.rows, bool)
    reasons = {}
    for reason, name in ((HELD_OUT, LEAKED), (DUPLICATE, REPEATED)):
        before = np.count_nonzero(wanted)
        for path in folder.glob(f"*.{name}.npy"):
            numbers = np.load(path, "r", allow_pickle=False)
            low, high = np.searchsorted(numbers, [shard.first, shard.first + shard.rows])
            wanted[numbers[low:high] - shard.first] = False
        pairs = before - np.count_nonzero(wanted)
        reasons[reason] = {"pairs": int(pairs), "src": 0, "tgt": 0}
    return wanted, reasons
