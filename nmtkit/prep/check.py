"""Looking at a corpus before any work is done on it: every file there and readable, UTF-8, not
empty, and line for line parallel.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import files
from nmtkit.corpora.corpus import SetFiles
from nmtkit.corpora.document_starts import read_starts
from nmtkit.errors import DataError, NmtkitError, counted
from nmtkit.text.tidy import tidy

BLOCK = 1 << 20
COMPARED_LINES = 5_000_000


@dataclass(frozen=True)
class Facts:
    """What an input file was when it was read."""

    sha256: str
    lines: int
    size: int
    mtime_ns: int
    name: str
    """Its path; of a file that exists only while prep works, its name."""


def inspect(path: Path, strict: bool) -> Facts:
    """Read a text file once: its checksum, its lines, and whether it is UTF-8.

    Args:
        path: the file, compressed or not.
        strict: bytes that are not UTF-8 are an error.
    Raises: DataError if it is missing, a directory, damaged, empty, or (strict) not UTF-8 (with
        line and byte offset).
    """
    path = Path(path)
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines, last = 0, b"\n"
    with files.open_binary(path) as stream:
        try:
            while block := stream.read(BLOCK):
                lines += block.count(b"\n")
                last = block[-1:]
                if strict:
                    decoder.decode(block)
            decoder.decode(b"", final=strict)
        except UnicodeDecodeError:
            try:
                for _ in files.text_lines(path):  # finds and names the place
                    pass
            except DataError as error:
                hint = f"{error.hint}, or pass --set prep.on_bad_utf8=replace (or drop)"
                raise DataError(error.message, where=error.where, hint=hint) from None
            raise
        except NmtkitError:
            raise
        except Exception:
            for _ in files.byte_lines(path):  # says where the compressed data ends
                pass
            raise
    lines += last != b"\n"
    if not lines:
        raise DataError(f"{path} is empty", hint="name a file with one sentence a line")
    status = path.stat()
    return Facts(files.sha256(path), lines, status.st_size, status.st_mtime_ns, str(path))


def check_sets(
    sets: list[SetFiles],
    strict: bool,
    temporary: Path | None = None,
    known: Mapping[str, Facts] | None = None,
) -> dict[str, Facts]:
    """Check every file of a corpus, and that the sides of each set have as many lines.

    Args:
        sets: the sets.
        strict: bytes that are not UTF-8 are an error.
        temporary: a folder whose files exist only while prep works.
        known: facts of files that were inspected before.
    Returns: the facts of every file by its path as text.
    Raises: DataError as `inspect`, for counts that differ (both counts and the first suspicious
        line), and for a side of a dev or test set without any text.
    """
    facts = dict(known or {})
    for one in sets:
        for path in (
            *itertools.chain(*one.sides().values()),
            *(path for path in (one.docs, one.parses) if path is not None),
        ):
            if str(path) not in facts:
                facts[str(path)] = inspect(path, strict)
                if temporary is not None and path.is_relative_to(temporary):
                    facts[str(path)] = replace(
                        facts[str(path)], name=path.relative_to(temporary).as_posix()
                    )
    for one in sets:
        sides = one.sides()
        for name, paths in sides.items():
            if name != "src" and one.between != "markup":
                _same_lines(one, sides["src"], paths, facts)
        if (
            one.split != "train" and not one.between
        ):  # of training text cleaning counts what goes, of separated documents their cutting
            for paths in sides.values():
                _some_text(one, paths)
        later = (
            one.first is not None and not one.between
        )  # parses may be of the lines that are taken
        if (
            one.parses is not None
            and not later
            and one.between != "markup"
            and total((one.parses,), facts) != total(one.src, facts)
        ):
            raise DataError(
                f"{one.parses.name} has {counted(total((one.parses,), facts), 'line')} but the"
                f" source has {total(one.src, facts):,} ({one.name} set)",
                where=one.parses,
                hint=(
                    "give one tree for each line of the source, a blank line where there is none;"
                    " nothing was written"
                ),
            )
        if one.docs is not None:
            read_starts(one.docs, total(one.src, facts))
    return facts


def is_blank(line: str) -> bool:
    """Whether nothing is left of a line to translate or to score: spaces, control characters, a
    BOM are no text.
    """
    return not tidy(line).strip()


def _some_text(one: SetFiles, paths: tuple[Path, ...]) -> None:
    """Refuse a side on which nothing could be measured; only its lines up to the first with text
    are read.
    """
    lines = itertools.chain.from_iterable(map(files.byte_lines, paths))
    if all(is_blank(line.decode(errors="replace")) for line in lines):
        raise DataError(
            f"{one.name} has no line with text: all of {' + '.join(path.name for path in paths)} is"
            " blank",
            where=", ".join(map(str, paths)),
            hint=(
                "name files with one sentence a line, line i of one the translation of line i of"
                " the other; nothing was written"
            ),
        )


def total(paths: tuple[Path, ...], facts: dict[str, Facts]) -> int:
    """Lines of several files together."""
    return sum(facts[str(path)].lines for path in paths)


def _same_lines(
    one: SetFiles, src: tuple[Path, ...], tgt: tuple[Path, ...], facts: dict[str, Facts]
) -> None:
    pairs = (
        [((a,), (b,)) for a, b in zip(src, tgt, strict=True)]
        if len(src) == len(tgt)
        else [(src, tgt)]
    )
    for ours, theirs in pairs:
        counts = total(ours, facts), total(theirs, facts)
        if counts[0] == counts[1]:
            continue
        names = [" + ".join(p.name for p in paths) for paths in (ours, theirs)]
        raise DataError(
            f"{names[0]} has {counted(counts[0], 'line')} but {names[1]} has {counts[1]:,}"
            f" ({one.name} set)",
            where=first_odd_pair(ours, theirs) if counts[0] and counts[1] else ours[0],
            hint=(
                "fix the files so that line i of one is the translation of line i of the other;"
                " nothing was written"
            ),
        )


def first_odd_pair(src: tuple[Path, ...], tgt: tuple[Path, ...]) -> str:
    """The first line where the lengths of two sides (neither of them empty) stop agreeing, as
    text.
    """
    sizes, words = [], []
    for paths in (src, tgt):
        lines = itertools.islice(
            itertools.chain.from_iterable(files.byte_lines(p) for p in paths), COMPARED_LINES
        )
        both = np.array([(len(line), len(line.split())) for line in lines], dtype=np.int64).reshape(
            -1, 2
        )
        sizes.append(both[:, 0])
        words.append(both[:, 1])
    line = first_odd_line(sizes[0].tolist(), sizes[1].tolist())
    ours, theirs = (int(count[line]) if line < len(count) else None for count in words)
    first = "no line" if ours is None else counted(ours, "word")
    second = (
        "no line" if theirs is None else counted(theirs, "word") if ours is None else f"{theirs:,}"
    )
    return f"first odd pair: line {line + 1:,} ({first} vs {second})"


def first_odd_line(src: list[int], tgt: list[int]) -> int:
    """Where one side has a line too many, judged by lengths alone.

    With d lines more on one side, a cut p is sought so that lines before p match one to one and
    lines from p on match when the longer side is moved by d: the p with the smallest sum of |log
    length ratio - its median|, the last of equally good ones, since lines match one to one up to
    there.

    Args:
        src, tgt: length of each line.
    Returns: the line p, from 0.
    """
    longer, shorter = (src, tgt) if len(src) >= len(tgt) else (tgt, src)
    extra, count = len(longer) - len(shorter), len(shorter)
    first = np.log1p(np.array(longer, dtype=np.float64))
    second = np.log1p(np.array(shorter, dtype=np.float64))
    straight, moved = first[:count] - second, first[extra:] - second
    usual = float(np.median(np.concatenate([straight, moved]))) if count else 0.0
    straight, moved = np.abs(straight - usual), np.abs(moved - usual)
    before = np.concatenate([[0.0], np.cumsum(straight)])
    after = np.concatenate([np.cumsum(moved[::-1])[::-1], [0.0]])
    sums = before + after
    return int(np.flatnonzero(sums <= sums.min() + 1e-9)[-1])


def as_json(facts: dict[str, Facts]) -> dict[str, Any]:
    """The facts as the manifest keeps them."""
    return {
        f.name: {"sha256": f.sha256, "lines": f.lines, "size": f.size, "mtime_ns": f.mtime_ns}
        for f in facts.values()
    }
