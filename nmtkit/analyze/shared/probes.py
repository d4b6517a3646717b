"""Probing tasks: sentences with a label each, in training, development and test part, from files in SentEval's or X-Probe's form.

SentEval: FOLDER/TASK.txt of lines `tr|va|te TAB label TAB sentence`. X-Probe: FOLDER/TASK/{tr,va,te}.txt of lines `sentence TAB label`. Any may be
compressed. Their quotes are text and do not balance, so lines are split at tabs and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError, nearest

PARTS = ("tr", "va", "te")
CATEGORIES = {
    "surface": ("sentence_length", "word_content"),
    "syntactic": ("tree_depth", "bigram_shift", "top_constituents"),
    "semantic": ("past_present", "subj_number", "obj_number", "odd_man_out", "coordination_inversion"),
}
"""What the tasks of Conneau et al. 2018 ask for; any other is of the category "other"."""
SUFFIXES = tuple(f".txt{packed}" for packed in ("", ".gz", ".xz", ".bz2", ".zst"))
LAYOUTS = "expected: TASK.txt of lines 'tr|va|te TAB label TAB sentence', or TASK/{tr,va,te}.txt of lines 'sentence TAB label'"
FOLDS = 10
"""Where a part is missing, one in so many sentences of each label becomes it."""
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: its name; sentences, labels: (N) of all its files; parts: the rows of tr, va and te.
        digest: SHA-256 over its files; split: what was made of one file, "" if the files say the parts.
    """

    name: str
    sentences: list[str]
    labels: list[str]
    parts: dict[str, Rows]
    digest: str
    split: str = ""

    @property
    def category(self) -> str:
        """A key of CATEGORIES, or "other"."""
        return next((category for category, names in CATEGORIES.items() if self.name in names), "other")

    @property
    def classes(self) -> list[str]:
        """The labels of the training part, sorted."""
        return sorted({self.labels[row] for row in self.parts["tr"]})

    @property
    def seen(self) -> int:
        """How many test sentences are in the training part too."""
        known = {self.sentences[row] for row in self.parts["tr"]}
        return sum(self.sentences[row] in known for row in self.parts["te"])


def find(folder: Path) -> dict[str, list[Path]]:
    """The tasks in a folder, in the order of CATEGORIES: name -> its file, or the files of its parts.

    Args:
        folder: of tasks, or the folder of one task's parts.
    Raises: DataError if it is missing or has none.
    """
    if not folder.is_dir():
        what = f"{folder} is a file; probing files come as a folder" if folder.exists() else f"no such folder of probing files: {folder}"
        raise DataError(what, where="--probes", hint="a folder, or senteval")
    found = {folder.name: parts} if (parts := _part_files(folder)) else {}
    for path in sorted(folder.iterdir()) if not found else ():
        if path.is_dir() and (parts := _part_files(path)):
            found[path.name] = parts
        elif path.is_file() and path.name.endswith(SUFFIXES):
            if "\t" in next(files.text_lines(path), "\t"):  # an empty one is an error, which reading it says
                found[path.name.partition(".")[0]] = [path]
            else:
                console.warn(f"{path} is no probing file, and passed over: its first line has no tab")
    if not found:
        raise DataError("no probing files", where=folder, hint=LAYOUTS)
    order = [name for names in CATEGORIES.values() for name in names]
    return {name: found[name] for name in sorted(found, key=lambda name: order.index(name) if name in order else len(order))}


def _part_files(folder: Path) -> list[Path]:
    """The files of tr, va and te, those that there are."""
    candidates = (next((path for suffix in SUFFIXES if (path := folder / f"{part}{suffix}").is_file()), None) for part in PARTS)
    return [path for path in candidates if path is not None]


def chosen(found: dict[str, list[Path]], names: str) -> dict[str, list[Path]]:
    """Those of the tasks that are named, with commas between; all for "".

    Raises: ConfigError naming the nearest of one that is not there.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in found:
            raise ConfigError(f"no probing task '{name}' there", where="--tasks", hint=nearest(name, found))
    return {name: paths for name, paths in found.items() if not wanted or name in wanted}


def read(name: str, paths: Sequence[Path], seed: int = 1) -> Task:
    """A task from its files.

    Args:
        name: of the task; paths: its one file in SentEval's form, or those of its parts in X-Probe's.
        seed: of the split where a part is missing, or is a copy of another.
    Raises: DataError for a line in another form, a part without sentences, or a label that training has not seen.
    """
    digest = hashlib.sha256("".join(files.sha256(path) for path in paths).encode()).hexdigest()
    of_parts = {part: path for path in paths if (part := path.name.partition(".")[0]) in PARTS}
    if not of_parts:
        rows = _lines(paths[0], 3)
        parts = {part: np.array([i for i, (own, _, _) in enumerate(rows) if own == part], dtype=np.int64) for part in PARTS}
        task = Task(name, [row[2] for row in rows], [row[1] for row in rows], parts, digest)
        return _checked(task, [(paths[0], number) for number in range(1, len(rows) + 1)])
    columns: dict[str, list[list[str]]] = {}
    for part, path in of_parts.items():
        own = _lines(path, 2)
        if own not in columns.values():  # X-Probe's tree depth is tested with the sentences of its other file: these are one
            columns[part] = own
    ends = np.cumsum([len(own) for own in columns.values()])
    parts = {part: np.arange(end - len(own), end) for (part, own), end in zip(columns.items(), ends, strict=True)}
    split = ""
    if len(parts) < len(PARTS):
        first = next(iter(parts))
        held = [part for part in PARTS[1:] if part not in parts or part == first]
        rows_of_first, folds = parts[first], _folds([label for _, label in columns[first]], seed)
        parts |= {part: rows_of_first[folds == i] for i, part in enumerate(held)}
        parts["tr"] = rows_of_first[folds >= len(held)]
        split = f"{of_parts[first].name} split into {', '.join(['tr', *held])}"
    both = [row for own in columns.values() for row in own]
    task = Task(name, [row[0] for row in both], [row[1] for row in both], parts, digest, split)
    return _checked(task, [(of_parts[part], number) for part, own in columns.items() for number in range(1, len(own) + 1)])


def _lines(path: Path, width: int) -> list[list[str]]:
    """The cells of each line."""
    rows = []
    for number, line in enumerate(files.text_lines(path), 1):
        cells = line.rstrip("\r").split("\t")
        where = f"{path}, line {number}"
        if len(cells) != width:
            raise DataError(f"not a line of a probing file: {len(cells)} columns instead of {width}", where=where, hint=LAYOUTS)
        if width == 3 and cells[0] not in PARTS:
            raise DataError(f"not a line of a probing file: its part is '{cells[0]}'", where=where, hint=LAYOUTS)
        if not all(cell.strip() for cell in cells):
            raise DataError("a line without a sentence or without a label", where=where, hint=LAYOUTS)
        rows.append(cells)
    return rows


def _folds(labels: Sequence[str], seed: int) -> Rows:
    """A number below FOLDS for each sentence: drawn, but so that those of a label are spread evenly, the highest first."""
    found = np.zeros(len(labels), dtype=np.int64)
    members: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault(label, []).append(row)
    rng = np.random.Generator(np.random.PCG64(seed))
    for _, rows in sorted(members.items()):
        found[rng.permutation(rows)] = FOLDS - 1 - np.arange(len(rows)) % FOLDS
    return found


def _checked(task: Task, places: Sequence[tuple[Path, int]]) -> Task:
    """The task, if something can be trained and tested with it.

    Args:
        places: file and line of each sentence.
    """
    for part, rows in task.parts.items():
        if not len(rows):
            hint = f"at least {FOLDS} sentences of each label, where one file is split" if task.split else LAYOUTS
            raise DataError(f"'{task.name}' has no sentences in its part {part}", where=places[0][0] if places else task.name, hint=hint)
    known = set(task.classes)
    for part in PARTS[1:]:
        for row in task.parts[part]:
            if task.labels[row] not in known:
                path, number = places[row]
                hint = nearest(task.labels[row], known, f"a classifier cannot learn it; training has {len(known):,} others")
                raise DataError(f"the label '{task.labels[row]}' of part {part} is not in part tr", where=f"{path}, line {number}", hint=hint)
    if len(known) < 2:
        raise DataError(f"'{task.name}' has one label only: there is nothing to tell apart", where=places[0][0])
    return task
