"""Learn truecasers, subwords and vocabularies from word counts. A model file that is in the folder
already is read instead of learnt.

The truecased form of a word depends only on the word and on whether it starts a sentence. The
subwords depend only on that form. So no step reads the text again.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Ints
from nmtkit.parallel import ordered_map
from nmtkit.prep.clean import truecased
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
from nmtkit.text.words import Words

WORDS_PER_CHUNK = 2000


PLACES = "elsewhere", "at_start"
"""Where a word stands, by the column of `SideWords.forms`."""


@dataclass
class SideWords:
    """The truecased words of a side."""

    words: Words
    """The words by number; of both sides if they share subwords."""
    counts: Ints
    """How often each word occurs on this side."""
    forms: Ints
    """For each row of the side's `WordTable` the numbers of its truecased forms, elsewhere and at
    the start of a sentence; -1 if it never occurs there (W, 2)."""


@dataclass
class Models:
    """What is learnt from the words of source and target."""

    words: list[SideWords]
    segmented: list[Segmented]
    vocabularies: tuple[Vocabulary, Vocabulary]
    counts: dict[str, int]
    """Numbers of types, and of merges or pieces, with the keys of the manifest."""


def learn(
    tables: Sequence[WordTable],
    languages: tuple[str, str],
    settings: PrepSettings,
    folder: Path,
    jobs: int,
) -> Models:
    """Learn truecasers, subwords and vocabularies, and write the files that `file_names` lists. A
    file that exists is used as it is.

    Args:
        tables: the words of source and target.
        languages: of source and target.
        settings: of prep.
        folder: of the files.
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
    if settings.subwords == "sentencepiece":
        segmented, learnt = _sentencepiece(words, settings, folder, jobs)
        numbers |= learnt
    elif not whole_words(settings):
        segmented, learnt = _bpe(words, settings, folder, jobs)
        numbers |= learnt
    else:
        segmented = [Segmented.whole(side.words) for side in words]
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
        names += model_names("subwords", "spm", settings.joint_vocab)
    elif not whole_words(settings):
        names += model_names("codes", "bpe", settings.joint_vocab)
        names += [f"bpe-vocab.{side}.txt" for side in SIDES]
    return names + model_names("vocab", "txt", settings.joint_vocab)


def whole_words(settings: PrepSettings) -> bool:
    """True if words are not split into subwords."""
    return settings.subwords == "none" or (settings.subwords == "bpe" and not settings.merges)


def number_words(
    tables: Sequence[WordTable], truecasers: Sequence[Truecaser | None], shared: bool
) -> list[SideWords]:
    """Truecase and number the words of both sides.

    Args:
        tables, truecasers: of each side.
        shared: True if the sides share one list of words.
    """
    src: dict[str, int] = {}
    numbers = [src, src if shared else {}]
    forms = list(map(_forms, tables, truecasers, numbers))
    src_words = Words.of([*src])
    words = [src_words, src_words if shared else Words.of([*numbers[1]])]
    sides = []
    for table, side_forms, side_words in zip(tables, forms, words, strict=True):
        counts = np.zeros(len(side_words), np.int64)
        for column, place in enumerate(PLACES):
            used = side_forms[:, column] >= 0
            np.add.at(counts, side_forms[used, column], table.rows[place][used])
        sides.append(SideWords(side_words, counts, side_forms))
    return sides


def _forms(table: WordTable, truecaser: Truecaser | None, numbers: dict[str, int]) -> Ints:
    """Return `SideWords.forms` of a table. Each new form gets the next of `numbers`."""
    words = table.words()
    forms = np.full((len(words), 2), -1)
    for column in (1, 0):
        used = table.rows[PLACES[column]] > 0
        cased = list(itertools.compress(words, used.tolist()))
        if truecaser:
            cased = truecaser.words(cased, first=column == 1)
        forms[used, column] = [numbers.setdefault(word, len(numbers)) for word in cased]
    return forms


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
    """Write the vocabularies that do not exist yet, and return the vocabulary of each side.

    Args:
        tokens: how often each subword occurs on each side.
        settings: of prep.
        folder: of the files.
    """
    if settings.joint_vocab:
        tokens = [tokens[0] + tokens[1]]
    size = settings.vocab_size if whole_words(settings) and settings.vocab_size else None
    vocabularies = []
    for count, name in zip(tokens, model_names("vocab", "txt", settings.joint_vocab), strict=True):
        if not (folder / name).exists():
            Vocabulary.from_counts(count, settings.min_frequency, size).save(folder / name)
        vocabularies.append(Vocabulary.load(folder / name))
    return vocabularies[0], vocabularies[-1]


def model_names(stem: str, suffix: str, shared: bool) -> list[str]:
    """Return the name of the file that both sides share, or of a file for each side."""
    return [f"{stem}.{suffix}"] if shared else [f"{stem}.{side}.{suffix}" for side in SIDES]


def _sentencepiece(
    words: Sequence[SideWords], settings: PrepSettings, folder: Path, jobs: int
) -> tuple[list[Segmented], dict[str, int]]:
    """Learn the models that do not exist yet, and segment the words of both sides with them.

    Returns: the segmented words of each side, and the number of pieces of each model learnt.
    """
    paths = [folder / "subwords.spm"]
    if not paths[0].exists():
        paths = [folder / name for name in model_names("subwords", "spm", settings.joint_vocab)]
    counts = _counts(words, settings)
    keys = ["pieces"] if settings.joint_vocab else [f"{side}_pieces" for side in SIDES]
    size = settings.vocab_size or settings.merges
    learnt = {}
    for key, side, count, path in zip(keys, words, counts, paths, strict=False):
        if not path.exists():
            numbered = dict(zip(side.words, count.tolist(), strict=True))
            learnt[key] = learn_sentencepiece(numbered, size, settings.sentencepiece, path)
    segmented = [
        _split(side.words, side.counts, functools.partial(SentencePiece, path), jobs)
        for side, path in zip(words, paths * (len(SIDES) // len(paths)), strict=True)
    ]
    return segmented, learnt


def _known(counts: Counter[str], folder: Path, side: Side) -> Counter[str]:
    """Keep the counts of the model's own pieces. The others are runs of unknown characters."""
    splitter = load_splitter(folder, side)
    assert isinstance(splitter, SentencePiece)
    return Counter({piece: counts[piece] for piece in splitter.pieces if counts[piece]})


def _bpe(
    words: Sequence[SideWords], settings: PrepSettings, folder: Path, jobs: int
) -> tuple[list[Segmented], dict[str, int]]:
    """Learn the merges that do not exist yet, and segment the words of both sides with them.

    Returns: the segmented words of each side, and the number of merges of each file.
    """
    codes = [folder / name for name in model_names("codes", "bpe", settings.joint_vocab)]
    keys = ["merges"] if settings.joint_vocab else [f"{side}_merges" for side in SIDES]
    by_file, merges = [], {}
    for key, side, counts, path in zip(keys, words, _counts(words, settings), codes, strict=False):
        exists = path.exists()
        if exists:
            by_file.append(_split(side.words, counts, functools.partial(Bpe, path), jobs))
        else:
            by_file.append(learn_bpe(side.words, counts, settings.merges, path))
        merges[key] = Bpe(path).merges
        if not exists and merges[key] < settings.merges:
            console.say(
                f"BPE: learned {merges[key]:,} of {settings.merges:,} merges; the corpus has no"
                " more"
            )
    shared = len(SIDES) // len(codes)  # 2 if the sides share one codes file
    sides = zip(SIDES, words, by_file * shared, codes * shared, strict=True)
    segmented = [
        _keep_frequent(pieces, side, path, folder / f"bpe-vocab.{name}.txt", settings, jobs)
        for name, side, pieces, path in sides
    ]
    return segmented, merges


def _counts(words: Sequence[SideWords], settings: PrepSettings) -> list[Ints]:
    """Return how often the words occur, for each model file."""
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
    """Write how often each subword of a side occurs, and undo merges to subwords that are too rare:
    then the words are split again.

    Args:
        segmented: the words of the side.
        side: the same words with their counts.
        codes: the file of merges.
        listed: the file of the counts; read instead of written if it exists.
        settings: of prep.
        jobs: worker processes.
    """
    if listed.exists():
        tokens = read_counts(listed)
    else:
        tokens = segmented.counts(side.counts)
        files.write_lines(listed, [f"{token} {tokens[token]}" for token in by_frequency(tokens)])
    if not settings.vocab_threshold:
        return segmented
    frequent = {token for token in tokens if tokens[token] >= settings.vocab_threshold}
    # Only words with a subword that is too rare change; words that end in the joiner may.
    rare = np.array([piece not in frequent for piece in segmented.pieces], bool)
    owners = np.repeat(np.arange(len(side.words)), segmented.lengths)
    changes = np.bincount(owners[rare[segmented.flat]], minlength=len(side.words)) > 0
    changes[side.words.holding(JOINER)] = True
    counts = np.where(changes, side.counts, 0)
    return _split(side.words, counts, functools.partial(Bpe, codes, frequent), jobs, segmented)


def _split(
    words: Words,
    counts: Ints,
    make: Callable[[], Splitter],
    jobs: int,
    before: Segmented | None = None,
) -> Segmented:
    """Split words into subwords; words that never occur stay whole, or as they are in `before`.

    Args:
        words: the words.
        counts: how often each word occurs.
        make: makes the splitter in each worker process.
        jobs: worker processes.
    """
    numbers = np.flatnonzero(counts).tolist()
    chunks = [
        [words[number] for number in numbers[i : i + WORDS_PER_CHUNK]]
        for i in range(0, len(numbers), WORDS_PER_CHUNK)
    ]
    pieces = itertools.chain.from_iterable(
        ordered_map(functools.partial(_segmenter, make), chunks, jobs if len(chunks) > 2 else 1)
    )
    return (before or Segmented.whole(words)).changed(dict(zip(numbers, pieces, strict=True)))


def _segmenter(make: Callable[[], Splitter]) -> Callable[[list[str]], list[list[str]]]:
    splitter = make()
    return lambda words: [splitter.segment([word]) for word in words]
