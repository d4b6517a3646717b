"""Contrastive sets: sentences with a right translation and wrong ones that differ from it in one point; which of them does a system prefer?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.errors import DataError


@dataclass(frozen=True)
class Error:
    """One wrong translation."""

    kind: str
    """The type of the error, as subj_verb_agreement."""
    text: str
    distance: int | None = None
    """Words between the two that belong together."""
    frequency: int | None = None
    """How often the word occurs in the training text of the set's authors."""


@dataclass(frozen=True)
class Item:
    """A source, its right translation, and wrong ones."""

    source: str
    reference: str
    errors: Sequence[Error]

    @property
    def targets(self) -> list[str]:
        """The right translation, then the wrong ones."""
        return [self.reference, *(error.text for error in self.errors)]


def read(where: str) -> list[Item]:
    """Read a contrastive set.

    Args:
        where: a JSON file in the format of Lingeval97, or three text files with commas between: sources, right and wrong translations.
    Raises: DataError for a file that is missing or in another form.
    """
    paths = [Path(part) for part in where.split(",")]
    if len(paths) == 3:
        columns = [list(files.text_lines(path)) for path in paths]
        if len({len(column) for column in columns}) > 1:
            counts = ", ".join(f"{path}: {len(column):,}" for path, column in zip(paths, columns, strict=True))
            raise DataError("the three files have different numbers of lines", where=counts, hint="line i of each belongs to pair i")
        items = [Item(source, right, [Error("pairs", wrong)]) for source, right, wrong in zip(*columns, strict=True)]
    elif len(paths) == 1:
        items = _lingeval(paths[0])
    else:
        raise DataError(f"cannot read pairs from {len(paths)} files", where="--pairs", hint="one JSON file, or SOURCES,RIGHT,WRONG")
    if not any(item.errors for item in items):
        raise DataError("there are no pairs in it", where=where)
    return items


def _lingeval(path: Path) -> list[Item]:
    try:
        values = json.loads("\n".join(files.text_lines(path)))
    except json.JSONDecodeError as error:
        raise DataError(f"is not JSON: {error.msg}", where=f"{path}, line {error.lineno}", hint="plain files: SOURCES,RIGHT,WRONG") from error
    if not isinstance(values, list):
        raise DataError("the JSON is not a list of sentences", where=path)
    items = []
    for number, value in enumerate(values):
        try:
            items.append(Item(value["source"], value["reference"], [_error(e) for e in value["errors"]]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"no item of a contrastive set: {error!r}", where=f"{path}, item {number}", hint="source, reference, errors[]") from error
    return items


def _error(value: dict[str, Any]) -> Error:
    distance, frequency = (int(value[key]) if key in value else None for key in ("distance", "frequency"))  # Lingeval97 has "0" among numbers
    return Error(value["type"], value["contrastive"], distance, frequency)


def decisions(items: Sequence[Item], scores: Sequence[Sequence[float]]) -> list[tuple[Error, bool]]:
    """Whether the right translation is strictly better than each wrong one: a tie is wrong.

    Args:
        items: the set.
        scores: for each item, those of its `targets`; higher is better.
    """
    return [(error, own[0] > score) for item, own in zip(items, scores, strict=True) for error, score in zip(item.errors, own[1:], strict=True)]


def read_scores(path: Path, items: Sequence[Item]) -> list[list[float]]:
    """A score file in Lingeval97's format: one number a line, that of the right translation of an item, then those of its wrong ones.

    Returns: scores of each item of which higher is better. Numbers that are all negative or zero are log-probabilities already; others
        are taken for what Lingeval97 takes by default, negative log-likelihoods.
    Raises: DataError for another number of lines, or a line that is no number.
    """
    lines = list(files.text_lines(path))
    wanted = sum(1 + len(item.errors) for item in items)
    if len(lines) != wanted:
        raise DataError(f"{len(lines):,} scores for {wanted:,} targets", where=path, hint="a line for each reference and each wrong translation")
    numbers = []
    for number, line in enumerate(lines, 1):
        try:
            numbers.append(float(line))
        except ValueError:
            numbers.append(math.nan)
        if math.isnan(numbers[-1]):
            raise DataError(f"not a number: '{line[:40]}'", where=f"{path}, line {number}")
    sign = 1 if max(numbers) <= 0 else -1
    left = iter(numbers)
    return [[sign * next(left) for _ in item.targets] for item in items]
