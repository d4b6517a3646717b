"""Documents of a set: where they start, and which sentences of them are the context of one."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
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
    """previous, next: the nearest ones; random: any of the document; foreign: any of other
    documents; none.
    """
    size: int = 1
    """At most so many sentences; where the document has fewer, those it has."""
    join: Join = "concatenate"
    """concatenate: one context of all their words, in document order, a break between them;
    parallel: a context each.
    """
    seed: int = 1
    """Of random and foreign."""
    targets: bool = False
    """Whether the target sides come too: in training those of the set, in translation what was
    translated before.
    """
    whole: bool = False
    """A sentence that has a context has those of all sentences of its document."""


def documents_file(prep: Path, name: str) -> Path:
    """Where a prepared set says where its documents start, if it does: line numbers from 0."""
    return prep / "docs" / f"{name}.txt"


class Documents:
    """Where the documents of a set, or of some lines of a text, start.

    Args:
        starts: rising sentence numbers, the first 0; none for a set in which every sentence is a
            document of its own.
        count: sentences of the set.
        before: documents of the text before these, those of blank lines alone left out.
    """

    def __init__(self, starts: Sequence[int], count: int, before: int = 0) -> None:
        self._starts, self._count, self._before = list(starts), count, before
        self._read: Sequence[int] = range(count)  # what can be a context
        self._counted: Sequence[int] = self._starts  # starts of the documents that have some of it
        self._wholes: dict[tuple[int, ContextRule], list[int]] = {}

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
            raise DataError(
                f"not the starts of documents: {error}",
                where=path,
                hint="prepare it again: nmtkit prep … --force",
            ) from None
        if starts[:1] != [0][:count] or any(
            a >= b for a, b in zip(starts, [*starts[1:], count], strict=True)
        ):
            raise DataError(
                f"not the starts of documents of {count:,} sentences",
                where=path,
                hint="prepare it again: nmtkit prep … --force",
            )
        return cls(starts, count)

    def without(self, blank: Collection[int]) -> Documents:
        """The same documents, of which these sentences are no context: blank lines, as if they
        were not there.
        """
        if not blank:
            return self
        found = copy.copy(self)
        found._wholes = {}
        found._read = [sentence for sentence in self._read if sentence not in blank]
        bounds = itertools.pairwise([*self._starts, self._count])
        found._counted = [
            start
            for start, end in bounds
            if bisect_left(found._read, start) < bisect_left(found._read, end)
        ]
        return found

    def __len__(self) -> int:
        return len(self._starts) or self._count

    def around(self, sentence: int) -> tuple[int, int]:
        """The first sentence of its document, and the first after it."""
        if not self._starts:
            return sentence, sentence + 1
        after = bisect_right(self._starts, sentence)
        return self._starts[after - 1], (
            self._starts[after] if after < len(self._starts) else self._count
        )

    def rounds(self, sentences: Iterable[int]) -> list[list[int]]:
        """Sentences, and all before them in their documents: the first of every document, the
        second of every document, …
        """
        last: dict[int, int] = {}
        for sentence in sentences:
            start, _ = self.around(sentence)
            last[start] = max(sentence, last.get(start, start))
        lengths = {start: end - start + 1 for start, end in sorted(last.items())}
        return [
            [start + i for start, length in lengths.items() if i < length]
            for i in range(max(lengths.values(), default=0))
        ]

    def starts(self, first: int, last: int) -> list[int]:
        """The sentences from `first` to `last` at which a document starts; the end of the set
        counts as one.
        """
        if not self._starts:
            return list(range(first, last + 1))
        found = self._starts[bisect_left(self._starts, first) : bisect_right(self._starts, last)]
        return [*found, self._count] if last == self._count else found

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        """The sentences that are the context of one, in the order of the text; none of another
        document unless the rule says so.
        """
        return (
            self._whole(sentence, dataclasses.replace(rule, whole=False))
            if rule.whole
            else self._own(sentence, rule)
        )

    def _own(self, sentence: int, rule: ContextRule) -> list[int]:
        read = self._read
        start, end = self.around(sentence)
        low, high = (
            bisect_left(read, start),
            bisect_left(read, end),
        )  # its document, among what can be read
        here, after = bisect_left(read, sentence), bisect_right(read, sentence)
        if rule.kind == "previous":
            return list(read[max(low, here - rule.size) : here])
        if rule.kind == "next":
            return list(read[after : min(high, after + rule.size)])
        if rule.kind in {"random", "foreign"}:
            taken = (here, after) if rule.kind == "random" else (low, high)  # what is left out
            first, count = (low, high - low) if rule.kind == "random" else (0, len(read))
            document = self._before + (bisect_left(self._counted, start) if self._starts else here)
            drawn = _drawn(count - (taken[1] - taken[0]), rule, document, here - low)
            return [
                read[place + (taken[1] - taken[0]) * (place >= taken[0])]
                for place in (first + i for i in drawn)
            ]
        return []

    def _whole(self, sentence: int, rule: ContextRule) -> list[int]:
        """What is the context of some sentence of the document of one that has a context."""
        if not self._own(sentence, rule):
            return []
        start, end = self.around(sentence)
        if (start, rule) not in self._wholes:
            own = self._read[bisect_left(self._read, start) : bisect_left(self._read, end)]
            self._wholes[start, rule] = sorted(
                {other for one in own for other in self._own(one, rule)}
            )
        return self._wholes[start, rule]


def _drawn(count: int, rule: ContextRule, document: int, sentence: int) -> list[int]:
    """Some of `count` things by a hash of (seed, number of the document, of the sentence in it):
    the same in any process, batch, window or order.
    """
    if count <= rule.size:
        return list(range(count))
    text = f"{rule.seed} {document} {sentence}".encode()
    rng = np.random.Generator(
        np.random.PCG64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    )
    return sorted(int(i) for i in rng.choice(count, rule.size, replace=False))
