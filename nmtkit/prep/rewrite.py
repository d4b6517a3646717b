"""Rewrite sets of a corpus as plain text: TSV files, files with document separators, and training
text of which only the first pairs are wanted.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nmtkit import console, files
from nmtkit.corpora.corpus import Corpus, SetFiles
from nmtkit.corpora.document_starts import read_starts, separate
from nmtkit.corpora.parallel_text import split_columns
from nmtkit.errors import counted
from nmtkit.prep.check import Inputs


def rewritten(corpus: Corpus, inputs: Inputs, folder: Path) -> Corpus:
    """Return a corpus of plain text, one sentence a line.

    Args:
        corpus: a corpus whose files are checked.
        inputs: checks the files that are written.
        folder: of these files.
    """

    def checked(text: SetFiles, before: SetFiles) -> SetFiles:
        text = replace(text, original=before.original or before)
        inputs.check([text])
        return text

    sets = []
    for text in corpus.sets:
        if text.columns:
            text = checked(split_columns(text, folder / "columns"), text)
        if text.between:
            languages = corpus.src, corpus.tgt
            text = checked(separate(text, languages, folder / "separated"), text)
        if text.first is not None:
            text = checked(_first_pairs(text, text.first, inputs, folder / "first"), text)
        sets.append(text)
    return replace(corpus, sets=sets)


def _first_pairs(text: SetFiles, pairs: int, inputs: Inputs, folder: Path) -> SetFiles:
    """Write the first pairs of a set, and the rest of the document that contains the last of them.

    The parses have a line for each line of the set, or for only the lines taken.

    Returns: the set of the files written; the set itself if it has no more pairs.
    """
    total = inputs.lines(text.src)
    starts = read_starts(text.docs, total) if text.docs else []
    documents = bisect_left(starts, pairs)
    taken = [*starts, total][documents] if text.docs else min(pairs, total)
    whole = f" ({counted(documents, 'document')})" if text.docs else ""
    if taken == total:
        few = f", fewer than the {pairs:,} asked for" if total < pairs else ""
        console.say(f"training text: all {counted(total, 'pair')}{whole}{few}")
        return replace(text, first=None)
    console.say(f"training text: the first {taken:,} of {counted(total, 'pair')}{whole}")
    folder.mkdir(parents=True, exist_ok=True)
    sides = {
        side: (_first_lines(paths, taken, folder / f"{text.name}.{side}"),)
        for side, paths in text.sides.items()
    }
    docs, parses = text.docs, text.parses
    if docs is not None:
        docs = folder / f"{text.name}.docs"
        files.write_lines(docs, list(map(str, starts[:documents])))
    if parses is not None and inputs.lines([parses]) == total:
        parses = _first_lines([parses], taken, folder / f"{text.name}.parses")
    return SetFiles(text.name, text.split, sides, docs, parses)


def _first_lines(paths: Sequence[Path], count: int, path: Path) -> Path:
    """Write the first lines of several files into one file, and return its path."""
    lines = itertools.chain.from_iterable(map(files.line_blocks, paths))
    with open(path, "wb") as out:
        out.writelines(itertools.islice(itertools.chain.from_iterable(lines), count))
    return path
