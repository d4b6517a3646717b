"""Context of a sentence: other sentences of its document, chosen by a rule, and their padded tensors, each sentence once a batch."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit import files
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.errors import DataError

Kind = Literal["previous", "next", "random", "foreign", "none"]
Join = Literal["concatenate", "parallel"]

BREAK = BOS
"""Stands between the sentences of a concatenated context (the paper's ####): an id that no source has, no text spells, no search produces."""


@dataclass(frozen=True)
class ContextRule:
    """Which sentences are the context of one."""

    kind: Kind = "previous"
    """previous, next: the nearest ones; random: any of the document; foreign: any of other documents; none."""
    size: int = 1
    """At most so many sentences; where the document has fewer, those it has."""
    join: Join = "concatenate"
    """concatenate: one context of all their words, in document order, `BREAK` between them; parallel: a context each."""
    seed: int = 1
    """Of random and foreign."""


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
        """Those of a prepared set, docs/NAME.txt.

        Raises: DataError if the file is not of a set of this size.
        """
        path = prep / "docs" / f"{name}.txt"
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

    def context(self, sentence: int, rule: ContextRule) -> list[int]:
        """The sentences that are the context of one, in the order of the text; none of another document unless the rule says so."""
        start, end = self.around(sentence)
        if rule.kind == "previous":
            return list(range(max(start, sentence - rule.size), sentence))
        if rule.kind == "next":
            return list(range(sentence + 1, min(end, sentence + 1 + rule.size)))
        if rule.kind == "random":
            others = [*range(start, sentence), *range(sentence + 1, end)]
            return _drawn(len(others), rule, start, sentence, lambda i: others[i])
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


@dataclass(frozen=True)
class Context:
    """The contexts of B sentences: U different ones, none of them twice.

    ids (U, M) token ids, each context ending in </s> and padded with <pad>; lengths (U); padded is False where none is.
    rows (B, J): which of them are a sentence's, in the order of the text; -1 behind the last one.
    """

    ids: Tensor
    lengths: Tensor
    rows: Tensor
    padded: bool


def contexts(
    chosen: Sequence[Sequence[int]], ids: Callable[[int], NDArray[Any]], rule: ContextRule, device: torch.device | str = "cpu"
) -> Context | None:
    """The context tensors of a batch.

    Args:
        chosen: (B) sentences that are the context of each, by `Documents.context`.
        ids: the token ids of a sentence, </s> last.
        rule: how several sentences are joined.
        device: where the tensors go.
    Returns: None if no sentence has any.
    """
    of_row = [[tuple(own)] if rule.join == "concatenate" and own else [(one,) for one in own] for own in chosen]
    number = {key: i for i, key in enumerate(dict.fromkeys(key for own in of_row for key in own))}
    if not number:
        return None
    texts = [_joined([ids(sentence) for sentence in key]) for key in number]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    padded = np.zeros((len(texts), int(lengths.max())), np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(texts)
    rows = np.full((len(of_row), max(map(len, of_row))), -1, np.int64)
    for row, own in enumerate(of_row):
        rows[row, : len(own)] = [number[key] for key in own]
    tensor = [torch.from_numpy(array).to(device) for array in (padded, lengths, rows)]
    return Context(tensor[0], tensor[1], tensor[2], bool(lengths.min() < padded.shape[1]))


def _joined(sentences: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Sentences as one, `BREAK` in the place of every </s> but the last."""
    joined = np.concatenate(sentences).astype(np.int64)
    joined[:-1][joined[:-1] == EOS] = BREAK
    return joined
