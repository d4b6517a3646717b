"""Analysis `probing`: what a classifier finds in the mean encoder state of a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from nmtkit import console
from nmtkit.analyze import sentence_vectors
from nmtkit.analyze.analysis import Finding, PaperAnalysis, PaperOptions, option
from nmtkit.analyze.contrastive_scores import lacks
from nmtkit.analyze.sentence_vectors import EMBEDDINGS, STATES, Reader
from nmtkit.analyze.study import SEED, Study
from nmtkit.errors import ConfigError
from nmtkit.measures import classifier
from nmtkit.measures.classifier import Examples
from nmtkit.measures.probes import (
    CATEGORIES,
    FOLDS,
    PARTS,
    TEST,
    TRAIN,
    Task,
    find,
    read,
    select,
)
from nmtkit.models.loading import build_untrained
from nmtkit.parallel import cores
from nmtkit.run import Run
from nmtkit.score import paper as papers
from nmtkit.score.significance import wilson
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, interval_column, text_columns
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies, unknown_share
from nmtkit.translate import workers

FEATURES = ".features"
"""The folder of sentence vectors. They take gigabytes, so the folder is hidden from copies of
results.
"""
SENTEVAL = "senteval"
SAMPLE = 200
"""Unknown subwords are counted in this many sentences of each task."""


class ProbingOptions(PaperOptions):
    """Options of `probing`."""

    probes: str = option("", "FOLDER|senteval")
    """A folder of probing files: TASK.txt with lines of 'tr|va|te, label, sentence' separated by
    tabs, or TASK/{tr,va,te}.txt (default: the files of the run's corpus)."""
    tasks: str = option("", "TASK,…")
    """Only these tasks (default: all tasks of the folder)."""
    layer: int = option(0, "N", ge=0)
    """A layer of the encoder, counted from 1 (default: the states that the decoder reads)."""


@dataclass(frozen=True)
class Probed:
    """The result of one classifier.

    Attributes:
        right, count: the number of correct test sentences, and of all test sentences.
        epochs, best_epoch: the number of epochs, and the epoch that is tested.
        dev: accuracy of the best epoch on dev, 0..1.
    """

    right: int
    count: int
    epochs: int
    best_epoch: int
    dev: float

    @property
    def accuracy(self) -> Estimate:
        """The test accuracy in percent, with Wilson's interval."""
        return wilson(self.right, self.count)


@dataclass(frozen=True)
class Probes:
    """The results of all classifiers.

    Attributes:
        tasks: the tasks, in the order of the table.
        classifiers: series -> task -> result. A series is the states of a system ("NAME") or its
            embeddings ("NAME, embeddings"), without results if the system has no embeddings.
        systems: the systems that were probed.
        folder: the folder of the probing files.
    """

    tasks: list[Task]
    classifiers: dict[str, dict[str, Probed]]
    systems: list[str]
    folder: Path

    def by_category(self) -> dict[str, list[Task]]:
        """Return the tasks of each category."""
        groups = groupby(self.tasks, key=lambda task: task.category)
        return {category: list(tasks) for category, tasks in groups}

    def accuracies(self, series: str) -> dict[str, Estimate]:
        """Return the accuracy of a series in each task; an empty estimate if there is no result."""
        results = self.classifiers[series]
        return {
            task.name: results[task.name].accuracy if task.name in results else Estimate(None)
            for task in self.tasks
        }


class Probing(PaperAnalysis[ProbingOptions, Probes]):
    """Accuracy of classifiers on sentence vectors, beside embeddings and the majority class."""

    name = "probing"
    title = "what can be read off a sentence's vector"
    reads_translations = False
    examples = ("--probes senteval --tasks tree_depth,word_content --layer 3",)
    sets = "none"
    Options = ProbingOptions
    paper = "task"

    def measure(self, study: Study) -> Probes:
        folder = find_folder(study.run, self.options.probes)
        paths = select(find(folder), self.options.tasks)
        tasks = [read(name, files, SEED) for name, files in paths.items()]
        for task in tasks:
            if task.split:
                console.say(f"{task.name}: {task.split}")
            if task.seen:
                count = f"{task.seen:,} of {len(task.parts[TEST]):,}"
                console.warn(f"{task.name}: {count} test sentences are in the training part too")
        side = TextSide.load(study.run.prep, "src")
        vocabulary, _ = load_vocabularies(study.run.prep)
        sample = [sentence for task in tasks for sentence in task.sentences[:SAMPLE]]
        unknown = unknown_share(vocabulary.encode(side.encode(sentence)) for sentence in sample)
        study.warn_of_unknown({"probing sentences": unknown})

        def vectors_of(name: str) -> dict[str, Path]:
            reader = Reader(study, name, self.options.layer)
            files = {task.name: reader.file(study.folder / FEATURES, task) for task in tasks}
            # Without weights: vectors of an earlier call need none.
            model = build_untrained(study.run, study.run.system(name))
            for message in lacks(model, "probing sentences"):
                study.warn(name, message)
            return files

        nobody = "no system of this run has the requested states"
        hint = "leave --layer out, or train a system that has states of source positions"
        files = study.each(vectors_of, nobody, hint)
        return Probes(tasks, classify(tasks, files), list(files), folder)

    def present(self, result: Probes) -> Finding:
        names = [task.name for task in result.tasks]
        # No new system has a space in its name.
        series = {"majority class": {task.name: majority(task) for task in result.tasks}}
        series |= {label: result.accuracies(label) for label in result.classifiers}
        estimates = {label: list(values.values()) for label, values in series.items()}
        return Finding(
            table=self._table(result, series),
            text=(
                "An accuracy shows what a simple classifier finds in the frozen vector. It "
                "means something only above the majority class, and it is the work of the "
                "encoder only above the embeddings, which know words but not their order. "
                "Compare systems where their intervals are far apart. The interval covers the "
                "test sentences, not the training seed."
            ),
            figure=figures.grouped_bars(names, estimates, "task", "accuracy, %", upright=True),
            facts={
                "probes": str(result.folder),
                "seed": SEED,
                "tasks": {
                    task.name: {
                        **{part: len(rows) for part, rows in task.parts.items()},
                        "classes": len(task.classes),
                        "split": task.split,
                        "seen": task.seen,
                    }
                    for task in result.tasks
                },
                "classifiers": {
                    label: {name: asdict(probed) for name, probed in by_task.items()}
                    for label, by_task in result.classifiers.items()
                },
            },
        )

    def _table(self, result: Probes, series: Mapping[str, Mapping[str, Estimate]]) -> Table:
        rows = []
        for category, tasks in result.by_category().items():
            estimates = [[values[task.name] for values in series.values()] for task in tasks]
            for task, accuracies in zip(tasks, estimates, strict=True):
                sizes = len(task.classes), len(task.parts[TEST])
                rows.append([category, task.name, *sizes, *accuracies])
            if len(tasks) > 1:
                means = map(average, zip(*estimates, strict=True))
                rows.append([category, f"average of {len(tasks)}", None, None, *means])
        columns = [
            *text_columns("category", "task"),
            Column("classes", "classes"),
            Column("sentences", "test sentences"),
            *(interval_column(label, label, decimals=1) for label in series),
        ]
        title = f"Accuracy of probing classifiers, in % ({result.folder})"
        return Table("probing", title, columns, rows, notes(result.tasks, self.options.layer))

    def printed_too(self, result: Probes) -> papers.Measured:
        numbers = {}
        for system in result.systems:
            estimates = result.accuracies(system)
            for category, tasks in result.by_category().items():
                # A paper's mean is over all tasks of a category: a mean over fewer would differ.
                if estimates.keys() >= {*CATEGORIES.get(category, ())}:
                    estimates[category] = average([estimates[task.name] for task in tasks])
            numbers[system] = {k: e.value for k, e in estimates.items() if e.value is not None}
        probes, layer = self.options.probes or "demo", self.options.layer or "top"
        signature = f"{probes}, layer {layer}, standardised vectors, seed {SEED}"
        return papers.Measured(numbers, probes, {"": signature})


def find_folder(run: Run, where: str) -> Path:
    """Return the folder of probing files.

    Args:
        where: a folder, senteval, or "" for the files of the run's corpus.
    Raises: ConfigError if the corpus has no such files, or if the run does not translate from the
        language of SentEval; DataError, EnvironmentProblem if SentEval cannot be fetched.
    """
    if where == SENTEVAL:
        if (language := run.manifest().src) != "en":
            message = f"SentEval's sentences are English, but this run translates from '{language}'"
            hint = "use a run that translates from English, or name a folder of probing files"
            raise ConfigError(message, where="--probes", hint=hint)
        from nmtkit.corpora import published

        return published.evaluation_set(SENTEVAL)
    folder = Path(where) if where else run.prep / "eval" / "probing"
    if not where and not folder.is_dir():
        message = "this run's corpus has no probing files of its own"
        hint = f"--probes {SENTEVAL}, or --probes FOLDER with your probing files"
        raise ConfigError(message, where="--probes", hint=hint)
    return folder


def classify(
    tasks: Sequence[Task], files: Mapping[str, Mapping[str, Path]]
) -> dict[str, dict[str, Probed]]:
    """Train a classifier for each system, kind of vector and task, in parallel on all cores.

    Args:
        files: system -> task -> file of its vectors.
    Returns: series -> task -> result.
    """
    series = {name: (name, STATES) for name in files}
    series |= {f"{name}, embeddings": (name, EMBEDDINGS) for name in files}
    # Largest first, so that all cores finish together. Missing embeddings have width 0.
    work = [
        (label, task, files[name][task.name], kind)
        for task in sorted(tasks, key=lambda task: -len(task.sentences) * len(task.classes))
        for label, (name, kind) in series.items()
        if sentence_vectors.load(files[name][task.name])[kind].shape[1]
    ]
    classifiers: dict[str, dict[str, Probed]] = {label: {} for label in series}
    progress = console.progress("classifiers", len(work))
    with workers.one_thread(torch.device("cpu")), progress as advance:
        # Workers inherit the work; only its numbers are sent to them.
        results = workers.mapped(lambda i: probe(*work[i][1:]), [*range(len(work))], cores())
        for (label, task, *_), result in zip(work, results, strict=True):
            classifiers[label][task.name] = result
            advance(1)
    return classifiers


def probe(task: Task, path: Path, kind: str) -> Probed:
    """Train and test a classifier.

    Args:
        path: the file with the vectors of all sentences of the task.
        kind: STATES or EMBEDDINGS.
    """
    vectors = sentence_vectors.load(path)[kind]
    classes = np.searchsorted(task.classes, task.labels)
    rows = [task.parts[part] for part in PARTS]
    inputs = [torch.from_numpy(np.ascontiguousarray(vectors[part])) for part in rows]
    train, dev, test = (
        Examples(x, torch.from_numpy(classes[part]))
        for x, part in zip(classifier.standardised(inputs), rows, strict=True)
    )
    fitted = classifier.fit(train, dev, test.x, len(task.classes), SEED)
    right = int((fitted.predicted == test.y).sum())
    return Probed(right, len(test.y), fitted.epochs, fitted.best_epoch, fitted.dev)


def majority(task: Task) -> Estimate:
    """Return the test accuracy of the most frequent training label (ties: the first label)."""
    train, test = ([task.labels[row] for row in task.parts[part]] for part in (TRAIN, TEST))
    labels, counts = np.unique(train, return_counts=True)
    return wilson(test.count(labels[counts.argmax()]), len(test))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of accuracies on independent test sets, with its confidence interval.

    The interval is mean ± √Σ(half)² / n, where half is the distance from an accuracy to its limit;
    lower and upper limits are computed separately. Source: Zou & Donner 2008, *Construction of
    confidence limits about effect measures* (MOVER), for a mean.
    """
    table = np.array([[e.value, e.low, e.high] for e in estimates], dtype=np.float64)
    if np.isnan(table).any():
        return Estimate(None)
    values, lows, highs = table.T
    mean, n = float(values.mean()), len(values)
    below, above = (math.sqrt((half**2).sum()) / n for half in (values - lows, highs - values))
    return Estimate(mean, mean - below, mean + above)


def notes(tasks: Sequence[Task], layer: int) -> list[str]:
    """Return the notes of the table."""
    where = f"encoder layer {layer}" if layer else "the encoder's top, as the decoder reads it"
    lines = [
        (
            f"sentence vector: mean over positions, including </s>, of {where}; embeddings: "
            "mean of the model's source embeddings"
        ),
        (
            "classifier: ReLU layer as wide as the vector, softmax; L2 "
            f"{classifier.PENALTY:g} on the first layer's weights, RMSprop "
            f"{classifier.RATE:g}, batches of {classifier.BATCH}, at most "
            f"{classifier.EPOCHS} epochs, stopped after {classifier.PATIENCE} without a "
            f"better dev accuracy; the best epoch counts; seed {SEED}; the dimensions of "
            "the vectors are scaled to mean 0 and variance 1 over the training part"
        ),
        (
            "majority class: the most frequent label of the training part; [95%]: Wilson; for an "
            "average, combined from its tasks"
        ),
    ]
    lines += [f"{t.name}: {t.split}, one in {FOLDS} of each label" for t in tasks if t.split]
    stand = "test sentences stand in the training part too"
    return lines + [f"{task.name}: {task.seen:,} {stand}" for task in tasks if task.seen]
