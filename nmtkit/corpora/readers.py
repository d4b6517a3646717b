"""Read the formats in which parallel text is published. Each file becomes a stream of lines.

- plain text, one sentence a line
- SGM and XML with <doc> and <seg>, in three dialects: mteval's SGM (quotes are optional, tags have
  any case, & may be bare, references are separate doc elements with the same docid), IWSLT's XML,
  and WMT's XML (one doc holds the source, its references and systems' outputs)
- TED training text, where lines of metadata separate the talks
- OPUS's .ids files, which have no text and only mark where documents start
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nmtkit.errors import DataError
from nmtkit.files import byte_lines, open_binary

MarkedLine = tuple[bytes, bool | str | None]
"""A line without its line feed; and True if a document starts with it, or the document's id. None:
the format does not mark where documents start."""
Stream = Iterable[MarkedLine]
"""The lines of one side of a text."""


def text(path: Path) -> Stream:
    """Read plain text, compressed or not."""
    return ((line, None) for line in byte_lines(path))


def document_files(paths: Iterable[Path]) -> Stream:
    """Read plain text files; each file is one document."""
    lines = (enumerate(byte_lines(path)) for path in paths)
    return ((line, number == 0) for number, line in itertools.chain.from_iterable(lines))


def opus_ids(path: Path) -> Stream:
    """Read an .ids file of OPUS as empty lines with the document starts.

    A line has a source file, a target file and sentence numbers. A document starts where the source
    or target file changes.
    """

    files = (line.split(b"\t")[:2] for line in byte_lines(path))
    pairs = itertools.pairwise(itertools.chain([[]], files))
    return ((b"", before != now) for before, now in pairs)


_METADATA = re.compile(
    rb"\s*</?(doc|url|keywords|speaker|talkid|title|description|reviewer|translator|transcript)\b"
    rb"[^>]*>(.*)",
    re.I,
)
_CLOSING = re.compile(rb"</\w+>\s*$")


def ted(path: Path, keep: Iterable[str] = ()) -> Iterator[MarkedLine]:
    """Read TED training text (train.tags.*). Lines of metadata separate talks and are left out.

    Args:
        path: the file.
        keep: metadata (title, description) whose text is kept as sentences, without the tags.
    """
    sentence_tags = {name.encode() for name in keep}
    starts = True
    after_text = False
    for line in byte_lines(path):
        metadata = _METADATA.match(line)
        if metadata is not None:
            starts |= after_text
            line = _CLOSING.sub(b"", metadata[2])
        after_text = metadata is None
        if metadata is None or metadata[1].lower() in sentence_tags:
            yield unescape(line.strip()), starts
            starts = False


_MARKUP = re.compile(
    rb"<(?P<start>doc|src|ref|hyp)\b(?P<attributes>[^>]*)(?:>|\Z)|</(src|ref|hyp)\s*>"
    rb"|<seg\b[^>]*(?:>|\Z)(?P<segment>.*?)(?P<end></seg\s*>|<(?:seg|/?doc)\b|\Z)",
    re.I | re.S,
)
"""Tags and segments. An unclosed tag or segment ends with the file, so that no part of the file is
read twice."""
_ATTRIBUTE = re.compile(rb"\b(\w+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))")
_BREAK = re.compile(rb"[\r\n]+")
LARGEST = 1 << 30
"""The most uncompressed bytes of an SGM or XML file, which is read as a whole."""


@dataclass
class _Document:
    """The content of one doc element on one side."""

    docid: str = ""
    system: str = ""
    """The sysid or translator, which distinguishes several references of a docid."""
    language: str = ""
    """Empty if the file holds one side only."""
    segments: list[bytes] = field(default_factory=list)

    def rows(self) -> list[MarkedLine]:
        start = self.docid or True
        return [(text, number == 0 and start) for number, text in enumerate(self.segments)]


def markup(path: Path, language: str) -> list[Stream]:
    """Read the segments of an SGM or XML file in one language.

    Args:
        path: the file, in any of the three dialects.
        language: the language to read if the file holds several sides.
    Returns: one stream for each reference (or for the source), in order of first appearance.
    Raises: DataError if the language has no segment, if a segment is not closed, or if the
        references have different documents.
    """
    documents = [d for d in _documents(path) if d.segments and d.language in {"", language}]
    if not documents:
        hint = "expected <doc> elements with <seg> elements in them; convert other formats (TMX)"
        raise DataError(f"{path.name} has no segments in '{language}'", path, hint)
    systems: dict[str, list[_Document]] = {}
    for document in documents:
        systems.setdefault(document.system, []).append(document)
    sides = [*systems.values()]
    if len({(d.docid, d.system) for d in documents}) == len({d.docid for d in documents}):
        sides = [documents]  # one reference, even if several people translated it
    for side in sides[1:]:
        _same_documents(path, sides[0], side)
    return [[row for document in side for row in document.rows()] for side in sides]


def _documents(path: Path) -> list[_Document]:
    """Return the documents of all sides and references of a file; systems' outputs are left out."""
    docid = system = ""
    document = _Document()
    documents = []
    for match in _MARKUP.finditer(_whole(path)):
        if match["segment"] is not None:
            document.segments.append(_segment(match, path))
            continue
        kind, values = (match["start"] or b"").lower(), _attributes(match["attributes"] or b"")
        if kind == b"doc":
            docid, system = values.get("docid", values.get("id", "")), values.get("sysid", "")
            document = _Document(docid, system)
        else:
            translator = values.get("translator", "") if kind == b"ref" else ""
            document = _Document(docid, translator, values.get("lang", ""))
        if kind in {b"doc", b"src", b"ref"}:
            documents.append(document)
    return documents


def _whole(path: Path) -> bytes:
    """Return the content of a file.

    Raises: DataError if it has more than LARGEST bytes.
    """
    with open_binary(path) as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        hint = "write it as plain text, a sentence a line"
        raise DataError(f"has more than {LARGEST >> 20} MiB of markup", path, hint)
    return data


def _segment(match: re.Match[bytes], path: Path) -> bytes:
    """Return the text of a seg element."""
    if not match["end"].endswith(b">"):
        line = match.string.count(b"\n", 0, match.start()) + 1
        hint = "every <seg> needs a </seg> before the next"
        raise DataError("a segment is not closed", f"{path}, line {line}", hint)
    return unescape(_BREAK.sub(b" ", match["segment"]).strip())


def _attributes(tag: bytes) -> dict[str, str]:
    return {
        m[1].decode().lower(): (m[2] or m[3] or m[4] or b"").decode("utf-8", "replace")
        for m in _ATTRIBUTE.finditer(tag)
    }


def _same_documents(path: Path, first: list[_Document], other: list[_Document]) -> None:
    for a, b in itertools.zip_longest(first, other, fillvalue=_Document()):
        if (a.docid, len(a.segments)) != (b.docid, len(b.segments)):
            problem = f"the references of {path.name} differ in document '{a.docid or b.docid}'"
            raise DataError(problem, path, "every reference translates every segment")


_ENTITY = re.compile(rb"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}


def unescape(line: bytes) -> bytes:
    """Return a line with characters in place of XML's five entities and numeric references.

    A bare & stays. The result is not unescaped a second time.
    """
    return _ENTITY.sub(_character, line) if b"&" in line else line


def _character(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return _NAMED[match[1]]
    code = int(match[2]) if match[2] else int(match[3], 16)
    if code < 32:
        return b" "
    return chr(code).encode("utf-8", "replace") if code <= 0x10FFFF else "\ufffd".encode()
