"""The formats parallel text is published in, each as a stream of lines that knows where documents start; bytes in, bytes out.

- plain text, one sentence a line
- TSV, a column a language
- SGM and XML with <doc> and <seg>, in three dialects: mteval's SGM (quotes optional, tags in any case, bare &, several references as several
  doc elements of one docid), IWSLT's XML, WMT's XML (source, references and systems' outputs inside one doc)
- TED training text, where lines of metadata separate the talks
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nmtkit.errors import DataError
from nmtkit.files import byte_lines, open_binary

Row = tuple[bytes, bool]
"""A line without its line feed, and whether a document starts with it."""


@dataclass(frozen=True)
class Stream:
    """One side of a part of a corpus."""

    rows: Iterable[Row]
    documents: bool
    """Whether the format itself says where documents start; if not, no row does."""


def text(path: Path) -> Stream:
    """Plain text, compressed or not."""
    return Stream(((line, False) for line in byte_lines(path)), documents=False)


def document_files(paths: list[Path]) -> Stream:
    """Plain text, each file a document."""
    return Stream(((line, first) for path in paths for first, line in _marked(byte_lines(path))), documents=True)


def _marked(lines: Iterator[bytes]) -> Iterator[tuple[bool, bytes]]:
    first = True
    for line in lines:
        yield first, line
        first = False


def tsv(path: Path, column: int) -> Stream:
    """One column of tab-separated text; quotes mean nothing.

    Args:
        path: the file.
        column: from 1.
    Raises: DataError for a line with fewer columns.
    """

    def rows() -> Iterator[Row]:
        for number, line in enumerate(byte_lines(path), 1):
            cells = line.removesuffix(b"\r").split(b"\t")
            if len(cells) < column:
                what = f"no column {column}: the line has {len(cells)}"
                raise DataError(what, where=f"{path}, line {number}", hint="columns are separated by tabs")
            yield cells[column - 1], False

    return Stream(rows(), documents=False)


_METADATA = re.compile(rb"\s*</?(doc|url|keywords|speaker|talkid|title|description|reviewer|translator|transcript)\b[^>]*>(.*)", re.I)
_CLOSING = re.compile(rb"</\w+>\s*$")


def ted(path: Path, keep: Iterable[str] = ()) -> Stream:
    """TED training text (train.tags.*): its sentences without the lines of metadata, which separate talks.

    Args:
        path: the file.
        keep: metadata that are sentences too (title, description), with their tags stripped.
    """
    kept = {name.encode() for name in keep}

    def rows() -> Iterator[Row]:
        talk = True
        talking = False
        for line in byte_lines(path):
            found = _METADATA.match(line)
            if found is None:
                yield unescape(line.strip()), talk
                talk, talking = False, True
                continue
            talk |= talking
            talking = False
            if found[1].lower() in kept:
                yield unescape(_CLOSING.sub(b"", found[2]).strip()), talk
                talk = False

    return Stream(rows(), documents=True)


_MARKUP = re.compile(rb"<(doc|src|ref|hyp)\b([^>]*)>|</(src|ref|hyp)\s*>|<seg\b[^>]*>(.*?)</seg\s*>", re.I | re.S)
_ATTRIBUTE = re.compile(rb"(\w+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))")
_UNCLOSED = re.compile(rb"<(seg|/?doc)\b", re.I)
_BREAK = re.compile(rb"[\r\n]+")


@dataclass
class _Document:
    """What one doc element holds of one side."""

    docid: str
    system: str
    """Which of several references (sysid, translator)."""
    language: str
    """Empty where the file holds one side only."""
    segments: list[bytes] = field(default_factory=list)


def markup(path: Path, language: str) -> list[Stream]:
    """The segments of an SGM or XML file in one language.

    Args:
        path: the file, in any of the three dialects.
        language: which side is wanted of a file that holds several.
    Returns: one stream; of several references one each, in the order of their first appearance.
    Raises: DataError if there is no segment (in that language), one isn't closed, or references differ in their documents.
    """
    documents = [one for one in _documents(path) if one.segments and one.language in {"", language}]
    if not documents:
        hint = "expected <doc> elements with <seg> elements in them"
        raise DataError(f"{path.name} has no segments in '{language}'", where=path, hint=hint)
    systems = list(dict.fromkeys(one.system for one in documents))
    sides = [[one for one in documents if one.system == system] for system in systems]
    if len({(one.docid, one.system) for one in documents}) == len({one.docid for one in documents}):
        sides = [documents]  # no document twice: one reference, by whomever
    for side in sides[1:]:
        _same_documents(path, sides[0], side)
    return [Stream(list(_rows(side)), documents=True) for side in sides]


def _documents(path: Path) -> Iterator[_Document]:
    """The documents of a file, one for each side or reference in them; systems' outputs are left out."""
    with open_binary(path) as stream:
        data = stream.read()
    docid, system = "", ""
    current: _Document | None = _Document(docid, system, "")
    for match in _MARKUP.finditer(data):
        if match[4] is not None:
            if _UNCLOSED.search(match[4]):
                line = data.count(b"\n", 0, match.start()) + 1
                raise DataError("a segment is not closed", where=f"{path}, line {line}", hint="every <seg> needs a </seg> before the next")
            if current is not None:
                current.segments.append(unescape(_BREAK.sub(b" ", match[4]).strip()))
            continue
        if current is not None:
            yield current
        current = None
        if match[1] is None:  # the end of a side
            continue
        kind, values = match[1].lower(), _attributes(match[2])
        if kind == b"doc":
            docid, system = values.get("docid", values.get("id", "")), values.get("sysid", "")
            current = _Document(docid, system, "")
        elif kind != b"hyp":
            current = _Document(docid, values.get("translator", "") if kind == b"ref" else "", values.get("lang", ""))
    if current is not None:
        yield current


def _attributes(text: bytes) -> dict[str, str]:
    return {m[1].decode().lower(): (m[2] or m[3] or m[4] or b"").decode("utf-8", "replace") for m in _ATTRIBUTE.finditer(text)}


def _same_documents(path: Path, first: list[_Document], other: list[_Document]) -> None:
    for a, b in itertools.zip_longest(first, other):
        if a is None or b is None or (a.docid, len(a.segments)) != (b.docid, len(b.segments)):
            name = (a or b).docid  # type: ignore[union-attr]
            raise DataError(f"the references of {path.name} differ in document '{name}'", where=path, hint="every reference translates every segment")


def _rows(documents: list[_Document]) -> Iterator[Row]:
    for one in documents:
        for number, segment in enumerate(one.segments):
            yield segment, number == 0


_ENTITY = re.compile(rb"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}


def unescape(line: bytes) -> bytes:
    """XML's five entities and numeric references undone, once; a bare & stays."""
    return _ENTITY.sub(_character, line) if b"&" in line else line


def _character(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return _NAMED[match[1]]
    code = int(match[2]) if match[2] else int(match[3], 16)
    if code < 32:
        return b" "
    return chr(code).encode("utf-8", "replace") if code <= 0x10FFFF else "\ufffd".encode()
