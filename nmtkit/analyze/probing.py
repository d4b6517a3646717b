"""Analysis `probing`: what a simple classifier can read off the vector that a frozen encoder makes of a sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmtkit import console
from nmtkit.analyze.agreement import interval
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared import classifier, sentence_vectors
from nmtkit.analyze.shared.classifier import Examples
from nmtkit.analyze.shared.probes import CATEGORIES, FOLDS, PARTS, Task, chosen, find, read
from nmtkit.analyze.shared.sentence_vectors import EMBEDDINGS, KINDS, STATES, NoStates, Reader
from nmtkit.errors import ConfigError
from nmtkit.parallel import cores
from nmtkit.run import Run
from nmtkit.score import paper as papers
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, bar
from nmtkit.translate import workers

SEED = 1
FEATURES = ".features"
"""Of the analysis' folder: hidden, so that who copies results leaves these gigabytes."""
REGISTERED = "senteval"


@dataclass(frozen=True)
class Probed:
    """What a classifier came to: right test sentences of how many, epochs made, the epoch kept, its accuracy on dev, processor seconds."""

    right: int
    count: int
    epochs: int
    best_epoch: int
    dev: float
    seconds: float

    @property
    def accuracy(self) -> Estimate:
        """In percent, with Wilson's interval."""
        return interval(self.right, self.count)


def find_folder(run: Run, where: str) -> Path:
    """The folder of probing files that is meant.

    Args:
        where: a folder, senteval, or "" for the corpus's own.
    Raises: ConfigError if the corpus has none, or reads another language than SentEval's; DataError, EnvironmentProblem if those cannot be had.
    """
    own = run.prep / "eval" / "probing"
    if where == REGISTERED:
        if (language := run.manifest().src) != "en":
            hint = "a run that translates from English, or a folder of such files in the language it translates from"
            raise ConfigError(f"SentEval's sentences are English, the sources of this run are '{language}'", where="--probes", hint=hint)
        from nmtkit.corpora import published

        return published.evaluation_set(REGISTERED)
    if not where and not own.is_dir():
        hint = f"--probes {REGISTERED}, or a folder of such files"
        raise ConfigError("this run's corpus has no probing files of its own", where="--probes", hint=hint)
    return Path(where) if where else own


def layer_number(layer: str) -> int:
    """The layer that is meant, from 1; 0 for "", the states that the decoder reads.

    Raises: ConfigError for something else.
    """
    if layer and not (layer.isdecimal() and int(layer)):
        raise ConfigError(f"not a layer of the encoder: '{layer}'", where="--layer", hint="a number from 1; without it, what the decoder reads")
    return int(layer or 0)


def probed(task: Task, features: Path, kind: str) -> Probed:
    """Train a classifier of the task on vectors, and test it.

    Args:
        features: file of the vectors of all the task's sentences; kind: which of them.
    """
    start = time.process_time()
    stored = sentence_vectors.load(features)[kind]
    known = {label: number for number, label in enumerate(task.classes)}
    labels = torch.tensor([known[label] for label in task.labels])
    train, dev, test = (
        Examples(x, labels[torch.from_numpy(task.parts[part])])
        for part, x in zip(
            PARTS, classifier.standardised([torch.from_numpy(np.ascontiguousarray(stored[task.parts[part]])) for part in PARTS]), strict=True
        )
    )
    found = classifier.fit(train, dev, test.x, len(known), SEED)
    right = int((found.predicted == test.y).sum())
    return Probed(right, len(test.y), found.epochs, found.best_epoch, found.dev, time.process_time() - start)


def majority(task: Task) -> Estimate:
    """The accuracy of always saying the label that is most frequent in training (the first of equals)."""
    labels, counts = np.unique([task.labels[row] for row in task.parts["tr"]], return_counts=True)
    said = labels[counts.argmax()]
    return interval(sum(task.labels[row] == said for row in task.parts["te"]), len(task.parts["te"]))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of accuracies on independent test sets, with the interval that their own make: mean ± √Σ(half)² / n, each side by itself.

    Source: Zou & Donner 2008, *Construction of confidence limits about effect measures* (MOVER), for a mean.
    """
    if not estimates or any(e.value is None for e in estimates):
        return Estimate(None)
    values, lows, highs = (np.array([getattr(e, field) for e in estimates], dtype=np.float64) for field in ("value", "low", "high"))
    mean, n = float(values.mean()), len(values)
    return Estimate(mean, mean - math.sqrt(((values - lows) ** 2).sum()) / n, mean + math.sqrt(((highs - values) ** 2).sum()) / n)


def run(
    run: Run,
    systems: Sequence[str],
    *,
    set_names: Sequence[str] = (),
    probes: str = "",
    tasks: str = "",
    layer: str = "",
    paper: str = "",
    table: str = "",
) -> Finding:
    """Accuracy of classifiers on the sentence vectors of each system, beside those on its bag of embeddings and the majority class.

    Args:
        run: the run; systems: those without states of source positions are left out. set_names is of no use here.
        probes: a folder of probing files, senteval, or "" for those of the run's corpus.
        tasks: only these, with commas between.
        layer: of the encoder, from 1; "" = the states that the decoder reads.
        paper: a paper's printed numbers, to be put beside; table: which of its tables.
    Raises: ConfigError, DataError as the parts say; DataError if no system has states of source positions.
    """
    if set_names:
        raise ConfigError("probing reads its own files, not a set of the run", where="--set-name", hint="--probes")
    beside = papers.asked(paper, table, "task")
    number, folder = layer_number(layer), find_folder(run, probes)
    read_tasks = [_read(name, paths) for name, paths in chosen(find(folder), tasks).items()]
    files = features(run, systems, read_tasks, number)
    found = classified(read_tasks, files)
    finding = _finding(read_tasks, found, files, number, folder, [name for name in systems if name not in files])
    if beside is not None:
        signature = f"{probes or 'demo'}, layer {layer or 'top'}, standardised vectors, seed {SEED}"
        accuracies = _accuracies(finding.table, list(files), {task.name for task in read_tasks})
        printed = papers.numbers_beside(beside, "task", accuracies, run.manifest().dataset, probes or "demo", signature)
        finding = finding.beside(printed)
    return finding


def _accuracies(table: Table, systems: Sequence[str], tasks: Collection[str]) -> dict[str, dict[str, float]]:
    """Of each system, by task, and by category of which no task is missing."""
    found: dict[str, dict[str, float]] = {name: {} for name in systems}
    keys = [column.key for column in table.columns]
    for row in table.rows:
        one_task, whole = row[2] is not None, set(CATEGORIES.get(row[0], ())) <= set(tasks)
        for name in systems if one_task or whole else ():
            accuracy = row[keys.index(name)].value
            if accuracy is not None:
                found[name][row[1] if one_task else row[0]] = accuracy
    return found


def _read(name: str, paths: Sequence[Path]) -> Task:
    task = read(name, paths, SEED)
    if task.split:
        console.say(f"{name}: {task.split}")
    if task.seen:
        console.warn(f"{name}: {task.seen:,} of {len(task.parts['te']):,} test sentences stand in the training part too")
    return task


def features(run: Run, systems: Sequence[str], tasks: Sequence[Task], layer: int) -> dict[str, dict[str, Path]]:
    """The vectors of every task's sentences by every system that has some: system -> task -> file.

    Raises: NoStates if no system has some, or the layer.
    """
    found: dict[str, dict[str, Path]] = {}
    refused: list[NoStates] = []
    for name in systems:
        reader = Reader(run, name, layer)
        try:
            own = run.path / "analyze" / "probing" / FEATURES / name
            found[name] = {task.name: sentence_vectors.kept(own, reader, task.name, task.digest, task.sentences) for task in tasks}
        except NoStates as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    for one in refused:
        console.warn(f"left out: {one.message}")
    return found


def classified(tasks: Sequence[Task], features: Mapping[str, Mapping[str, Path]]) -> dict[tuple[str, str, str], Probed]:
    """A classifier for each system, kind of vector that it has, and task, side by side on the cores."""
    by_name = {task.name: task for task in tasks}
    work = [
        (name, kind, task)
        for task in sorted(by_name, key=lambda one: -len(by_name[one].sentences) * len(by_name[one].classes))  # the longest first
        for name, own in features.items()
        for kind in KINDS
        if sentence_vectors.width(own[task], kind)
    ]
    with workers.one_thread(torch.device("cpu")), console.progress("classifiers", len(work)) as done:
        found = {}
        results = workers.mapped(lambda one: probed(by_name[one[2]], features[one[0]][one[2]], one[1]), work, cores())
        for one, result in zip(work, results, strict=True):
            found[one] = result
            done(1)
    return found


def _finding(
    tasks: Sequence[Task],
    found: Mapping[tuple[str, str, str], Probed],
    features: Mapping[str, Mapping[str, Path]],
    layer: int,
    folder: Path,
    left_out: Sequence[str],
) -> Finding:
    series = {name: (name, STATES) for name in features} | {f"{name}, embeddings": (name, EMBEDDINGS) for name in features}
    columns: dict[str, list[Estimate]] = {"majority": [majority(task) for task in tasks]}
    for label, (name, kind) in series.items():
        own = [found.get((name, kind, task.name)) for task in tasks]
        columns[label] = [Estimate(None) if one is None else one.accuracy for one in own]
    rows: list[list[Any]] = []
    for category in dict.fromkeys(task.category for task in tasks):
        members = [i for i, task in enumerate(tasks) if task.category == category]
        for i in members:
            rows.append([category, tasks[i].name, len(tasks[i].classes), len(tasks[i].parts["te"]), *(values[i] for values in columns.values())])
        rows.append([category, f"average of {len(members)}", None, None, *(average([values[i] for i in members]) for values in columns.values())])
    drawn = [row for row in rows if row[2] is not None]
    return Finding(
        name="probing",
        title="what can be read off a sentence's vector",
        table=_table(rows, columns, tasks, layer, folder),
        text="An accuracy says what a simple classifier finds in the frozen vector. It means something above the majority class, and as the "
        "encoder's work only above the embeddings, which know the words and not their order. Compare systems where their intervals are far apart; "
        "the interval is of the test sentences, not of training's seed.",
        figure=figures.grouped_bars(
            [row[1] for row in drawn], {name: [row[4 + i] for row in drawn] for i, name in enumerate(columns)}, "task", "accuracy, %", upright=True
        )
        if figures.available()
        else None,
        bars="\n\n".join(_bars(name, drawn, 4 + i) for i, name in enumerate(columns)),
        facts={
            **{"probes": str(folder), "layer": layer or "what the decoder reads", "seed": SEED, "left_out": list(left_out)},
            "tasks": {
                task.name: {
                    **{part: len(rows) for part, rows in task.parts.items()},
                    "classes": len(task.classes),
                    "split": task.split,
                    "seen": task.seen,
                }
                for task in tasks
            },
            "classifiers": {
                label: {task: vars(one) | {"seconds": round(one.seconds, 2)} for (n, k, task), one in found.items() if (n, k) == which}
                for label, which in series.items()
            },
        },
    )


def _table(rows: list[list[Any]], series: Mapping[str, Any], tasks: Sequence[Task], layer: int, folder: Path) -> Table:
    columns = [Column("category", "category", left=True), Column("task", "task", left=True), Column("classes", "classes")]
    columns += [Column("sentences", "test sentences")]
    columns += [Column(name, f"{name} [95%]", decimals=1, interval=True) for name in series]
    where = f"encoder layer {layer}" if layer else "the encoder's top, as the decoder reads it"
    notes = [
        f"a sentence's vector: the mean over its positions, </s> among them, of {where}; embeddings: the mean of the model's own source embeddings",
        f"classifier: ReLU layer as wide as the vector, softmax; L2 {classifier.PENALTY:g} on the first layer's weights, RMSprop "
        f"{classifier.RATE:g}, batches of {classifier.BATCH}, at most {classifier.EPOCHS} epochs, ended by {classifier.PATIENCE} without a better "
        f"accuracy on dev, whose best epoch counts; seed {SEED}; the vectors' numbers have mean 0 and variance 1 over the training part",
        "majority: the most frequent label of the training part; [95%]: Wilson, of an average from those of its tasks",
    ]
    notes += [f"{task.name}: {task.split}, one in {FOLDS} of each label" for task in tasks if task.split]
    notes += [f"{task.name}: {task.seen:,} test sentences stand in the training part too" for task in tasks if task.seen]
    return Table("probing", f"Accuracy of probing classifiers, in % ({folder})", columns, rows, notes)


def _bars(name: str, rows: Sequence[Sequence[Any]], place: int) -> str:
    width = max(len(row[1]) for row in rows)
    lines = [f"{row[1]:>{width}} {bar(row[place].value, 100)} {row[place].value or 0:5.1f}" for row in rows if row[place].value is not None]
    return "\n".join([name, *lines])
