"""The list of systems to train, as list.sh prints it."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from nmtkit.errors import ConfigError, NmtkitError

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One system of the list, with all its seeds.

    Attributes:
        part: the part of the list.
        dataset, preset, prep: name, preset and further options for `nmtkit prep`.
        name: the name of the system without a seed.
        rates: the learning rates to choose from.
        updates: the updates of each training that tries a rate.
        awaits: the part of nmtkit that this row needs and that may not exist yet; empty if none.
        after: the row whose training with the same seed must end first; empty if none.
        analyses: label, name and options of each analysis of the trained system.
        options: the options of `nmtkit train`.
    """

    part: str
    dataset: str
    preset: str
    prep: tuple[str, ...]
    name: str
    seeds: tuple[int, ...]
    updates: int
    rates: tuple[str, ...]
    awaits: str
    after: str
    analyses: tuple[tuple[str, ...], ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Item:
    """One training: a row with one of its seeds."""

    row: Row
    seed: int

    @property
    def name(self) -> str:
        """The name of the system in its run."""
        return f"{self.row.name}-s{self.seed}"

    @property
    def path(self) -> str:
        """CORPUS/NAME, as people write it."""
        return f"{self.row.dataset}/{self.name}"

    @property
    def run(self) -> str:
        """The run directory, relative to the folder of the state."""
        return f"runs/{self.row.dataset}"

    @property
    def after(self) -> str:
        """The name of the system that must be trained first; empty if none."""
        return f"{self.row.after}-s{self.seed}" if self.row.after else ""

    @property
    def options(self) -> list[str]:
        """The options of the row, with this seed."""
        return [option.replace("{seed}", str(self.seed)) for option in self.row.options]

    @property
    def chooses_rate(self) -> bool:
        """True if this training, of its row's first seed, chooses the learning rate for all."""
        return len(self.row.rates) > 1 and self.seed == self.row.seeds[0]

    @property
    def needs_rate(self) -> bool:
        """True if another seed of the row chooses the learning rate."""
        return len(self.row.rates) > 1 and not self.chooses_rate


def read_list(file: Path) -> list[Item]:
    """Return the trainings of a list in their order: by part, by seed, by system.

    Raises: ConfigError naming what is wrong with the list.
    """
    script = HERE / "list.sh"
    command = ["bash", str(script), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"the list cannot be read: {reason}", where=file, hint=f"see {script}")
    rows = [_row(line, file) for line in done.stdout.splitlines()]
    items = []
    for _, part in itertools.groupby(rows, key=lambda row: row.part):
        numbered = [(n, Item(row, seed)) for row in part for n, seed in enumerate(row.seeds)]
        items += [item for _, item in sorted(numbered, key=lambda pair: pair[0])]
    counts = Counter(item.path for item in items)
    for item in items:
        first = f"{item.row.dataset}/{item.after}"
        if item.after and first not in counts:
            raise _bad(f"{item.path} comes after {first}, which is not in the list", file)
        if counts[item.path] > 1:
            hint = "give it another name"
            raise ConfigError(f"{item.path} is listed twice", where=file, hint=hint)
    return items


def _row(line: str, file: Path) -> Row:
    part, dataset, preset, prep, name, seeds, updates, rates, *more = line.split("\t")
    awaits, after, analyses, options = more
    parts = tuple(tuple(shlex.split(words)) for words in analyses.split("\x1f") if words)
    checks = [
        (
            re.fullmatch(r"[A-Za-z0-9][\w.-]*", name),
            ": use letters, digits, '-', '_' and '.', a letter or a digit first",
        ),
        (dataset and preset, " has no corpus: call corpus DATASET PRESET before it"),
        (re.fullmatch(r"\d+( \d+)*", seeds), " has no seeds: call seeds 1 2 3 before it"),
        (
            rates and all(map(_is_positive, rates.split())),
            " has no learning rates: call rates UPDATES RATE… before it",
        ),
        (
            all(len(words) > 1 and re.fullmatch(r"[\w-]+", words[0]) for words in parts),
            ": an analysis is a label, a name and options (analysis LABEL NAME)",
        ),
        (
            re.fullmatch(r"[1-9]\d*", updates),
            f": '{updates}' is no number of updates (rates UPDATES RATE…)",
        ),
    ]
    for is_right, problem in checks:
        if not is_right:
            raise _bad(f"system '{name}'{problem}", file)
    return Row(
        part=part,
        dataset=dataset,
        preset=preset,
        prep=tuple(shlex.split(prep)),
        name=name,
        seeds=tuple(map(int, seeds.split())),
        updates=int(updates),
        rates=tuple(rates.split()),
        awaits=awaits,
        after=after,
        analyses=parts,
        options=tuple(shlex.split(options)),
    )


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _bad(message: str, file: Path) -> ConfigError:
    return ConfigError(message, where=file, hint=f"see {HERE / 'list.sh'}")


def unknown_rows(rows: Iterable[Row]) -> dict[Row, str]:
    """Return the awaited rows whose options nmtkit does not know yet, each with the reason.

    Rows that await nothing are not looked at: importing the models takes seconds.
    """
    awaited = [row for row in dict.fromkeys(rows) if row.awaits]
    reasons = ((row, why_unknown(row.options)) for row in awaited)
    return {row: reason for row, reason in reasons if reason}


def why_unknown(options: Sequence[str]) -> str | None:
    """Return why `nmtkit train` would refuse options; None if it knows them."""
    from typer.main import get_command

    from nmtkit.cli import app
    from nmtkit.train.options import TrainOptions
    from nmtkit.train.plan import make_plan

    run = SimpleNamespace(manifest=lambda: SimpleNamespace(preset="", fingerprint=""))
    try:
        command = get_command(app).commands["train"]  # type: ignore[attr-defined]
        with_rate = ["--set", "train.lr=1", *options]  # every training gets a rate
        values = command.make_context("train", with_rate).params
        known = TrainOptions.model_fields
        given = {key: value for key, value in values.items() if key in known and value is not None}
        make_plan(run, TrainOptions.of(given))  # type: ignore[arg-type]
    except NmtkitError as error:
        return error.message
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    return None
