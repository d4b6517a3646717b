"""The page of the results: each corpus becomes a run directory without weights, for which
`nmtkit score` and `nmtkit report` are called.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError
from nmtkit.records import StoredFinding, SystemRecord, load
from recipes.verdict import corpus, leavings
from recipes.verdict.folders import Folders, json_lines
from recipes.verdict.listing import Item
from recipes.verdict.tables import Found, Summary, finished, side_by_side

TITLE = "The changes of four papers, in systems trained until dev BLEU no longer rises"
OF_A_SYSTEM = ("config.toml", "metrics.jsonl", "best.json", "translate")


def page(items: Iterable[Item], folders: Folders) -> Path:
    """Write the page of all corpora on which the baseline and another system are finished.

    Returns: the page.
    Raises: DataError as `finished`, or if a corpus cannot be prepared or a command fails.
    """
    runs = []
    for found in finished(items, folders):
        run = _restore(found, folders)
        baseline = next(iter(found.values()))[0].name
        of_seeds = ["--group-by", "seed"] if any(len(paths) > 1 for paths in found.values()) else []
        _nmtkit(folders, "score", run, "--against", baseline, "--by-length", *of_seeds)
        runs.append(run)
    also = [word for run in runs[1:] for word in ("--also", run)]
    _nmtkit(folders, "report", runs[0], *also, "--title", TITLE)
    return folders.state / runs[0] / "report" / "index.html"


def _nmtkit(folders: Folders, stage: str, run: str, *options: str) -> None:
    """Call a stage in the folder of the state; what it prints goes to stderr.

    Raises: DataError if it fails.
    """
    command = ["nmtkit", stage, "--run", run, *options]
    if subprocess.run(command, cwd=folders.state, stdout=sys.stderr, check=False).returncode:
        raise DataError(f"nmtkit {stage} failed", where=folders.state / run)


def _restore(found: Found, folders: Folders) -> str:
    """Make a run directory of the results of a corpus; return it, relative to the state's folder.

    Translations, curves and findings are those of the results. The corpus is prepared here.
    """
    row = next(iter(found))
    if not corpus.prepare(row, folders):
        hint = "FROM_DIR names a folder with the files of the data set; --retry, then --page again"
        raise DataError(f"{row.dataset}: {folders.failure(row.dataset)}", hint=hint)
    trained, final = folders.run(row.dataset), folders.state / "page" / row.dataset
    results = [path for paths in found.values() for path in paths]
    hint = f"make room for a copy of {trained / 'prep'}"
    with files.writing_folder(final, leavings.all_files, hint) as run:
        for name in ("prep", "run.toml"):
            _copy(trained / name, run / name)
        for place, result in enumerate(results):
            system = run / "systems" / result.name
            for name in OF_A_SYSTEM:
                _copy(result / name, system / name)
            size = load(Summary, result / "summary.json").parameters
            SystemRecord(made=place, parameters=size).write(system / "system.json")
        _write_history(trained, results, run)
        _write_findings(results, run)
    return str(final.relative_to(folders.state))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def _write_history(trained: Path, results: Sequence[Path], run: Path) -> None:
    """Write the calls that prepared the corpus and made the results, so that each number on the
    page leads back to a command.
    """
    calls = [call for call in json_lines(trained / "history.jsonl") if call["stage"] == "prep"]
    calls += [call for result in results for call in json_lines(result / "history.jsonl")]
    lines = [json.dumps(call) for call in sorted(calls, key=lambda call: call["start"])]
    files.write_lines(run / "history.jsonl", dict.fromkeys(lines))


def _write_findings(results: Sequence[Path], run: Path) -> None:
    """Write one finding for each analysis, with the systems side by side."""
    of_label: dict[str, list[StoredFinding]] = {}
    for path in (path for result in results for path in sorted(result.glob("analyze/*.json"))):
        of_label.setdefault(path.stem, []).append(load(StoredFinding, path))
    for label, findings in of_label.items():
        first, inputs = findings[0], [finding.made_from for finding in findings]
        hashes = {name: digest for each in inputs for name, digest in each.files.items()}
        here = {name: digest for name, digest in hashes.items() if (run / name).is_file()}
        systems = [name for each in inputs for name in each.systems]
        made_from = {"systems": systems, "files": here, "weights": {}}
        merged = {
            "table": side_by_side(first.table.name, [of.table for of in findings]).as_json(),
            "bars": "",
            "facts": {each.systems[0]: of.facts for each, of in zip(inputs, findings, strict=True)},
            "attachments": [],
            "made_from": first.made_from.model_dump() | made_from,
        }
        path = run / "analyze" / label / "finding.json"
        files.write_json(path, first.model_dump() | merged)
