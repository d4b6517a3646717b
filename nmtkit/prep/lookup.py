"""The step in the middle of prep: learn from the words of all shards, and write down the token ids
of every word, which all tasks then map into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import files
from nmtkit.data.store import id_type
from nmtkit.errors import DataError
from nmtkit.prep.clean import SIDES
from nmtkit.prep.learn import Models, file_names, learn
from nmtkit.prep.word_table import WordTable, concatenated
from nmtkit.settings import PrepSettings
from nmtkit.text.segmented import LINE_END, WordIds

LOOKUP = "lookup"
"""Folder of the work folder: the ids of every word of the training text."""


@dataclass(frozen=True)
class LearnModels:
    """Learns from the words of all shards.

    Attributes:
        words: the folder of the tables in the work folder (`words.MergeWords`).
        parts: how many tables each side has.
        languages, settings: as of `learn`.
        out: folder in the work folder, the prep folder to be.
        lookup: folder in the work folder, for the token ids of all words.
        jobs: worker processes.
    """

    words: str
    parts: int
    languages: tuple[str, str]
    settings: PrepSettings
    out: str
    lookup: str
    jobs: int

    def __call__(self, work: Path, index: int) -> tuple[dict[str, Any], list[Path]]:
        """Write the models and the token ids of all words.

        Returns: counts of words, types and merges; the sizes of the vocabularies.
        """
        tables = [
            concatenated(
                [
                    WordTable.load(work / self.words / f"{part:05}.{side}")
                    for part in range(self.parts)
                ]
            )
            for side in SIDES
        ]
        out = work / self.out
        models = learn(tables, self.languages, self.settings, out, self.jobs)
        paths = write_lookup(work / self.lookup, models, tables)
        paths += [out / name for name in file_names(self.languages, self.settings)]
        sizes = list(map(len, models.vocabularies))
        return {"counts": models.counts, "vocabularies": sizes}, [p for p in paths if p.is_file()]


def write_lookup(folder: Path, models: Models, tables: Sequence[WordTable]) -> list[Path]:
    """Write the token ids of all words of the training text, and return the files.

    Args:
        folder: where they go.
        models: learnt from the words.
        tables: the words of both sides.
    """
    kind = id_type(max(map(len, models.vocabularies)))
    paths = WordIds.of(list(zip(models.segmented, models.vocabularies, strict=True)), kind).save(
        folder
    )
    for side, table, words in zip(SIDES, tables, models.words, strict=True):
        hashes = np.ascontiguousarray(table.rows["hash"])
        forms = np.stack([words.elsewhere, words.at_start], axis=1).astype(np.int32)
        for name, values in (("hash", hashes), ("forms", forms)):
            paths.append(files.write_array(folder / f"{side}.{name}.npy", values))
    return paths


class Lookup:
    """The token ids of all words, as `write_lookup` wrote them."""

    def __init__(self, folder: Path) -> None:
        self.ids = WordIds.load(folder)
        self._hashes = [np.load(folder / f"{side}.hash.npy", "r") for side in SIDES]
        self._forms = [np.load(folder / f"{side}.forms.npy", "r") for side in SIDES]

    def numbers(self, side: int, table: WordTable, text: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the numbers of the words of a text, LINE_END after each line.

        Args:
            side: 0 for the source, 1 for the target.
            table: the words of its shard.
            text: their rows, as `SideText.finish` returns them.
        """
        hashes = np.ascontiguousarray(table.rows["hash"])
        places = np.searchsorted(self._hashes[side], hashes)
        if len(hashes) and not np.array_equal(self._hashes[side][places], hashes):
            raise DataError("a word of a shard is missing in the table of all words")
        forms = np.append(self._forms[side][places].ravel(), np.int32(LINE_END))
        numbers: NDArray[np.int32] = forms[text]  # LINE_END is -1: the last one
        return numbers
