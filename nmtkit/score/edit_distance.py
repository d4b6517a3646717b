"""The edit distance of TER, equal to sacreBLEU's, but faster.

TER moves phrases of a hypothesis as long as its distance to the reference falls, so it computes
dozens of distances for each sentence. sacreBLEU computes them cell by cell. Here a row of the table
is four integers, whose bits are the differences of neighbouring cells.

Source: Hyyrö 2003, *A bit-vector algorithm for computing Levenshtein and Damerau edit distances*.

Legend: d(i, j) is the distance between the first i words of a hypothesis and the first j words of
the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sacrebleu.metrics import lib_ter

PRIVATE = ("BeamEditDistance", "_OP_NOP", "_OP_SUB", "_OP_DEL", "_OP_INS")
_SLOW: Any = getattr(lib_ter, PRIVATE[0], None)
BAND = 23
"""sacreBLEU computes only cells at most 24 from the diagonal, which it rounds. Its distance is
exact if a best path is at most this far from the diagonal.
"""
Row = tuple[int, int, int, int]


@contextmanager
def fast_edit_distance() -> Iterator[None]:
    """Make sacreBLEU use `EditDistance`, if this version has the private names."""
    if not all(hasattr(lib_ter, name) for name in PRIVATE):
        yield
        return
    lib_ter.BeamEditDistance = EditDistance  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        lib_ter.BeamEditDistance = _SLOW  # type: ignore[misc]


class Operations:
    """The operations of a path, computed when sacreBLEU reads them: for one hypothesis in ten."""

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find

    def translate(self, table: dict[int, int]) -> str:
        return self._find().translate(table)


class EditDistance:
    """Distances of hypotheses to a reference, a list of words."""

    def __init__(self, reference: list[str]) -> None:
        self._reference, self._places = reference, dict[str, int]()
        for j, word in enumerate(reference):
            self._places[word] = self._places.get(word, 0) | 1 << j

    def __call__(self, words: list[str]) -> Any:
        """Return the distance of a hypothesis, and the operations from it to the reference."""
        rows = self._rows(words)
        distance = len(words) + rows[-1][0].bit_count() - rows[-1][1].bit_count()
        # A path is at most this far from the diagonal: half the sum of its costs and of the
        # difference in length.
        if distance + abs(len(words) - len(self._reference)) <= 2 * BAND:
            return distance, Operations(lambda: self._path(words, rows)[0])
        path, farthest = self._path(words, rows)
        return (distance, path) if farthest <= BAND else self._slow(words)

    @cached_property
    def _slow(self) -> Any:
        """sacreBLEU's own distance, with its cache of rows."""
        return _SLOW(self._reference)

    def _rows(self, words: list[str]) -> list[Row]:
        """Return four integers for each i. Their bits j are set where d(i, j+1) - d(i, j) is 1,
        where it is -1, where d(i, j) - d(i-1, j) is 1, and where it is -1.
        """
        full = (1 << len(self._reference)) - 1
        rises, falls = full, 0
        rows = [(rises, falls, 0, 0)]
        for word in words:
            same = self._places.get(word, 0)
            equal = (((same & rises) + rises) ^ rises) | same
            more = (falls | ~(equal | rises)) << 1 | 1
            less = (rises & equal) << 1
            same |= falls
            rises, falls = (less | ~(same | more)) & full, more & same & full
            rows.append((rises, falls, more, less))
        return rows

    def _path(self, words: list[str], rows: list[Row]) -> tuple[str, float]:
        """Return the best path and its largest distance from the diagonal. At equal cost it prefers
        a match or substitution to a deletion, and a deletion to an insertion.
        """
        i, j, path, farthest = len(words), len(self._reference), "", 0.0
        slope = j / max(i, 1)
        while i or j:
            rises, falls, more, less = rows[i]
            farthest = max(farthest, abs(j - i * slope))
            same = i and j and words[i - 1] == self._reference[j - 1]
            if i and j and _step(rises, falls, j - 1) + _step(more, less, j - 1) == (not same):
                path += lib_ter._OP_NOP if same else lib_ter._OP_SUB
                i, j = i - 1, j - 1
            elif _step(more, less, j) == 1:
                path += lib_ter._OP_DEL
                i -= 1
            else:
                path += lib_ter._OP_INS
                j -= 1
        return path[::-1], farthest


def _step(plus: int, minus: int, bit: int) -> int:
    return (plus >> bit & 1) - (minus >> bit & 1)
