"""Find where documents start in the user's text: from a file beside the text, or from blank lines,
lines <d> or markup in the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from nmtkit import files
from nmtkit.arrays import Mask
from nmtkit.corpora import readers
from nmtkit.corpora.corpus import Between, Corpus, SetFiles, is_markup, of_sets
from nmtkit.corpora.parallel_text import ParallelText, write_set
from nmtkit.errors import ConfigError, DataError, counted

BLANK = "blank"
"""Value of --docs: lines that are blank on every side separate documents."""
MARKER = "marker"
"""Value of --docs: lines <d> on every side separate documents."""
MARKER_LINE = b"<d>"
SEPARATORS = {BLANK: b"", MARKER: MARKER_LINE}
SAME_LINES = "between documents, on the same lines of every side; or --docs {name}=FILE"
HINTS = {
    BLANK: f"put blank lines {SAME_LINES}",
    MARKER: f"put lines <d> {SAME_LINES}",
    "markup": "segment i of one side translates segment i of the other, in the same document",
}
"""Separator of documents -> what to do if the sides do not match."""
COLUMNS = {"src": "the source", "ref": "the target"}
"""The sides of a TSV file, in messages."""


def with_documents(corpus: Corpus, sources: Mapping[str, str]) -> Corpus:
    """Return the corpus with the document starts of its sets.

    Args:
        sources: set -> file, `BLANK` or `MARKER`; "test" may stand for the only test set.
    Raises: ConfigError if the corpus lacks a set, or if the markup of a set has documents already.
    """
    by_set = of_sets(corpus, sources, "--docs")
    sets = []
    for text in corpus.sets:
        source = by_set.get(text.name)
        if source and text.between == "markup":
            problem = f"the markup of the {text.name} set says where its documents start"
            raise ConfigError(problem, "--docs", "leave it out, or give plain text")
        if source in SEPARATORS:
            text = replace(text, between=cast(Between, source))
        elif source:
            text = replace(text, docs=Path(source))
        sets.append(text)
    return replace(corpus, sets=sets)


def document_doubts(corpus: Corpus) -> list[str]:
    """Return a warning for each set that begins with <d> though --docs does not mention it."""
    return [
        f"{text.src[0]} begins with <d>: if such lines separate documents, say "
        f"--docs {text.name}=marker, or they are sentences"
        for text in corpus.sets
        if not text.between and text.docs is None and text.src[0].is_file()
        if next(files.byte_lines(text.src[0]), b"").strip() == MARKER_LINE
    ]


def read_starts(path: Path, lines: int) -> list[int]:
    """Return the lines, from 0, where documents start.

    Args:
        path: a file with the document id of each line, or with the first line of each document
            (rising, from 0). 0, 1, 2, … for all lines is both: every line is a document.
        lines: number of lines of the set.
    Raises: DataError if the file has another form.
    """
    count = files.count_lines(path)
    hint = "give every line of the text the id of its document, or the lines where documents start"
    if lines and not count:
        raise DataError(f"{path} is empty", path, hint)
    return list(_changes(path)) if count == lines else _numbers(path, lines, count)


def kept_starts(path: Path, kept: Mask) -> list[int]:
    """Return where documents start among the lines that are kept, without empty documents.

    Args:
        path: the file that `read_starts` reads.
        kept: for each line of the set, True if it is kept.
    """
    place = np.concatenate([[0], np.cumsum(kept)])
    starts = np.unique(place[read_starts(path, len(kept))])
    return starts[starts < place[-1]].tolist()  # type: ignore[no-any-return]


def _changes(path: Path) -> Iterator[int]:
    hint = "give one document id for each line, and keep the lines of a document together"
    documents = set()
    lines = enumerate(map(str.strip, files.text_lines(path)))
    for document, rows in itertools.groupby(lines, key=lambda line: line[1]):
        row, _ = next(rows)
        if not document:
            raise DataError(f"line {row + 1:,} names no document", path, hint)
        if document in documents:
            problem = f"document '{document[:40]}' ended and comes back at line {row + 1:,}"
            raise DataError(problem, path, hint)
        documents.add(document)
        yield row


def _numbers(path: Path, lines: int, count: int) -> list[int]:
    starts: list[int] = []
    for number, text in enumerate(files.text_lines(path), 1):
        value = int(text) if text.strip().isdecimal() and len(text) < 40 else -1
        if not (starts[-1] < value < lines if starts else value == 0):
            after = f", after {starts[-1]:,}" if starts else ""
            raise DataError(
                f"'{text[:40]}' cannot start a document in a text of {counted(lines, 'line')}"
                f"{after}",
                f"{path}, line {number}",
                f"it has {counted(count, 'line')}: give a document id for each of the {lines:,}, or"
                " the lines where documents start, rising from 0",
            )
        starts.append(value)
    return starts


def separate(text: SetFiles, languages: tuple[str, str], folder: Path) -> SetFiles:
    """Write a set anew, one sentence per line, without the separators of its documents.

    Args:
        text: a set with `between`; the separators leave its parses, too.
        languages: source and target, for markup that holds both.
        folder: where the files go: NAME.src, NAME.ref, … and NAME.docs.
    Returns: the set that was written; each reference in a file of markup is a side.
    Raises: DataError if the text has no separator or nothing else, or if a separator is not on
        every side; for markup as `readers.markup`, or if the segments or documents of the sides
        differ.
    """
    sides = _sides(text, languages)
    count = len(sides.streams)
    if text.parses:
        sides.add(text.parses.name, readers.text(text.parses))
    separator = SEPARATORS.get(text.between)
    rows = sides.rows() if separator is None else sides.separated(separator, count)
    written = write_set(rows, folder, text.name, text.split, parses=bool(text.parses))
    return replace(written, first=text.first)


def _sides(text: SetFiles, languages: tuple[str, str]) -> ParallelText:
    """Open every side of a set; each reference in a file of markup is a side."""
    hint = HINTS[text.between].format(name=text.name)
    sides = ParallelText(text.name, hint, text.where(*text.sides))
    for side, (path,) in text.sides.items():
        language = languages[side != "src"]
        streams = readers.markup(path, language) if is_markup(path) else [readers.text(path)]
        if side == "src" and len(streams) > 1:
            problem = f"the source has several versions of a document ({text.name} set)"
            raise DataError(problem, path, "keep one of them")
        # A TSV file has both sides.
        name = path.name if text.original is None else COLUMNS.get(side, side)
        sides.add(name, *streams)
    return sides
