"""Parses of the source of a set, by a parser or the user, and the spans that they give."""

from __future__ import annotations

import functools
import html
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.data.store import Store, spans_writer
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.parallel import ordered_map
from nmtkit.prep.clean import row_chunks
from nmtkit.prep.trees import Unusable, parse_phrases
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy, utf8_lines

PARSERS = ("stanza",)
PARSED = "parsed"
"""The count of sentences cut by their parse; the other counts are by `Unusable`'s reasons."""
BLANK = "blank"
FEW = 0.05
"""The share of lines, blank ones left out, that may have no usable tree without a warning."""
Chunk = tuple[int, NDArray[np.bool_], Sequence[bytes]]
"""The number of its first row, the rows that are kept, and the texts of source and parses."""


class Cut(NamedTuple):
    """A sentence cut into phrases, as far as its parse allows."""

    line: int
    """From 1."""
    outcome: str
    """PARSED or the reason of `Unusable`."""
    phrases: list[int]
    """Subwords of each phrase; empty without a usable parse."""


class SpanCutter:
    """Cuts sentences by their parses.

    Args:
        side: the text of the source.
    """

    def __init__(self, side: TextSide) -> None:
        self._side = side

    def __call__(self, chunk: Chunk) -> list[Cut]:
        """Cut the sentences of a chunk that are kept."""
        start, kept, texts = chunk
        src, parses = (utf8_lines(text, Counter()) for text in texts)
        cuts: list[Cut] = []
        for row in np.flatnonzero(kept).tolist():
            try:
                phrases = self._phrases(src[row] or "", parses[row] or "")
                cuts.append(Cut(start + row + 1, PARSED, phrases))
            except Unusable as reason:
                cuts.append(Cut(start + row + 1, str(reason), []))
        return cuts

    def _phrases(self, line: str, parse: str) -> list[int]:
        words = self._side.tokens(line) if parse.strip() else []
        return parse_phrases(parse, words, self._sizes(words))

    def _sizes(self, words: list[str]) -> list[int]:
        """Return the number of subwords of each word."""
        segment = self._side.splitter.segment
        return [len(segment([word])) for word in words]


def write_spans(
    path: Path,
    streams: Sequence[Sequence[Path]],
    side: TextSide,
    kept: NDArray[np.bool_],
    jobs: int,
) -> dict[str, dict[str, int]]:
    """Write the spans of a set beside its ids, shard by shard.

    Args:
        path: of the set, whose ids are written.
        streams: the files of its source, and of its parses.
        side: the text of the source.
        kept: for each line of the files, True if it is in the set.
        jobs: worker processes; the output does not depend on it.
    Returns: for the manifest, how many sentences were cut by their parse and how many not by
        reason, most frequent first, and the first line of each reason.
    Raises: DataError if the text is not that of the set.
    """
    store = Store(path)
    outcomes: Counter[str] = Counter()
    first: dict[str, int] = {}
    chunks = _placed(row_chunks(streams), kept, path.name)
    mapped = ordered_map(functools.partial(SpanCutter, side), chunks, jobs)
    cuts = itertools.chain.from_iterable(mapped)
    last = len(store.shard_sizes) - 1
    with console.progress(f"parses of {path.name}", len(store)) as advance:
        for shard in range(last + 1):
            with spans_writer(path, shard) as writer:
                # The lengths first: zip must not take a cut for which there is no length.
                for size, cut in zip(store.shard_lengths(shard)[0].tolist(), cuts, strict=False):
                    if cut.phrases and sum(cut.phrases) != size:
                        raise _changed(path.name)
                    outcomes[cut.outcome] += 1
                    first.setdefault(cut.outcome, cut.line)
                    writer.add_block(bytes(cut.phrases), [len(cut.phrases)])
                    advance(1)
                all_cut = sum(outcomes.values()) == len(store)
                if shard == last and not (all_cut and next(cuts, None) is None):
                    raise _changed(path.name)
    unusable = sorted({*outcomes} - {PARSED}, key=lambda reason: (-outcomes[reason], reason))
    counts = {outcome: outcomes[outcome] for outcome in (PARSED, *unusable)}
    return {"parses": counts, "parses_first": {reason: first[reason] for reason in unusable}}


def _placed(
    chunks: Iterable[Sequence[bytes]], kept: NDArray[np.bool_], name: str
) -> Iterator[Chunk]:
    start = 0
    for texts in chunks:
        end = start + texts[0].count(b"\n")
        yield start, kept[start:end], texts
        start = end
    if start != len(kept):
        raise _changed(name)


def _changed(name: str) -> DataError:
    problem = "the files changed while they were read: text and parses are not those of the set"
    return DataError(problem, where=name)


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
        example = "(S (NP (DT the) (NN fox)) (VP (VBD ran)))"
        raise DataError(
            f"the parses of '{name}': none of them fits its sentence ({reasons})",
            where=path,
            hint=f"a line is a bracketed tree of the source's line, such as {example}, or blank",
        )
    with_parse = sum(parses.values()) - parses.get(BLANK, 0)
    if with_parse - parses[PARSED] > FEW * with_parse:
        many = "many do not fit, and their sentences are cut into n-grams instead"
        console.warn(f"parses of {name}: {many} ({reasons}): {path}")


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
        try:
            import stanza
        except ImportError as error:
            hint = "in nmtkit's checkout: pip install -e '.[parse]'"
            raise EnvironmentProblem(f"stanza is not installed: {error}", where, hint) from error
        try:
            self._pipeline: Any = stanza.Pipeline(
                language,
                processors="tokenize,pos,constituency",
                tokenize_pretokenized=True,
                download_method=None,
                verbose=False,
            )
        except Exception as error:  # stanza's own classes for this differ from version to version
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            problem = f"stanza has no constituency parser for '{language}' here: {reason}"
            get = f"python -c \"import stanza; stanza.download('{language}')\" gets it"
            hint = f"{get}, if there is one for this language"
            raise EnvironmentProblem(problem, where, hint) from error
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
    source: Sequence[Path],
    kept: NDArray[np.bool_],
    path: Path,
) -> None:
    """Parse the tokenized source of a set and write the trees, one a line.

    Args:
        parser: of the source language.
        side: tokenizes the source.
        source: the files of the source.
        kept: for each line, True if it is in the set. An empty line, or one that is not in the set,
            gets a blank line.
        path: of the trees, a file for `--parses`.
    """
    rows = iter(kept.tolist())
    with files.writing(path) as out:
        for (text,) in row_chunks([source], max_rows=500):
            lines = [tidy(line or "") if next(rows) else "" for line in utf8_lines(text, Counter())]
            trees = iter(parser([side.tokenized(line).split(" ") for line in lines if line]))
            out.writelines((" ".join(next(trees).split()) if line else "") + "\n" for line in lines)
