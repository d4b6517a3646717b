"""A set of a data set as rows of parallel lines: every side read in its format, in step, with the places where documents start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NoReturn

from nmtkit import files
from nmtkit.corpora import readers
from nmtkit.corpora.archives import NUMBER, Taken
from nmtkit.corpora.corpus import SetFiles
from nmtkit.corpora.readers import Stream
from nmtkit.corpora.table import ChosenSet, File, SetTable
from nmtkit.errors import DataError, counted
from nmtkit.text import chinese
from nmtkit.text.moses import Moses

MARKER = b"<d>"
APOSTROPHE = "\u2019".encode()
ANOTHER_RELEASE = "the release is damaged, or another one than the table of data sets describes"
Here = Mapping[File, list[Taken]]
"""Where each file lies on this machine; one whose name has {number} is several."""
Lines = tuple[bytes, ...]
"""One line of every side: source, reference, further references."""


class SetReader:
    """Reads a set as rows of parallel lines.

    Args:
        one: the set.
        languages: source and target.
        here: its files.
    """

    def __init__(self, one: ChosenSet, languages: tuple[str, str], here: Here) -> None:
        self.one = one
        self.languages = [languages[0], *[languages[1]] * (1 + len(one.references))]
        self._here = here
        self._sides = (one.src, one.tgt, *one.references)
        self._detokenizers = {lang: _detokenizer(lang) for lang in {*languages} & {*one.table.tokenized}}
        self.documents = one.table.documents != "auto" or all(any(s.documents for s in self._streams(i)) for i in range(len(one.src)))

    def as_it_lies(self) -> SetFiles | None:
        """The set without being written anew, if it is plain text."""
        formats = {_format(self.one.table, file) for side in self._sides for file in side}
        changed = self._detokenizers or self.one.table.plain_apostrophes
        if formats != {"text"} or self.documents or changed or any(NUMBER in file.member for side in self._sides for file in side):
            return None
        src, tgt, *references = (tuple(self._here[file][0].path for file in side) for side in self._sides)
        return SetFiles(self.one.name, self.one.split, src, tgt, tuple(references))

    def rows(self) -> Iterator[tuple[Lines, bool]]:
        """Every row, and whether a document starts with it.

        Raises: DataError if the sides of a part have different lengths or documents.
        """
        for part in range(len(self.one.src)):
            yield from self._part(part)

    def count(self) -> int:
        """How many rows there are."""
        if self.one.table.documents in {"blank", "marker"}:
            return sum(1 for _ in self.rows())
        return sum(1 for part in range(len(self.one.src)) for _ in self._streams(part)[0].rows)

    def _part(self, part: int) -> Iterator[tuple[Lines, bool]]:
        streams = self._streams(part)
        knowing = [number for number, stream in enumerate(streams) if stream.documents]
        convention = self.one.table.documents
        given = self._given_boundaries(part)
        starts, number = True, -1
        for number, row in enumerate(itertools.zip_longest(*(stream.rows for stream in streams))):
            if None in row:
                self._refuse_unequal(part)
            lines = tuple(line for line, _ in row)
            if convention in {"blank", "marker"} and self._is_boundary(lines, part, number):
                starts = True
                continue
            if knowing:
                flags = {row[side][1] for side in knowing}
                if len(flags) > 1:
                    self._refuse_documents(part, number)
                starts |= flags.pop()
            if given is not None:
                flag = next(given, None)
                if flag is None and convention == "ids":
                    self._refuse_documents(part, number)
                starts |= bool(flag)
            yield lines, starts
            starts = False
        if given is not None and next(given, None) is not None:
            self._refuse_documents(part, number + 1)
        if number < 0:
            name = self._name(self.one.src[part])
            raise DataError(f"{name} has no sentence ({self.one.name} set)", where=self.one.src[part].resource, hint=ANOTHER_RELEASE)

    def _is_boundary(self, lines: Lines, part: int, number: int) -> bool:
        """Whether a row only separates documents."""
        if self.one.table.documents == "blank":
            return not any(line.strip() for line in lines)
        marked = [line.strip() == MARKER for line in lines]
        if any(marked) and not all(marked):
            self._refuse_documents(part, number)
        return all(marked)

    def _given_boundaries(self, part: int) -> Iterator[bool] | None:
        """From a file of boundaries: for each row, whether a document starts with it; true beyond the last row if too many are named."""
        if not self.one.boundaries:
            return None
        path = self._here[self.one.boundaries[part]][0].path
        return _changes(files.text_lines(path)) if self.one.table.documents == "ids" else _at(path)

    def _streams(self, part: int) -> list[Stream]:
        """The sides of a part: source, reference, further references."""
        self._same_numbers(part)
        source, target, *others = ([*self._read(side[part], lang)] for side, lang in zip(self._sides, self.languages, strict=True))
        return [source[0], *target, *(stream for other in others for stream in other)]

    def _same_numbers(self, part: int) -> None:
        """Refuse sides of one file for each document that don't have the same documents."""
        first, *others = (side[part] for side in self._sides)
        for other in others:
            numbers = [{taken.number for taken in self._here[file]} for file in (first, other)]
            if numbers[0] != numbers[1]:
                odd = str(min(numbers[0] ^ numbers[1]))
                names = [self._name(file).replace(NUMBER, odd) for file in (first, other)]
                have, lack = names if int(odd) in numbers[0] else reversed(names)
                raise DataError(f"there is {have} but no {lack} ({self.one.name} set)", where=first.resource, hint=ANOTHER_RELEASE)

    def _read(self, file: File, lang: str) -> list[Stream]:
        table, paths = self.one.table, [taken.path for taken in self._here[file]]
        kind = _format(table, file)
        if kind == "markup":
            streams = readers.markup(paths[0], lang)
        elif kind == "tsv":
            streams = [readers.tsv(paths[0], table.columns[lang])]
        elif kind == "ted":
            streams = [readers.ted(paths[0], table.keep)]
        elif NUMBER in file.member:
            streams = [readers.document_files(paths)]
        else:
            streams = [readers.text(paths[0])]
        if table.plain_apostrophes:
            streams = [Stream(((line.replace(APOSTROPHE, b"'"), starts) for line, starts in stream.rows), stream.documents) for stream in streams]
        detokenize = self._detokenizers.get(lang)
        return [_detokenized(stream, detokenize) for stream in streams] if detokenize else streams

    def _name(self, file: File) -> str:
        return PurePosixPath(file.member or file.resource).name

    def _refuse_unequal(self, part: int) -> NoReturn:
        counts = [sum(1 for _ in stream.rows) for stream in self._streams(part)]
        names = [self._name(side[part]) for side in self._sides]
        odd = next(i for i, count in enumerate(counts) if count != counts[0])
        raise DataError(
            f"{names[0]} has {counted(counts[0], 'line')} but {names[min(odd, len(names) - 1)]} has {counts[odd]:,} ({self.one.name} set)",
            where=self.one.src[part].resource,
            hint=ANOTHER_RELEASE,
        )

    def _refuse_documents(self, part: int, number: int) -> NoReturn:
        sides = [*self._sides, self.one.boundaries] if self.one.boundaries else self._sides
        names = " and ".join(dict.fromkeys(self._name(side[part]) for side in sides))
        raise DataError(f"documents start at different lines of {names} ({self.one.name} set)", where=f"line {number + 1:,}", hint=ANOTHER_RELEASE)


def _format(table: SetTable, file: File) -> str:
    """How a file is written."""
    if table.format != "auto":
        return table.format
    name = PurePosixPath(file.member or file.resource)
    suffix = PurePosixPath(name.stem).suffix if name.suffix in files.COMPRESSED else name.suffix
    return "markup" if suffix in {".sgm", ".sgml", ".xml"} else "text"


def _detokenizer(lang: str) -> Callable[[list[str]], str]:
    """What undoes the tokenization of a language, escapes included."""
    if chinese.is_chinese(lang):
        return lambda tokens: chinese.detokenize(
            readers.unescape(token.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape") for token in tokens
        )
    return Moses(lang, normalize=False, escape=True).detokenize


def _detokenized(stream: Stream, detokenize: Callable[[list[str]], str]) -> Stream:
    def line(raw: bytes) -> bytes:
        return detokenize(raw.decode("utf-8", "surrogateescape").split()).encode("utf-8", "surrogateescape")

    return Stream(((line(raw), starts) for raw, starts in stream.rows), stream.documents)


def _changes(lines: Iterator[str]) -> Iterator[bool]:
    """OPUS's .ids (source file, target file, sentence numbers): a document starts where the files change."""
    before: list[str] = []
    for text in lines:
        now = text.split("\t")[:2]
        yield now != before
        before = now


def _at(path: Path) -> Iterator[bool]:
    """Files of 0-based line numbers where documents start, as flags up to the last of them."""
    row = 0
    for number, text in enumerate(files.text_lines(path), 1):
        start = int(text) if text.strip().isdigit() else -1
        if start < row:
            raise DataError(f"'{text[:40]}' cannot start a document", where=f"{path.name}, line {number}", hint="0-based, rising line numbers")
        yield from itertools.repeat(False, start - row)
        yield True
        row = start + 1
