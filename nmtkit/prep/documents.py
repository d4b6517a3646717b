"""Where documents start in a set: a file that says so beside the text, or blank lines in the person's own text."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError, counted
from nmtkit.prep.sources import Corpus, SetFiles, assigned, of_sets

BLANK = "blank"
"""Instead of a file: lines that are blank on every side separate documents."""


def document_sources(assignments: list[str]) -> dict[str, str]:
    """What says where documents start, by set: a file, or `BLANK`.

    Raises: ConfigError for what is not of the form SET=FILE or SET=blank, or a set named twice.
    """
    return assigned(assignments, "--docs", "--docs train=train.doc --docs dev=blank")


def with_documents(corpus: Corpus, sources: Mapping[str, str]) -> Corpus:
    """The corpus with its sets' documents, given by the names of sets ("test" is also the only test set).

    Raises: ConfigError for a set that it has not.
    """
    given = of_sets(corpus, sources, "--docs")
    blank = {name for name, source in given.items() if source == BLANK}
    docs = {name: Path(source) for name, source in given.items() if source != BLANK}
    return replace(corpus, sets=[replace(one, docs=docs.get(one.name), blank_between=one.name in blank) for one in corpus.sets])


def read_starts(path: Path, lines: int) -> list[int]:
    """The lines, from 0, where documents start.

    Args:
        path: as many lines as the text, the id of its document for each; or rising line numbers from 0, one for each document. (What is both
            is 0, 1, 2, …, which read either way makes every line a document.)
        lines: lines of the set.
    Raises: DataError for anything else.
    """
    count = files.count_lines(path)
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
            raise DataError(f"'{text[:40]}' cannot start a document in a text of {counted(lines, 'line')}", where=f"{path}, line {number}", hint=hint)
        starts.append(value)
    return starts


def cut_at_blank_lines(one: SetFiles, folder: Path) -> SetFiles:
    """Write a set anew without the blank lines that separate its documents.

    Args:
        one: a set whose files have equally many lines; of its parses the same lines go.
        folder: where the files go: NAME.src, NAME.ref, … and NAME.docs.
    Returns: the set that was written.
    Raises: DataError if no line is blank, if all are, or if a line is blank on one side only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sides = one.sides()
    streams = sides if one.parses is None else sides | {"parses": (one.parses,)}
    written = {name: folder / f"{one.name}.{name}" for name in (*streams, "docs")}
    starts: list[int] = []
    row = blanks = 0
    between = True
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(open(written[name], "wb")) for name in streams]
        texts = [itertools.chain.from_iterable(map(files.byte_lines, paths)) for paths in streams.values()]
        for lines in zip(*texts, strict=True):
            blank = {name: not line.strip() for name, line in zip(sides, lines, strict=False)}
            if all(blank.values()):
                blanks, between = blanks + 1, True
                continue
            if any(blank.values()):
                raise _one_sided(one, row + blanks + 1, blank)
            if between:
                starts.append(row)
            row, between = row + 1, False
            for output, line in zip(outputs, lines, strict=True):
                output.write(line + b"\n")
    if not blanks or not row:
        what = "all lines are blank" if blanks else "no line is blank"
        hint = f"put a blank line between documents on every side, or give a file: --docs {one.name}=FILE"
        raise DataError(f"{what}, so none separates documents ({one.name} set)", where=one.src[0], hint=hint)
    files.write_lines(written["docs"], list(map(str, starts)))
    src, tgt, *references = ((written[name],) for name in sides)
    return SetFiles(one.name, one.split, src, tgt, tuple(references), written["docs"], written.get("parses"), first=one.first)


def _one_sided(one: SetFiles, line: int, blank: Mapping[str, bool]) -> DataError:
    names = {side: " + ".join(path.name for path in paths) for side, paths in one.sides().items()}
    empty, full = (next(names[side] for side, is_blank in blank.items() if is_blank == wanted) for wanted in (True, False))
    hint = f"blank lines separate documents, so they stand on the same lines of every side; or give a file: --docs {one.name}=FILE"
    return DataError(f"line {line:,} is blank in {empty} but not in {full} ({one.name} set)", where=one.src[0], hint=hint)
