"""Documents of a set: where they start, and which sentences of them are the context of one."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from nmtkit import files
from nmtkit.errors import DataError

Kind = Literal["previous", "next", "random", "foreign", "none"]
Join = Literal["concatenate", "parallel"]


@dataclass(frozen=True)
class ContextRule:
    """Which sentences are the context of one."""

    kind: Kind = "previous"
    """previous, next: the nearest ones; random: any of the document; foreign: any of other documents; none."""
    size: int = 1
    """At most so many sentences; where the document has fewer, those it has."""
    join: Join = "concatenate"
    """concatenate: one context of all their words, in document order, a break between them; parallel: a context each."""
    seed: int = 1
    """Of random and foreign."""
    targets: bool = False
    """Whether the target sides come too: in training those of the set, in translation what was translated before."""


def documents_file(prep: Path, name: str) -> Path:
    """Where a prepared set says where its documents start, if it does: line numbers from 0."""
    return prep / "docs" / f"{name}.txt"


class Documents:
    """Where the documents of a set start.

    Args:
        starts: rising sentence numbers, the first 0; none for a set in which every sentence is a document of its own.
        count: sentences of the set.
    """

    def __init__(self, starts: Sequence[int], count: int) -> None:
        self._starts, self._count = list(starts), count

    @classmethod
    def beside(cls, prep: Path, name: str, count: int) -> Documents:
        """Those of a prepared set.

        Raises: DataError if the file is not of a set of this size.
        """
        path = documents_file(prep, name)
        if not path.is_file():
            return cls([], count)
        try:
            starts = [int(line) for line in files.text_lines(path)]
        except ValueError as error:
            raise DataError(f"not the starts of documents: {error}", where=path, hint="prepare it again: nmtkit prep … --force") from None
        if starts[:1] != [0][:count] or any(a >= b for a, b in zip(starts, [*starts[1:], count], strict=True)):
            raise DataError(f"not the starts of documents of {count:,} sentences", where=path, hint="prepare it again: nmtkit prep … --force")
        return cls(starts, count)

    def __len__(self) -> int:
        return len(self._starts) or self._count

    def around(self, sentence: int) -> tuple[int, int]:
        """The first sentence of its document, and the first after it."""
        if not self._starts:
            return sentence, sentence + 1
        after = bisect_right(self._starts, sentence)
        return self._starts[after - 1], self._starts[after] if after < len(self._starts) else self._count

    def rounds(self, sentences: Iterable[int]) -> list[list[int]]:
        """Sentences, and all before them in their documents: the first of every document, the second of every document, …"""
        last: dict[int, int] = {}
        for sentence in sentences:
            start, _ = self.around(sentence)
            last[start] = max(sentence, last.get(start, start))
        lengths = {start: end - start + 1 for start, end in sorted(last.items())}
        return [[start + i for start, length in lengths.items() if i < length] for i in range(max(lengths.values(), default=0))]

    def starts(self, first: int, last: int) -> list[int]:
        """The sentences from `first` to `last` at which a document starts; the end of the set counts as one."""
        if not self._starts:
            return list(range(first, last + 1))
        found = self._starts[bisect_left(self._starts, first) : bisect_right(self._starts, last)]
        return [*found, self._count] if last == self._count else found

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        """The sentences that are the context of one, in the order of the text; none of another document unless the rule says so."""
        start, end = self.around(sentence)
        if rule.kind == "previous":
            return list(range(max(start, sentence - rule.size), sentence))
        if rule.kind == "next":
            return list(range(sentence + 1, min(end, sentence + 1 + rule.size)))
        if rule.kind == "random":
            return _drawn(end - start - 1, rule, start, sentence, lambda i: start + i + (start + i >= sentence))
        if rule.kind == "foreign":
            return _drawn(self._count - (end - start), rule, start, sentence, lambda i: i if i < start else i + end - start)
        return []


def _drawn(count: int, rule: ContextRule, document: int, sentence: int, of: Callable[[int], int]) -> list[int]:
    """Some of `count` things by a hash of (seed, document, sentence): the same in any process, batch or order."""
    if count <= rule.size:
        return sorted(map(of, range(count)))
    text = f"{rule.seed} {document} {sentence - document}".encode()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")))
    return sorted(of(int(i)) for i in rng.choice(count, rule.size, replace=False))
