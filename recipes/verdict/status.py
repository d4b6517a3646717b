"""The state of every training of the list, and the table that `--status` prints."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections import Counter
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
"""What a trained system depends on; another commit of the rest changes nothing."""


@dataclass(frozen=True)
class State:
    """What is known of one training.

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
    if item.row.after and not folders.has_trained(item, item.row.after):
        return State(item, "waits", f"for {item.row.after}-s{item.seed}")
    if item.needs_rate and folders.rates(item.row) is None:
        return State(item, "waits", f"for the learning rate of seed {item.row.seeds[0]}")
    return State(item, "waiting")


def table(items: list[Item], folders: Folders, jobs: int) -> Table:
    """Return the table of `--status`."""
    found = states(items, folders)
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
    rows = [_table_row(state, folders, estimates) for state in found]
    return Table("verdict", "Trainings of the verdict", columns, rows, _notes(found, rows, jobs))


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


def _notes(found: list[State], rows: list[list[Any]], jobs: int) -> list[str]:
    counts = Counter(state.word for state in found)
    words = [f"{counts[word]} {word}" for word in ("done", "running", "waiting", "waits", "failed")]
    notes = [", ".join(words) + f"; {len(found)} in all"]
    left = [
        row[6]
        for state, row in zip(found, rows, strict=True)
        if state.word in {"running", "waiting"}
    ]
    left += [row[6] for state, row in zip(found, rows, strict=True) if state.word == "waits"]
    known = [hours for hours in left if hours is not None]
    total = sum(known)
    at_least = f" and {len(left) - len(known)} trainings of unknown cost" * (len(known) < len(left))
    days = f"{total / jobs / 24:.1f} days with {jobs} at once on cores of their own"
    notes.append(f"left: {total:.1f} core hours{at_least} ({days})")
    return notes


def remark(item: Item, kept: Path) -> str:
    """Return in what a finished system differs from one that would be trained now."""
    summary = read_json(kept / "summary.json")
    remarks = [f"trained by {', '.join(summary['commits'])}"]
    if any(changed_since(commit) for commit in summary["commits"]):
        remarks.append("the training code has changed since")
    if summary["options"] != list(item.row.options):
        remarks.append("the list has other options now")
    return "; ".join(remarks)


def changed_since(commit: str) -> bool:
    """True if the code that trains is not that of a commit, or if the commit is unknown."""
    command = ["git", "diff", "--quiet", commit, "HEAD", "--", *TRAINING_CODE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return commit.endswith("-dirty") or done.returncode != 0


def progress(item: Item, folders: Folders) -> Measured:
    """Return what an unfinished training has measured: itself, or else its trial so far."""
    if (system := folders.system(item)).is_dir():
        return measured(system)
    trials = [measured(folders.system(item, rate)) for rate in item.row.rates]
    return max(trials, key=lambda trial: trial.updates)


class Estimates:
    """How long trainings take, from what was measured in the same corpus.

    A row takes the seconds of an update that its own trainings took, else the mean of the other
    rows; and as many updates as finished systems had on average, else the limit of its options.
    """

    def __init__(self, items: list[Item], folders: Folders) -> None:
        self._folders = folders
        self._speeds: dict[Row, float] = {}
        self._lengths: dict[str, list[int]] = {}
        for row in dict.fromkeys(item.row for item in items):
            of_row = [item for item in items if item.row == row]
            found = [measured(path) for item in of_row for path in self._paths(item)]
            if updates := sum(one.updates for one in found):
                self._speeds[row] = sum(one.seconds for one in found) / updates
            done = [measured(path).updates for path in map(folders.result, of_row) if path]
            self._lengths.setdefault(row.dataset, []).extend(done)

    def _paths(self, item: Item) -> list[Path]:
        if kept := self._folders.result(item):
            return [kept]
        trials = [self._folders.system(item, rate) for rate in item.row.rates]
        return [path for path in (self._folders.system(item), *trials) if path.is_dir()]

    def hours_left(self, item: Item, updates: int) -> float | None:
        """Return the hours that a training still needs after so many updates; None if unknown."""
        speed, length = self._speed(item.row), self._length(item.row)
        if speed is None or length is None:
            return None
        left = max(0, length - updates)
        if item.chooses_rate and self._folders.rates(item.row) is None:
            tried = [measured(self._folders.system(item, rate)) for rate in item.row.rates]
            left = length + (len(tried) - 1) * item.row.updates - sum(t.updates for t in tried)
        return left * speed / 3600

    def _speed(self, row: Row) -> float | None:
        others = [s for r, s in self._speeds.items() if r.dataset == row.dataset]
        return self._speeds.get(row) or (statistics.mean(others) if others else None)

    def _length(self, row: Row) -> int | None:
        if lengths := self._lengths[row.dataset]:
            return round(statistics.mean(lengths))
        limits = [re.fullmatch(r"train\.max_steps=(\d+)", option) for option in row.options]
        return next((int(limit[1]) for limit in reversed(limits) if limit), None)
