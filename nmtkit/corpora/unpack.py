"""From verified files to the parallel lines that prep reads: archives opened, formats read, documents numbered, held-out rows taken out.

A set of plain text is used as it lies in the archive. Any other is written anew, line by line, sides in step, so that memory stays bounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from nmtkit import console, files
from nmtkit.corpora import archives
from nmtkit.corpora.archives import Taken
from nmtkit.corpora.corpus import SetFiles
from nmtkit.corpora.rows import Here, Lines, SetReader
from nmtkit.corpora.table import TRAIN, ChosenSet, Dataset, File, SetTable
from nmtkit.errors import DataError

ROWS_PER_REPORT = 10_000


def unpack(dataset: Dataset, chosen: list[ChosenSet], found: Mapping[str, Path], folder: Path) -> list[SetFiles]:
    """Make the chosen sets of a data set readable.

    Args:
        dataset: which.
        chosen: its sets, the training text first.
        found: where the published files are, by name.
        folder: a folder to write in.
    Returns: the sets as files of one sentence a line.
    Raises: DataError if an archive or a file is not what the table says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    here = _open_archives(chosen, found, folder)
    held_out = [table for table in dataset.entry.sets.values() if table.rows]
    sets: dict[str, SetFiles] = {}
    for one in chosen:
        if one.table.rows:
            continue
        reader = SetReader(one, (dataset.src, dataset.tgt), here)
        if one.name == TRAIN and held_out:
            sets |= _split(reader, [other for other in chosen if other.table.rows], held_out, folder)
        else:
            sets[one.name] = reader.as_it_lies() or _write(reader, folder)
    return [sets[one.name] for one in chosen]


def _open_archives(chosen: list[ChosenSet], found: Mapping[str, Path], folder: Path) -> Here:
    """Take the members out of each archive, in one pass over it."""
    wanted: dict[str, list[str]] = {}
    for file in dict.fromkeys(file for one in chosen for file in one.files()):
        wanted.setdefault(file.resource, []).append(file.member)
    here: dict[File, list[Taken]] = {}
    for number, (resource, members) in enumerate(wanted.items()):
        if members == [""]:
            here[File(resource, "")] = [Taken(found[resource])]
            continue
        target = folder / f"archive-{number}"
        target.mkdir()
        for member, taken in archives.extract(found[resource], members, target).items():
            here[File(resource, member)] = taken
    return here


class _SetWriter:
    """Writes a set as plain text: NAME.src, NAME.ref, NAME.ref1, … and NAME.docs.

    Args:
        folder: where.
        name, split: of the set.
        documents: whether it has them.
    """

    def __init__(self, folder: Path, name: str, split: str, documents: bool) -> None:
        self._base = folder / name
        self._split = split
        self._documents = documents
        self._stack = contextlib.ExitStack()
        self._streams: list[BinaryIO] = []
        self._starts: list[int] = []
        self._rows = 0

    def __enter__(self) -> _SetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, lines: Lines, starts: bool) -> None:
        """Write one row.

        Raises: DataError if it has more or fewer references than the first.
        """
        if not self._rows:
            names = ["src", "ref", *(f"ref{i}" for i in range(1, len(lines) - 1))]
            self._streams = [self._stack.enter_context(open(f"{self._base}.{name}", "wb")) for name in names]
        if len(lines) != len(self._streams):
            what = f"parts of the {self._base.name} set have {len(self._streams) - 1} and {len(lines) - 1} references"
            raise DataError(what, hint="get another copy of the data set")
        if starts:
            self._starts.append(self._rows)
        self._rows += 1
        for stream, line in zip(self._streams, lines, strict=True):
            stream.write(line + b"\n")

    def finish(self) -> SetFiles:
        """The set that was written."""
        self._stack.close()
        docs = None
        if self._documents:
            docs = Path(f"{self._base}.docs")
            files.write_lines(docs, list(map(str, self._starts)))
        src, tgt, *references = ((Path(stream.name),) for stream in self._streams)
        return SetFiles(self._base.name, self._split, src, tgt, tuple(references), docs)


def _write(reader: SetReader, folder: Path) -> SetFiles:
    """Write a set anew."""
    with _SetWriter(folder, reader.one.name, reader.one.split, reader.documents) as writer:
        for lines, starts in _reported(reader):
            writer.write(lines, starts)
        return writer.finish()


def _reported(reader: SetReader) -> Iterator[tuple[Lines, bool]]:
    """The rows of a set, with the progress display."""
    with console.progress(f"reading {reader.one.name}", None) as advance:
        for number, row in enumerate(reader.rows(), 1):
            yield row
            if number % ROWS_PER_REPORT == 0:
                advance(ROWS_PER_REPORT)


def _split(train: SetReader, chosen: list[ChosenSet], held_out: list[SetTable], folder: Path) -> dict[str, SetFiles]:
    """Write the training text without the rows that are held out, and the chosen sets that are made of such rows.

    Returns: the sets by name.
    """
    total = train.count()
    with contextlib.ExitStack() as stack:

        def writer(name: str, split: str, documents: bool) -> _SetWriter:
            return stack.enter_context(_SetWriter(folder, name, split, documents and train.documents))

        kept = writer(TRAIN, TRAIN, True)
        # Of every 23rd line no document is left; a block of lines has its documents.
        taken = {one.table.rows: writer(one.name, one.split, one.table.selected(total).step == 1) for one in chosen}
        ranges = [(table.selected(total), taken.get(table.rows)) for table in held_out]
        document, last = 0, dict[int, int]()
        for number, (lines, starts) in enumerate(_reported(train)):
            document += starts
            target: _SetWriter | None = kept
            for rows, out in ranges:
                if number in rows:
                    target = out
            if target is not None:
                target.write(lines, last.get(id(target)) != document)
                last[id(target)] = document
        return {name: out.finish() for name, out in [(TRAIN, kept), *((one.name, taken[one.table.rows]) for one in chosen)]}
