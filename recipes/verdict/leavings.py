"""The results of finished systems: text, at most 20 MB in all; no weights."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.folders import recover, writing_folder
from nmtkit.models import checkpoints
from nmtkit.records import (
    BestCheckpoint,
    CheckpointManifest,
    Manifest,
    SystemConfig,
    SystemRecord,
    load,
)
from recipes.verdict.folders import TEXTS, Folders, copy, json_lines, read_json
from recipes.verdict.listing import Item
from recipes.verdict.measured import measured

MADE_AGAIN = "the same command makes it again"
MOST_BYTES = 20_000_000
"""Of all results together."""
LARGEST_TEXT = 100_000
"""Bytes of a source or a reference of a test set that is copied to the repository."""


def keep_rates(item: Item, trials: list[dict[str, Any]], chosen: str, folders: Folders) -> None:
    """Write which learning rates were tried, and with what result."""
    row, run = item.row, folders.run(item.row.dataset)
    names = {folders.system(item, trial["rate"]).name for trial in trials}
    calls = [call for call in json_lines(run / "history.jsonl") if call.get("system") in names]
    record = {
        "corpus": row.dataset,
        "system": row.name,
        "seed": item.seed,
        "updates": row.updates,
        "criterion": "dev_loss after the last update",
        "chosen": chosen,
        "trials": trials,
        "commits": commits(calls),
    }
    files.write_json(folders.state / "results" / row.dataset / "rates" / f"{row.name}.json", record)


def keep(item: Item, rate: str, folders: Folders, findings: Mapping[str, bytes]) -> None:
    """Write the results of a trained, translated and scored system, completely or not at all.

    The folder has the layout of a system in a run directory (config.toml, metrics.jsonl, best.json,
    translate/SET), beside it the scores (scores/SET.json), the findings (analyze/LABEL.json), the
    commands with their commits (history.jsonl) and a summary with the cost (summary.json).

    Raises: EnvironmentProblem if the results would be larger than 20 MB; DataError if a file of
        the system is missing or damaged.
    """
    run, system = folders.run(item.row.dataset), folders.system(item)
    calls = [call for call in json_lines(run / "history.jsonl") if _is_about(call, item)]
    with writing_whole(folders.state / "results" / item.path) as new:
        for name in ("config.toml", "metrics.jsonl", "best.json"):
            copy(system / name, new / name, MADE_AGAIN)
        for translation in sorted((system / "translate").iterdir()):
            name = translation.name
            for part in ("hyp.txt", "meta.json"):
                copy(translation / part, new / "translate" / name / part, MADE_AGAIN)
            copy(run / "score" / name / "scores.json", new / "scores" / f"{name}.json", MADE_AGAIN)
        for label, content in findings.items():
            with files.writing(new / "analyze" / f"{label}.json", "wb") as stream:
                stream.write(content)
        files.write_lines(new / "history.jsonl", [json.dumps(call) for call in calls])
        files.write_json(new / "summary.json", summary(item, rate, folders, calls))
        _check_size([folders.state / "results"])


@contextlib.contextmanager
def writing_whole(final: Path, hint: str = "") -> Iterator[Path]:
    """Write a folder that belongs to the queue alone, completely or not at all.

    Args:
        final: its path.
        hint: as for `writing_folder`.
    Yields: the folder to write into.
    """
    recover(final, _all_files)
    with writing_folder(final, _all_files, hint) as folder:
        yield folder


def _all_files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


def _is_about(call: dict[str, Any], item: Item) -> bool:
    """True for the calls of train, translate and score that a system came from."""
    names = {call.get("system"), *(call.get("systems") or ()), *call["argv"]}
    return item.name in names or any(str(name).startswith(f"{item.name}-rate-") for name in names)


def summary(item: Item, rate: str, folders: Folders, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a finished system is and what it cost."""
    row, system = item.row, folders.system(item)
    found, config = measured(system), load(SystemConfig, system / "config.toml")
    best = load(BestCheckpoint, system / "best.json")
    weights = system / "checkpoints" / best.checkpoint
    manifest = load(Manifest, folders.run(row.dataset) / "prep" / "manifest.json")
    translations = map(read_json, (system / "translate").glob("*/meta.json"))
    return {
        "part": row.part,
        "corpus": row.dataset,
        "fingerprint": manifest.fingerprint,
        "system": row.name,
        "seed": item.seed,
        "variant": config.variant,
        "options": list(row.options),
        "rate": rate,
        "parameters": load(SystemRecord, system / "system.json").parameters,
        "updates": found.updates,
        "best": best.model_dump(exclude={"format", "checkpoint"}),
        "seconds": {
            "training": round(found.training, 1),
            "validation": round(found.validation, 1),
            "translation": round(sum(of["speed"]["seconds"] for of in translations), 1),
        },
        "commits": commits(calls),
        "weights": load(CheckpointManifest, weights / checkpoints.MANIFEST)
        .files[checkpoints.WEIGHTS]
        .sha256,
    }


def commits(calls: list[dict[str, Any]]) -> list[str]:
    """Return the commits that trained, oldest first."""
    trainings = (call["commit"] or "unknown" for call in calls if call["stage"] == "train")
    return list(dict.fromkeys(trainings))


def remove_training_state(system: Path) -> None:
    """Remove all checkpoints of a finished system but the best, and the state of its optimiser.

    Analyses can still read the weights of the best checkpoint.
    """
    best = load(BestCheckpoint, system / "best.json").checkpoint
    checkpoints.prune(system / "checkpoints", {best})
    path = system / "checkpoints" / best
    manifest = load(CheckpointManifest, path / checkpoints.MANIFEST)
    left = {name: facts for name, facts in manifest.files.items() if name != checkpoints.OPTIMIZER}
    manifest.model_copy(update={"files": left}).write(path / checkpoints.MANIFEST)
    (path / checkpoints.OPTIMIZER).unlink(missing_ok=True)


def collect(folders: Folders) -> list[str]:
    """Copy new results from the state to the repository; return their names.

    Raises: EnvironmentProblem if the repository would have more than 20 MB of results; DataError
        if there are no results.
    """
    source = folders.state / "results"
    if not source.is_dir():
        raise DataError("no system is finished yet", where=folders.state)
    found = [*source.glob("*/rates/*.json"), *(p.parent for p in source.glob("*/*/summary.json"))]
    paths = sorted(path.relative_to(source) for path in found if not path.name.startswith("."))
    new = [path for path in paths if not (folders.results / path).exists()]
    _check_size([folders.results, *(source / path for path in new)])
    for path in new:
        if (source / path).is_file():
            copy(source / path, folders.results / path)
            continue
        with writing_whole(folders.results / path) as folder:
            shutil.copytree(source / path, folder, dirs_exist_ok=True)
    _copy_texts(folders)
    return [str(path) for path in new]


def _copy_texts(folders: Folders) -> None:
    """Copy the sources and references of small test sets beside the systems, so that the systems
    can be scored on any machine. The repository does not hold larger test sets.
    """
    for scores in folders.results.glob("*/*/scores/*.json"):
        corpus = scores.parents[2]
        of_kinds = (folders.texts(corpus.name, f"{scores.stem}.{kind}") for kind in ("src", "ref"))
        texts = [path for of_kind in of_kinds for path in of_kind]
        if any(path.stat().st_size > LARGEST_TEXT for path in texts):
            continue
        for path in texts:
            if not (target := corpus / TEXTS / path.name).exists():
                copy(path, target)


def _check_size(paths: list[Path]) -> None:
    found = (file for path in paths for file in [path, *path.rglob("*")])
    size = sum(file.stat().st_size for file in found if file.is_file())
    if size > MOST_BYTES:
        raise EnvironmentProblem(
            f"the results would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f} MB",
            where=paths[0],
            hint="take systems out of the list, or results out of the folder",
        )
