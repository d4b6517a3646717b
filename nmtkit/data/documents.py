"""Documents of a set: where they start, and which sentences are the context of a sentence."""

from __future__ import annotations

import copy
import hashlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from nmtkit import files
from nmtkit.errors import DataError, counted

Kind = Literal["previous", "next", "random", "foreign", "none"]
Join = Literal["concatenate", "parallel"]


@dataclass(frozen=True)
class ContextRule:
    """Which sentences are the context of a sentence.

    Attributes:
        kind: previous, next: the nearest sentences of the document; random: sentences drawn from
            the document; foreign: sentences drawn from other documents; none: no context.
        size: the maximum number of sentences; a short document has fewer.
        join: concatenate: the sentences become one context, in document order, with breaks between
            them; parallel: each sentence is a context.
        seed: for random and foreign.
        targets: True if target sides are read too: in training the targets of the set, in
            translation the earlier translations.
        whole: True if a sentence with a context gets the contexts of all sentences of its document.
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


def are_starts(starts: Sequence[int], count: int) -> bool:
    """True if numbers can be the first sentences of documents: they rise from 0 and are below the
    number of sentences. A set without sentences has no documents.
    """
    rise = all(a < b for a, b in itertools.pairwise([*starts, count]))
    return starts[:1] == [0][:count] and rise


class Documents:
    """Where the documents of a set, or of some lines of a text, start.

    Args:
        starts: rising sentence numbers, the first 0; empty if every sentence is its own document.
        count: number of sentences.
        before: number of documents that come before these sentences in the text; documents of blank
            lines do not count.
    """

    def __init__(self, starts: Sequence[int], count: int, before: int = 0) -> None:
        # Where documents start, then the end of the last.
        self._edges: Sequence[int] = [*starts, count] if starts else range(count + 1)
        self._before = before
        # Sentences that can be a context, and the starts of the documents that have such sentences.
        self._readable: Sequence[int] = range(count)
        self._readable_starts = self._edges
        self._whole_contexts: dict[tuple[int, ContextRule], list[int]] = {}

    @classmethod
    def of_set(cls, prep: Path, name: str, count: int) -> Documents:
        """Return the documents of a prepared set.

        Raises: DataError if the file does not fit a set of this size.
        """
        path = documents_file(prep, name)
        if not path.is_file():
            return cls([], count)
        problem = f"not the starts of documents of {counted(count, 'sentence')}"
        try:
            starts = [int(line) for line in files.text_lines(path)]
            if are_starts(starts, count):
                return cls(starts, count)
        except ValueError as error:
            problem = f"not the starts of documents: {error}"
        raise DataError(problem, where=path, hint="prepare it again: nmtkit prep … --force")

    def without(self, blank: Collection[int]) -> Documents:
        """Return the same documents with blank lines, which have no context and are in none."""
        if not blank:
            return self
        documents = copy.copy(self)
        documents._whole_contexts = {}
        readable = [sentence for sentence in self._readable if sentence not in blank]
        documents._readable = readable
        documents._readable_starts = [
            start
            for start, end in itertools.pairwise(self._edges)
            if bisect_left(readable, start) < bisect_left(readable, end)
        ]
        return documents

    def __len__(self) -> int:
        return len(self._edges) - 1

    def bounds(self, sentence: int) -> tuple[int, int]:
        """Return the first sentence of a sentence's document, and of the next document."""
        after = bisect_right(self._edges, sentence)
        return self._edges[after - 1], self._edges[after]

    def rounds(self, sentences: Iterable[int]) -> list[list[int]]:
        """Return these sentences and all earlier sentences of their documents, in rounds: round i
        has sentence i of each document.
        """
        last: dict[int, int] = {}
        for sentence in sentences:
            start, _ = self.bounds(sentence)
            last[start] = max(sentence, last.get(start, start))
        lengths = {start: end - start + 1 for start, end in sorted(last.items())}
        return [
            [start + i for start, length in lengths.items() if i < length]
            for i in range(max(lengths.values(), default=0))
        ]

    def starts(self, first: int, last: int) -> list[int]:
        """Return the starts of documents from sentence `first` to `last`; the end of the set counts
        as a start.
        """
        edges = self._edges
        return list(edges[bisect_left(edges, first) : bisect_right(edges, last)])

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        """Return the sentences that are the context of a sentence, in the order of the text."""
        context = self._sentence_context(sentence, rule)
        if not context or not rule.whole:
            return context
        key = self.bounds(sentence)[0], rule
        if key not in self._whole_contexts:
            members = (self._readable[place] for place in self._places(sentence)[0])
            contexts = (self._sentence_context(member, rule) for member in members)
            self._whole_contexts[key] = sorted({*itertools.chain.from_iterable(contexts)})
        return self._whole_contexts[key]

    def _sentence_context(self, sentence: int, rule: ContextRule) -> list[int]:
        """Return the context of a sentence without `rule.whole`."""
        readable = self._readable
        document, place = self._places(sentence)
        if not place or rule.kind == "none":
            return []
        if rule.kind == "previous":
            return list(readable[max(document.start, place.start - rule.size) : place.start])
        if rule.kind == "next":
            return list(readable[place.stop : min(document.stop, place.stop + rule.size)])
        # Draw from the places of `pool` outside the gap.
        pool, gap = document, place
        if rule.kind == "foreign":
            pool, gap = range(len(readable)), document
        number = self._before + bisect_left(self._readable_starts, self.bounds(sentence)[0])
        drawn = _draw(len(pool) - len(gap), rule, number, place.start - document.start)
        # Drawn places from the start of the gap on move after its end.
        return [readable[i + len(gap) * (i >= gap.start)] for i in (pool[k] for k in drawn)]

    def _places(self, sentence: int) -> tuple[range, range]:
        """Return the places of a sentence's document and of the sentence among the readable
        sentences. A blank sentence has an empty place.
        """
        start, end = self.bounds(sentence)
        return (
            range(bisect_left(self._readable, start), bisect_left(self._readable, end)),
            range(bisect_left(self._readable, sentence), bisect_right(self._readable, sentence)),
        )


def _draw(count: int, rule: ContextRule, document: int, sentence: int) -> list[int]:
    """Draw `rule.size` of the numbers below `count`, or all of them.

    The draw depends only on the seed, the number of the document, and the number of the sentence in
    the document. So it is the same in every process, batch, window and order.
    """
    if count <= rule.size:
        return list(range(count))
    text = f"{rule.seed} {document} {sentence}".encode()
    rng = np.random.Generator(
        np.random.PCG64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
    )
    return sorted(rng.choice(count, rule.size, replace=False).tolist())
