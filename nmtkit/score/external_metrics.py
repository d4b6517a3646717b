"""External metrics: a command or a file with one number for each sentence.

The score of a corpus is the mean over its sentences. So the statistics of a sentence are its score
and 1, and intervals, tests and length groups treat an external metric like any other metric.

Commands come only from the command line. A run keeps the numbers that a command printed. Nothing
that is read from a run is ever executed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.records import load_or_warn
from nmtkit.score.metrics import METRICS, Metric, mean_metric
from nmtkit.score.options import ScoreOptions
from nmtkit.score.result_tables import NAMES
from nmtkit.score.scripts import References
from nmtkit.score.stored_scores import ExternalScores

LOWER = "lower"
"""`NAME:lower=…`: lower is better."""
_NAME = re.compile(r"[A-Za-z][\w.+-]*", re.ASCII)
_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
"""Characters at which some programming language splits lines or fields."""
_SHOWN = 3
"""The number of lines of a failed command's messages in the error."""


@dataclass(frozen=True)
class SetTexts:
    """The sources and references of a set.

    Args:
        name: the name of the set.
        sources: (N) lines; references: reference streams of N lines.
        folder: the folder that keeps the numbers of commands; None to keep nothing.
        force: True to run commands again.
    """

    name: str
    sources: Sequence[str]
    references: References
    folder: Path | None = None
    force: bool = False

    def rows(self, hyps: Sequence[str]) -> str:
        """Return lines of source, hypothesis and references, separated by tabs. A tab or line break
        inside a text becomes a space.
        """
        rows = zip(self.sources, hyps, *self.references, strict=True)
        return "".join("\t".join(_BREAKS.sub(" ", t) for t in row) + "\n" for row in rows)


@dataclass(frozen=True)
class ExternalMetric(ABC):
    """A metric with one number for each sentence.

    Args:
        name: the name of its column; origin: the command, or the path of the scores.
    """

    option: ClassVar[str]
    kind: ClassVar[str]
    name: str
    origin: str
    higher_is_better: bool = True

    @abstractmethod
    def scores(self, system: str, hyps: Sequence[str], texts: SetTexts) -> list[float]:
        """Return the number of each sentence.

        Raises: DataError unless there is one number for each line.
        """

    @abstractmethod
    def depends_on(self, set_name: str, systems: Sequence[str]) -> str:
        """Return a hash of everything that the scores depend on, except the texts."""

    @property
    def where(self) -> str:
        """The option as it was typed."""
        return f"{self.option} {self.name}={shlex.quote(self.origin)}"

    def measure(self, system: str, hyps: Sequence[str], texts: SetTexts) -> Metric:
        """Return the metric of one system.

        Args:
            system: the name of the system; hyps: (N) lines.
        Raises: DataError as `scores`.
        """
        names = [f"nrefs:{len(texts.references)}", f"{self.kind}:{self.origin}", "corpus:mean"]
        if not self.higher_is_better:
            names.append("better:lower")
        scores = self.scores(system, hyps, texts)
        statistics = np.stack([scores, np.ones(len(scores))], axis=1)
        return mean_metric(self.name, statistics, "|".join(names), self.higher_is_better)


def numbers(
    lines: Iterable[str],
    expected: int,
    source: str,
    where: object,
    unit: str = "sentence",
    infinite: bool = False,
) -> list[float]:
    """Return the numbers in lines of text, one number a line.

    Args:
        expected: the expected number of lines.
        source, where, unit: for errors: what the lines are, the option that names them, and what
            each number belongs to.
        infinite: True if a number may be infinite, such as the logarithm of a probability of 0.
    Raises: DataError for another number of lines, or a line that is not such a number.
    """
    values = []
    for number, line in enumerate(itertools.islice(lines, expected + 1), 1):
        try:
            value = float(line)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not (infinite or math.isfinite(value)):
            raise DataError(
                f"line {number} of {source} is not a finite number: {line[:60]!r}",
                where=where,
                hint="one number a line, nothing else (of a command: messages go to stderr)",
            )
        values.append(value)
    if len(values) != expected:
        more = len(values) > expected  # a pipe may never end
        amount = "more numbers" if more else counted(len(values), "number")
        raise DataError(
            f"{amount} in {source} for {counted(expected, unit)}",
            where=where,
            hint=f"one number for each {unit}, in the same order",
        )
    return values


class CommandMetric(ExternalMetric):
    """A metric whose numbers a command prints."""

    option, kind = "--metric", "command"

    def scores(self, system: str, hyps: Sequence[str], texts: SetTexts) -> list[float]:
        rows = texts.rows(hyps)
        path = texts.folder and texts.folder / self.name / f"{system}.json"
        made_from = _sha256(rows, self.depends_on(texts.name, [system])) if path else ""
        stored = load_or_warn(ExternalScores, path) if path and not texts.force else None
        if stored and stored.made_from == made_from and len(stored.scores) == len(hyps):
            return stored.scores
        console.say(f"{self.name}: running the command for '{system}' on {texts.name}")
        lines = self._output(rows).removesuffix("\n").split("\n")
        lines = lines if lines != [""] else []
        scores = numbers(lines, len(hyps), "the command's output", self.where)
        if path:
            ExternalScores(format=1, made_from=made_from, scores=scores).write(path)
        return scores

    def _output(self, rows: str) -> str:
        """Return what the command prints.

        Raises: ConfigError with its last messages if it fails.
        """
        process = subprocess.Popen(
            self.origin,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own
        )
        try:
            output, errors = process.communicate(rows.encode())
        except BaseException:  # such as a signal: end everything that the command has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode:
            messages = errors.decode("utf-8", "replace").splitlines()
            last = " | ".join([line.strip() for line in messages if line.strip()][-_SHOWN:])
            failed = f"the command failed with exit code {process.returncode}"
            if process.returncode == 127:
                failed = "the shell does not find the command"
            raise ConfigError(
                f"{self.name}: {failed}: {last or 'it printed no message'}",
                where=self.where,
                hint="run the command by itself on one line: source, tab, hypothesis, tab,"
                " reference",
            )
        return output.decode("utf-8", "replace")

    def depends_on(self, set_name: str, systems: Sequence[str]) -> str:
        """Return a hash of the command and of the files that it names, such as its script."""
        try:
            words = shlex.split(self.origin)
        except ValueError:  # an open quote, about which the shell will complain
            words = []
        paths = [path for word in words if (path := Path(word).expanduser()).is_file()]
        return _sha256(self.where, str(self.higher_is_better), *map(files.sha256, paths))


class FileMetric(ExternalMetric):
    """A metric whose numbers are in a file for each system and set."""

    option, kind = "--metric-scores", "file"

    def _path(self, set_name: str, system: str) -> Path:
        path = self.origin.replace("{system}", system).replace("{set}", set_name)
        return Path(path).expanduser()

    def scores(self, system: str, hyps: Sequence[str], texts: SetTexts) -> list[float]:
        path = self._path(texts.name, system)
        files.check_file(path, once=True, where=self.where)
        return numbers(files.text_lines(path, once=True), len(hyps), str(path), self.where)

    def depends_on(self, set_name: str, systems: Sequence[str]) -> str:
        paths = [self._path(set_name, system) for system in systems]
        for path in paths:
            files.check_file(path, where=self.where)
        return _sha256(self.where, str(self.higher_is_better), *map(files.sha256, paths))


def external_metrics(options: ScoreOptions) -> dict[str, ExternalMetric]:
    """Return the external metrics of the options by name.

    Raises: ConfigError for a value that is not NAME=…, or a name that is taken.
    """
    metrics = {}
    for kind, texts in ((CommandMetric, options.metric), (FileMetric, options.metric_scores)):
        for metric in (parse(kind, text) for text in texts):
            if metric.name in metrics or metric.name.lower() in {*METRICS, *NAMES}:
                raise ConfigError(
                    f"the name '{metric.name}' is taken", where=metric.where, hint="use another"
                )
            metrics[metric.name] = metric
    return metrics


def parse(kind: type[CommandMetric | FileMetric], text: str) -> ExternalMetric:
    """Return the metric of NAME=… or NAME:lower=….

    Raises: ConfigError for any other text.
    """
    label, _, origin = text.partition("=")
    name, colon, direction = label.partition(":")
    if not origin.strip() or not _NAME.fullmatch(name) or direction != LOWER * len(colon):
        raise ConfigError(
            f"cannot read '{text}'",
            where=kind.option,
            hint=f"NAME=…, or NAME:{LOWER}=… if lower is better; a name has letters and digits",
        )
    return kind(name, origin, higher_is_better=not colon)


def check_paths(options: ScoreOptions, placeholder: str, names: Sequence[str]) -> None:
    """Raise ConfigError if one file would give the scores of several systems or sets.

    Args:
        placeholder: "{system}" or "{set}"; names: the names of all systems or sets.
    """
    for metric in external_metrics(options).values():
        several = isinstance(metric, FileMetric) and len(names) > 1
        if several and placeholder not in metric.origin:
            raise ConfigError(
                f"{metric.name}: one file cannot have the scores of {', '.join(names)}",
                where=metric.where,
                hint=f"put {placeholder} into the path where the files differ",
            )


def _sha256(*texts: str) -> str:
    return files.text_sha256(json.dumps(texts))
