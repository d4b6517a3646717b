"""Make raw lines safe: one line stays one line, and words are separated by single spaces."""

from __future__ import annotations

import contextlib
import re
from collections import Counter

JOINER = "@@"

_HIDDEN = "\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
_INVISIBLE = re.compile(f"[{_HIDDEN}]")
UNSAFE = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_HIDDEN}]")
"""Characters that `tidy` removes or replaces by a space."""
_SPACES = re.compile(" {2,}")
_JOINED = re.compile("@@(?= |$)")
_KINDS = {
    "\x00": "NUL",
    "\t": "tab",
    "\n": "line feed",
    "\x0b": "vertical tab",
    "\x0c": "form feed",
    "\r": "carriage return",
    **dict.fromkeys("\x1c\x1d\x1e\x1f", "separator U+001C-1F"),
    "\x85": "next line U+0085",
    "\u2028": "line separator U+2028",
    "\u2029": "paragraph separator U+2029",
}


def utf8_lines(text: bytes, changes: Counter[str] | None) -> list[str] | list[str | None]:
    """Split text at LF and decode it.

    Args:
        text: lines, each with its LF.
        changes: gets the number of lines that are not UTF-8, which are repaired with U+FFFD. None:
            such lines become None.
    """
    with contextlib.suppress(UnicodeDecodeError):
        return text.decode().split("\n")[:-1]
    lines: list[str | None] = []
    for line in text.split(b"\n")[:-1]:
        try:
            lines.append(line.decode())
        except UnicodeDecodeError:
            lines.append(None if changes is None else line.decode(errors="replace"))
            if changes is not None:
                changes["lines not UTF-8"] += 1
    return lines


def tidy(line: str, counts: Counter[str] | None = None) -> str:
    """Make one raw line safe for every later step.

    The BOM (U+FEFF, anywhere), other invisible characters (soft hyphens, zero-width spaces, marks
    of direction; not the joiners U+200C and U+200D) and a CR at the end are removed; NUL, tab,
    every other control character, every Unicode line separator and a Python string's lone
    surrogates become a space; runs of spaces collapse; the ends are stripped. Words that end in the
    subword joiner `@@` stay as they are but are counted: tokenization takes them apart (`@ @`) and
    `Bpe.segment` never emits one, so they are never read as a joiner.

    Args:
        line: one line without its line feed.
        counts: gets the changes by kind ("BOM", "invisible character", "CR at the end", "NUL",
            "tab", …, "other control character", "joiner @@ in the text"), and under "spaces" the
            lines of which only the spacing changed.
    Returns: the safe line, possibly empty.
    """
    # Controls, separators and the BOM are not printable; nearly all lines leave here.
    if line.isprintable() and JOINER not in line:
        if "  " not in line and line[:1] != " " and line[-1:] != " ":
            return line
        if counts is not None:
            counts["spaces"] += 1
        return " ".join(filter(None, line.split(" ")))
    changes: Counter[str] = Counter()
    safe = _without_unsafe(line, changes)
    if counts is not None:
        counts.update(changes)
    return safe


def _without_unsafe(line: str, changes: Counter[str]) -> str:
    safe = _replaced(line, changes) if UNSAFE.search(line) else line
    safe = _SPACES.sub(" ", safe).strip(" ")
    if safe != line and not changes:
        changes["spaces"] = 1
    if joiners := _JOINED.findall(safe):
        changes["joiner @@ in the text"] = len(joiners)
    return safe


def _replaced(line: str, changes: Counter[str]) -> str:
    """Return a line without invisible characters, with spaces in place of control characters."""
    visible = _INVISIBLE.sub("", line)
    changes.update(
        "BOM" if character == "\ufeff" else "invisible character"
        for character in _INVISIBLE.findall(line)
    )
    if visible.endswith("\r"):
        changes["CR at the end"] = 1
        visible = visible[:-1]
    changes.update(
        _KINDS.get(character, "other control character") for character in UNSAFE.findall(visible)
    )
    return UNSAFE.sub(" ", visible)
