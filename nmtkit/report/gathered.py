"""What the other stages have written into a run, read for its report; what is missing or out of
date is noted and not crashed on.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.analyze import ANALYSES
from nmtkit.analyze.analysis import Finding, Inputs, StoredFinding, as_words
from nmtkit.analyze.shared.curves import Curves, read
from nmtkit.errors import DataError, NmtkitError
from nmtkit.models import checkpoints
from nmtkit.records import Manifest, Scores, load
from nmtkit.run import Run

DAMAGED = (NmtkitError, KeyError, TypeError, ValueError, AttributeError, AssertionError)
"""What reading a finding.json that another version, or an accident, has written may raise."""
OWN_FILES = ("finding.json", "figure.svg", "table.md", "table.tex", "table.csv")


@dataclass(frozen=True)
class Remark:
    """Something that is missing, out of date or to be read with care, and the command that mends
    it.
    """

    text: str
    command: str = ""


@dataclass(frozen=True)
class TrainedSystem:
    """One system of the run: its resolved settings and its curves (empty where nothing was
    logged).
    """

    name: str
    config: dict[str, Any]
    curves: Curves
    parameters: int | None

    @property
    def seed(self) -> int | None:
        """The seed it was trained with."""
        found = self.config.get("train", {}).get("seed", self.config.get("seed"))
        return found if isinstance(found, int) else None


@dataclass(frozen=True)
class KeptFinding:
    """A finding as it stands in analyze/<name>/: its SVG, further files by name, what is to be said
    of it, the command that makes it, and whether something that it was made from has changed since.
    """

    finding: Finding
    figure: str | None
    further: list[str]
    remarks: list[Remark]
    command: str
    late: bool


@dataclass
class Gathered:
    """Everything a report shows; `scores` are those of each set, the test sets first, and
    `systems` those that stand in one of them.
    """

    run: Run
    manifest: Manifest
    systems: list[TrainedSystem] = field(default_factory=list)
    scores: dict[str, Scores] = field(default_factory=dict)
    findings: dict[str, KeptFinding] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def note(self, text: str, command: str = "") -> None:
        """Add a remark."""
        self.remarks.append(Remark(text, command))


def gather(run: Run) -> Gathered:
    """Read a run.

    Raises: DataError if it is not prepared, or nothing in it is scored, with the command to give
        first.
    """
    found = Gathered(run, run.manifest())
    changed = _changes(run)
    _read_systems(found)
    _read_scores(found, changed)
    if not found.scores:
        raise _nothing(found)
    _note_unscored(found)
    compared = {name for result in found.scores.values() for name in result.names}
    found.systems = [system for system in found.systems if system.name in compared]
    _read_findings(found, changed)
    return found


def _nothing(found: Gathered) -> DataError:
    """The error of a run without scores: what is the next command?"""
    run = found.run
    if found.remarks and any((run.path / "score").glob("*/scores.json")):
        return DataError(
            f"nothing to report: {found.remarks[-1].text}",
            where=run.path / "score",
            hint="nmtkit score --force",
        )
    if any((run.path / "systems").glob("*/translate/*/hyp.txt")):
        return DataError(
            "nothing to report: the translations of this run are not scored",
            where=run.path,
            hint="nmtkit score --by-length",
        )
    if run.systems():
        return DataError(
            "nothing to report: no set of this run is translated",
            where=run.path,
            hint="nmtkit translate, then nmtkit score",
        )
    return DataError(
        "nothing to report: this run has no trained system",
        where=run.path,
        hint="nmtkit train, then nmtkit translate and nmtkit score",
    )


def _changes(run: Run) -> Callable[[Mapping[str, str]], list[str]]:
    """A function that gives, of files with their checksums, those of the run that are other ones
    by now, or gone; each file is read once.
    """
    seen: dict[str, str | None] = {}

    def changed(made_from: Mapping[str, str]) -> list[str]:
        own = {
            name: value
            for name, value in made_from.items()
            if name.startswith(("systems/", "prep/"))
        }
        for name in own:
            if name not in seen:
                seen[name] = files.sha256(run.path / name) if (run.path / name).is_file() else None
        return [name for name, value in own.items() if seen[name] != value]

    return changed


def _read_systems(found: Gathered) -> None:
    for system in found.run.systems():
        try:
            config = system.read_config()
        except DataError as error:
            found.note(f"systems/{system.name}: its settings cannot be read ({error.message})")
            config = {}
        try:
            curves = read(system.metrics, config.get("train", {}).get("log_every"))
        except DataError as error:
            found.note(f"systems/{system.name}: its log cannot be read ({error.message})")
            curves = Curves()
        found.systems.append(TrainedSystem(system.name, config, curves, _parameters(system.path)))


def _parameters(folder: Path) -> int | None:
    """The numbers in a system's newest checkpoint, tied ones once, by the header of its file;
    None without one.
    """
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("checkpoints/step-*/model.safetensors"), reverse=True):
        try:
            with safe_open(path, framework="numpy") as weights:
                shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
        except (SafetensorError, OSError):
            continue
        return sum(map(math.prod, shapes))
    return None


def _read_scores(found: Gathered, changed: Callable[[Mapping[str, str]], list[str]]) -> None:
    sets = found.run.sets()
    order = [s.name for s in sets if s.split == "test"] + [
        s.name for s in sets if s.split != "test"
    ]
    names = sorted(path.parent.name for path in (found.run.path / "score").glob("*/scores.json"))
    for name in names:
        if name not in order:
            found.note(f"score/{name}: this run has no such set any more")
    for name in (name for name in order if name in names):
        again = f"nmtkit score --force --set-name {name}"
        try:
            result = load(Scores, found.run.path / "score" / name / "scores.json")
        except DataError as error:
            found.note(f"score/{name}: {error.message}, and left out", again)
            continue
        found.scores[name] = result
        if late := changed(result.made_from.files if result.made_from else {}):
            found.note(
                f"score/{name}: made before these changed: {_some(late)}",
                score_command(name, result),
            )


def _note_unscored(found: Gathered) -> None:
    """Say which systems stand in no table, or not in all."""
    for name, result in found.scores.items():
        scored = set(result.names)
        translated = {
            path.parents[2].name
            for path in (found.run.path / "systems").glob(f"*/translate/{name}/hyp.txt")
        }
        again = score_command(name, result)
        if waiting := sorted(translated - scored):
            found.note(f"{name}: translated, but not among the scores: {', '.join(waiting)}", again)
        if missing := [
            system.name for system in found.systems if system.name not in translated | scored
        ]:
            found.note(
                f"{name}: not translated: {', '.join(missing)}",
                f"nmtkit translate --set-name {name} && {again}",
            )


def score_command(set_name: str, result: Scores) -> str:
    """The command that scores a set once more in the way of a result, with all systems."""
    options = ["--set-name", set_name, "--test", result.test]
    options += ["--against", result.baseline] if len(result.systems) > 1 else []
    options += ["--buckets", result.by_length.buckets] if result.by_length else []
    return shlex.join(["nmtkit", "score", *options])


def _read_findings(found: Gathered, changed: Callable[[Mapping[str, str]], list[str]]) -> None:
    trained = [system.name for system in found.systems]
    folders = {
        path.name: path
        for path in sorted((found.run.path / "analyze").glob("*"))
        if path.is_dir() and not path.name.startswith(".")
    }
    known = [name for name in ANALYSES if name in folders]
    for name in [*known, *(name for name in folders if name not in known)]:
        folder = folders[name]
        if not (folder / "finding.json").is_file():
            found.note(
                f"analyze/{name}: no finding in it; the analysis did not end",
                f"nmtkit analyze {name}",
            )
            continue
        try:
            stored = load(StoredFinding, folder / "finding.json")
            made_from, weights = stored.made_from, stored.made_from.weights
            late = changed(made_from.files)
            late += [
                f"the weights of {name}"
                for name in weights
                if checkpoints.current(found.run.system(name)) != weights[name]
            ]
        except NmtkitError as error:
            found.note(
                f"analyze/{name}: cannot be read, and left out ({error})",
                f"nmtkit analyze {name} --force",
            )
            continue
        finding = stored.finding()
        without = [s for s in trained if s not in made_from.systems]
        command = analyze_command(name, made_from, [system.name for system in found.run.systems()])
        remarks = [Remark(f"Made before these changed: {_some(late)}", command)] if late else []
        if without:
            remarks.append(
                Remark(f"Of {', '.join(made_from.systems)} alone, without {', '.join(without)}")
            )
        figure = folder / "figure.svg"
        further = sorted(
            path.name
            for path in folder.iterdir()
            if path.is_file() and path.name not in OWN_FILES and not path.name.startswith(".")
        )
        svg = figure.read_text("utf-8", "replace") if figure.is_file() else None
        found.findings[name] = KeptFinding(finding, svg, further, remarks, command, bool(late))


def analyze_command(name: str, made_from: Inputs, systems: Sequence[str]) -> str:
    """Return the command that makes a finding again; systems: all of the run, which need no
    naming.
    """
    words = []
    if made_from.systems != list(systems):
        words += [word for system in made_from.systems for word in ("--system", system)]
    set_names = made_from.options.get("set_names", ())
    words += [word for set_name in set_names for word in ("--set-name", set_name)]
    typed = made_from.words
    if typed is None:  # a finding of nmtkit 0.1: all options, at their default or not
        given = {
            key: value
            for key, value in made_from.options.items()
            if key != "set_names" and value not in ("", [], False, 0)
        }
        typed = as_words(given)
    return shlex.join(["nmtkit", "analyze", name, *words, *typed])


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
