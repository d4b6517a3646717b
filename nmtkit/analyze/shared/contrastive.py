"""Contrastive sets: sentences with a right translation and wrong ones that differ from it in one point; which of them does a system prefer?

Where a set tells what was said before a sentence, these are its document. Their translations are read by systems that read their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import files
from nmtkit.data.documents import Documents
from nmtkit.errors import ConfigError, DataError

BREAK = " _eos "
"""Between the sentences of a line that holds several, as the public sets have it."""
CONDITIONS = ("true", "none", "foreign")
SCORE_KINDS = {"nll": "negative log-likelihoods, lower is better", "log-prob": "log-probabilities, higher is better"}
"""What the numbers of a score file may be; Lingeval97's own evaluation takes the first unless told to maximise."""
SCORE_SIGNS = {"nll": -1, "log-prob": 1}


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
    back: int | None = None
    """How many sentences back stands what decides."""


@dataclass(frozen=True)
class Item:
    """A source, its right translation, wrong ones, the sources of the sentences before, and (or none) their translations."""

    source: str
    reference: str
    errors: Sequence[Error]
    before: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    @property
    def targets(self) -> list[str]:
        """The right translation, then the wrong ones."""
        return [self.reference, *(error.text for error in self.errors)]


def read(where: str) -> list[Item]:
    """Read a contrastive set.

    Args:
        where: a JSON file in the format of Lingeval97 (a sentence may have the source of the one before, or a list of them, in `context_src`, and
            in `context_ref` their translations), of the English-Russian consistency sets (Voita et al. 2019) or of DiscEvalMT (Bawden et al.
            2018); or text files with commas between: sources, right and wrong translations, and before them, where there is a fourth, what was
            said before, ` _eos ` between sentences.
    Raises: DataError for a file that is missing or in another form.
    """
    paths = [Path(part) for part in where.split(",")]
    if len(paths) in (3, 4):
        columns = [list(files.text_lines(path)) for path in paths]
        if len({len(column) for column in columns}) > 1:
            counts = ", ".join(f"{path}: {len(column):,}" for path, column in zip(paths, columns, strict=True))
            raise DataError("the files have different numbers of lines", where=counts, hint="line i of each belongs to pair i")
        for path, column in list(zip(paths, columns, strict=True))[-3:]:
            if blank := next((number for number, line in enumerate(column, 1) if not line.strip()), 0):
                raise DataError("a blank line is no sentence", where=f"{path}, line {blank}", hint="leave the pair out of all files")
        before = [_sentences(line) for line in columns[0]] if len(paths) == 4 else [()] * len(columns[0])
        pairs = zip(*columns[-3:], before, strict=True)
        items = [Item(source, right, [Error("pairs", wrong)], context) for source, right, wrong, context in pairs]
    elif len(paths) == 1:
        items = _json(paths[0])
    else:
        hint = "one JSON file, SOURCES,RIGHT,WRONG or CONTEXTS,SOURCES,RIGHT,WRONG"
        raise DataError(f"cannot read pairs from {len(paths)} files", where="--pairs", hint=hint)
    if not any(item.errors for item in items):
        raise DataError("there are no pairs in it", where=where)
    return items


def _sentences(line: str) -> tuple[str, ...]:
    return tuple(sentence for sentence in line.split(BREAK) if sentence.strip())


def _json(path: Path) -> list[Item]:
    try:
        values = json.loads("\n".join(files.text_lines(path)))
    except json.JSONDecodeError as error:
        raise DataError(f"is not JSON: {error.msg}", where=f"{path}, line {error.lineno}", hint="plain files: SOURCES,RIGHT,WRONG") from error
    kind = path.name.partition(".")[0]
    if isinstance(values, dict) and values and all(isinstance(value, dict) for value in values.values()):
        entries: list[tuple[str, Any]] = list(values.items())
        read_one, wanted = _of_discourse, "src and trg, or examples[] of them"
    elif isinstance(values, list):
        entries = [(str(number), value) for number, value in enumerate(values)]
        consistency = values and isinstance(values[0], dict) and "true_ind" in values[0]
        read_one, wanted = (_of_consistency, "src, dst[], true_ind, ctx_dist") if consistency else (_of_lingeval, "source, reference, errors[]")
    else:
        raise DataError("the JSON is not a list of sentences", where=path)
    items: list[Item] = []
    for name, value in entries:
        try:
            items += map(_checked, read_one(value, kind))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise DataError(f"no item of a contrastive set: {what}", where=f"{path}, item {name}", hint=wanted) from error
    return items


def _checked(item: Item) -> Item:
    """An item of which everything is what it should be.

    Raises: TypeError naming the first that is not.
    """
    texts: list[tuple[str, object]] = [("source", item.source), ("reference", item.reference)]
    texts += [("context", text) for text in (*item.before, *item.said)]
    texts += [pair for error in item.errors for pair in (("type of an error", error.kind), ("wrong translation", error.text))]
    for name, value in texts:
        if not isinstance(value, str):
            raise TypeError(f"the {name} is no text: {value!r:.60}")
        if not value.strip() and name != "context":  # a blank line before is passed over, as everywhere
            raise ValueError(f"the {name} is blank")
    for error in item.errors:
        if not isinstance(error.back, int | None):
            raise TypeError(f"the distance of the context is no number: {error.back!r:.60}")
    return item


def _of_lingeval(value: dict[str, Any], kind: str) -> list[Item]:
    found = (value.get(key, ()) for key in ("context_src", "context_ref"))
    before, said = ((own,) if isinstance(own, str) else tuple(own) for own in found)
    return [_item(value["source"], value["reference"], [_error(error) for error in value["errors"]], before, said)]


def _item(source: str, reference: str, errors: Sequence[Error], before: tuple[str, ...], said: tuple[str, ...]) -> Item:
    if said and len(said) != len(before):
        raise ValueError(f"{len(before)} sentences before, {len(said)} translations of them")
    return Item(source, reference, errors, before, said)


def _error(value: dict[str, Any]) -> Error:
    distance, frequency = (int(value[key]) if key in value else None for key in ("distance", "frequency"))  # Lingeval97 has "0" among numbers
    return Error(value["type"], value["contrastive"], distance, frequency)


def _list(value: Any) -> list[Any]:
    """A list that is one: of a text instead of it, letters would be read."""
    if not isinstance(value, list):
        raise TypeError(f"no list: {value!r:.60}")
    return value


def _of_consistency(value: dict[str, Any], kind: str) -> list[Item]:
    """The candidates differ in their last sentence; those before it are the same in all."""
    *before, source = _sentences(value["src"])
    texts, which = _list(value["dst"]), value["true_ind"]
    if not 0 <= which < len(texts):
        raise IndexError(f"true_ind is {which}, of {len(texts)} candidates")
    *said, right = _sentences(texts[which])
    beside = [text.split(BREAK)[-1] for text in [*texts[:which], *texts[which + 1 :]]]
    return [_item(source, right, [Error(kind, wrong, back=value["ctx_dist"]) for wrong in beside], tuple(before), tuple(said))]


def _of_discourse(value: dict[str, Any], kind: str) -> list[Item]:
    """A source with several pairs of translations, or several of these; "semi-correct" is right beside the context's translation."""
    items = []
    for example in value.get("examples", [value]):
        *before, source = _list(example["src"])
        for pair in [example["trg"]] if isinstance(example["trg"], dict) else example["trg"]:
            *said, right = _list(pair["correct"] if "correct" in pair else pair["semi-correct"])
            error = Error(pair.get("type", value.get("type", kind)), _list(pair["incorrect"])[-1], back=1)
            items.append(_item(source, right, [error], tuple(before), tuple(said)))
    return items


def under(items: Sequence[Item], condition: str, seed: int = 1) -> list[Item]:
    """The set with other contexts.

    Args:
        items: with their own.
        condition: "true" = these; "none"; "foreign" = each sentence that has one gets that of another, drawn from those with another text.
        seed: of the draw.
    Raises: ConfigError for another condition; DataError if there is only one context in the set to draw from.
    """
    if condition not in CONDITIONS:
        raise ConfigError(f"unknown context '{condition}'", where="--context", hint=", ".join(CONDITIONS))
    if condition == "true":
        return list(items)
    if condition == "none":
        return [replace(item, before=(), said=()) for item in items]
    said = {item.before: item.said for item in items if item.before}
    known = {before: i for i, before in enumerate(said)}
    if len(known) == 1:
        raise DataError("all sentences of this set have the same context", where="--context foreign", hint="--context true,none")
    texts, rng = list(known), np.random.Generator(np.random.PCG64(seed))
    drawn = rng.integers(len(known) - 1, size=len(items)).tolist() if known else [0] * len(items)
    others = [texts[i + (i >= known[item.before])] if item.before else () for item, i in zip(items, drawn, strict=True)]
    return [replace(item, before=other, said=said.get(other, ())) for item, other in zip(items, others, strict=True)]


@dataclass(frozen=True)
class Text:
    """A set as lines, the targets of each, a document for each item, and which lines are those of the items and not before them."""

    lines: list[str]
    targets: list[list[str]]
    documents: Documents
    places: list[int]


def as_documents(items: Sequence[Item], translated: bool = False) -> Text:
    """The set as text.

    Args:
        translated: whether the sentences before have their translations as targets, where the set has them; they have none otherwise.
    """
    lines: list[str] = []
    targets: list[list[str]] = []
    starts, places = [], []
    for item in items:
        starts.append(len(lines))
        lines += [*item.before, item.source]
        targets += [*([[text] for text in item.said] if translated and item.said else ([] for _ in item.before)), item.targets]
        places.append(len(lines) - 1)
    return Text(lines, targets, Documents(starts, len(lines)), places)


def open_questions(items: Sequence[Item]) -> int:
    """How many pairs the source and what stands before it cannot decide, since the set has them with the answers swapped too."""
    asked = [((item.before, item.source), item.reference, error.text) for item in items for error in item.errors]
    known = set(asked)
    return sum(right != wrong and (source, wrong, right) in known for source, right, wrong in asked)


def no_questions(items: Sequence[Item]) -> int:
    """How many wrong translations are the right one once more, word for word."""
    return sum(error.text == item.reference for item in items for error in item.errors)


def decisions(items: Sequence[Item], scores: Sequence[Sequence[float]]) -> list[tuple[Error, bool]]:
    """Whether the right translation is strictly better than each wrong one: a tie is wrong.

    Args:
        items: the set.
        scores: for each item, those of its `targets`; higher is better.
    """
    return [(error, own[0] > score) for item, own in zip(items, scores, strict=True) for error, score in zip(item.errors, own[1:], strict=True)]


def preferred(scores: Sequence[Sequence[float]]) -> list[bool]:
    """Whether the right translation is strictly better than all wrong ones, of each item that has some.

    Args:
        scores: for each item, those of its `targets`; higher is better.
    """
    return [own[0] > max(own[1:]) for own in scores if len(own) > 1]


@dataclass(frozen=True)
class ScoreFile:
    """What a score file says of a set."""

    scores: list[list[float]]
    """Of each item those of its `targets`; higher is better."""
    kind: str
    """A key of SCORE_KINDS, as what the numbers were read."""


def read_scores(path: Path, items: Sequence[Item], kind: str = "auto") -> ScoreFile:
    """A score file in Lingeval97's format: one number a line, that of the right translation of an item, then those of its wrong ones.

    Args:
        kind: a key of SCORE_KINDS; "auto" = log-probabilities if no number is above zero, else negative log-likelihoods.
    Raises: ConfigError for another kind; DataError for another number of lines, or a line that is no number.
    """
    if kind not in {"auto", *SCORE_KINDS}:
        raise ConfigError(f"unknown kind of scores '{kind}'", where="--score-kind", hint=", ".join(["auto", *SCORE_KINDS]))
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
    if kind == "auto":
        kind = "log-prob" if max(numbers) <= 0 else "nll"
    left = iter(numbers)
    return ScoreFile([[SCORE_SIGNS[kind] * next(left) for _ in item.targets] for item in items], kind)
