"""Where documents start in a set: a file that says so beside the text; or blank lines, lines <d>, or markup in the person's own text."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from nmtkit import files
from nmtkit.corpora import readers
from nmtkit.corpora.corpus import Between, Corpus, SetFiles, assigned, is_markup, of_sets
from nmtkit.errors import ConfigError, DataError, counted

BLANK = "blank"
"""Instead of a file: lines that are blank on every side separate documents."""
MARKER = "marker"
"""Instead of a file: lines <d> on every side do."""
MARKER_LINE = b"<d>"
SAID, LINE = {BLANK: "blank", MARKER: "<d>"}, {BLANK: "a blank line", MARKER: "a line <d>"}


def document_sources(assignments: list[str]) -> dict[str, str]:
    """What says where documents start, by set: a file, `BLANK`, or `MARKER`.

    Raises: ConfigError for what is not of the form SET=FILE, SET=blank or SET=marker, or a set named twice.
    """
    return assigned(assignments, "--docs", "--docs train=train.doc --docs dev=blank")


def with_documents(corpus: Corpus, sources: Mapping[str, str]) -> Corpus:
    """The corpus with its sets' documents, given by the names of sets ("test" is also the only test set).

    Raises: ConfigError for a set that it has not, or whose markup says so itself.
    """
    given = of_sets(corpus, sources, "--docs")
    return replace(corpus, sets=[_told(one, given[one.name]) if one.name in given else one for one in corpus.sets])


def _told(one: SetFiles, source: str) -> SetFiles:
    if one.between == "markup":
        message = f"the markup of the {one.name} set says where its documents start"
        raise ConfigError(message, where="--docs", hint="leave it out, or give plain text, one sentence a line")
    return replace(one, between=cast(Between, source)) if source in {BLANK, MARKER} else replace(one, docs=Path(source))


def with_markup(corpus: Corpus) -> Corpus:
    """The corpus, its sets of SGM or XML marked as such: read as text, tags would be sentences."""
    marked = {one.name for one in corpus.sets for paths in one.sides().values() for path in paths if is_markup(path)}
    return replace(corpus, sets=[replace(one, between="markup") if one.name in marked else one for one in corpus.sets])


def document_doubts(corpus: Corpus) -> list[str]:
    """A line for each set whose text begins with a line <d>, though nobody says that these separate documents."""
    found = []
    for one in corpus.sets:
        plain = not one.between and one.docs is None and one.src[0].is_file()
        if plain and next(files.byte_lines(one.src[0]), b"").strip() == MARKER_LINE:
            found.append(f"{one.src[0]} begins with <d>: if such lines separate documents, say --docs {one.name}=marker, or they are sentences")
    return found


def read_starts(path: Path, lines: int) -> list[int]:
    """The lines, from 0, where documents start.

    Args:
        path: as many lines as the text, the id of its document for each; or rising line numbers from 0, one for each document. (What is both
            is 0, 1, 2, …, which read either way makes every line a document.)
        lines: lines of the set.
    Raises: DataError for anything else.
    """
    count = files.count_lines(path)
    if lines and not count:
        raise DataError(f"{path} is empty", where=path, hint="give every line of the text the id of its document, or the lines where documents start")
    return list(_changes(path)) if count == lines else _numbers(path, lines, count)


def _changes(path: Path) -> Iterator[int]:
    before, ended = "", dict[str, int]()
    for row, line in enumerate(files.text_lines(path)):
        now = line.strip()
        if not now:
            raise DataError(f"line {row + 1:,} names no document", where=path, hint="give every line of the text the id of its document")
        if now == before:
            continue
        if now in ended:
            what = f"document '{now[:40]}' ended at line {ended[now]:,} and comes back at line {row + 1:,}"
            hint = "give one document id for each line, and keep the lines of a document together and in their order"
            raise DataError(what, where=path, hint=hint)
        ended[before] = row
        before = now
        yield row


def _numbers(path: Path, lines: int, count: int) -> list[int]:
    starts: list[int] = []
    for number, text in enumerate(files.text_lines(path), 1):
        value = -1
        with contextlib.suppress(ValueError):
            value = int(text)
        if not (starts[-1] < value < lines if starts else value == 0):
            hint = f"it has {counted(count, 'line')}: give a document id for each of the {lines:,}, or the lines where documents start, rising from 0"
            behind = f", after {starts[-1]:,}" if starts and 0 <= value <= starts[-1] else ""
            what = f"'{text[:40]}' cannot start a document in a text of {counted(lines, 'line')}{behind}"
            raise DataError(what, where=f"{path}, line {number}", hint=hint)
        starts.append(value)
    return starts


def separate(one: SetFiles, languages: tuple[str, str], folder: Path) -> SetFiles:
    """Write a set anew, one sentence a line, without what separates its documents.

    Args:
        one: a set whose `between` says what does; of its parses the lines go that separate.
        languages: source and target, for markup that holds both.
        folder: where the files go: NAME.src, NAME.ref, … and NAME.docs.
    Returns: the set that was written; markup with several references in one file has these as further ones.
    Raises: DataError if nothing separates documents, nothing else is there, or it is not on every side; for markup as `readers.markup`, or if
        its sides differ in their segments or documents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, rows = _marked_up(one, languages) if one.between == "markup" else _between_lines(one)
    written = {name: folder / f"{one.name}.{name}" for name in (*names, "docs")}
    starts: list[int] = []
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(open(written[name], "wb")) for name in names]
        for row, (lines, first) in enumerate(rows):
            if first:
                starts.append(row)
            for output, line in zip(outputs, lines, strict=True):
                output.write(line + b"\n")
    files.write_lines(written["docs"], list(map(str, starts)))
    src, tgt, *references = ((written[name],) for name in names if name != "parses")
    return SetFiles(one.name, one.split, src, tgt, tuple(references), written["docs"], written.get("parses"), first=one.first)


Rows = Iterator[tuple[tuple[bytes, ...], bool]]
"""Lines side by side, and whether a document starts with them."""


def _between_lines(one: SetFiles) -> tuple[list[str], Rows]:
    """The names of the streams of a set with lines that separate documents, and its other lines."""
    sides = one.sides()
    streams = sides if one.parses is None else sides | {"parses": (one.parses,)}
    separator = b"" if one.between == BLANK else MARKER_LINE

    def rows() -> Rows:
        texts = [itertools.chain.from_iterable(map(files.byte_lines, paths)) for paths in streams.values()]
        separators = others = 0
        between = True
        for number, lines in enumerate(zip(*texts, strict=True), 1):
            here = {name: line.strip() == separator for name, line in zip(sides, lines, strict=False)}
            if all(here.values()):
                separators, between = separators + 1, True
                continue
            if any(here.values()):
                raise _one_sided(one, number, here)
            yield lines, between
            others, between = others + 1, False
        if not separators or not others:
            what = f"all lines are {SAID[one.between]}" if separators else f"no line is {SAID[one.between]}"
            hint = f"put {LINE[one.between]} between documents on every side, or give a file: --docs {one.name}=FILE"
            raise DataError(f"{what}, so none separates documents ({one.name} set)", where=one.src[0], hint=hint)

    return list(streams), rows()


def _one_sided(one: SetFiles, line: int, here: Mapping[str, bool]) -> DataError:
    names = {side: " + ".join(path.name for path in paths) for side, paths in one.sides().items()}
    with_it, without = (next(names[side] for side, is_one in here.items() if is_one == wanted) for wanted in (True, False))
    what = f"line {line:,} is {SAID[one.between]} in {with_it} but not in {without} ({one.name} set)"
    lines = "blank lines" if one.between == BLANK else "lines <d>"
    hint = f"{lines} separate documents, so they stand on the same lines of every side; or give a file: --docs {one.name}=FILE"
    return DataError(what, where=one.src[0], hint=hint)


def _marked_up(one: SetFiles, languages: tuple[str, str]) -> tuple[list[str], Rows]:
    """The names of the streams of a set whose sides, or some of them, are SGM or XML, and its segments."""
    sides: list[list[list[readers.Stream]]] = []
    for side, paths in one.sides().items():
        language = languages[side != "src"]
        sides.append([readers.markup(path, language) if is_markup(path) else [readers.text(path)] for path in paths])
    if any(len(part) > 1 for part in sides[0]):
        raise DataError(f"the source has several versions of a document ({one.name} set)", where=one.src[0], hint="keep one of them")
    streams = [parts for parts_of_side in sides for parts in zip(*parts_of_side, strict=True)]  # each file's references side by side
    names = ["src", "ref", *(f"ref{i}" for i in range(1, len(streams) - 1))]

    def rows() -> Rows:
        found = [itertools.chain.from_iterable(part.rows for part in parts) for parts in streams]
        says = [any(part.documents for part in parts) for parts in streams]
        for number, row in enumerate(itertools.zip_longest(*found), 1):
            firsts = {cell[1] for cell, known in zip(row, says, strict=True) if known and cell is not None}
            if None in row or len(firsts) > 1:
                what = "have different numbers of segments" if None in row else "have documents that start elsewhere"
                where = ", ".join(str(path) for paths in one.sides().values() for path in paths)
                hint = "segment i of one is the translation of segment i of the other, and their documents are the same"
                raise DataError(f"the sides of the {one.name} set {what} (segment {number:,})", where=where, hint=hint)
            yield tuple(line for line, _ in row), firsts.pop()

    if one.parses is not None:
        names.append("parses")
        streams.append((readers.text(one.parses),))
    return names, rows()
