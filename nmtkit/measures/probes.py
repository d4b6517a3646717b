"""Probing tasks: labelled sentences in three parts (tr, va, te), in the format of SentEval or of
X-Probe.

SentEval has FOLDER/TASK.txt with lines `tr|va|te TAB label TAB sentence`. X-Probe has
FOLDER/TASK/{tr,va,te}.txt with lines `sentence TAB label`. Files can be compressed. Lines are split
at tabs only, because quotes are text and do not balance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Ints
from nmtkit.errors import DataError, check_known, counted, nearest

TRAIN, DEV, TEST = PARTS = ("tr", "va", "te")
CATEGORIES = {
    "surface": ("sentence_length", "word_content"),
    "syntactic": ("tree_depth", "bigram_shift", "top_constituents"),
    "semantic": (
        "past_present",
        "subj_number",
        "obj_number",
        "odd_man_out",
        "coordination_inversion",
    ),
}
"""The tasks of Conneau et al. 2018 by category; any other task has the category "other"."""
SUFFIXES = (".txt", ".txt.gz", ".txt.xz", ".txt.bz2", ".txt.zst")
LAYOUTS = (
    "expected: TASK.txt of lines 'tr|va|te TAB label TAB sentence', or TASK/{tr,va,te}.txt of "
    "lines 'sentence TAB label'"
)
FOLDS = 10
"""A missing part is made of one in FOLDS sentences of each label of another part."""


class Line(NamedTuple):
    """One line of a probing file."""

    part: str
    label: str
    sentence: str
    path: Path
    number: int

    @property
    def place(self) -> str:
        """File and line number, for messages."""
        return f"{self.path}, line {self.number}"


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: the name of the task.
        sentences, labels: (N) the lines of all its files.
        parts: part -> indices of its sentences.
        digest: SHA-256 over its files.
        split: which file was split into parts; "" if the files have all parts.
    """

    name: str
    sentences: list[str]
    labels: list[str]
    parts: dict[str, Ints]
    digest: str
    split: str = ""

    @property
    def category(self) -> str:
        """A key of CATEGORIES, or "other"."""
        names = (category for category, tasks in CATEGORIES.items() if self.name in tasks)
        return next(names, "other")

    @property
    def classes(self) -> list[str]:
        """The labels of the training part, sorted."""
        return sorted({self.labels[row] for row in self.parts[TRAIN]})

    @property
    def seen(self) -> int:
        """The number of test sentences that are also in the training part."""
        known = {self.sentences[row] for row in self.parts[TRAIN]}
        return sum(self.sentences[row] in known for row in self.parts[TEST])


def find(folder: Path) -> dict[str, list[Path]]:
    """Return the tasks in a folder, in the order of CATEGORIES: name -> files.

    Args:
        folder: a folder of tasks, or the folder of one task in the format of X-Probe.
    Raises: DataError if the folder is missing, has no task, or has two tasks with one name.
    """
    if not folder.is_dir():
        message = f"not a folder of probing files: {folder}"
        raise DataError(message, where="--probes", hint="a folder, or senteval")
    if parts := _part_files(folder):
        return {folder.name: parts}
    tasks: dict[str, list[Path]] = {}
    for path in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):
        name, paths = path.name, []
        if path.is_dir():
            paths = _part_files(path)
        elif path.is_file() and path.name.endswith(SUFFIXES):
            name = _stem(path)
            if "\t" in next(files.text_lines(path), "\t"):  # an empty file is an error of `read`
                paths = [path]
            else:
                console.warn(f"{path} is not a probing file (no tab in its first line): skipped")
        if not paths:
            continue
        if name in tasks:
            message = f"two probing tasks have the same name before the first dot: '{name}'"
            raise DataError(message, where=folder, hint="rename one of them")
        tasks[name] = paths
    if not tasks:
        raise DataError("no probing files", where=folder, hint=LAYOUTS)
    order = [name for names in CATEGORIES.values() for name in names if name in tasks]
    return {name: tasks[name] for name in (*order, *tasks)}


def _part_files(folder: Path) -> list[Path]:
    """Return the existing files of tr, va and te."""
    files_of = ([folder / f"{part}{suffix}" for suffix in SUFFIXES] for part in PARTS)
    return [path for paths in files_of for path in [*filter(Path.is_file, paths)][:1]]


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def select(tasks: Mapping[str, list[Path]], names: str) -> dict[str, list[Path]]:
    """Return some of the tasks.

    Args:
        names: names separated by commas; "" = all.
    Raises: ConfigError for an unknown name, with the nearest known one.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        check_known(name, tasks, f"no probing task '{name}' there", "--tasks")
    return {name: paths for name, paths in tasks.items() if not wanted or name in wanted}


def read(name: str, paths: Sequence[Path], seed: int = 1) -> Task:
    """Return a task.

    Args:
        name: the name of the task.
        paths: one file in the format of SentEval, or the files of the parts in that of X-Probe.
        seed: the seed of the split if a part is missing.
    Raises: DataError for a line in another format, a part without sentences, or a label that the
        training part does not have.
    """
    lines: list[Line] = []
    texts = []
    for path in paths:
        of_file = _lines(path)
        text = [(line.sentence, line.label) for line in of_file]
        if text not in texts:  # X-Probe's tree depth has the same sentences in two files
            texts.append(text)
            lines += of_file
    sentences, labels = [line.sentence for line in lines], [line.label for line in lines]
    parts = {part: np.flatnonzero([line.part == part for line in lines]) for part in PARTS}
    checksum = files.text_sha256("".join(map(files.sha256, paths)))
    task = Task(name, sentences, labels, parts, checksum)
    if _stem(paths[0]) in PARTS and not all(map(len, parts.values())):
        task = _split(task, lines[0], seed)
    _check(task, lines)
    return task


def _lines(path: Path) -> list[Line]:
    """Return the lines of a file. In the format of X-Probe the name of the file is the part."""
    part, lines = _stem(path), []
    width = 2 if part in PARTS else 3
    for number, text in enumerate(files.text_lines(path), 1):
        cells = text.rstrip("\r").split("\t")
        if len(cells) != width:
            problem = f"{counted(len(cells), 'column')} instead of {width}"
        elif width == 3 and cells[0] not in PARTS:
            problem = f"its part is '{cells[0]}'"
        elif not all(cell.strip() for cell in cells):
            problem = "without a sentence or without a label"
        else:
            order = (part, *cells[::-1]) if width == 2 else cells
            lines.append(Line(order[0], order[1], order[2], path, number))
            continue
        raise DataError(
            f"not a line of a probing file: {problem}", where=f"{path}, line {number}", hint=LAYOUTS
        )
    if not lines:
        raise DataError("no sentences in this probing file", where=path, hint=LAYOUTS)
    return lines


def _split(task: Task, first: Line, seed: int) -> Task:
    """Return a task whose first file is split into the training part and the missing parts."""
    rows = task.parts[first.part]
    held = [part for part in (DEV, TEST) if part == first.part or not len(task.parts[part])]
    folds = _folds([task.labels[row] for row in rows], seed)
    parts = {part: rows[folds == i] for i, part in enumerate(held)}
    parts[TRAIN] = rows[folds >= len(held)]
    split = f"{first.path.name} split into {', '.join([TRAIN, *held])}"
    return replace(task, parts=task.parts | parts, split=split)


def _folds(labels: list[str], seed: int) -> Ints:
    """Return a random number below FOLDS for each sentence, evenly spread over each label."""
    folds = np.zeros(len(labels), dtype=np.int64)
    draw = np.random.Generator(np.random.PCG64(seed))
    rows_of: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows_of.setdefault(label, []).append(row)
    for _, rows in sorted(rows_of.items()):
        folds[draw.permutation(rows)] = FOLDS - 1 - np.arange(len(rows)) % FOLDS
    return folds


def _check(task: Task, lines: Sequence[Line]) -> None:
    """Raise DataError for an empty part, for a label that is not in training, or for one label."""
    start = lines[0].place
    for part, rows in task.parts.items():
        if not len(rows):
            of_split = f"at least {FOLDS} sentences of each label, where one file is split"
            problem = f"'{task.name}' has no sentences in its part {part}"
            raise DataError(problem, where=start, hint=of_split if task.split else LAYOUTS)
    known = set(task.classes)
    for part in (DEV, TEST):
        for row in task.parts[part]:
            if (label := task.labels[row]) not in known:
                other = f"a classifier cannot learn it; training has {len(known):,} others"
                problem = f"the label '{label}' of part {part} is not in part {TRAIN}"
                where, hint = lines[row].place, nearest(label, known, other)
                raise DataError(problem, where=where, hint=hint)
    if len(known) < 2:
        message = f"'{task.name}' has one label only: nothing to learn"
        raise DataError(message, where=start, hint="add sentences with another label")
