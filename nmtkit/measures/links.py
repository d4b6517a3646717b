"""Word alignments: gold links in files, links from attention, and the error rate of links."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from nmtkit import files
from nmtkit.arrays import Array
from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.score.resampling import Draws, ratios
from nmtkit.tables.table import Estimate
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import Vocabulary, load_vocabularies

Link = tuple[int, int]
"""Source word and target word, from 0."""
_LINK = re.compile(r"(0*[1-9]\d*)([-p])(0*[1-9]\d*)")
SEPARATOR = "|||"


@dataclass(frozen=True)
class Gold:
    """The gold links of one sentence pair. The possible links include the sure links."""

    sure: frozenset[Link]
    possible: frozenset[Link]


@dataclass(frozen=True)
class GoldSet:
    """Sentence pairs with gold links, as a model reads them.

    Attributes:
        src_words, tgt_words: the word of each subword of each sentence, </s> left out.
    """

    name: str
    gold: list[Gold]
    pairs: GivenPairs
    src_words: list[list[int]]
    tgt_words: list[list[int]]


class Rates(NamedTuple):
    """Agreement with gold links over a whole set, in percent; empty if nothing is counted."""

    links: int
    precision: Estimate
    recall: Estimate
    error: Estimate


def read_gold_set(prep: Path, paths: str) -> GoldSet:
    """Read "LINKS,PAIRS" and split the words of the pairs into the subwords of a prepared corpus.

    Raises: ConfigError for another number of files; DataError for files that do not fit.
    """
    names = [Path(path) for path in paths.split(",")]
    if len(names) != 2:
        hint = f"--gold LINKS,PAIRS with source {SEPARATOR} target in PAIRS"
        raise ConfigError(f"expected two files, not {len(names)}", where="--gold", hint=hint)
    gold, pairs = read_gold(names[0]), read_pairs(names[1])
    check(gold, [(len(source), len(target)) for source, target in pairs], names[0])
    src_vocabulary, tgt_vocabulary = load_vocabularies(prep)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    src, src_words = as_subwords(TextSide.load(prep, "src"), src_vocabulary, sources)
    tgt, tgt_words = as_subwords(TextSide.load(prep, "tgt"), tgt_vocabulary, targets)
    return GoldSet(names[0].name, gold, GivenPairs(src, tgt), src_words, tgt_words)


def read_gold(path: Path) -> list[Gold]:
    """Read gold links, one line per sentence pair. i-j is a sure link, ipj is a possible link, and
    words are counted from 1.

    Raises: DataError for anything else.
    """
    gold = []
    for number, line in enumerate(files.text_lines(path), 1):
        of_line: dict[str, set[Link]] = {"-": set(), "p": set()}
        for link in line.split():
            match = _LINK.fullmatch(link)
            if match is None:
                raise DataError(
                    f"not a link of words that count from 1: '{link[:40]}'",
                    where=f"{path}, line {number}",
                    hint="i-j, or ipj for a possible one; add 1 to words that count from 0",
                )
            of_line[match[2]].add((int(match[1]) - 1, int(match[3]) - 1))
        sure = frozenset(of_line["-"])
        gold.append(Gold(sure, sure | of_line["p"]))
    return gold


def read_pairs(path: Path) -> list[tuple[list[str], list[str]]]:
    """Read the words of tokenized sentence pairs, one line "source ||| target" per pair.

    Raises: DataError for a line without exactly one separator.
    """
    pairs = []
    for number, line in enumerate(files.text_lines(path), 1):
        sides = line.split(SEPARATOR)
        if len(sides) != 2:
            hint = f"source {SEPARATOR} target, words separated by spaces"
            raise DataError("not a sentence pair", where=f"{path}, line {number}", hint=hint)
        pairs.append((sides[0].split(), sides[1].split()))
    return pairs


def check(gold: Sequence[Gold], sizes: Sequence[tuple[int, int]], where: object) -> None:
    """Raise DataError unless links fit sentence pairs.

    Args:
        sizes: number of source words and of target words of each sentence pair.
        where: the file of the links, for messages.
    """
    if not gold:
        raise DataError("no lines of links", where=where, hint="one line for each sentence pair")
    if len(gold) != len(sizes):
        message = (
            f"{counted(len(gold), 'line')} of links for {counted(len(sizes), 'sentence pair')}"
        )
        hint = "one line for each pair; an empty line for a pair without links"
        raise DataError(message, where=where, hint=hint)
    for number, (of_pair, (src, tgt)) in enumerate(zip(gold, sizes, strict=True), 1):
        for i, j in sorted(of_pair.possible):
            if i >= src or j >= tgt:
                raise DataError(
                    f"a link of words {i + 1} and {j + 1}, but the sentences have {src} and {tgt}"
                    " words",
                    where=f"{where}, line {number}",
                    hint="do source and target stand in the order of the links?",
                )


def as_subwords(
    side: TextSide, vocabulary: Vocabulary, sentences: Sequence[Sequence[str]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the subword ids of each sentence, </s> last, and the word of each subword.

    Each word is tokenized by itself, so that its subwords are known.
    """
    ids, words = [], []
    for sentence in sentences:
        tokenized = [side.tokenized(word).split() for word in sentence]
        tokens = [token for part in tokenized for token in part]
        word_of = [number for number, part in enumerate(tokenized) for _ in part]
        cased = side.truecaser.truecase(tokens) if side.truecaser else tokens
        subwords, token_of = side.subwords(cased)
        ids.append(vocabulary.encode(subwords))
        words.append([word_of[token] for token in token_of])
    return ids, words


def word_links(weights: Tensor, src: Sequence[int], tgt: Sequence[int]) -> frozenset[Link]:
    """Return a link from each target word to the source word with the most attention, summed over
    the subwords of both words, without </s>.

    Args:
        weights: (T, S) or larger, the attention of subwords.
        src, tgt: (S), (T) the word of each subword.
    """
    if not src or not tgt:
        return frozenset()
    src_words, src_starts = np.unique(src, return_index=True)
    tgt_words, tgt_starts = np.unique(tgt, return_index=True)
    columns = np.add.reduceat(weights[: len(tgt), : len(src)].numpy(), src_starts, axis=1)
    best = src_words[np.add.reduceat(columns, tgt_starts).argmax(1)]
    return frozenset(zip(best.tolist(), tgt_words.tolist(), strict=True))


def counts(links: Set[Link], gold: Gold) -> tuple[int, int, int, int]:
    """Return |A|, |S|, |A∩S| and |A∩P| for links A, sure gold links S and possible gold links P."""
    return len(links), len(gold.sure), len(links & gold.sure), len(links & gold.possible)


def rates(of_pairs: Array, draws: Draws) -> Rates:
    """Return precision |A∩P|/|A|, recall |A∩S|/|S| and alignment error rate 1 - (|A∩S| + |A∩P|) /
    (|A| + |S|) in percent, over the whole set, with intervals over the sentence pairs.

    Args:
        of_pairs: (N, 4) the `counts` of each sentence pair; zeros for a pair that was left out.
    Source: Och & Ney 2003, A systematic comparison of various statistical alignment models, section
        5.
    """
    a, s, in_s, in_p = of_pairs.T
    above, below = (in_p, in_s, a + s - in_s - in_p), (a, s, a + s)
    estimates = ratios(100.0 * np.stack(above, 1), np.stack(below, 1), draws)
    return Rates(int(a.sum()), *estimates)
