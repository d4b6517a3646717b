"""The words of a prepared set: their subwords, and how often the training set has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Ints, Mask
from nmtkit.data.store import Store
from nmtkit.errors import DataError, counted
from nmtkit.run import Run
from nmtkit.text.side import TextSide
from nmtkit.text.tokenizer import Side
from nmtkit.text.vocabulary import UNK, load_vocabularies

ROWS = 1000
"""Training sentences that are counted between two updates of the progress bar."""
OUTSIDE = -1
"""The training count of a word with a subword outside the vocabulary: the count is unknown."""
TOP = 20
"""Number of most frequent word types that are shown, as in the paper."""
CLASSES = (
    (1000, "1,000 times or more"),
    (100, "100–999 times"),
    (10, "10–99 times"),
    (1, "1–9 times"),
    (0, "never"),
    (OUTSIDE, "outside the vocabulary"),
)
"""Frequency classes: (minimum training count, label)."""


@dataclass(frozen=True)
class Words:
    """The words of one side of a set: tokenized and truecased, but not split into subwords."""

    lines: list[list[str]]
    owners: list[Ints]
    """The word of each subword of a line, without </s>."""

    @cached_property
    def flat(self) -> list[str]:
        """All words (N)."""
        return [word for line in self.lines for word in line]

    @cached_property
    def sentences(self) -> Ints:
        """The line of each word (N), from 0."""
        return np.repeat(np.arange(len(self.lines)), [len(line) for line in self.lines])


def read_words(run: Run, store: Store, side: Side) -> Words:
    """Return the words of a set's sources, or of its first references.

    Raises: DataError naming the first line that has changed since it was prepared; ConfigError for
        a set whose text the run does not keep.
    """
    set_name = store.path.name
    run.check_text(set_name)
    text = TextSide.load(run.prep, side)
    path = run.source(set_name) if side == "src" else run.references(set_name)[0]
    lines = [text.tokens(line) for line in files.text_lines(path)]
    owners = [np.array(text.subwords(tokens)[1], dtype=np.int64) for tokens in lines]
    lengths = store.src_lengths if side == "src" else store.tgt_lengths
    counts = zip_longest(map(len, owners), (lengths - 1).tolist())
    for number, (subwords, prepared) in enumerate(counts, 1):
        if subwords != prepared:
            message = "this line has changed since it was prepared"
            hint = "prepare again: nmtkit prep … --force"
            raise DataError(message, where=f"{path}, line {number}", hint=hint)
    return Words(lines, owners)


def read_tags(path: Path, words: Words, side: Side) -> list[str]:
    """Return one tag for each word (N), from a file with a line of tags for each sentence.

    Raises: DataError naming the first line without exactly one tag per word.
    """
    lines = [line.split() for line in files.text_lines(path)]
    for number, (tags, tokens) in enumerate(zip_longest(lines, words.lines), 1):
        if tags is None or tokens is None:
            message = (
                f"{counted(len(lines), 'line')} of tags for {counted(len(words.lines), 'sentence')}"
            )
        elif len(tags) != len(tokens):
            message = f"{counted(len(tags), 'tag')} for {counted(len(tokens), 'word')}: "
            message += " ".join(tokens)[:60]
        else:
            continue
        hint = f"tag the words of tokens.{side}.txt, which this analysis writes beside its table"
        raise DataError(message, where=f"{path}, line {number}", hint=hint)
    return [tag for tags in lines for tag in tags]


def training_counts(run: Run, side: Side, words: Words, store: Store) -> Ints:
    """Return how often the training set has each word of a set (N); OUTSIDE if unknown.

    Args:
        words: the words of one side of the set; store: the set.
    """
    ids_of = Store.src if side == "src" else Store.tgt
    subwords = list(load_vocabularies(run.prep)[side == "tgt"])
    join = TextSide.load(run.prep, side).splitter.join
    training, counts, wanted = Store(run.prep / "train"), Counter[str](), set(words.flat)
    with console.progress(f"words of the training set ({side})", len(training)) as advance:
        for first in range(0, len(training), ROWS):
            rows = range(first, min(first + ROWS, len(training)))
            for row in rows:
                text = list(map(subwords.__getitem__, ids_of(training, row)[:-1].tolist()))
                counts.update(filter(wanted.__contains__, join(text)))
            advance(len(rows))
    unknown = [
        np.bincount(owners, ids_of(store, row)[:-1] == UNK) > 0
        for row, owners in enumerate(words.owners)
    ]
    return np.where(np.concatenate(unknown), OUTSIDE, [counts[word] for word in words.flat])


@dataclass(frozen=True)
class Group:
    """Words that are counted together: `members` (N) is True for them."""

    section: str
    label: str
    members: Mask


def groups(words: Words, counts: Ints, tags: Sequence[str] | None) -> list[Group]:
    """Return all words, the most frequent types, frequency classes, and parts of speech if tagged.

    Args:
        counts: (N) the count of each word in training.
        tags: (N) the tag of each word.
    """
    tokens = np.array(words.flat, dtype=object)
    result = [Group("all", "all", np.ones(len(tokens), dtype=bool))]
    types = Counter(words.flat).most_common(TOP)
    result += [Group("word", word, tokens == word) for word, _ in types]
    above = np.inf
    for least, label in CLASSES:
        result.append(Group("frequency", label, (counts >= least) & (counts < above)))
        above = least
    for tag, _ in Counter(tags or ()).most_common():
        result.append(Group("tag", tag, np.array(tags, dtype=object) == tag))
    return [group for group in result if group.members.any()]
