"""Parses of source sentences, from a parser or from the user, and the phrases that they give."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Mask
from nmtkit.data.ragged import map_ragged
from nmtkit.data.store import MAGIC, shard_path, write_spans
from nmtkit.errors import DataError, EnvironmentProblem, counted, first_line, imported
from nmtkit.prep.encode import encoded_rows
from nmtkit.prep.shards import RUN_AGAIN, Shard
from nmtkit.prep.tasks import Outcome
from nmtkit.prep.trees import Unusable, parse_phrases
from nmtkit.prep.work import OUT
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy

PARSERS = ("stanza",)
PARSED = "parsed"
"""The outcome of a sentence that its parse cuts; any other outcome is a reason of `Unusable`."""
BLANK = "blank"
FEW = 0.05
"""Prep warns if a larger share of the lines that are not blank have no usable tree."""


def _cut_sentence(side: TextSide, line: str, parse: str) -> tuple[str, list[int]]:
    """Cut a source line into phrases by its parse.

    Returns: PARSED and the subwords of each phrase, or the reason of `Unusable` and no phrases.
    """
    words = side.tokens(line) if parse.strip() else []
    try:
        sizes = [len(side.splitter.segment([word])) for word in words]
        return PARSED, parse_phrases(parse, words, sizes)
    except Unusable as reason:
        return str(reason), []


def cut_spans(work: Path, index: int, shard: Shard, name: str, train: bool) -> Outcome:
    """Cut the source lines of a shard into phrases by their parses, and write the phrases as spans
    beside the token ids.

    Args:
        shard: source and parses.
        name: of the set; its token ids are written already.
        train: True for the training text, of which some rows are dropped.
    Returns: for each outcome the number of sentences, and the first of their lines.
    Raises: DataError if a sentence has another number of subwords than its token ids.
    """
    out = work / OUT
    kept = encoded_rows(work, shard, train)
    side = TextSide.load(out, "src")
    ids = map_ragged(shard_path(out / name, index), MAGIC, fields=2)
    subwords = iter(np.diff(ids.offsets)[::2].tolist())
    rows = (row for texts in shard.chunks() for row in zip(*map(_lines, texts), strict=True))
    outcomes: dict[str, list[int]] = {}
    cuts = []
    numbered = enumerate(zip(kept.tolist(), rows, strict=True), shard.first + 1)
    for number, (is_kept, row) in numbered:
        if not is_kept:
            continue
        outcome, phrases = _cut_sentence(side, *row)
        if sum(phrases) not in (0, next(subwords, -1)):
            problem = "the files changed while they were read: lines do not match their token ids"
            raise DataError(problem, name, RUN_AGAIN)
        cuts.append(phrases)
        outcomes.setdefault(outcome, [0, number])[0] += 1
    return {"outcomes": outcomes}, write_spans(out / name, index, cuts)


def sum_of_outcomes(shards: Sequence[dict[str, list[int]]]) -> dict[str, dict[str, int]]:
    """Add up the outcomes of all shards, given in order, for the manifest.

    Returns: the number of sentences by outcome (PARSED first, then the most frequent reason), and
        the first line of each reason.
    """
    total = {PARSED: [0, 0]}
    for outcomes in shards:
        for outcome, (count, line) in outcomes.items():
            total.setdefault(outcome, [0, line])[0] += count
    unusable = sorted(total.keys() - {PARSED}, key=lambda reason: (-total[reason][0], reason))
    parses = {outcome: total[outcome][0] for outcome in (PARSED, *unusable)}
    return {"parses": parses, "parses_first": {reason: total[reason][1] for reason in unusable}}


def check_parses(
    name: str, path: Path, parses: dict[str, int], parses_first: dict[str, int], strict: bool
) -> None:
    """Warn if many parses do not fit their sentences.

    Args:
        name: of the set.
        path: of the parses.
        parses, parses_first: from `sum_of_outcomes`.
        strict: True to refuse parses if none fits: all phrases would be n-grams.
    Raises: DataError if strict and none fits.
    """
    reasons = ", ".join(
        f"{parses[reason]:,} {reason}, first line {line:,}" for reason, line in parses_first.items()
    )
    if strict and not parses[PARSED]:
        raise DataError(
            f"no parse of '{name}' fits its sentence ({reasons})",
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
    """Stanza's constituency parser for tokenized sentences; it downloads nothing.

    Args:
        language: code of the text.
    Attributes:
        tools: the parser and its version.
    Raises: EnvironmentProblem if stanza is not installed, or lacks models for the language.
    Source: Qi et al. 2020, *Stanza: a Python natural language processing toolkit for many human
        languages*.
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
        plain = [[_plain(word) for word in words] for words in sentences]
        parsed = self._pipeline(plain).sentences
        if len(parsed) != len(plain):
            problem = f"stanza made {counted(len(parsed), 'sentence')} of {len(plain)}"
            raise EnvironmentProblem(problem, where="--parser stanza")
        return [_bracketed(sentence.constituency) for sentence in parsed]


def _lines(text: bytes) -> list[str]:
    """Return the lines of a text, each of which ends with an LF."""
    return text.decode(errors="replace").split("\n")[:-1]


def _plain(word: str) -> str:
    """Return a word without Moses' escapes, as parsers expect it."""
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
    """Parse the tokenized source of a set and write one tree a line, as `--parses` reads them.

    Args:
        parser: of the source language.
        side: tokenizes the source.
        source: all rows of the source.
        kept: True for each line that is in the set. Other lines and empty lines get a blank line.
        path: the file of the trees.
    """
    rows = iter(kept.tolist())
    with files.writing(path) as out:
        for (text,) in source.chunks(max_rows=500):
            lines = [tidy(line) if next(rows) else "" for line in _lines(text)]
            trees = iter(parser([side.tokenized(line).split(" ") for line in lines if line]))
            out.writelines((" ".join(next(trees).split()) if line else "") + "\n" for line in lines)
