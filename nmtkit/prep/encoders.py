"""What the worker processes of prep do with tokenized text: words to their numbers, these to
token ids; dev and test sets line by line.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.store import id_type
from nmtkit.prep.parts import Part, PartWriter
from nmtkit.text.bpe import Bpe
from nmtkit.text.segmented import LINE_END, WordIds
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy, utf8_lines
from nmtkit.text.truecase import DELAYED_START, SENTENCE_END, sentence_starts
from nmtkit.text.vocabulary import UNK, Vocabulary, load_vocabularies

BOTH = ("src", "tgt")
_SPECIAL = SENTENCE_END | DELAYED_START
Sides = tuple[tuple[TextSide, TextSide], tuple[Vocabulary, Vocabulary]]
_loaded: dict[Path, Sides] = {}


def load_sides(prep: Path) -> Sides:
    """Both sides' text and vocabularies, read once a process; forked workers inherit what their
    parent has read or made.
    """
    if prep not in _loaded:
        keep_sides(
            prep,
            ((TextSide.load(prep, "src"), TextSide.load(prep, "tgt")), load_vocabularies(prep)),
        )
    return _loaded[prep]


def keep_sides(prep: Path, sides: Sides) -> None:
    """Spare `load_sides` the reading of what was just written."""
    _loaded.clear()
    _loaded[prep] = sides


class Numbers(NamedTuple):
    """The numbers of a side's words: a word's case, and so its number, depends on itself and on
    whether it starts a sentence.
    """

    at_start: Mapping[str, int]
    """Empty if the side isn't truecased."""
    elsewhere: Mapping[str, int]


class Numberer:
    """Puts tokenized training pairs as numbers of words.

    Args:
        sides: numbers of the source's words and of the target's.
        path: what the names of the files for the result begin with.
    """

    def __init__(self, sides: tuple[Numbers, Numbers], path: Path) -> None:
        self._sides = sides
        self._writer = PartWriter(path)

    def __call__(self, part: Part) -> Part:
        """Number the words of a part.

        Returns: where the numbers (int32) of src line, tgt line, … are, each line followed by
            LINE_END.
        """
        numbers = array("i")
        for line, side in zip(part.read().decode().split("\n")[:-1], itertools.cycle(self._sides)):
            tokens = line.split(" ")
            if not side.at_start:
                numbers.extend(map(side.elsewhere.__getitem__, tokens))
            elif _SPECIAL.isdisjoint(tokens[:-1]):
                numbers.append(side.at_start[tokens[0]])
                numbers.extend(map(side.elsewhere.__getitem__, tokens[1:]))
            else:
                for token, first in zip(tokens, sentence_starts(tokens), strict=True):
                    numbers.append((side.at_start if first else side.elsewhere)[token])
            numbers.append(LINE_END)
        return self._writer.write(numbers.tobytes())


@dataclass
class Encoded:
    """A chunk of pairs as token ids."""

    ids: bytes
    """src, tgt, src, … each with its </s>, in the store's type."""
    lengths: NDArray[np.int64]
    dropped: list[int]
    reasons: Counter[tuple[str, str]]
    unknown: NDArray[np.int64]
    """<unk> on each side."""
    texts: list[str] = field(default_factory=list)
    """Tidied lines of each stream (dev and test sets only)."""
    changes: list[Counter[str]] = field(default_factory=list)


def _encoded(
    ids: NDArray[Any],
    lengths: NDArray[np.int64],
    dropped: list[int],
    reasons: Counter[tuple[str, str]],
) -> Encoded:
    line = np.searchsorted(np.cumsum(lengths), np.flatnonzero(ids == UNK), side="right")
    return Encoded(ids.tobytes(), lengths, dropped, reasons, np.bincount(line % 2, minlength=2))


class TrainEncoder:
    """Encodes numbered training pairs and drops those with too many subwords.

    Args:
        ids: of the words.
        max_subwords: most subwords of a side.
    """

    def __init__(self, ids: WordIds, max_subwords: int) -> None:
        self._ids = ids
        self._longest = max_subwords

    def __call__(self, part: Part) -> Encoded:
        """Encode the pairs of a part."""
        ids, lengths = self._ids(np.frombuffer(part.read(), np.int32))
        long = (lengths - 1 > self._longest).reshape(-1, 2)
        dropped = long.any(1)
        reasons: Counter[tuple[str, str]] = Counter()
        if dropped.any():
            counts = (dropped.sum(), *long.sum(0))
            reasons.update(
                {
                    ("too many subwords", name): int(count)
                    for name, count in zip(("pairs", *BOTH), counts, strict=True)
                    if count
                }
            )
            kept = np.repeat(~dropped, 2)
            ids, lengths = ids[np.repeat(kept, lengths)], lengths[kept]
        return _encoded(ids, lengths, np.flatnonzero(dropped).tolist(), reasons)


class SetEncoder:
    """Encodes a dev or test set line for line, just as translation will, and keeps its text;
    nothing is dropped.

    Args:
        prep: the prep folder as far as it is written: models, vocabularies and a manifest with
            languages and settings.
    """

    def __init__(self, prep: Path) -> None:
        self._sides, self._vocabularies = load_sides(prep)

    def __call__(self, chunk: Sequence[bytes]) -> Encoded:
        """Encode the lines of src, ref, ref1, …; the store gets the first reference."""
        changes: list[Counter[str]] = [Counter(), Counter()]
        counts = [changes[min(stream, 1)] for stream in range(len(chunk))]
        texts = [
            [tidy(line or "", count) for line in utf8_lines(text, count)]
            for text, count in zip(chunk, counts, strict=True)
        ]
        encoded = [
            vocabulary.encode(side.encode(line))
            for row in zip(texts[0], texts[1], strict=True)
            for vocabulary, side, line in zip(self._vocabularies, self._sides, row, strict=True)
        ]
        ids = np.array(
            list(itertools.chain.from_iterable(encoded)), id_type(max(map(len, self._vocabularies)))
        )
        result = _encoded(ids, np.array(list(map(len, encoded))), [], Counter())
        result.texts = ["".join([line + "\n" for line in lines]) for lines in texts]
        result.changes = changes
        return result


class Segmenter:
    """Segments words, once each.

    Args:
        codes: the BPE codes file.
        vocabulary: the subwords allowed.
    """

    def __init__(self, codes: Path, vocabulary: set[str]) -> None:
        self._bpe = Bpe(codes, vocabulary)

    def __call__(self, words: list[str]) -> list[list[str]]:
        """The subwords of each word."""
        return [self._bpe.segment([word]) for word in words]
