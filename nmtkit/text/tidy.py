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
        changes: counts lines that are not UTF-8, which get U+FFFD. Without it such lines become
            None.
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

    Removed are BOMs (U+FEFF, anywhere), other invisible characters (soft hyphens, zero-width
    spaces, marks of direction; not the joiners U+200C and U+200D) and a CR at the end. All other
    control characters, Unicode line separators and lone surrogates become spaces. Runs of spaces
    become one space, and spaces at the ends are removed. Words that end in the subword joiner `@@`
    stay, but are counted: tokenization takes them apart (`@ @`) and `Bpe.segment` never emits such
    a subword at the end of a word.

    Args:
        line: one line without its line feed.
        counts: counts the changes by kind ("BOM", "invisible character", "CR at the end", "NUL",
            "tab", …, "other control character", "joiner @@ in the text"), and as "spaces" the lines
            in which only spaces changed.
    Returns: the safe line, possibly empty.
    """
    # Most lines end here. Control characters, separators and the BOM are not printable.
    if line.isprintable() and JOINER not in line:
        if "  " not in line and line[:1] != " " and line[-1:] != " ":
            return line
        if counts is not None:
            counts["spaces"] += 1
        return " ".join(filter(None, line.split(" ")))
    changes: Counter[str] = Counter()
    safe = line
    if UNSAFE.search(line):
        for character in _INVISIBLE.findall(line):
            changes["BOM" if character == "\ufeff" else "invisible character"] += 1
        safe = _INVISIBLE.sub("", line)
        if safe.endswith("\r"):
            changes["CR at the end"] = 1
            safe = safe[:-1]
        for character in UNSAFE.findall(safe):
            changes[_KINDS.get(character, "other control character")] += 1
        safe = UNSAFE.sub(" ", safe)
    safe = _SPACES.sub(" ", safe).strip(" ")
    if safe != line and not changes:
        changes["spaces"] = 1
    if joiners := _JOINED.findall(safe):
        changes["joiner @@ in the text"] = len(joiners)
    if counts is not None:
        counts.update(changes)
    return safe
