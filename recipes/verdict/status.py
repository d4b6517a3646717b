"""The state of every training of the list, and the table that `--status` prints."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.tables.table import Column, Table, text_column
from recipes.verdict.folders import Folders, is_held, read_json
from recipes.verdict.listing import Item, Row, unknown_rows
from recipes.verdict.measured import Measured, measured

ROOT = Path(__file__).resolve().parents[2]
TRAINING_CODE = [
    f"nmtkit/{name}" for name in ("data", "models", "nn", "presets", "settings.py", "text", "train")
]
"""Code that a trained system depends on."""


@dataclass(frozen=True)
class State:
    """The state of one training.

    Attributes:
        word: done, running, failed, waits (a worker cannot take it now) or waiting (it can).
        reason: why it failed or waits.
    """

    item: Item
    word: str
    reason: str = ""


def states(items: Iterable[Item], folders: Folders) -> list[State]:
    """Return the state of each training, in the order of the list."""
    items = list(items)
    unknown = unknown_rows(item.row for item in items if folders.result(item) is None)
    return [_state(item, folders, unknown) for item in items]


def _state(item: Item, folders: Folders, unknown: dict[Row, str]) -> State:
    dataset = item.row.dataset
    if folders.result(item) is not None:
        return State(item, "done")
    if is_held(folders.lock(item.path)):
        return State(item, "running")
    if reason := folders.failure(item.path):
        return State(item, "failed", reason)
    if item.row in unknown:
        return State(item, "waits", f"for {item.row.awaits}: {unknown[item.row]}")
    if reason := folders.failure(dataset):
        return State(item, "waits", f"for its corpus: {reason}")
    if item.after and not folders.has_trained_first(item):
        return State(item, "waits", f"for {item.after}")
    if item.needs_rate and folders.rates(item.row) is None:
        return State(item, "waits", f"for the learning rate of seed {item.row.seeds[0]}")
    return State(item, "waiting")


def table(items: list[Item], folders: Folders, jobs: int) -> Table:
    """Return the table of `--status`."""
    estimates = Estimates(items, folders)
    columns = [
        text_column("system"),
        text_column("state"),
        Column("updates", "updates", decimals=0),
        Column("dev_bleu", "dev BLEU"),
        text_column("rate", "lr"),
        Column("hours", "core hours", decimals=1),
        Column("hours_left", "left", decimals=1),
        text_column("remark"),
    ]
    rows = [_table_row(state, folders, estimates) for state in states(items, folders)]
    return Table("verdict", "Trainings of the verdict", columns, rows, _notes(rows, jobs))


def _table_row(state: State, folders: Folders, estimates: Estimates) -> list[Any]:
    item = state.item
    kept = folders.result(item)
    now = measured(kept) if kept else progress(item, folders)
    rates = folders.rates(item.row)
    rate = str(read_json(rates)["chosen"]) if rates else "|".join(item.row.rates)
    return [
        item.path,
        state.word,
        now.updates or None,
        now.best.get("dev_bleu") if now.best else None,
        rate,
        now.seconds / 3600 if now.updates else None,
        None if state.word in {"done", "failed"} else estimates.hours_left(item, now.updates),
        remark(item, kept) if kept else state.reason,
    ]


def _notes(rows: list[list[Any]], jobs: int) -> list[str]:
    counts = Counter(row[1] for row in rows)
    words = ("done", "running", "waiting", "waits", "failed")
    counted = [f"{counts[word]} {word}" for word in words]
    # Cells 1 and 6 of a row are the state and the hours left.
    hours = [row[6] for row in rows if row[1] not in {"done", "failed"}]
    known = [number for number in hours if number is not None]
    total, unknown = sum(known), len(hours) - len(known)
    at_least = f" and {unknown} trainings of unknown cost" if unknown else ""
    days = f"{total / jobs / 24:.1f} days with {jobs} at once on cores of their own"
    return [
        ", ".join(counted) + f"; {len(rows)} in all",
        f"left: {total:.1f} core hours{at_least} ({days})",
    ]


def remark(item: Item, kept: Path) -> str:
    """Return the commits that trained a finished system, and what has changed since."""
    summary = read_json(kept / "summary.json")
    remarks = [f"trained by {', '.join(summary['commits'])}"]
    if any(changed_since(commit) for commit in summary["commits"]):
        remarks.append("the training code has changed since")
    if summary["options"] != list(item.row.options):
        remarks.append("the list has other options now")
    return "; ".join(remarks)


def changed_since(commit: str) -> bool:
    """True if the training code differs from that of a commit, or if the commit is unknown."""
    command = ["git", "diff", "--quiet", commit, "HEAD", "--", *TRAINING_CODE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return commit.endswith("-dirty") or done.returncode != 0


def progress(item: Item, folders: Folders) -> Measured:
    """Return the measurements of an unfinished training, or of the longest of its trials."""
    return max(_system_and_trials(item, folders), key=lambda training: training.updates)


def _system_and_trials(item: Item, folders: Folders) -> list[Measured]:
    """Return the measurements of a training and of its trials; no updates if it has not begun."""
    return [measured(folders.system(item, rate)) for rate in (None, *item.row.rates)]


class Estimates:
    """Estimates the hours of trainings from those of the same corpus.

    Seconds of an update: those of the row's own trainings, else the mean of the other rows.
    Updates: the mean of the finished systems, else train.max_steps of the row's options.
    """

    def __init__(self, items: list[Item], folders: Folders) -> None:
        self._folders = folders
        self._speeds: dict[Row, float] = {}
        self._lengths = defaultdict[str, list[int]](list)
        by_row = defaultdict[Row, list[Measured]](list)
        for item in items:
            if result := folders.result(item):
                finished = measured(result)
                by_row[item.row].append(finished)
                self._lengths[item.row.dataset].append(finished.updates)
            else:
                by_row[item.row] += _system_and_trials(item, folders)
        for row, trainings in by_row.items():
            if updates := sum(training.updates for training in trainings):
                self._speeds[row] = sum(training.seconds for training in trainings) / updates

    def hours_left(self, item: Item, updates: int) -> float | None:
        """Return the hours that a training still needs after so many updates; None if unknown."""
        speed, length = self._speed(item.row), self._length(item.row)
        if speed is None or length is None:
            return None
        left = max(0, length - updates)
        if item.chooses_rate and self._folders.rates(item.row) is None:
            _, *trials = _system_and_trials(item, self._folders)
            left = length + (len(trials) - 1) * item.row.updates - sum(t.updates for t in trials)
        return left * speed / 3600

    def _speed(self, row: Row) -> float | None:
        others = [s for r, s in self._speeds.items() if r.dataset == row.dataset]
        return self._speeds.get(row) or (statistics.mean(others) if others else None)

    def _length(self, row: Row) -> int | None:
        if lengths := self._lengths[row.dataset]:
            return round(statistics.mean(lengths))
        limits = [re.fullmatch(r"train\.max_steps=(\d+)", option) for option in row.options]
        return next((int(limit[1]) for limit in reversed(limits) if limit), None)
