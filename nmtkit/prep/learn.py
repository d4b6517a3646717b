"""Truecaser, subwords and vocabularies from counts of words alone. A file of them that is in the
folder already is read, not learnt.

The truecased form of a word depends on the word and on whether it starts a sentence, its subwords
depend on that form; so no step reads the text again.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Ints
from nmtkit.parallel import ordered_map
from nmtkit.prep.clean import truecased
from nmtkit.prep.numbering import SideWords, number_words
from nmtkit.prep.word_table import WordTable
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.segmented import Segmented
from nmtkit.text.sentencepiece import SentencePiece, learn_sentencepiece
from nmtkit.text.side import load_splitter
from nmtkit.text.splitter import Splitter
from nmtkit.text.tidy import JOINER
from nmtkit.text.tokenizer import SIDES, Side
from nmtkit.text.truecase import Truecaser, learn_truecaser
from nmtkit.text.vocabulary import Vocabulary, by_frequency, read_counts

WORDS_PER_CHUNK = 2000


@dataclass
class Models:
    """What is learnt of the words of source and target."""

    words: list[SideWords]
    segmented: list[Segmented]
    vocabularies: tuple[Vocabulary, Vocabulary]
    counts: dict[str, int]
    """Types and merges, as the manifest has them."""


def learn(
    tables: Sequence[WordTable],
    languages: tuple[str, str],
    settings: PrepSettings,
    folder: Path,
    jobs: int,
) -> Models:
    """Learn truecasers, subwords and vocabularies.

    Writes truecase.LANGUAGE, codes.bpe (codes.SIDE.bpe) and bpe-vocab.SIDE.txt or subwords.spm
    (subwords.SIDE.spm), and vocab.txt (vocab.SIDE.txt). Each of these files that exists is used as
    it is.

    Args:
        tables, languages: the words to learn from and the language of source and target.
        settings: of prep.
        folder: where the files go.
        jobs: worker processes.
    """
    truecasers = [
        _truecaser(table, folder / f"truecase.{language}")
        if truecased(settings, side, language)
        else None
        for table, side, language in zip(tables, SIDES, languages, strict=True)
    ]
    words = number_words(tables, truecasers, settings.joint_vocab)
    numbers = {
        f"{name}_types": int(np.count_nonzero(side.counts))
        for name, side in zip(SIDES, words, strict=True)
    }
    learnt: dict[str, int] = {}
    if settings.subwords == "sentencepiece":
        segmented, learnt = _sentencepiece(words, settings, folder, jobs)
    elif settings.subwords == "bpe" and settings.merges:
        segmented, learnt = _bpe(words, settings, folder, jobs)
    else:
        segmented = [Segmented.whole(side.words) for side in words]
    numbers |= learnt
    tokens = [pieces.counts(side.counts) for pieces, side in zip(segmented, words, strict=True)]
    if settings.subwords == "sentencepiece":
        tokens = [_known(count, folder, side) for count, side in zip(tokens, SIDES, strict=True)]
    return Models(words, segmented, write_vocabularies(tokens, settings, folder), numbers)


def file_names(languages: tuple[str, str], settings: PrepSettings) -> list[str]:
    """Return the names of the files that `learn` writes."""
    names = [
        f"truecase.{language}"
        for side, language in zip(SIDES, languages, strict=True)
        if truecased(settings, side, language)
    ]
    if settings.subwords == "sentencepiece":
        names += _names("subwords", "spm", settings)
    elif settings.subwords == "bpe" and settings.merges:
        names += _names("codes", "bpe", settings)
        names += [f"bpe-vocab.{side}.txt" for side in SIDES]
    return names + _names("vocab", "txt", settings)


def _truecaser(table: WordTable, path: Path) -> Truecaser:
    """Learn from the words that are evidence, in the order of their first appearance."""
    if path.exists():
        return Truecaser.load(path)
    some = np.flatnonzero(table.rows["evidence"])
    order = some[np.argsort(table.rows["first"][some])]
    words = table.words()
    counts = table.rows["evidence"][order].tolist()
    evidence = dict(zip(map(words.__getitem__, order.tolist()), counts, strict=True))
    return learn_truecaser(Counter(evidence), path)


def write_vocabularies(
    tokens: Sequence[Counter[str]], settings: PrepSettings, folder: Path
) -> tuple[Vocabulary, Vocabulary]:
    """Write the vocabularies that are not there, and return that of each side.

    Args:
        tokens: how often each subword occurs on each side.
        settings: of prep.
        folder: where the files go.
    """
    if settings.joint_vocab:
        tokens = [tokens[0] + tokens[1]]
    size = settings.vocab_size if settings.subwords == "none" and settings.vocab_size else None
    vocabularies = []
    for count, name in zip(tokens, _names("vocab", "txt", settings), strict=True):
        if not (folder / name).exists():
            Vocabulary.from_counts(count, settings.min_frequency, size).save(folder / name)
        vocabularies.append(Vocabulary.load(folder / name))
    return vocabularies[0], vocabularies[-1]


def _names(stem: str, suffix: str, settings: PrepSettings) -> list[str]:
    """Return the name of the file for both sides if they share it, else one for each."""
    if settings.joint_vocab:
        return [f"{stem}.{suffix}"]
    return [f"{stem}.{side}.{suffix}" for side in SIDES]


def _sentencepiece(
    words: Sequence[SideWords], settings: PrepSettings, folder: Path, jobs: int
) -> tuple[list[Segmented], dict[str, int]]:
    """Learn the models that are not there yet, and segment the words of both sides with them."""
    paths = [folder / "subwords.spm"]
    if not paths[0].exists():
        paths = [folder / name for name in _names("subwords", "spm", settings)]
    counts = _counts(words, settings)
    keys = ["pieces"] if settings.joint_vocab else [f"{side}_pieces" for side in SIDES]
    size = settings.vocab_size or settings.merges
    learnt = {}
    for key, side, count, path in zip(keys, words, counts, paths, strict=False):
        if not path.exists():
            numbered = dict(zip(side.words, count.tolist(), strict=True))
            learnt[key] = learn_sentencepiece(numbered, size, settings.sentencepiece, path)
    segmented = []
    for side, path in zip(words, paths * (len(SIDES) // len(paths)), strict=True):
        numbers = np.flatnonzero(side.counts).tolist()
        make = functools.partial(SentencePiece, path)
        segmented.append(Segmented.whole(side.words).changed(_split(side, numbers, make, jobs)))
    return segmented, learnt


def _known(counts: Counter[str], folder: Path, side: Side) -> Counter[str]:
    """Return the counts of a model's own pieces, without runs of unknown characters."""
    splitter = load_splitter(folder, side)
    assert isinstance(splitter, SentencePiece)
    return Counter({piece: counts[piece] for piece in splitter.pieces if counts[piece]})


def _bpe(
    words: Sequence[SideWords], settings: PrepSettings, folder: Path, jobs: int
) -> tuple[list[Segmented], dict[str, int]]:
    """Segment the words of both sides with merges, which are learnt if there are none."""
    codes = [folder / name for name in _names("codes", "bpe", settings)]
    by_file = []
    for side, counts, path in zip(words, _counts(words, settings), codes, strict=False):
        if path.exists():
            split = _split(side, range(len(side.words)), functools.partial(Bpe, path), jobs)
            pieces = replace(Segmented.whole(side.words).changed(split), merges=Bpe(path).merges)
        else:
            pieces = learn_bpe(side.words, counts, settings.merges, path)
            if pieces.merges < settings.merges:
                console.say(
                    f"BPE: learned {pieces.merges:,} of {settings.merges:,} merges; the corpus has"
                    " no more"
                )
        by_file.append(pieces)
    keys = ["merges"] if settings.joint_vocab else [f"{side}_merges" for side in SIDES]
    merges = {key: pieces.merges for key, pieces in zip(keys, by_file, strict=True)}
    shared = len(SIDES) // len(codes)  # 2 if the sides share one codes file
    sides = zip(SIDES, words, by_file * shared, codes * shared, strict=True)
    segmented = [
        _keep_frequent(pieces, side, path, folder / f"bpe-vocab.{name}.txt", settings, jobs)
        for name, side, pieces, path in sides
    ]
    return segmented, merges


def _counts(words: Sequence[SideWords], settings: PrepSettings) -> list[Ints]:
    """Return how often the words occur, for each file of merges."""
    src, tgt = (side.counts for side in words)
    return [src + tgt] if settings.joint_vocab else [src, tgt]


def _keep_frequent(
    segmented: Segmented,
    side: SideWords,
    codes: Path,
    listed: Path,
    settings: PrepSettings,
    jobs: int,
) -> Segmented:
    """List the subwords of a side by frequency, and undo the merges to those too rare."""
    if listed.exists():
        tokens = read_counts(listed)
    else:
        tokens = segmented.counts(side.counts)
        files.write_lines(listed, [f"{token} {tokens[token]}" for token in by_frequency(tokens)])
    frequent = {token for token in tokens if tokens[token] >= settings.vocab_threshold}
    if not settings.vocab_threshold or not frequent:
        return segmented
    # The words that have a subword too rare on their side are segmented anew.
    joined = {number for number, word in enumerate(side.words) if word.endswith(JOINER)}
    numbers = [n for n in sorted({*segmented.without(frequent), *joined}) if side.counts[n]]
    return segmented.changed(_split(side, numbers, functools.partial(Bpe, codes, frequent), jobs))


def _split(
    side: SideWords, numbers: Sequence[int], make: Callable[[], Splitter], jobs: int
) -> dict[int, list[str]]:
    """Return the subwords of some words of a side, by the number of the word.

    Args:
        side: its words.
        numbers: of the words to split.
        make: makes the splitter in each worker process.
        jobs: worker processes.
    """
    chunks = [
        [side.words[number] for number in numbers[i : i + WORDS_PER_CHUNK]]
        for i in range(0, len(numbers), WORDS_PER_CHUNK)
    ]
    pieces = itertools.chain.from_iterable(
        ordered_map(functools.partial(_segmenter, make), chunks, jobs if len(chunks) > 2 else 1)
    )
    return dict(zip(numbers, pieces, strict=True))


def _segmenter(make: Callable[[], Splitter]) -> Callable[[list[str]], list[list[str]]]:
    splitter = make()
    return lambda words: [splitter.segment([word]) for word in words]
