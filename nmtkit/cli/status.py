"""The command `status`: the systems and scores of each run, and which parts are out of date."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.filesize import decimal

from nmtkit import console, files
from nmtkit.cli.command import command
from nmtkit.cli.program import examples
from nmtkit.errors import DataError, NmtkitError, counted, explained
from nmtkit.options import Options, option
from nmtkit.records import BestCheckpoint, load
from nmtkit.report.commands import of_run
from nmtkit.report.contents import (
    Contents,
    Remark,
    digest_of_scores,
    has_digest,
    read_stages,
)
from nmtkit.run import Run, System
from nmtkit.score.stored_scores import Scores
from nmtkit.tables.table import Column, Table, text_column

PARTS = ("prep", "systems", "history.jsonl")
"""A folder under ./runs is a run if it has one of these parts."""
COLUMNS = [
    text_column("system"),
    Column("steps", "steps"),
    Column("best", "best dev"),
    Column("step", "at step"),
    text_column("bleu", "BLEU of test sets"),
    Column("size", "size"),
]


class StatusOptions(Options):
    """The options of `nmtkit status`."""

    runs: list[Path] = option([], "RUN", argument=True)
    """The run directories (default: all runs under ./runs)."""
    run: Path | None = option(None, "DIR", envvar="NMTKIT_RUN")
    """A run directory, named as for the other commands."""
    as_json: bool = option(False, None, "--json")
    """Print JSON."""


@command("status", StatusOptions, epilog=examples("nmtkit status", "nmtkit status runs/mine"))
def status(as_json: bool, runs: Sequence[Path] = (), run: Path | None = None) -> None:
    """List runs: systems, steps, best scores, outdated results, sizes on disk."""
    named = runs or list(filter(None, [run]))
    for path in named:
        if not path.is_dir():
            raise DataError(
                f"no run at {path}", hint="without RUN and NMTKIT_RUN it lists all under ./runs"
            )
    paths = named or [
        path
        for path in sorted(Path("runs").glob("*"))
        if any((path / part).exists() for part in PARTS)
    ]
    if not paths:
        raise DataError("no run under ./runs", hint="nmtkit prep DATASET, or name a run")
    described = [_described(Run(path)) for path in paths]
    if as_json:
        console.print_json(described)
        return
    for number, values in enumerate(described):
        if number:
            console.put()
        _print_run(values)


def _described(run: Run) -> files.JsonObject:
    """Return the facts of a run as plain values; for a damaged run only its error."""
    values = {"run": str(run.path)}
    try:
        contents = read_stages(run)
        manifest = contents.manifest
        return {
            **values,
            "dataset": manifest.dataset,
            "direction": f"{manifest.src}-{manifest.tgt}",
            "pairs": manifest.cleaning.pairs_kept,
            "bytes": _size(run.path),
            "systems": [_system(system, contents.scores) for system in run.systems()],
            "out_of_date": list(_outdated(contents)),
        }
    except (NmtkitError, OSError) as error:
        problem = explained(error)
        return {**values, "error": f"{problem.message} ({problem.where or run.path})"}


def _system(system: System, scores: dict[str, Scores]) -> files.JsonObject:
    """Return the facts of a system; scores: the scores of the run by test set."""
    from nmtkit.models import checkpoints

    steps = [checkpoints.step_of(path) for path in checkpoints.candidates(system.checkpoints)]
    best = system.path / "best.json"
    record = load(BestCheckpoint, best) if best.is_file() else None
    bleu = {
        name: row.scores["bleu"].value
        for name, result in sorted(scores.items())
        for row in result.systems
        if row.name == system.name
    }
    return {
        "name": system.name,
        "step": max(steps, default=0),
        "max_steps": system.training().max_steps,
        "best": record and record.model_dump(include={"step", "dev_loss", "dev_bleu"}),
        "bleu": bleu,
        "bytes": _size(system.path),
    }


def _outdated(contents: Contents) -> Iterator[str]:
    """Yield each missing or outdated part with the command that updates it, if known."""
    run, remarks = contents.run, list(contents.remarks)
    for name, reported in contents.findings.items():
        if reported.outdated:
            remarks.append(Remark(f"analyze/{name}: out of date", reported.command))
    page = run.path / "report" / "index.html"
    if page.is_file() and not has_digest(page, digest_of_scores(run)):
        remarks.append(Remark("report: older than the scores"))  # its options are not stored
    for remark in remarks:
        command = of_run(remark.command, run) if remark.command else ""
        yield ": ".join(filter(None, [remark.text, command]))


def _size(folder: Path) -> int:
    """Return the bytes of all files in a folder, from which a training may remove files."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_size
    return total


def _print_run(values: files.JsonObject) -> None:
    if "error" in values:
        console.put(f"{values['run']}: {values['error']}")
        return
    size = decimal(values["bytes"])
    about = (
        f"{values['dataset']}, {values['direction']}, {counted(values['pairs'], 'pair')}, {size}"
    )
    title = f"{values['run']}: {about}"
    if not values["systems"]:
        console.put(f"{title}\nno system yet: nmtkit train{Run(Path(values['run'])).option}")
        return
    Table("systems", title, COLUMNS, [_cells(system) for system in values["systems"]]).print()
    width = console.width()
    for line in values["out_of_date"]:
        if width is not None and len(line) > width:  # a command stays on one line, to be copied
            line = ":\n  nmtkit ".join(line.rsplit(": nmtkit ", 1))
        console.put(line)


def _cells(system: files.JsonObject) -> list[str]:
    """Return the row of a system."""
    best = system["best"]
    measured = "–"
    if best:
        bleu = best["dev_bleu"]
        measured = f"loss {best['dev_loss']:.3f}" if bleu is None else f"BLEU {bleu:.2f}"
    tests = [
        f"{name}\u00a0–" if value is None else f"{name}\u00a0{value:.2f}"
        for name, value in system["bleu"].items()
    ]
    return [
        system["name"],
        f"{system['step']:,} of {system['max_steps']:,}",
        measured,
        f"{best['step']:,}" if best else "–",
        ", ".join(tests) or "–",
        decimal(system["bytes"]),
    ]
