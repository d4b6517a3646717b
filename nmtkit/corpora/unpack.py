"""Turn verified files into parallel lines: open archives, read formats, take out held-out rows.

A set of plain text is used as it is. Any other set is written anew, line by line, so that memory
stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from nmtkit.corpora import archives, readers
from nmtkit.corpora.archives import NUMBER
from nmtkit.corpora.corpus import SetFiles, is_markup, side_names
from nmtkit.corpora.parallel_text import ParallelText, Row, write_set
from nmtkit.corpora.readers import Stream
from nmtkit.corpora.table import TRAIN, Dataset, File, RegisteredSet, SetTable
from nmtkit.errors import DataError
from nmtkit.text import chinese
from nmtkit.text.moses import Moses

APOSTROPHE = "\u2019".encode()
HINT = "the release is damaged, or another one than the table of data sets describes"
Paths = Mapping[File, Mapping[int, Path]]
"""The paths of each file by number; the number is 0 if the file's name has no {number}."""


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
    texts = {text.name: SetReader(text, dataset, paths) for text in sets if text.parts}
    unpacked = {}
    if held_out := [table for table in dataset.entry.sets.values() if table.rows]:
        cut_sets = [text for text in sets if text.table.rows]
        unpacked = _split(texts.pop(TRAIN), cut_sets, held_out, folder)
    for name, text in texts.items():
        unpacked[name] = text.as_published() or text.write(folder)
    return [unpacked[text.name] for text in sets]


def _open_archives(sets: list[RegisteredSet], published: Mapping[str, Path], folder: Path) -> Paths:
    """Take the members out of each archive, in one pass over it."""
    wanted: dict[str, list[File]] = {}
    for file in dict.fromkeys(file for text in sets for file in text.files()):
        wanted.setdefault(file.resource, []).append(file)
    paths: dict[File, Mapping[int, Path]] = {}
    for number, (resource, files) in enumerate(wanted.items()):
        if not files[0].member:
            paths[files[0]] = {0: published[resource]}
            continue
        target = folder / f"archive-{number}"
        target.mkdir()
        members = [file.member for file in files]
        extracted = archives.extract(published[resource], members, target)
        paths |= {file: extracted[file.member] for file in files}
    return paths


def _split(
    train: SetReader, sets: list[RegisteredSet], held_out: list[SetTable], folder: Path
) -> dict[str, SetFiles]:
    """Write the training text without the held-out rows, and the sets that consist of such rows.

    Args:
        train: the training text.
        sets: the sets to write, whose rows are kept in memory meanwhile.
        held_out: all sets that consist of rows of the training text.
    Returns: the sets by name.
    """
    total = sum(1 for _ in train.rows())
    ranges = {text.name: text.table.selected(total) for text in sets}
    rows_of: dict[str, list[Row]] = {name: [] for name in ranges}
    taken = [table.selected(total) for table in held_out]

    def training_rows() -> Iterator[Row]:
        """Yield the rows that are not held out, and collect the rows of the sets."""
        without_row = set[str]()  # sets that have no row of the document yet
        for number, (lines, starts) in enumerate(train.rows()):
            if starts:
                without_row = {TRAIN, *ranges}
            for name, rows in ranges.items():
                if number in rows:
                    # A block of lines keeps its documents, every 23rd line does not.
                    rows_of[name].append((lines, name in without_row and rows.step == 1))
                    without_row.discard(name)
            if not any(number in rows for rows in taken):
                yield lines, TRAIN in without_row
                without_row.discard(TRAIN)

    unpacked = {TRAIN: write_set(training_rows(), folder, TRAIN, TRAIN)}
    for text in sets:
        unpacked[text.name] = write_set(rows_of[text.name], folder, text.name, text.split)
    return unpacked


class SetReader:
    """Reads a set of a data set as rows of parallel lines.

    Args:
        paths: the paths of the set's files.
    """

    def __init__(self, text: RegisteredSet, dataset: Dataset, paths: Paths) -> None:
        self._text = text
        self._paths = paths
        self._languages = (dataset.src, dataset.tgt)
        self._changes = {lang: _line_change(text.table, lang) for lang in self._languages}
        formats = [{_format(text.table, file) for file in part} for part in text.parts]
        self._documents = bool(text.boundaries) or all(part != {"text"} for part in formats)
        self._plain = set().union(*formats) == {"text"} and not any(self._changes.values())

    def as_published(self) -> SetFiles | None:
        """Return the set with its published files, if they are plain text; else None."""
        if self._documents or not self._plain:
            return None
        columns = zip(*self._text.parts, strict=True)
        paths = (tuple(self._paths[file][0] for file in files) for files in columns)
        sides = dict(zip(side_names(2), paths, strict=True))
        return SetFiles(self._text.name, self._text.split, sides)

    def write(self, folder: Path) -> SetFiles:
        """Write the set anew."""
        return write_set(self.rows(), folder, self._text.name, self._text.split)

    def rows(self) -> Iterator[Row]:
        """Yield every row, and True if a document starts with it.

        Raises: DataError if the sides of a part have different lengths or documents.
        """
        for number, part in enumerate(self._text.parts):
            sides = self._sides(part)
            count = len(sides.streams)
            for file in self._text.boundaries[number : number + 1]:
                sides.add(_name(file), readers.opus_ids(self._paths[file][0]))
            for lines, starts in sides.rows():
                yield lines[:count], starts and self._documents

    def _sides(self, part: tuple[File, File]) -> ParallelText:
        """Open source and target of a part; of several versions of the source take the first."""
        if len({frozenset(self._paths[file]) for file in part}) > 1:
            names = " and ".join(map(_name, part))
            problem = f"{names} are there with different numbers ({self._text.name} set)"
            raise DataError(problem, part[0].resource, HINT)
        src, tgt = part
        sides = ParallelText(self._text.name, HINT)
        sides.add(_name(src), self._read(src, self._languages[0])[0])
        sides.add(_name(tgt), *self._read(tgt, self._languages[1]))
        return sides

    def _read(self, file: File, lang: str) -> list[Stream]:
        """Open every version of a side."""
        table, paths = self._text.table, [*self._paths[file].values()]
        match _format(table, file):
            case "markup":
                streams = readers.markup(paths[0], lang)
            case "ted":
                streams = [readers.ted(paths[0], table.keep)]
            case "files":
                streams = [readers.document_files(paths)]
            case _:
                streams = [readers.text(paths[0])]
        if change := self._changes[lang]:
            return [((change(line), starts) for line, starts in stream) for stream in streams]
        return streams


def _name(file: File) -> str:
    return PurePosixPath(file.member or file.resource).name


def _format(table: SetTable, file: File) -> str:
    """Return the format of a file: text, markup, ted, or files if each document is a file."""
    if NUMBER in file.member:
        return "files"
    markup = "markup" if is_markup(Path(_name(file))) else "text"
    return markup if table.format == "auto" else table.format


def _line_change(table: SetTable, lang: str) -> Callable[[bytes], bytes] | None:
    """Return the function that changes each line of a language while it is read, if any."""
    if lang in table.tokenized and chinese.is_chinese(lang):
        return lambda line: _detokenized(readers.unescape(line), chinese.detokenize)
    if lang in table.tokenized:
        moses = Moses(lang, normalize=False, escape=True)  # it undoes escapes too
        return lambda line: _detokenized(line, moses.detokenize)
    return (lambda line: line.replace(APOSTROPHE, b"'")) if table.plain_apostrophes else None


def _detokenized(line: bytes, detokenize: Callable[[list[str]], str]) -> bytes:
    tokens = line.decode("utf-8", "surrogateescape").split()
    return detokenize(tokens).encode("utf-8", "surrogateescape")
