"""Documents of a set: where they start, and which of their sentences are the context of another."""

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
    """Which sentences are the context of a sentence.

    Attributes:
        kind: previous, next: the nearest ones; random: any of the document; foreign: any of other
            documents; none.
        size: the most sentences; a short document has fewer.
        join: concatenate: one context of all their words, in document order, a break between
            sentences; parallel: each sentence is a context.
        seed: for random and foreign.
        targets: the target sides are read too: in training those of the set, in translation what
            was translated before.
        whole: a sentence that has a context has the contexts of all sentences of its document.
    """

    kind: Kind = "previous"
    size: int = 1
    join: Join = "concatenate"
    seed: int = 1
    targets: bool = False
    whole: bool = False


def documents_file(prep: Path, name: str) -> Path:
    """Return the file with the document starts of a prepared set: line numbers from 0."""
    return prep / "docs" / f"{name}.txt"


class Documents:
    """Where the documents of a set, or of some lines of a text, start.

    Args:
        starts: rising sentence numbers, the first 0; empty if every sentence is its own document.
        count: sentences of the set.
        before: documents of the text before these sentences, not counting those of blank lines.
    """

    def __init__(self, starts: Sequence[int], count: int, before: int = 0) -> None:
        self._starts, self._count, self._before = list(starts), count, before
        # Sentences that can be a context, and the starts of the documents that have such sentences.
        self._readable: Sequence[int] = range(count)
        self._readable_starts: Sequence[int] = self._starts
        self._whole_contexts: dict[tuple[int, ContextRule], list[int]] = {}

    @classmethod
    def beside(cls, prep: Path, name: str, count: int) -> Documents:
        """Return the documents of a prepared set.

        Raises: DataError if the file is not of a set of this size.
        """
        path = documents_file(prep, name)
        if not path.is_file():
            return cls([], count)
        problem = f"not the starts of documents of {count:,} sentences"
        try:
            starts = [int(line) for line in files.text_lines(path)]
            if starts[:1] == [0][:count] and all(
                a < b for a, b in itertools.pairwise([*starts, count])
            ):
                return cls(starts, count)
        except ValueError as error:
            problem = f"not the starts of documents: {error}"
        raise DataError(problem, where=path, hint="prepare it again: nmtkit prep … --force")

    def without(self, blank: Collection[int]) -> Documents:
        """Return the same documents in which these sentences are nobody's context: blank lines."""
        if not blank:
            return self
        documents = copy.copy(self)
        documents._whole_contexts = {}
        readable = [sentence for sentence in self._readable if sentence not in blank]
        documents._readable = readable
        documents._readable_starts = [
            start
            for start, end in itertools.pairwise([*self._starts, self._count])
            if bisect_left(readable, start) < bisect_left(readable, end)
        ]
        return documents

    def __len__(self) -> int:
        return len(self._starts) or self._count

    def around(self, sentence: int) -> tuple[int, int]:
        """Return the first sentence of its document, and the first after it."""
        if not self._starts:
            return sentence, sentence + 1
        after = bisect_right(self._starts, sentence)
        return self._starts[after - 1], (
            self._starts[after] if after < len(self._starts) else self._count
        )

    def rounds(self, sentences: Iterable[int]) -> list[list[int]]:
        """Return sentences, and all before them in their documents, in rounds.

        The first round has the first sentence of every document, the second the second, …
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
        """Return the starts of documents from sentence `first` to `last`.

        The end of the set counts as a start.
        """
        if not self._starts:
            return list(range(first, last + 1))
        starts = self._starts[bisect_left(self._starts, first) : bisect_right(self._starts, last)]
        return [*starts, self._count] if last == self._count else starts

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        """Return the sentences that are the context of a sentence, in the order of the text."""
        return (
            self._whole(sentence, dataclasses.replace(rule, whole=False))
            if rule.whole
            else self._own(sentence, rule)
        )

    def _own(self, sentence: int, rule: ContextRule) -> list[int]:
        readable = self._readable
        start, end = self.around(sentence)
        # The places of its document, and of the sentence, among the readable sentences.
        low, high = bisect_left(readable, start), bisect_left(readable, end)
        here, after = bisect_left(readable, sentence), bisect_right(readable, sentence)
        if rule.kind == "previous":
            return list(readable[max(low, here - rule.size) : here])
        if rule.kind == "next":
            return list(readable[after : min(high, after + rule.size)])
        if rule.kind == "none":
            return []
        # Draw from the places `first` to `last`, but not from the gap in them.
        first, last, gap, gap_end = (
            (low, high, here, after) if rule.kind == "random" else (0, len(readable), low, high)
        )
        document = self._before + (
            bisect_left(self._readable_starts, start) if self._starts else here
        )
        width = gap_end - gap
        places = (first + i for i in _drawn(last - first - width, rule, document, here - low))
        return [readable[place + width * (place >= gap)] for place in places]

    def _whole(self, sentence: int, rule: ContextRule) -> list[int]:
        """Return the contexts of all sentences of a document, if the sentence has a context."""
        if not self._own(sentence, rule):
            return []
        start, end = self.around(sentence)
        if (start, rule) not in self._whole_contexts:
            readable = self._readable
            document = readable[bisect_left(readable, start) : bisect_left(readable, end)]
            self._whole_contexts[start, rule] = sorted(
                {other for one in document for other in self._own(one, rule)}
            )
        return self._whole_contexts[start, rule]


def _drawn(count: int, rule: ContextRule, document: int, sentence: int) -> list[int]:
    """Draw `rule.size` of `count` numbers.

    The draw depends on the seed and the numbers of the document and of the sentence in it alone:
    it is the same in every process, batch, window and order.
    """
    if count <= rule.size:
        return list(range(count))
    text = f"{rule.seed} {document} {sentence}".encode()
    rng = np.random.Generator(
        np.random.PCG64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    )
    return sorted(rng.choice(count, rule.size, replace=False).tolist())
