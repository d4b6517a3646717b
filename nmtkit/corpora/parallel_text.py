"""Read all sides of a text in parallel, line by line, and write them as plain text.

The sides are the source, the reference and further references.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Ints
from nmtkit.corpora.corpus import SetFiles, side_names
from nmtkit.corpora.readers import Stream
from nmtkit.errors import DataError, counted

COMPARED_LINES = 5_000_000
"""`first_odd_pair` gives up if a side has more lines."""
ROWS_PER_REPORT = 10_000
ANOTHER_SET = "choose another set (--set prep.dev=NAME, prep.test=NAME), or other files"
Row = tuple[tuple[bytes, ...], bool]
"""One line of every side, and True if a document starts there."""


@dataclass
class ParallelText:
    """The sides of a text, read in parallel."""

    set_name: str
    hint: str
    """The hint of the error if the sides do not match."""
    where: str = ""
    """The files of the sides, for errors."""
    names: list[str] = field(default_factory=list)
    """The name of each stream's side, for errors."""
    streams: list[Stream] = field(default_factory=list)

    def add(self, name: str, *streams: Stream) -> None:
        """Add a side: one stream, or one stream for each reference."""
        self.names += [name] * len(streams)
        self.streams += streams

    def rows(self) -> Iterator[Row]:
        """Yield every row.

        Raises: DataError if the sides have no line, different numbers of lines, or different
            documents.
        """
        number = -1
        for number, row in enumerate(itertools.zip_longest(*self.streams)):
            if None in row:
                short, long = self._unlike([cell is None for cell in row])
                lines = counted(number, "line")
                raise self._error(f"{short} has {lines} but {long} has more", number)
            starts = {start for _, start in row if start is not None}
            if len(starts) > 1:
                self._check_documents(starts, number)
            yield tuple(line for line, _ in row), any(starts)
        if number < 0:
            raise self._error(f"{self.names[0]} has no sentence", 0)

    def _check_documents(self, starts: set[bool | str | None], number: int) -> None:
        """Raise DataError unless all sides start the same document."""
        names = " and ".join(dict.fromkeys(self.names))
        if not all(starts):
            raise self._error(f"documents start at different lines of {names}", number)
        ids = sorted(start for start in starts if isinstance(start, str))
        if len(ids) > 1:
            problem = f"the documents {' and '.join(ids)} are side by side in {names}"
            raise self._error(problem, number)

    def separated(self, separator: bytes, sides: int) -> Iterator[Row]:
        """Yield all rows but those that separate documents.

        Args:
            separator: the line that separates documents, the same on every side.
            sides: the number of streams that have separators; they come first.
        Raises: DataError if only some sides have a separator at a line, or if all lines or no line
            are separators.
        """
        name = separator.decode() or "blank"
        starts, has_text, has_separators = True, False, False
        for number, (lines, _) in enumerate(self.rows()):
            flags = [line.strip() == separator for line in lines[:sides]]
            if all(flags):
                starts = has_separators = True
                continue
            if any(flags):
                marked, plain = self._unlike(flags)
                problem = f"line {number + 1:,} is {name} in {marked} but not in {plain}"
                raise self._error(problem, number)
            yield lines, starts
            starts, has_text = False, True
        if not has_separators or not has_text:
            are = "all lines are" if has_separators else "no line is"
            raise self._error(f"{are} {name}, so none separates documents", 0)

    def _unlike(self, flags: list[bool]) -> list[str]:
        """Return the name of the first side whose flag is True, and of the first whose is False."""
        return [self.names[flags.index(flag)] for flag in (True, False)]

    def _error(self, problem: str, number: int) -> DataError:
        where = f"{self.where}, line {number + 1:,}".removeprefix(", ")
        return DataError(f"{problem} ({self.set_name} set)", where, self.hint)


def write_set(
    rows: Iterable[Row], folder: Path, name: str, split: str, parses: bool = False
) -> SetFiles:
    """Write a set as plain text: NAME.src, NAME.ref, NAME.ref1, … and NAME.docs.

    Args:
        rows: the rows of the set. It has documents if a document starts at the first row.
        folder: where the files go; it is made.
        name, split: the name of the set, and its split (train, dev or test).
        parses: True if the last line of every row is a parse, which goes to NAME.parses.
    Returns: the files of the set.
    Raises: DataError if there is no row, or if rows have different numbers of references.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise DataError(f"the {name} set has no line", hint=ANOTHER_SET)
    lines, with_documents = first
    folder.mkdir(parents=True, exist_ok=True)
    suffixes = side_names(len(lines) - parses) + ["parses"] * parses
    paths = {suffix: folder / f"{name}.{suffix}" for suffix in suffixes}
    starts = _write_rows(itertools.chain([first], rows), [*paths.values()], name)
    trees = paths.pop("parses", None)
    docs = folder / f"{name}.docs" if with_documents else None
    if docs is not None:
        files.write_lines(docs, starts)
    return SetFiles(name, split, {side: (path,) for side, path in paths.items()}, docs, trees)


def _write_rows(rows: Iterable[Row], paths: list[Path], name: str) -> list[str]:
    """Write a file for each side of a set; return the numbers of the rows where documents start."""
    starts = []
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(console.progress(f"reading {name}", None))
        streams = [stack.enter_context(open(path, "wb")) for path in paths]
        for number, (lines, starts_document) in enumerate(rows):
            if number % ROWS_PER_REPORT == ROWS_PER_REPORT - 1:
                advance(ROWS_PER_REPORT)
            if len(lines) != len(streams):
                raise DataError(
                    f"parts of the {name} set have {len(streams) - 1} and {len(lines) - 1}"
                    " references",
                    hint=ANOTHER_SET,
                )
            if starts_document:
                starts.append(str(number))
            for stream, line in zip(streams, lines, strict=True):
                stream.write(line + b"\n")
    return starts


def split_columns(text: SetFiles, folder: Path) -> SetFiles:
    """Write each column of a set's TSV file to a separate file.

    Args:
        text: a set with `columns`.
        folder: where the files go: NAME.src, NAME.ref, …
    Returns: the set that was written, with the documents and parses of `text`.
    Raises: DataError if a line has no tab or a wrong number of columns.
    """
    written = write_set(_tsv_rows(text), folder, text.name, text.split)
    return replace(text, sides=written.sides, columns=False)


def _tsv_rows(text: SetFiles) -> Iterator[Row]:
    """Yield the cells of each line as a row. Only a test set may have more than two columns.

    A blank line that separates documents becomes blank on every side.
    """
    path, columns = text.src[0], 2
    if text.split == "test":
        first = next(filter(bytes.strip, files.byte_lines(path)), b"")
        columns = max(columns, first.count(b"\t") + 1)
    for number, line in enumerate(files.byte_lines(path), 1):
        cells = tuple(line.split(b"\t"))
        if text.between == "blank" and not line.strip():
            cells = (b"",) * columns
        if len(cells) != columns:
            expected = "source TAB target" + " TAB reference" * (columns - 2)
            problem = f"has {counted(len(cells), 'column')}" if len(cells) > 1 else "has no tab"
            hint = f"every line of this {text.split} set is {expected}"
            if not line.strip():
                hint += f"; --docs {text.name}=blank: blank lines separate documents"
            elif len(cells) > columns:
                hint += f": `cut -f1-{columns}` keeps these columns"
            raise DataError(f"a TSV line {problem}", f"{path}, line {number:,}", hint)
        yield cells, False


def first_odd_pair(src: Sequence[Path], tgt: Sequence[Path]) -> str | None:
    """Describe the first line where the lengths of two sides stop agreeing.

    Returns: the description; None if a side has too many lines to tell. Both sides have text.
    """
    sides: list[Ints] = []  # for each line its bytes and its words
    pair = np.dtype((np.int64, 2))
    for paths in (src, tgt):
        lines = files.byte_lines(*paths)
        compared = itertools.islice(lines, COMPARED_LINES)
        sides.append(np.fromiter(((len(line), len(line.split())) for line in compared), pair))
        if next(lines, None) is not None:
            return None
    line = first_odd_line(*(side[:, 0] for side in sides))
    first, second = (
        counted(int(side[line, 1]), "word") if line < len(side) else "no line" for side in sides
    )
    if "no line" not in (first, second):
        second = f"{sides[1][line, 1]:,}"
    return f"first odd pair: line {line + 1:,} ({first} vs {second})"


def first_odd_line(src: Ints | Sequence[int], tgt: Ints | Sequence[int]) -> int:
    """Find where one side has lines too many, by the lengths of lines alone.

    Let one side have d lines more. A cut p is good if lines before p match one to one, and lines
    from p on match after the longer side is moved by d. The best cut has the smallest sum of |log
    length ratio - its median|; of equally good cuts the last one is returned, because lines match
    one to one up to there.

    Args:
        src, tgt: length of each line.
    Returns: the line p, from 0.
    """
    shorter, longer = sorted((src, tgt), key=len)
    extra, count = len(longer) - len(shorter), len(shorter)
    first, second = np.log1p(longer), np.log1p(shorter)
    ratios = np.stack([first[:count] - second, first[extra:] - second])
    straight, moved = np.abs(ratios - (np.median(ratios) if count else 0))
    before = np.concatenate([[0], np.cumsum(straight)])
    after = np.concatenate([np.cumsum(moved[::-1])[::-1], [0]])
    sums = before + after
    return int(np.flatnonzero(sums <= sums.min() + 1e-9)[-1])
