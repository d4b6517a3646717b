"""Contrastive sets: sentences with a right translation and wrong ones that differ in one point.

If a set gives the sentences before a source, these sentences and the source are a document. If a
system reads translations of the context, it reads those that the set gives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from nmtkit import files
from nmtkit.data.documents import Documents
from nmtkit.errors import ConfigError, DataError, counted

BREAK = " _eos "
"""The separator of the sentences of one line in the public sets."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank")
    return text


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


CORRECT = AliasChoices("correct", "semi-correct")
Sentence = Annotated[str, AfterValidator(_not_blank)]
Context = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


@dataclass(frozen=True)
class Error:
    """One wrong translation. The fields have the names of Lingeval97.

    Attributes:
        type: the type of the error, for example subj_verb_agreement.
        contrastive: the wrong translation.
        distance: difference of the positions of the two words that belong together (1: neighbours).
        frequency: frequency of the word in the training text of the set's authors.
        back: how many sentences before the source the deciding sentence stands.
    """

    type: str
    contrastive: Sentence
    distance: int | None = None
    frequency: int | None = None
    back: int | None = None


@dataclass(frozen=True)
class Item:
    """A source, its right translation, its wrong translations, and the sentences before.

    Attributes:
        context_src: the sentences before the source.
        context_ref: the translations of the sentences before; empty if the set has none.
        score_lines: the target of each line that a score file has for the item, as an index into
            `targets`; empty = one line for each target.
    """

    source: Sentence
    reference: Sentence
    errors: tuple[Error, ...]
    context_src: Context = ()
    context_ref: Context = ()
    score_lines: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Item:
        if self.score_lines and {*self.score_lines} != {*range(1 + len(self.errors))}:
            raise ValueError("score_lines does not name each target")
        before, translated = len(self.context_src), len(self.context_ref)
        if translated not in (0, before):
            message = f"{counted(before, 'sentence')} before, {counted(translated, 'translation')}"
            raise ValueError(f"{message} of them")
        return self

    @property
    def targets(self) -> list[str]:
        """The right translation, then the wrong ones."""
        return [self.reference, *(error.contrastive for error in self.errors)]

    @property
    def in_score_file(self) -> Sequence[int]:
        """The target of each line that a score file has for the item."""
        return self.score_lines or range(len(self.targets))

    def items(self, default_type: str) -> list[Item]:
        """Return [self]; entries of other formats can have several items."""
        return [self]


class Consistency(BaseModel):
    """An entry of the English-Russian consistency sets (Voita et al. 2019).

    The candidates differ in their last sentence only. Some sets repeat the right candidate; a copy
    is not a wrong translation.
    """

    src: str
    dst: list[str]
    true_ind: NonNegativeInt
    ctx_dist: int

    def items(self, default_type: str) -> list[Item]:
        """Return the one item of the entry."""
        if self.true_ind >= len(self.dst):
            raise ValueError(
                f"true_ind is {self.true_ind}, of {counted(len(self.dst), 'candidate')}"
            )
        *before, source = sentences(self.src) or [""]
        right = self.dst[self.true_ind]
        *before_ref, reference = sentences(right) or [""]
        errors: list[Error] = []
        score_lines = []
        for candidate in self.dst:
            if candidate == right:
                score_lines.append(0)
            else:
                wrong = candidate.split(BREAK)[-1]
                errors.append(Error(type=default_type, contrastive=wrong, back=self.ctx_dist))
                score_lines.append(len(errors))
        return [
            Item(
                source=source,
                reference=reference,
                errors=tuple(errors),
                context_src=tuple(before),
                context_ref=tuple(before_ref),
                score_lines=tuple(score_lines),
            )
        ]


class DiscoursePair(BaseModel):
    """A right and a wrong translation of DiscEvalMT, each after a translation of the context. A
    "semi-correct" translation is right after the given translation of the context.
    """

    correct: list[str] = Field(min_length=1, validation_alias=CORRECT)
    incorrect: list[str] = Field(min_length=1)
    type: str = ""


class DiscourseExample(BaseModel):
    """A source of DiscEvalMT after its context, and its pairs of translations."""

    src: list[str] = Field(min_length=1)
    trg: Annotated[list[DiscoursePair], BeforeValidator(_as_list)]


class Discourse(BaseModel):
    """An entry of DiscEvalMT (Bawden et al. 2018): one example, or several."""

    type: str = ""
    examples: list[DiscourseExample]

    @model_validator(mode="before")
    @classmethod
    def _one_example(cls, value: files.JsonObject) -> files.JsonObject:
        return value if "examples" in value else {**value, "examples": [value]}

    def items(self, default_type: str) -> list[Item]:
        """Return an item for each pair of translations."""
        items = []
        for example in self.examples:
            *before, source = example.src
            for pair in example.trg:
                *before_ref, reference = pair.correct
                kind = pair.type or self.type or default_type
                error = Error(type=kind, contrastive=pair.incorrect[-1], back=1)
                items.append(
                    Item(
                        source=source,
                        reference=reference,
                        errors=(error,),
                        context_src=tuple(before),
                        context_ref=tuple(before_ref),
                    )
                )
        return items


FORMS: dict[Any, str] = {
    Item: "source, reference, errors[]",
    Consistency: "src, dst[], true_ind, ctx_dist",
    Discourse: "src and trg, or examples[] of them",
}
"""The fields of an entry of each format."""
FIELD_NAMES: dict[Any, dict[str, str]] = {
    Consistency: {"source": "src", "reference": "dst", "contrastive": "dst"},
    Discourse: {"source": "src", "reference": "correct", "contrastive": "incorrect"},
}
"""Field of an item -> its name in formats other than Lingeval97."""


def read(where: str) -> list[Item]:
    """Read a contrastive set.

    Args:
        where: a JSON file, or text files separated by commas.
            The JSON file has the format of Lingeval97, of the English-Russian consistency sets or
            of DiscEvalMT. An item of Lingeval97 can have `context_src` (the sentence before the
            source, or a list of sentences) and `context_ref` (their translations).
            The text files are sources, right translations and wrong translations. A file of
            contexts can come first, with ` _eos ` between the sentences of a line.
    Raises: DataError if a file is missing or has another format.
    """
    paths = [Path(part) for part in where.split(",")]
    if len(paths) not in (1, 3, 4):
        hint = "one JSON file, SOURCES,RIGHT,WRONG or CONTEXTS,SOURCES,RIGHT,WRONG"
        message = f"cannot read pairs from {len(paths)} files"
        raise DataError(message, where="--pairs", hint=hint)
    form, entries = _json_entries(paths[0]) if len(paths) == 1 else (Item, _text_entries(paths))
    adapter = TypeAdapter(form)
    items = []
    for name, value in entries.items():
        try:
            items += adapter.validate_python(value).items(paths[0].name.partition(".")[0])
        except ValueError as error:
            reason = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = first["msg"].removeprefix("Value error, ")
                if first["loc"]:
                    field_names = FIELD_NAMES.get(form, {})
                    key = ".".join(field_names.get(str(part), str(part)) for part in first["loc"])
                    reason = f"{key}: {reason}"
            message = f"not an item of a contrastive set: {reason}"
            raise DataError(message, where=f"{where}, {name}", hint=FORMS[form]) from error
    if not any(item.errors for item in items):
        raise DataError("no pairs in this set", where=where, hint=f"an item has {FORMS[form]}")
    return items


def sentences(line: str) -> list[str]:
    """Return the sentences of a line."""
    return [sentence for sentence in line.split(BREAK) if sentence.strip()]


def _text_entries(paths: Sequence[Path]) -> files.JsonObject:
    """Return the pairs of text files as entries of Lingeval97: "line N" -> entry."""
    columns = {path: list(files.text_lines(path)) for path in paths}
    if len({*map(len, columns.values())}) > 1:
        counts = ", ".join(f"{path}: {len(lines):,}" for path, lines in columns.items())
        message, hint = "the files have different numbers of lines", "line i of each is pair i"
        raise DataError(message, where=counts, hint=hint)
    pairs = zip(*(columns[path] for path in paths), strict=True)
    return {
        f"line {number}": {
            "source": source,
            "reference": right,
            "errors": [{"type": "pairs", "contrastive": wrong}],
            "context_src": sentences("".join(context)),
        }
        for number, (*context, source, right, wrong) in enumerate(pairs, 1)
    }


def _json_entries(path: Path) -> tuple[Any, files.JsonObject]:
    """Return the type of the entries of a JSON file, and the entries by name."""
    try:
        values = json.loads("\n".join(files.text_lines(path)))
    except json.JSONDecodeError as error:
        raise DataError(
            f"is not JSON: {error.msg}",
            where=f"{path}, line {error.lineno}",
            hint="plain files: SOURCES,RIGHT,WRONG",
        ) from error
    if isinstance(values, dict) and values and all(isinstance(v, dict) for v in values.values()):
        return Discourse, {f"item {name}": value for name, value in values.items()}
    if not isinstance(values, list):
        hint = f"a list of items with {', or '.join(FORMS.values())}"
        raise DataError("the JSON is not a list of sentences", where=path, hint=hint)
    consistency = values and isinstance(values[0], dict) and "true_ind" in values[0]
    entries = {f"item {number}": value for number, value in enumerate(values)}
    return Consistency if consistency else Item, entries


def under(items: Sequence[Item], condition: str, seed: int = 1) -> list[Item]:
    """Return the items with the contexts of a condition.

    Args:
        items: the items with their own contexts.
        condition: "true" = their own contexts; "none" = no contexts; "foreign" = every item with a
            context gets the context of a random other item, with another text.
        seed: the seed that draws foreign contexts.
    Raises: ConfigError for an unknown condition; DataError for "foreign" if all contexts of the set
        are equal.
    """
    if condition == "true":
        return list(items)
    if condition == "none":
        return [replace(item, context_src=(), context_ref=()) for item in items]
    if condition != "foreign":
        hint = "true, none, foreign"
        raise ConfigError(f"unknown context '{condition}'", where="--context", hint=hint)
    translated = {item.context_src: item.context_ref for item in items if item.context_src}
    contexts = list(translated)
    if len(contexts) == 1:
        message, hint = "all sentences of this set have the same context", "--context true,none"
        raise DataError(message, where="--context foreign", hint=hint)
    places = {context: place for place, context in enumerate(contexts)}
    rng = np.random.Generator(np.random.PCG64(seed))
    draws = rng.integers(max(1, len(contexts) - 1), size=len(items)).tolist()
    results = []
    for item, drawn in zip(items, draws, strict=True):
        if item.context_src:
            # A draw counts only the other contexts, so it skips the place of the own context.
            context = contexts[drawn + (drawn >= places[item.context_src])]
            item = replace(item, context_src=context, context_ref=translated[context])
        results.append(item)
    return results


class Text(NamedTuple):
    """A set as text, with a document for each item.

    Attributes:
        targets: the targets of each line.
        places: the line of the source of each item, from 0.
    """

    lines: list[str]
    targets: list[list[str]]
    documents: Documents
    places: list[int]


def as_documents(items: Sequence[Item], translated: bool = False) -> Text:
    """Return the set as text.

    Args:
        translated: give context sentences their translations as targets, if the set has them;
            otherwise they have no targets.
    """
    lines: list[str] = []
    targets: list[list[str]] = []
    starts, places = [], []
    for item in items:
        starts.append(len(lines))
        places.append(len(lines) + len(item.context_src))
        lines += [*item.context_src, item.source]
        known = translated and item.context_ref
        targets += [[text] if known else [] for text in item.context_ref or item.context_src]
        targets.append(item.targets)
    return Text(lines, targets, Documents(starts, len(lines)), places)


def undecidable(items: Sequence[Item]) -> int:
    """Return the number of pairs that also occur in the set with right and wrong swapped.

    Neither the source nor the sources before it can decide such a pair.
    """
    pairs = [
        (item.context_src, item.source, item.reference, error.contrastive)
        for item in items
        for error in item.errors
    ]
    known = set(pairs)
    return sum(
        right != wrong and (context, source, wrong, right) in known
        for context, source, right, wrong in pairs
    )
