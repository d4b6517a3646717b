"""The command `status`: what each run holds, and which parts are out of date."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.filesize import decimal

from nmtkit import console, files, trust
from nmtkit.cli.command import command
from nmtkit.cli.program import examples
from nmtkit.errors import DataError, NmtkitError, explained
from nmtkit.options import Options, option
from nmtkit.presets import preset_names
from nmtkit.records import BestCheckpoint, TranslationMeta, load
from nmtkit.report import digests
from nmtkit.run import Run, System, translate_command
from nmtkit.score.stored_scores import Scores
from nmtkit.tables.table import Column, Table, text_column

PARTS = ("prep", "systems", "history.jsonl")
"""Parts by which a folder under ./runs is known as a run."""
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
    """List runs: systems, steps, best scores, outdated translations and scores, sizes on disk."""
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
    """Return the facts of a run as plain values; of a damaged run only its error."""
    values = {"run": str(run.path)}
    try:
        return {**values, **_facts(run)}
    except (NmtkitError, OSError) as error:
        problem = explained(error)
        return {**values, "error": f"{problem.message} ({problem.where or run.path})"}


def _facts(run: Run) -> files.JsonObject:
    manifest = run.manifest()
    paths = run.path.glob("score/[!.]*/scores.json")
    scores = {path.parent.name: load(Scores, path) for path in paths}
    outdated = dict.fromkeys(_outdated(run, scores))
    return {
        "dataset": manifest.dataset,
        "direction": f"{manifest.src}-{manifest.tgt}",
        "pairs": manifest.cleaning.pairs_kept,
        "bytes": _size(run.path),
        "systems": [_system(system, scores) for system in run.systems()],
        "out_of_date": [line + run.option * (": nmtkit " in line) for line in outdated],
    }


def _system(system: System, scores: dict[str, Scores]) -> files.JsonObject:
    """Return the facts of a system; `scores` are those of the run by test set."""
    from nmtkit.models import checkpoints

    steps = [checkpoints.step_of(path) for path in checkpoints.candidates(system.checkpoints)]
    best = system.path / "best.json"
    record = load(BestCheckpoint, best) if best.is_file() else None
    bleu = {
        name: row.scores["bleu"].value
        for name, result in sorted(scores.items())
        for row in result.systems
        if row.name == system.name and "bleu" in row.scores
    }
    return {
        "name": system.name,
        "step": max(steps, default=0),
        "max_steps": system.training().max_steps,
        "best": record and record.model_dump(include={"step", "dev_loss", "dev_bleu"}),
        "bleu": bleu,
        "bytes": _size(system.path),
    }


def _outdated(run: Run, scores: dict[str, Scores]) -> Iterator[str]:
    """Yield what is missing or out of date, with the command that updates it, if it is known."""
    fingerprint = run.manifest().fingerprint
    for system in run.systems():
        if system.read_config().corpus != fingerprint:
            yield (
                f"{system.name}: trained on another preparation of the corpus:"
                f" {_train_again(system)}"
            )
            continue
        for text_set in run.sets("test"):
            yield from _of_translation(run, system, text_set.name, scores.get(text_set.name))
    for text_set in run.sets("test"):
        translated = run.with_file(f"translate/{text_set.name}/hyp.txt")
        for name in sorted(translated.keys() - set(run.system_names())):  # ensembles
            ensemble, of_set = run.system(name), scores.get(text_set.name)
            yield from _of_translation(run, ensemble, text_set.name, of_set)
    page = run.path / "report" / "index.html"
    if page.is_file() and not digests.has(page, digests.of_scores(run)):
        yield "report: older than the scores"  # no command: the page's options are not stored


def _train_again(system: System) -> str:
    """Return the command that trains a system again with its settings."""
    stored = system.read_config()
    words = ["nmtkit", "train", "--system", system.name, "--variant", trust.shown(stored.variant)]
    words += ["--preset", stored.preset] if stored.preset in preset_names() else []
    words += ["--init-from", stored.init_from] if stored.init_from else []
    return shlex.join([*words, "--config", str(system.config), "--force"])


def _of_translation(run: Run, system: System, name: str, scores: Scores | None) -> Iterator[str]:
    """Yield what is out of date of a system's translation of a set and of its scores."""
    from nmtkit.models import checkpoints
    from nmtkit.report.contents import score_command

    folder, about = system.translation(name), f"{system.name} on {name}"
    if not (folder / "hyp.txt").is_file():
        trained = checkpoints.candidates(system.checkpoints)
        again = translate_command(system.name, name)
        command = again if trained else f"nmtkit train --system {system.name}"
        yield f"{about}: not translated: {command}"
        return
    meta = folder / "meta.json"
    if meta.is_file() and checkpoints.outdated(run, load(TranslationMeta, meta)):
        yield f"{about}: translated with other checkpoints: {translate_command(system.name, name)}"
        return
    score = score_command(name, scores) if scores else "nmtkit score"
    if scores is None or system.name not in scores.names:
        yield f"{about}: not scored: {score}"
    elif files.changed(run.path, _scored(scores, folder.relative_to(run.path))):
        yield f"{about}: scored before its translation changed: {score}"


def _scored(scores: Scores, folder: Path) -> dict[str, str]:
    """Return path in the run -> SHA-256, for the files of a folder when they were scored."""
    hashes = scores.made_from.files if scores.made_from else {}
    return {name: digest for name, digest in hashes.items() if Path(name).parent == folder}


def _size(folder: Path) -> int:
    """Return the bytes of all files in a folder; a training may remove some meanwhile."""
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
    about = f"{values['dataset']}, {values['direction']}, {values['pairs']:,} pairs, {size}"
    title = f"{values['run']}: {about}"
    if not values["systems"]:
        console.put(f"{title}\nno system yet: nmtkit train{Run(Path(values['run'])).option}")
        return
    Table("systems", title, COLUMNS, [_cells(system) for system in values["systems"]]).print()
    width = console.width()
    for line in values["out_of_date"]:
        if width is not None and len(line) > width:  # a command stays in one line, to be copied
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
