"""Only the first pairs of a training text, in whole documents."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

from nmtkit import console, files
from nmtkit.corpora.corpus import Corpus, SetFiles
from nmtkit.corpora.document_starts import read_starts
from nmtkit.prep import check


def with_first(corpus: Corpus, pairs: int | None) -> Corpus:
    """The corpus of whose training text only the first pairs are wanted (None: all)."""
    return replace(corpus, sets=[replace(corpus.sets[0], first=pairs), *corpus.sets[1:]])


def first_pairs(one: SetFiles, facts: dict[str, check.Facts], folder: Path) -> SetFiles:
    """Write the first pairs of a set, `one.first` of them and the rest of the document that the
    last one is in, and say how many they are.

    Args:
        one: a set whose files are checked; its parses have a line for each of its lines, or for
            those taken only.
        facts: of its files.
        folder: where the files go: NAME.src, NAME.ref, … and NAME.docs, NAME.parses.
    Returns: the set that was written; the same one if it has no more.
    """
    assert one.first is not None
    total = check.total(one.src, facts)
    starts = read_starts(one.docs, total) if one.docs else []
    documents = bisect_left(starts, one.first)
    taken = [*starts, total][documents] if one.docs else min(one.first, total)
    found = f" ({documents:,} document{'s' * (documents != 1)})" if one.docs else ""
    if taken == total:
        few = f", fewer than the {one.first:,} asked for" if total < one.first else ""
        console.say(f"training text: all {total:,} pairs{found}{few}")
        return replace(one, first=None)
    console.say(f"training text: the first {taken:,} of {total:,} pairs{found}")
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, paths: tuple[Path, ...]) -> Path:
        lines = itertools.chain.from_iterable(
            block for path in paths for block in files.line_blocks(path)
        )
        with open(folder / f"{one.name}.{name}", "wb") as out:
            out.writelines(itertools.islice(lines, taken))
        return folder / f"{one.name}.{name}"

    src, tgt, *references = ((write(name, paths),) for name, paths in one.sides().items())
    docs, parses = one.docs, one.parses
    if docs is not None:
        docs = folder / f"{one.name}.docs"
        files.write_lines(docs, list(map(str, starts[:documents])))
    if parses is not None and check.total((parses,), facts) == total:
        parses = write("parses", (parses,))
    return SetFiles(one.name, one.split, src, tgt, tuple(references), docs, parses)
