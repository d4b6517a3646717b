"""Learn from the words of all shards, write the token ids of every word, and look them up."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nmtkit import files
from nmtkit.arrays import Array, Integers, Ints
from nmtkit.data.store import id_type
from nmtkit.prep.learn import Models, file_names, learn
from nmtkit.prep.tasks import Outcome
from nmtkit.prep.word_table import FREQUENT, WordTable, concatenated, frequent_words
from nmtkit.prep.work import LOOKUP, OUT, TEXT_MODEL
from nmtkit.settings import PrepSettings
from nmtkit.text.segmented import LINE_END, joined, starts_of
from nmtkit.text.side import TextSide
from nmtkit.text.tokenizer import SIDES, Side
from nmtkit.text.vocabulary import EOS, Vocabulary, load_vocabularies

SPANS = np.dtype([("start", "<i8", 2), ("length", "<u2", 2)])
"""Where the ids of a word start, and how many there are: elsewhere, and at the start of a sentence.
"""


def learn_models(
    work: Path,
    index: int,
    words: str,
    parts: int,
    languages: tuple[str, str],
    settings: PrepSettings,
    jobs: int,
) -> Outcome:
    """Learn from the words of all shards. Write the models, and the token ids of the words.

    Args:
        words: the folder of the tables in the work folder (`word_table.merge_words`).
        parts: the number of tables of each side.
        languages, settings, jobs: as for `learn`.
    Returns: counts of words, types and merges, and the sizes of the vocabularies; the files.
    """

    def tables_of(side: Side) -> Iterator[WordTable]:
        """Yield the tables of a side."""
        return (WordTable.load(work / words / f"{part:05}.{side}") for part in range(parts))

    types = np.zeros(FREQUENT + 1, np.int64)
    numbers = {}
    for side in SIDES:
        numbers[f"{side}_words"] = 0
        for table in tables_of(side):
            counts = table.counts()
            numbers[f"{side}_words"] += int(counts.sum())
            types += np.bincount(np.minimum(counts, FREQUENT), minlength=len(types))
    frequent = frequent_words(types, settings.max_types)
    tables = [concatenated(list(map(frequent, tables_of(side)))) for side in SIDES]
    out = work / OUT
    names = file_names(languages, settings)
    for name in names:  # a file of an earlier call may be incomplete or damaged
        (out / name).unlink(missing_ok=True)
    shutil.copytree(work / TEXT_MODEL, out, dirs_exist_ok=True)
    models = learn(tables, languages, settings, out, jobs)
    numbers |= models.counts
    if left_out := int(types.sum()) - sum(map(len, tables)):
        numbers["types_left_out"] = left_out
    paths = write_lookup(work / LOOKUP, models, tables)
    paths += [out / name for name in names]
    sizes = list(map(len, models.vocabularies))
    return {"counts": numbers, "vocabularies": sizes}, [p for p in paths if p.is_file()]


def write_lookup(folder: Path, models: Models, tables: Sequence[WordTable]) -> list[Path]:
    """Write the token ids of the words that were learnt from, and return the files.

    Args:
        folder: of the files.
        models: learnt from the words.
        tables: the words of both sides.
    """
    kind = id_type(max(map(len, models.vocabularies)))
    paths = []
    sides = zip(SIDES, tables, models.words, models.segmented, models.vocabularies, strict=True)
    for side, table, words, pieces, vocabulary in sides:
        ids = np.array(vocabulary.encode(pieces.pieces)[:-1], kind)[pieces.flat]
        spans = _spans(words.forms, pieces.lengths)
        hashes = np.ascontiguousarray(table.rows["hash"])
        for name, values in (("ids", ids), ("hash", hashes), ("spans", spans)):
            paths.append(files.write_array(folder / f"{side}.{name}.npy", values))
    return paths


def _spans(forms: Ints, lengths: Integers) -> Array:
    """Return the `SPANS` of words.

    Args:
        forms: (N, 2) the numbers of the two forms of each word; -1 = no such form.
        lengths: the number of ids of each form.
    """
    spans = np.zeros(len(forms), SPANS)
    used = forms >= 0
    spans["start"][used] = starts_of(lengths)[forms[used]]
    spans["length"][used] = lengths[forms[used]]
    return spans


class SideLookup:
    """The token ids of the words of a side.

    Args:
        work: the work folder.
        side: src or tgt.
    """

    def __init__(self, work: Path, side: Side) -> None:
        self._prep, self._side = work / OUT, side
        self._ids, self._hashes, self._spans = (
            np.load(work / LOOKUP / f"{side}.{name}.npy", "r") for name in ("ids", "hash", "spans")
        )

    @functools.cached_property
    def _text(self) -> tuple[TextSide, Vocabulary]:
        """The text model and the vocabulary of the side, for words that were not learnt from."""
        vocabulary = load_vocabularies(self._prep)[self._side == "tgt"]
        return TextSide.load(self._prep, self._side), vocabulary

    def encode(self, shard: Path) -> tuple[Array, Ints]:
        """Return the ids of the text of a shard, each line with its </s>, and the number of ids of
        each line.

        Args:
            shard: the beginning of the names of the files that `clean_shard` wrote.
        """
        path = Path(f"{shard}.{self._side}")
        table, text = WordTable.load(path), np.load(f"{path}.text.npy", allow_pickle=False)
        hashes = np.ascontiguousarray(table.rows["hash"])
        places = np.searchsorted(self._hashes, hashes)
        known = places < len(self._hashes)
        known[known] = self._hashes[places[known]] == hashes[known]
        spans = np.zeros(len(table), SPANS)
        spans[known] = self._spans[places[known]]
        lengths = spans["length"].astype(np.int64)
        flat = [joined(self._ids, spans["start"].ravel(), lengths.ravel())]
        starts = starts_of(lengths.ravel()).reshape(-1, 2)
        if not known.all():
            rare = self._rare(table.some(~known))
            sizes = np.array(list(map(len, rare))).reshape(-1, 2)
            starts[~known] = len(flat[0]) + starts_of(sizes.ravel()).reshape(-1, 2)
            lengths[~known] = sizes
            flat += [np.array(word, self._ids.dtype) for word in rare]
        flat.append(np.array([EOS], self._ids.dtype))
        ids = np.concatenate(flat)
        # LINE_END is -1, so it selects the last word: </s>.
        word_lengths = np.append(lengths.ravel(), 1)[text]
        word_starts = np.append(starts.ravel(), len(ids) - 1)[text]
        ends = np.cumsum(word_lengths)[text == LINE_END]
        return joined(ids, word_starts, word_lengths), np.diff(ends, prepend=0)

    def _rare(self, table: WordTable) -> list[list[int]]:
        """Return for each word in turn its ids elsewhere and its ids at the start of a sentence."""
        text, vocabulary = self._text
        words = table.words()
        cased = [
            text.truecaser.words(words, first) if text.truecaser else words
            for first in (False, True)
        ]
        return [
            vocabulary.encode(text.splitter.segment([word]))[:-1]
            for forms in zip(*cased, strict=True)
            for word in forms
        ]
