"""From verified files to parallel lines: open archives, read formats, take out held-out rows.

A set of plain text is used as it lies in the archive. Any other set is written anew, line by line,
so that memory stays bounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from nmtkit.corpora import archives, readers
from nmtkit.corpora.archives import NUMBER
from nmtkit.corpora.corpus import SetFiles, is_markup
from nmtkit.corpora.document_starts import BLANK, SEPARATORS, read_starts
from nmtkit.corpora.parallel_text import ParallelText, Row, SetWriter, reported, write_set
from nmtkit.corpora.readers import Stream
from nmtkit.corpora.table import TRAIN, Dataset, File, RegisteredSet, SetTable
from nmtkit.errors import DataError
from nmtkit.text import chinese
from nmtkit.text.moses import Moses

APOSTROPHE = "\u2019".encode()
HINT = "the release is damaged, or another one than the table of data sets describes"
Paths = Mapping[File, Mapping[int, Path]]
"""The paths of each file on this machine; a file whose name has {number} has a path a number."""


def unpack(
    dataset: Dataset, sets: list[RegisteredSet], published: Mapping[str, Path], folder: Path
) -> list[SetFiles]:
    """Make some sets of a data set readable.

    Args:
        dataset: the data set.
        sets: some of its sets, the training text first.
        published: the path of each published file, by name.
        folder: a folder to write in.
    Returns: the sets as files of one sentence a line.
    Raises: DataError if an archive or a file is not what the table says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = _open_archives(sets, published, folder)
    held_out = [table for table in dataset.entry.sets.values() if table.rows]
    unpacked: dict[str, SetFiles] = {}
    for text in sets:
        if text.table.rows:
            continue
        reader = SetReader(text, (dataset.src, dataset.tgt), paths)
        if text.name == TRAIN and held_out:
            parts = [part for part in sets if part.table.rows]
            unpacked |= _split(reader, parts, held_out, folder)
        else:
            unpacked[text.name] = reader.as_published() or _write(reader, folder)
    return [unpacked[text.name] for text in sets]


def _open_archives(sets: list[RegisteredSet], published: Mapping[str, Path], folder: Path) -> Paths:
    """Take the members out of each archive, in one pass over it."""
    wanted: dict[str, list[str]] = {}
    for file in dict.fromkeys(file for text in sets for file in text.files()):
        wanted.setdefault(file.resource, []).append(file.member)
    paths: dict[File, Mapping[int, Path]] = {}
    for number, (resource, members) in enumerate(wanted.items()):
        if members == [""]:
            paths[File(resource, "")] = {0: published[resource]}
            continue
        target = folder / f"archive-{number}"
        target.mkdir()
        for member, numbered in archives.extract(published[resource], members, target).items():
            paths[File(resource, member)] = numbered
    return paths


def _write(reader: SetReader, folder: Path) -> SetFiles:
    text = reader.text
    writer = SetWriter(folder, text.name, text.split, reader.documents)
    return write_set(writer, reported(text.name, reader.rows()))


def _split(
    train: SetReader, sets: list[RegisteredSet], held_out: list[SetTable], folder: Path
) -> dict[str, SetFiles]:
    """Write the training text without the held-out rows, and the sets that consist of such rows.

    Returns: the sets by name.
    """
    total = sum(1 for _ in train.rows())
    taken = [table.selected(total) for table in held_out]
    ranges = {part.name: part.table.selected(total) for part in sets}
    with contextlib.ExitStack() as stack:
        writers = {TRAIN: SetWriter(folder, TRAIN, TRAIN, train.documents)}
        for part in sets:
            # Of every 23rd line no document is left; a block of lines has its documents.
            documents = train.documents and ranges[part.name].step == 1
            writers[part.name] = SetWriter(folder, part.name, part.split, documents)
        for writer in writers.values():
            stack.enter_context(writer)
        document, last = 0, dict[str, int]()
        for number, (lines, starts) in enumerate(reported(TRAIN, train.rows())):
            document += starts
            names = [name for name, rows in ranges.items() if number in rows]
            if not any(number in rows for rows in taken):
                names = [TRAIN]
            for name in names:
                writers[name].write(lines, last.get(name) != document)
                last[name] = document
        return {name: writer.finish() for name, writer in writers.items()}


class SetReader:
    """Reads a set as rows of parallel lines.

    Args:
        text: the set.
        languages: source and target.
        paths: of its files.
    """

    def __init__(self, text: RegisteredSet, languages: tuple[str, str], paths: Paths) -> None:
        self.text = text
        self._paths = paths
        self._sides = (text.src, text.tgt, *text.references)
        self._languages = (languages[0], *[languages[1]] * (len(self._sides) - 1))
        self._parts = [*zip(*self._sides, strict=True)]
        self._changes = {lang: _line_changes(text.table, lang) for lang in languages}
        formats = [{_format(text.table, file) for file in part} for part in self._parts]
        plain = any(part <= {"text", "tsv"} for part in formats)
        self.documents = text.table.documents != "auto" or not plain
        self._changed = set().union(*formats) != {"text"} or any(self._changes.values())

    def as_published(self) -> SetFiles | None:
        """Return the set as its files lie, if they are plain text."""
        if self._changed or self.documents:
            return None
        src, tgt, *references = (
            tuple(self._paths[file][0] for file in side) for side in self._sides
        )
        return SetFiles(self.text.name, self.text.split, src, tgt, tuple(references))

    def rows(self) -> Iterator[Row]:
        """Yield every row, and True if a document starts with it.

        Raises: DataError if the sides of a part have different lengths or documents.
        """
        convention = self.text.table.documents
        for number, part in enumerate(self._parts):
            sides = self._open(part)
            if convention in SEPARATORS:
                # A blank line of one side is a sentence that was not translated.
                count = len(sides.streams)
                separator = SEPARATORS[convention]
                yield from sides.separated(separator, count, one_sided=convention == BLANK)
            elif convention == "auto":
                yield from sides.rows()
            else:
                file = self.text.boundaries[number]
                sides.add(_name(file), self._boundaries(file, part[0]))
                yield from ((lines[:-1], starts) for lines, starts in sides.rows())

    def _open(self, part: tuple[File, ...]) -> ParallelText:
        """Open the sides of a part: source, reference, further references."""
        sides = ParallelText(self.text.name, HINT)
        numbers = set().union(*(self._paths[file] for file in part))
        for file, lang in zip(part, self._languages, strict=True):
            if missing := numbers - set(self._paths[file]):
                name = _name(file).replace(NUMBER, str(min(missing)))
                problem = f"there is no {name}, as there is on another side"
                raise DataError(f"{problem} ({self.text.name} set)", file.resource, HINT)
            versions = self._read(file, lang)
            sides.add(_name(file), *(versions if sides.streams else versions[:1]))
        return sides

    def _read(self, file: File, lang: str) -> list[Stream]:
        """Open every version of a side."""
        table, paths = self.text.table, [*self._paths[file].values()]
        match _format(table, file):
            case "markup":
                streams = readers.markup(paths[0], lang)
            case "tsv":
                streams = [readers.tsv(paths[0], table.columns[lang])]
            case "ted":
                streams = [readers.ted(paths[0], table.keep)]
            case "files":
                streams = [readers.document_files(paths)]
            case _:
                streams = [readers.text(paths[0])]
        for change in self._changes[lang]:
            streams = [stream.map(change) for stream in streams]
        return streams

    def _boundaries(self, file: File, source: File) -> Stream:
        """Read where documents start as a further side."""
        path = self._paths[file][0]
        if self.text.table.documents == "ids":
            return readers.opus_ids(path)
        total = sum(1 for _ in self._read(source, self._languages[0])[0].rows)
        starts = set(read_starts(path, total))
        return Stream(((b"", row in starts) for row in range(total)), documents=True)


def _name(file: File) -> str:
    return PurePosixPath(file.member or file.resource).name


def _format(table: SetTable, file: File) -> str:
    """How a file is written; "files" if every document is one."""
    if table.format not in {"auto", "text"}:
        return table.format
    if NUMBER in file.member:
        return "files"
    return "markup" if table.format == "auto" and is_markup(Path(_name(file))) else "text"


def _line_changes(table: SetTable, lang: str) -> list[Callable[[bytes], bytes]]:
    """How every line of a language is changed on reading."""
    changes: list[Callable[[bytes], bytes]] = []
    if table.plain_apostrophes:
        changes.append(lambda line: line.replace(APOSTROPHE, b"'"))
    if lang in table.tokenized:
        changes.append(_detokenizer(lang))
    return changes


def _detokenizer(lang: str) -> Callable[[bytes], bytes]:
    """Return what undoes the tokenization of a line, escapes included."""
    moses = None if chinese.is_chinese(lang) else Moses(lang, normalize=False, escape=True)

    def detokenize(line: bytes) -> bytes:
        tokens = (line if moses else readers.unescape(line)).decode("utf-8", "surrogateescape")
        text = (moses or chinese).detokenize(tokens.split())
        return text.encode("utf-8", "surrogateescape")

    return detokenize
