"""Parses of the source of a set, by a parser or the user, and the spans that they give."""

from __future__ import annotations

import html
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Mask
from nmtkit.data.ragged import Ragged, ragged_files
from nmtkit.data.store import MAGIC, shard_path, spans_path, spans_writer
from nmtkit.errors import DataError, EnvironmentProblem, first_line, imported
from nmtkit.prep.encode import encoded_rows
from nmtkit.prep.shards import RUN_AGAIN, Shard
from nmtkit.prep.tasks import Outcome
from nmtkit.prep.trees import Unusable, parse_phrases
from nmtkit.prep.work import OUT
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy, utf8_lines

PARSERS = ("stanza",)
PARSED = "parsed"
"""The count of sentences cut by their parse; the other counts are by `Unusable`'s reasons."""
BLANK = "blank"
FEW = 0.05
"""The share of lines, blank ones left out, that may have no usable tree without a warning."""


class Cut(NamedTuple):
    """A sentence cut into phrases, as far as its parse allows."""

    line: int
    """From 1."""
    outcome: str
    """PARSED or the reason of `Unusable`."""
    phrases: list[int]
    """Subwords of each phrase; empty without a usable parse."""


def cut_sentences(side: TextSide, first: int, kept: Mask, texts: Sequence[bytes]) -> Iterator[Cut]:
    """Cut the sentences of a chunk that are kept by their parses.

    Args:
        side: the text of the source.
        first: number of the chunk's first row.
        kept: for each row, True if it is kept.
        texts: source and parses.
    """
    src, parses = (utf8_lines(text, Counter()) for text in texts)
    segment = side.splitter.segment
    for row in np.flatnonzero(kept).tolist():
        parse = parses[row] or ""
        words = side.tokens(src[row] or "") if parse.strip() else []
        try:
            phrases = parse_phrases(parse, words, [len(segment([word])) for word in words])
            yield Cut(first + row + 1, PARSED, phrases)
        except Unusable as reason:
            yield Cut(first + row + 1, str(reason), [])


def cut_spans(work: Path, index: int, shard: Shard, name: str, train: bool) -> Outcome:
    """Cut the sources of a shard by their parses, and write the spans beside the ids.

    Args:
        shard: source and parses.
        name: of the set, whose ids are written.
        train: True for the training text, of which some rows are dropped.
    Returns: for each outcome, how many sentences have it, and the first of their lines.
    Raises: DataError if the text is not that of the set.
    """
    out = work / OUT
    kept = encoded_rows(work, shard, train)
    side = TextSide.load(out, "src")
    array = shard_path(out / name, index)
    subwords = iter(np.diff(Ragged(array, MAGIC, fields=2).offsets)[::2].tolist())
    outcomes: Counter[str] = Counter()
    first: dict[str, int] = {}
    row = 0
    with spans_writer(out / name, index) as writer:
        for texts in shard.chunks():
            of_chunk = kept[row : row + texts[0].count(b"\n")]
            cuts = list(cut_sentences(side, shard.first + row, of_chunk, texts))
            row += len(of_chunk)
            for cut, size in zip(cuts, subwords, strict=False):
                if cut.phrases and sum(cut.phrases) != size:
                    raise DataError(
                        "the files changed while they were read: text and parses are not those of"
                        " the set",
                        name,
                        RUN_AGAIN,
                    )
                outcomes[cut.outcome] += 1
                first.setdefault(cut.outcome, cut.line)
            lengths = bytes(itertools.chain.from_iterable(cut.phrases for cut in cuts))
            writer.add_block(lengths, [len(cut.phrases) for cut in cuts])
    value = {outcome: [count, first[outcome]] for outcome, count in outcomes.items()}
    return {"outcomes": value}, [*ragged_files(spans_path(array))]


def sum_of_outcomes(shards: Sequence[dict[str, list[int]]]) -> dict[str, dict[str, int]]:
    """Return for the manifest how many sentences were cut by their parse and how many not by
    reason, most frequent first, and the first line of each reason.

    Args:
        shards: outcomes of all shards, in order.
    """
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    for outcomes in shards:
        for outcome, (count, line) in outcomes.items():
            counts[outcome] += count
            first.setdefault(outcome, line)
    unusable = sorted({*counts} - {PARSED}, key=lambda reason: (-counts[reason], reason))
    parses = {outcome: counts[outcome] for outcome in (PARSED, *unusable)}
    return {"parses": parses, "parses_first": {reason: first[reason] for reason in unusable}}


def check_parses(
    name: str, path: Path, parses: dict[str, int], parses_first: dict[str, int], strict: bool
) -> None:
    """Warn if many parses do not fit their sentences.

    Args:
        name: of the set.
        path: of the parses.
        parses, parses_first: from `write_spans`.
        strict: True to refuse parses of which none fits.
    Raises: DataError if strict and none fits: the phrases would be n-grams under another name.
    """
    reasons = ", ".join(
        f"{parses[reason]:,} {reason}, first line {line:,}" for reason, line in parses_first.items()
    )
    if strict and not parses[PARSED]:
        raise DataError(
            f"the parses of '{name}': none of them fits its sentence ({reasons})",
            where=path,
            hint="a line is a bracketed tree of the source's line, such as"
            " (S (NP (DT the) (NN fox)) (VP (VBD ran))), or blank",
        )
    with_parse = sum(parses.values()) - parses.get(BLANK, 0)
    if with_parse - parses[PARSED] > FEW * with_parse:
        console.warn(
            f"parses of {name}: many do not fit, and their sentences are cut into n-grams instead"
            f" ({reasons}): {path}"
        )


class Stanza:
    """Qi et al. 2020, *Stanza: a Python natural language processing toolkit for many human
    languages*, on tokenized sentences; nothing is downloaded.

    Args:
        language: code of the text.
    Attributes:
        tools: the parser and its version.
    Raises: EnvironmentProblem if it is not installed, or has no models here.
    """

    def __init__(self, language: str) -> None:
        where = "--parser stanza"
        stanza = imported("stanza", "parse", where)
        try:
            self._pipeline: Any = stanza.Pipeline(
                language,
                processors="tokenize,pos,constituency",
                tokenize_pretokenized=True,
                download_method=None,
                verbose=False,
            )
        except Exception as error:  # stanza's own classes for this differ from version to version
            raise EnvironmentProblem(
                f"stanza has no constituency parser for '{language}' here: {first_line(error)}",
                where,
                f"python -c \"import stanza; stanza.download('{language}')\" gets it, if there is"
                " one for this language",
            ) from error
        self.tools = {"stanza": str(stanza.__version__)}

    def __call__(self, sentences: list[list[str]]) -> list[str]:
        """Parse sentences of words into bracketed trees, one line each."""
        if not sentences:
            return []
        parsed = self._pipeline([[_plain(word) for word in words] for words in sentences]).sentences
        if len(parsed) != len(sentences):
            problem = f"stanza made {len(parsed)} sentences of {len(sentences)}"
            raise EnvironmentProblem(problem, where="--parser stanza")
        return [_bracketed(sentence.constituency) for sentence in parsed]


def _plain(word: str) -> str:
    """Return a word as parsers know it, Moses' escapes undone."""
    return "-" if word == "@-@" else html.unescape(word)


def _bracketed(tree: Any) -> str:
    if not tree.children:
        return "".join(tree.label.replace("(", "-LRB-").replace(")", "-RRB-").split())
    return f"({tree.label} {' '.join(map(_bracketed, tree.children))})"


def parse_text(
    parser: Stanza,
    side: TextSide,
    source: Shard,
    kept: Mask,
    path: Path,
) -> None:
    """Parse the tokenized source of a set and write the trees, one a line.

    Args:
        parser: of the source language.
        side: tokenizes the source.
        source: all rows of the source.
        kept: for each line, True if it is in the set. An empty line, or one that is not in the set,
            gets a blank line.
        path: of the trees, a file for `--parses`.
    """
    rows = iter(kept.tolist())
    with files.writing(path) as out:
        for (text,) in source.chunks(max_rows=500):
            lines = [tidy(line or "") if next(rows) else "" for line in utf8_lines(text, Counter())]
            trees = iter(parser([side.tokenized(line).split(" ") for line in lines if line]))
            out.writelines((" ".join(next(trees).split()) if line else "") + "\n" for line in lines)
