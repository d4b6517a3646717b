"""Split a TSV file into the sides of a set: source, target and further references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nmtkit.corpora.corpus import SetFiles
from nmtkit.corpora.parallel_text import write_set
from nmtkit.errors import DataError, counted
from nmtkit.files import byte_lines


def split_columns(text: SetFiles, folder: Path) -> SetFiles:
    """Write each column of a set's TSV file to a separate file.

    Args:
        text: a set with `columns`.
        folder: where the files go: NAME.src, NAME.ref, …
    Returns: the set that was written, with the documents and parses of `text`.
    Raises: DataError if a line has no tab or a wrong number of columns.
    """
    rows = ((cells, False) for cells in _rows(text))
    written = write_set(rows, folder, text.name, text.split, documents=False)
    return replace(text, sides=written.sides, columns=False)


def _rows(text: SetFiles) -> Iterator[tuple[bytes, ...]]:
    """Yield the cells of each line. Only a test set may have more than two columns.

    A blank line that separates documents becomes blank on every side.
    """
    path, columns = text.src[0], 2
    if text.split == "test":
        first = next(filter(bytes.strip, byte_lines(path)), b"")
        columns = max(columns, first.count(b"\t") + 1)
    for number, line in enumerate(byte_lines(path), 1):
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
        yield cells
