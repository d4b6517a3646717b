"""Multi-word expressions, their accepted translations, and the search for their phrases in a text.

A list is a text file with lines `source phrase TAB accepted target phrases [TAB name]`. "|"
separates the target phrases. In a phrase, `...` is a gap of any number of words inside the
sentence, and `...4` is a gap of at most four words. A final `$` is the end of a clause: a
punctuation mark or the end of the line. Lines with the same name are counted together. Blank lines
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

from nmtkit.errors import DataError, counted
from nmtkit.text.scripts import UNSPACED_LETTERS
from nmtkit.text.tokenizer import characters

GAP = re.compile(r"\.\.\.(\d*)|…")
END = "$"
FORM = "source phrase, tab, accepted target phrases separated by '|'"
# In scripts without spaces each character is a word.
_ALONE = re.compile(f"[{UNSPACED_LETTERS}]")
# A full stop after one or two digits belongs to a date; a full stop before digits to a number.
_STOP = r"(?! (?:(?<! \d )(?<! \d\d )\.(?! \d)|[!?;…。！？；]) )"  # noqa: RUF001


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    """Return a character's kind: "word" (part of a word), "space", or "" (a word by itself)."""
    if _ALONE.match(character):
        return ""
    if character.isspace():
        return "space"
    return "word" if character == "_" or unicodedata.category(character)[0] in "LMN" else ""


def words(line: str, match_case: bool) -> list[str]:
    """Return the words of a line: runs of letters and digits, and every other character, with its
    combining marks, as a word of its own.

    Args:
        match_case: keep the case; False folds the case.
    """
    line = unicodedata.normalize("NFC", line).replace("’", "'")  # noqa: RUF001
    tokens = []
    for kind, run in groupby(line if match_case else line.casefold(), _kind):
        if kind == "word":
            tokens.append("".join(run))
        elif kind != "space":
            tokens += characters("".join(run))
    return tokens


def spaced(line: str, match_case: bool) -> str:
    """Return a line in the form that `Phrase.find` searches: a space around each word."""
    return f" {' '.join(words(line, match_case))} "


@dataclass(frozen=True)
class Match:
    """One occurrence of a phrase in a text: (start, end) of each part between gaps."""

    parts: tuple[tuple[int, int], ...]

    @property
    def in_one_piece(self) -> bool:
        """True if no word lies between the parts."""
        return all(before[1] == after[0] for before, after in pairwise(self.parts))

    @property
    def length(self) -> int:
        """Number of characters from the first word to the last."""
        return self.parts[-1][1] - self.parts[0][0]

    def overlaps(self, matches: Iterable[Match]) -> bool:
        """Return True if this match shares a word with any of `matches`."""
        taken = [part for match in matches for part in match.parts]
        return any(a < d and c < b for c, d in taken for a, b in self.parts)


@dataclass(frozen=True)
class Phrase:
    """A phrase, compiled for the search.

    Attributes:
        length: number of words, without gaps.
        first: the first word.
        pattern: matches text in the form of `spaced`; a group for each part.
    """

    text: str
    length: int
    first: str
    pattern: re.Pattern[str]

    def find(self, text: str) -> list[Match]:
        """Return the matches in a text in the form of `spaced`; gaps are as short as possible."""
        groups = range(1, self.pattern.groups + 1)
        return [Match(tuple(map(match.span, groups))) for match in self.pattern.finditer(text)]


def phrase(text: str, match_case: bool) -> Phrase:
    """Compile a phrase of a list.

    Raises: ValueError if it has no words, begins or ends with a gap, or has `$` inside.
    """
    tokens = text.split()
    ends = tokens[-1:] == [END]
    if END in tokens[:-1]:
        raise ValueError(f"'{END}' belongs at the end of a phrase: '{text.strip()}'")
    parts: list[list[str]] = [[]]
    gaps: list[str] = []  # the maximum words of each gap, "" for no limit
    for token in tokens[: len(tokens) - ends]:
        if gap := GAP.fullmatch(token):
            gaps.append(gap[1] or "")
            parts.append([])
        else:
            parts[-1] += words(token, match_case)
    if parts == [[]]:
        raise ValueError("a phrase without words")
    if not all(parts):
        raise ValueError(f"a gap belongs between words: '{text.strip()}'")
    literal = [re.escape(" " + " ".join(part)) for part in parts]
    pattern = f"({literal[0]})(?= )"
    for before, longest, after in zip(literal, gaps, literal[1:], strict=False):
        # The part before a gap does not recur inside the gap: its nearest occurrence counts.
        pattern += rf"(?:(?!{before} ){_STOP} [^ ]+){{0,{longest}}}?({after})(?= )"
    pattern += r"(?= [^\w ]| $)" if ends else ""
    return Phrase(text.strip(), sum(map(len, parts)), parts[0][0], re.compile(pattern))


@dataclass(frozen=True)
class Expression:
    """A source phrase, its accepted translations, and the name under which both are counted."""

    name: str
    source: Phrase
    targets: tuple[Phrase, ...]


def occurrences(expressions: Sequence[Expression], text: str) -> dict[int, int]:
    """Return the count of each expression in a source line: index in `expressions` -> count.

    A word counts for one expression only. The expression with more words wins, then the one with
    fewer gaps, then the earlier one. So "look up" does not count as "look".
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
    expressions: Sequence[Expression], wanted: Mapping[int, int], text: str
) -> dict[int, list[Match]]:
    """Return the accepted translations in a target line: index in `expressions` -> matches.

    A word counts for one translation only. If two matches share a word, the shorter match counts.
    So in "sie geben und er gibt auf", "auf" belongs to "gibt", not to "geben".

    Args:
        wanted: index in `expressions` -> maximum number of translations to find.
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
        lines: the lines of the list.
        where: the name of the list, for errors.
    Raises: DataError if a line is not an expression, if a source phrase occurs twice, or if the
        list has no expressions.
    """
    expressions: list[Expression] = []
    numbers: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        place = f"{where}, line {number}"
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) not in (2, 3):
            hint = f"expected: {FORM} (optionally, another tab and a name)"
            raise DataError(
                f"not an expression: {counted(len(cells), 'column')}", where=place, hint=hint
            )
        texts = [cells[0], *cells[1].split("|")]
        try:
            source, *targets = (phrase(text, match_case) for text in texts)
        except ValueError as error:
            hint = "write words, '...' between words for a gap, a final '$' for a clause's end"
            raise DataError(f"not an expression: {error}", where=place, hint=hint) from None
        first = numbers.setdefault(tuple(words(source.text, match_case)), number)
        if first != number:
            message = f"'{source.text}' is already in line {first}"
            hint = "put all its target phrases on one line"
            raise DataError(message, where=place, hint=hint)
        name = "".join(cells[2:]).strip() or source.text
        expressions.append(Expression(name, source, tuple(targets)))
    if not expressions:
        raise DataError("no expressions", where=where, hint=f"one per line: {FORM}")
    return expressions
