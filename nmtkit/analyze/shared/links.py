"""Word alignments: reading gold and hypothesised ones, and the alignment error rate."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError

Link = tuple[int, int]
"""Source word and target word, from 0."""
_LINK = re.compile(r"(\d+)([-p])(\d+)")
SEPARATOR = "|||"


@dataclass(frozen=True)
class Gold:
    """The links of one sentence pair that annotators are sure of, and those that are possible
    (the sure ones too).
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


@dataclass(frozen=True)
class Rates:
    """Agreement with gold links over a whole set; None where nothing is to be counted."""

    links: int
    precision: float | None
    recall: float | None
    error: float | None


def read_gold(path: Path) -> list[Gold]:
    """Gold alignments, a sentence pair a line: i-j for a sure link, ipj for a possible one, words
    counted from 1.

    Raises: DataError for a line in another form, or a word 0.
    """
    found = []
    for number, line in enumerate(_parsed(path), 1):
        if any(0 in (i, j) for i, _, j in line):
            raise DataError(
                "a link of word 0, but gold links count from 1", where=f"{path}, line {number}"
            )
        links = {
            (i - 1, j - 1): kind
            for i, kind, j in sorted(line, key=lambda link: link[1], reverse=True)
        }  # p first, so that - stays
        found.append(
            Gold(frozenset(link for link, kind in links.items() if kind == "-"), frozenset(links))
        )
    return found


def read_links(path: Path) -> list[frozenset[Link]]:
    """Hypothesised alignments, a sentence pair a line, i-j or ipj; words count from 0 if a 0 occurs
    anywhere in the file, else from 1.

    Raises: DataError for a line in another form.
    """
    lines = _parsed(path)
    first = 0 if any(0 in (i, j) for line in lines for i, _, j in line) else 1
    return [frozenset((i - first, j - first) for i, _, j in line) for line in lines]


def _parsed(path: Path) -> list[list[tuple[int, str, int]]]:
    lines = []
    for number, line in enumerate(files.text_lines(path), 1):
        matches = [(link, _LINK.fullmatch(link)) for link in line.split()]
        if odd := [link for link, match in matches if match is None]:
            raise DataError(
                f"not a link: '{odd[0][:40]}'",
                where=f"{path}, line {number}",
                hint="i-j, or ipj for a possible one",
            )
        lines.append([(int(match[1]), match[2], int(match[3])) for _, match in matches if match])
    return lines


def read_pairs(path: Path) -> list[tuple[list[str], list[str]]]:
    """Tokenized sentence pairs, "source ||| target" a line, as words.

    Raises: DataError for a line without exactly one separator.
    """
    pairs = []
    for number, line in enumerate(files.text_lines(path), 1):
        parts = line.split(SEPARATOR)
        if len(parts) != 2:
            raise DataError(
                "not a sentence pair",
                where=f"{path}, line {number}",
                hint=f"source {SEPARATOR} target, words separated by spaces",
            )
        pairs.append((parts[0].split(), parts[1].split()))
    return pairs


def check(
    gold: Sequence[Gold], pairs: Sequence[tuple[list[str], list[str]]], where: object
) -> None:
    """Refuse gold links that do not belong to these sentences.

    Raises: DataError naming the first line that is odd.
    """
    if len(gold) != len(pairs):
        raise DataError(
            f"{len(gold):,} lines of links for {len(pairs):,} sentence pairs", where=where
        )
    for number, (own, (src, tgt)) in enumerate(zip(gold, pairs, strict=True), 1):
        for i, j in sorted(own.possible):
            if i >= len(src) or j >= len(tgt):
                what = f"a link {i + 1}-{j + 1} where there are {len(src)} and {len(tgt)} words"
                raise DataError(
                    what,
                    where=f"{where}, line {number}",
                    hint="do source and target stand in the order of the links?",
                )


def rates(found: Sequence[Set[Link]], gold: Sequence[Gold]) -> Rates:
    """Precision |A∩P|/|A|, recall |A∩S|/|S| and alignment error rate 1 - (|A∩S| + |A∩P|)/(|A| +
    |S|), counted over the whole set.

    Args:
        found: A of each sentence pair.
        gold: S and P, in the same order.
    Source: Och & Ney 2003, A systematic comparison of various statistical alignment models, section
        5.
    """
    links, sure = sum(map(len, found)), sum(len(own.sure) for own in gold)
    in_sure = sum(len(a & own.sure) for a, own in zip(found, gold, strict=True))
    in_possible = sum(len(a & own.possible) for a, own in zip(found, gold, strict=True))
    return Rates(
        links,
        in_possible / links if links else None,
        in_sure / sure if sure else None,
        1 - (in_sure + in_possible) / (links + sure) if links + sure else None,
    )
