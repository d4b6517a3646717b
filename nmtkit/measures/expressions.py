"""Multi-word expressions, their accepted translations, and the search for their phrases in a text.

A list is a text file of lines `source phrase TAB accepted target phrases [TAB name]`, the target
phrases with " | " between. In a phrase `...` is a gap of any number of words, or none, inside the
sentence; `...4` is a gap of at most four words; a final `$` stands for the end of a clause: a
punctuation mark, or the end of the line. Lines with the same name are counted together. Blank lines
and lines that begin with # are skipped.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise

from nmtkit.errors import DataError

GAP = re.compile(r"\.\.\.(\d*)|…")
END = "$"
FORM = "source phrase, tab, accepted target phrases with ' | ' between"
# Kana and Chinese have no spaces between words.
_ALONE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_STOP = r"(?! [.!?;…。！？；] )"  # noqa: RUF001


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    """Return what a character does: "word" continues a word, "space" ends it, "" is a word."""
    if _ALONE.match(character):
        return ""
    if character.isspace():
        return "space"
    return "word" if character == "_" or unicodedata.category(character)[0] in "LMN" else ""


def words(line: str, match_case: bool) -> list[str]:
    """Return the words of a line: runs of letters and digits; other signs and Chinese one by one.

    Args:
        match_case: keep the case; otherwise it is folded.
    """
    line = unicodedata.normalize("NFC", line).replace("’", "'")  # noqa: RUF001
    tokens: list[str] = []
    for kind, run in groupby(line if match_case else line.casefold(), _kind):
        if kind == "word":
            tokens.append("".join(run))
        elif kind != "space":
            tokens += run
    return tokens


def spaced(line: str, match_case: bool) -> str:
    """Return the words of a line with a space before and behind each: the text that is searched."""
    tokens = words(line, match_case)
    return f" {' '.join(tokens)} " if tokens else ""


@dataclass(frozen=True)
class Match:
    """A place of a phrase in a text: (start, end) of each of its parts between gaps."""

    parts: tuple[tuple[int, int], ...]

    @property
    def in_one_piece(self) -> bool:
        """True if there is no word between its parts."""
        return all(before[1] == after[0] for before, after in pairwise(self.parts))

    @property
    def length(self) -> int:
        """Characters from its first word to its last."""
        return self.parts[-1][1] - self.parts[0][0]

    def overlaps(self, matches: Iterable[Match]) -> bool:
        """Return True if the match has a word in common with one of several matches."""
        taken = [part for match in matches for part in match.parts]
        return any(a < d and c < b for c, d in taken for a, b in self.parts)


@dataclass(frozen=True)
class Phrase:
    """A phrase ready to be searched.

    Attributes:
        length: words without gaps.
        first: the first word.
        pattern: of a text as `spaced` writes it; a group for each part.
    """

    text: str
    length: int
    first: str
    pattern: re.Pattern[str]

    def find(self, text: str) -> list[Match]:
        """Return its places in a text as `spaced` writes it; gaps are as short as possible."""
        groups = range(1, self.pattern.groups + 1)
        return [Match(tuple(map(match.span, groups))) for match in self.pattern.finditer(text)]


def phrase(text: str, match_case: bool) -> Phrase:
    """Return a phrase of the list.

    Raises: ValueError if it has no words, begins or ends with a gap, or has `$` inside.
    """
    tokens = text.split()
    ends = tokens[-1:] == [END]
    if END in tokens[:-1]:
        raise ValueError(f"'{END}' belongs at the end of a phrase: '{text.strip()}'")
    parts, gaps = _parts(tokens[: len(tokens) - ends], match_case)
    if parts == [[]]:
        raise ValueError("a phrase without words")
    if not all(parts):
        raise ValueError(f"a gap belongs between words: '{text.strip()}'")
    literal = [re.escape(" " + " ".join(part)) for part in parts]
    pattern = f"({literal[0]})(?= )"
    for before, longest, after in zip(literal, gaps, literal[1:], strict=False):
        # No second beginning inside the gap: the nearest of several beginnings counts.
        pattern += rf"(?:(?!{before} ){_STOP} [^ ]+){{0,{longest}}}?({after})(?= )"
    pattern += r"(?= [^\w ]| $)" if ends else ""
    return Phrase(text.strip(), sum(map(len, parts)), parts[0][0], re.compile(pattern))


def _parts(tokens: Sequence[str], match_case: bool) -> tuple[list[list[str]], list[str]]:
    """Return the words of each part of a phrase, and the most words of each gap ("": no limit)."""
    parts: list[list[str]] = [[]]
    gaps: list[str] = []
    for token in tokens:
        if gap := GAP.fullmatch(token):
            gaps.append(gap[1] or "")
            parts.append([])
        else:
            parts[-1] += words(token, match_case)
    return parts, gaps


@dataclass(frozen=True)
class Expression:
    """A source phrase, its accepted translations, and the name that it is counted under."""

    name: str
    source: Phrase
    targets: tuple[Phrase, ...]


def occurrences(expressions: Sequence[Expression], text: str) -> dict[int, int]:
    """Return how often a source line has each expression: its number in the list -> count.

    A word belongs to one expression only: to that with more words, then with fewer gaps, then the
    earlier one ("look up" is no "look").
    """
    present = set(text.split())
    phrases = {i: e.source for i, e in enumerate(expressions) if e.source.first in present}
    taken: list[Match] = []
    counts: Counter[int] = Counter()
    for i in sorted(phrases, key=lambda i: (-phrases[i].length, phrases[i].pattern.groups)):
        for match in phrases[i].find(text):
            if not match.overlaps(taken):
                taken.append(match)
                counts[i] += 1
    return dict(sorted(counts.items()))


def translations(
    expressions: Sequence[Expression],
    wanted: Mapping[int, int],
    text: str,
) -> dict[int, list[Match]]:
    """Return where a target line has accepted translations of expressions.

    A word belongs to one translation only: of two matches that share a word the shorter counts
    ("geben" has no "auf" in "sie geben und er gibt auf", where "gibt" has it).

    Args:
        wanted: number of an expression in the list -> the most translations to find.
    """
    results: dict[int, list[Match]] = {i: [] for i in wanted}
    targets = [(i, target) for i in wanted for target in expressions[i].targets]
    matches = [(match, i) for i, target in targets for match in target.find(text)]
    taken: list[Match] = []
    for match, i in sorted(matches, key=lambda pair: (pair[0].length, pair[0].parts)):
        if len(results[i]) < wanted[i] and not match.overlaps(taken):
            results[i].append(match)
            taken.append(match)
    return results


def parse(lines: Iterable[str], match_case: bool, where: str) -> list[Expression]:
    """Return the expressions of a list.

    Args:
        lines: of the list.
        where: its name, for errors.
    Raises: DataError for a line that is no expression, for a source phrase that comes twice, or if
        there are no expressions.
    """
    expressions: list[Expression] = []
    numbers: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        place = f"{where}, line {number}"
        expression = _expression(line.rstrip("\r\n").split("\t"), match_case, place)
        source = expression.source.text
        first = numbers.setdefault(tuple(words(source, match_case)), number)
        if first != number:
            hint = "put all its target phrases on one line"
            raise DataError(f"'{source}' is in line {first} already", where=place, hint=hint)
        expressions.append(expression)
    if not expressions:
        raise DataError("no expressions", where=where, hint=f"one a line: {FORM}")
    return expressions


def _expression(cells: Sequence[str], match_case: bool, place: str) -> Expression:
    """Return the expression of a line.

    Raises: DataError if it is none.
    """
    if len(cells) not in (2, 3):
        hint = f"expected: {FORM} (and, if wanted, a tab and a name)"
        raise DataError(f"not an expression: {len(cells)} columns", where=place, hint=hint)
    accepted = re.split(r"(?<=\s)\|(?=\s)", f" {cells[1]} ")
    try:
        source, *targets = (phrase(text, match_case) for text in [cells[0], *accepted])
    except ValueError as error:
        hint = "words, '...' between words for a gap, a final '$' for a clause's end"
        raise DataError(f"not an expression: {error}", where=place, hint=hint) from None
    name = "".join(cells[2:]).strip() or source.text
    return Expression(name, source, tuple(targets))
