"""Multi-word expressions and their accepted translations: the list, and where its phrases stand in running text.

A list is a text file of lines `source phrase TAB accepted target phrases [TAB name]`, the target phrases with " | " between. In a phrase `...`
is a gap of any number of words, none too, but not past the end of a sentence; `...4` one of at most four; a final `$` wants the end of a
clause after it: a punctuation mark, or the end of the line. Lines of one name are counted together. Blank lines and those that begin with #
are passed over.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError

GAP = re.compile(r"\.\.\.(\d*)|…")
END = "$"
_ALONE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")  # kana and Chinese have no spaces between words
_STOP = r"(?! [.!?;…。！？；] )"  # noqa: RUF001


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    """What a character does: "word" goes on, "space" ends, anything else stands alone."""
    if _ALONE.match(character):
        return ""
    if character.isspace():
        return "space"
    return "word" if character == "_" or unicodedata.category(character)[0] in "LMN" else ""


def words(line: str, match_case: bool) -> list[str]:
    """A line cut at the boundaries of words: runs of letters and digits, every other sign and every Chinese character by itself.

    Args:
        match_case: whether case counts; if not, it is folded.
    """
    line = unicodedata.normalize("NFC", line).replace("’", "'")  # noqa: RUF001
    found: list[str] = []
    for kind, run in groupby(line if match_case else line.casefold(), _kind):
        if kind == "word":
            found.append("".join(run))
        elif kind != "space":
            found += run
    return found


def spaced(line: str, match_case: bool) -> str:
    """The words of a line with one space before and behind each: what phrases are looked for in."""
    found = words(line, match_case)
    return f" {' '.join(found)} " if found else ""


@dataclass(frozen=True)
class Match:
    """Where a phrase stands: (start, end) of each of its parts between gaps."""

    parts: tuple[tuple[int, int], ...]

    @property
    def in_one_piece(self) -> bool:
        """Whether no word stands between its parts."""
        return all(before[1] == after[0] for before, after in zip(self.parts, self.parts[1:], strict=False))

    def meets(self, others: Iterable[Match]) -> bool:
        """Whether it has a word in common with one of the others."""
        return any(a < d and c < b for other in others for a, b in self.parts for c, d in other.parts)


@dataclass(frozen=True)
class Phrase:
    """A phrase ready to be looked for."""

    text: str
    length: int
    """Words, gaps not counted."""
    first: str
    """Its first word."""
    pattern: re.Pattern[str]
    """Of text as `spaced` writes it; a group a part."""

    def find(self, text: str) -> list[Match]:
        """Its places in the words of a line, as `spaced` wrote them; gaps are as short as can be."""
        return [Match(tuple(match.span(i) for i in range(1, self.pattern.groups + 1))) for match in self.pattern.finditer(text)]


def phrase(text: str, match_case: bool) -> Phrase:
    """A phrase of the list.

    Raises: ValueError, saying what is wrong, for one without words, that begins or ends with a gap, or with `$` inside.
    """
    parts: list[list[str]] = [[]]
    gaps: list[str] = []
    tokens = text.split()
    ends = tokens[-1:] == [END]
    for token in tokens[: len(tokens) - ends]:
        gap = GAP.fullmatch(token)
        if gap:
            gaps.append(gap[1] or "")
            parts.append([])
        elif token == END:
            raise ValueError(f"'{END}' stands at the end of a phrase only: '{text.strip()}'")
        else:
            parts[-1] += words(token, match_case)
    if parts == [[]]:
        raise ValueError("a phrase without words")
    if not all(parts):
        raise ValueError(f"a gap stands between words: '{text.strip()}'")
    literal = [re.escape(" " + " ".join(part)) for part in parts]
    pattern = f"({literal[0]})(?= )"
    for before, most, after in zip(literal, gaps, literal[1:], strict=False):
        pattern += rf"(?:(?!{before} ){_STOP} [^ ]+){{0,{most}}}?({after})(?= )"  # the nearest of several beginnings
    pattern += r"(?= [^\w ]| $)" if ends else ""
    return Phrase(text.strip(), sum(map(len, parts)), parts[0][0], re.compile(pattern))


@dataclass(frozen=True)
class Expression:
    """A source phrase, its accepted translations, and the name that it is counted under."""

    name: str
    source: Phrase
    targets: tuple[Phrase, ...]


def occurrences(expressions: Sequence[Expression], text: str) -> dict[int, int]:
    """How often each expression stands in the words of a source line: its number in the list -> count.

    A word belongs to one of them: to the one with more words, then with fewer gaps, then the earlier one ("look up" is no "look").
    """
    present = set(text.split())
    order = sorted(
        (i for i, one in enumerate(expressions) if one.source.first in present),
        key=lambda i: (-expressions[i].source.length, expressions[i].source.pattern.groups),
    )
    taken: list[Match] = []
    found: dict[int, int] = {}
    for i in order:
        for match in expressions[i].source.find(text):
            if not match.meets(taken):
                taken.append(match)
                found[i] = found.get(i, 0) + 1
    return dict(sorted(found.items()))


def translations(expressions: Sequence[Expression], wanted: Mapping[int, int], text: str) -> dict[int, list[Match]]:
    """Where the words of a target line have accepted translations of expressions.

    A word belongs to one of them: of two matches that share one, the shorter counts ("geben" has no "auf" in "sie geben und er gibt auf", where
    "gibt" has it).

    Args:
        wanted: number of an expression in the list -> how often it is to be found, at most.
    """
    found: dict[int, list[Match]] = {which: [] for which in wanted}
    taken: list[Match] = []
    matches = [(match, which) for which in wanted for target in expressions[which].targets for match in target.find(text)]
    for match, which in sorted(matches, key=lambda one: (one[0].parts[-1][1] - one[0].parts[0][0], one[0].parts)):
        if len(found[which]) < wanted[which] and not match.meets(taken):
            found[which].append(match)
            taken.append(match)
    return found


def parse(lines: Iterable[str], match_case: bool, where: str) -> list[Expression]:
    """The expressions of a list.

    Args:
        lines: of the file; where: its name, for errors.
    Raises: DataError with the line for one that is none, for a source phrase that comes twice, or if there are none.
    """
    found: list[Expression] = []
    seen: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        at = f"{where}, line {number}"
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) not in (2, 3):
            hint = "expected: source phrase, tab, accepted target phrases with ' | ' between (and, if wanted, a tab and a name)"
            raise DataError(f"not an expression: {len(cells)} columns", where=at, hint=hint)
        try:
            source = phrase(cells[0], match_case)
            targets = tuple(phrase(part, match_case) for part in re.split(r"(?<=\s)\|(?=\s)", f" {cells[1]} "))
        except ValueError as error:
            raise DataError(
                f"not an expression: {error}", where=at, hint="words, '...' between words for a gap, a final '$' for a clause's end"
            ) from None
        key = tuple(words(source.text, match_case))
        if key in seen:
            raise DataError(f"'{source.text}' stands in line {seen[key]} already", where=at, hint="put all its target phrases on one line")
        seen[key] = number
        found.append(Expression(cells[2].strip() if cells[2:] and cells[2].strip() else source.text, source, targets))
    if not found:
        raise DataError("no expressions", where=where, hint="one a line: source phrase, tab, accepted target phrases with ' | ' between")
    return found


def read(path: Path, match_case: bool) -> list[Expression]:
    """The expressions of a file.

    Raises: DataError if it cannot be read, or as `parse`.
    """
    return parse(files.text_lines(path), match_case, str(path))
