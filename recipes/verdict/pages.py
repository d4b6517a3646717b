"""The page of the results: each corpus becomes a run directory without weights, for which
`nmtkit score` and `nmtkit report` are called.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.errors import DataError
from nmtkit.records import StoredFinding, SystemRecord, load
from nmtkit.text.tidy import tidy
from recipes.verdict import corpus, leavings
from recipes.verdict.folders import TEXTS, Folders, copy, held, json_lines
from recipes.verdict.listing import Item
from recipes.verdict.tables import Found, Summary, findings_by_label, finished, side_by_side

TITLE = "The systems of four papers"
OF_A_SYSTEM = ("config.toml", "metrics.jsonl", "best.json", "translate")
ONE_SEED = ("--significance", "sacrebleu_randomization")
"""A two-sided test, as that of the tables; with several seeds `score` tests seeds and sentences."""
SEVERAL_SEEDS = ("--group-by", "name")


def page(items: Iterable[Item], folders: Folders) -> Path:
    """Write the page of all corpora on which the baseline and another system are finished.

    Returns: the path of the page.
    Raises: DataError as `finished`, if a corpus cannot be prepared, if results are incomplete, or
        if a command fails; EnvironmentProblem if the disk is full.
    """
    with held(folders.lock("page"), wait=True):
        runs = [_scored(results_of_rows, folders) for results_of_rows in finished(items, folders)]
        others = [word for run in runs[1:] for word in ("--also", run)]
        _nmtkit(folders, "report", runs[0], *others, "--title", TITLE)
    return folders.state / runs[0] / "report" / "index.html"


def _scored(results_of_rows: Found, folders: Folders) -> str:
    """Make and score the run directory of a corpus; return it, relative to the state's folder."""
    run = _restore(results_of_rows, folders)
    baseline = next(iter(results_of_rows.values()))[0].name
    several = any(len(paths) > 1 for paths in results_of_rows.values())
    options = SEVERAL_SEEDS if several else ONE_SEED
    _nmtkit(folders, "score", run, "--against", baseline, "--by-length", *options)
    return run


def _nmtkit(folders: Folders, stage: str, run: str, *options: str) -> None:
    """Call a stage in the folder of the state; what it prints goes to stderr.

    Raises: DataError if it fails.
    """
    command = ["nmtkit", stage, "--run", run, *options]
    if subprocess.run(command, cwd=folders.state, stdout=sys.stderr, check=False).returncode:
        hint = f"the message above has the reason; page/ is a copy of {folders.results}"
        raise DataError(f"nmtkit {stage} failed", where=folders.state / run, hint=hint)


def _restore(results_of_rows: Found, folders: Folders) -> str:
    """Make a run directory of the results of a corpus; return it, relative to the state's folder.

    Translations, curves and findings are those of the results. The corpus is prepared here.
    """
    row = next(iter(results_of_rows))
    prepared, final = folders.run(row.dataset), folders.state / "page" / row.dataset
    folders.forget_failure(row.dataset)  # its files may be there now
    if not corpus.prepare(row, folders):
        hint = "FROM_DIR names a folder with the files of the data set, TEXT those of 'mixed'"
        raise DataError(f"{row.dataset} cannot be prepared", where=prepared, hint=hint)
    _check_texts(folders.results / row.dataset / TEXTS, prepared / "prep" / "text")
    results = [path for paths in results_of_rows.values() for path in paths]
    hint = f"make room for a copy of {prepared / 'prep'}"
    with leavings.writing_whole(final, hint) as run:
        for name in ("prep", "run.toml"):
            copy(prepared / name, run / name)
        for position, result in enumerate(results):
            system = run / "systems" / result.name
            for name in OF_A_SYSTEM:
                copy(result / name, system / name)
            size = load(Summary, result / "summary.json").parameters
            SystemRecord(made=position, parameters=size).write(system / "system.json")
        _write_history(prepared, results, run)
        _write_findings(results, run)
    return str(final.relative_to(folders.state))


def _check_texts(scored: Path, prepared: Path) -> None:
    """Raise DataError naming the first test set of the results that differs from the prepared one.

    Both are tidied first, as an earlier nmtkit kept soft hyphens.
    """
    for path in sorted(scored.glob("*")):
        other = prepared / path.name
        if not other.is_file() or _tidied(other) != _tidied(path):
            hint = "FROM_DIR must name the release of the data set that the results are of"
            raise DataError(f"not the text that was translated: {path}", where=other, hint=hint)


def _tidied(path: Path) -> list[str]:
    return [tidy(line) for line in files.text_lines(path)]


def _write_history(prepared: Path, results: Sequence[Path], run: Path) -> None:
    """Write the calls that prepared the corpus and made the results, for the page's provenance."""
    calls = [call for call in json_lines(prepared / "history.jsonl") if call["stage"] == "prep"]
    calls += [call for result in results for call in json_lines(result / "history.jsonl")]
    lines = [json.dumps(call) for call in sorted(calls, key=lambda call: call["start"])]
    files.write_lines(run / "history.jsonl", list(dict.fromkeys(lines)))


def _write_findings(results: Sequence[Path], run: Path) -> None:
    """Write one finding for each analysis, with the systems side by side."""
    for label, findings in findings_by_label(results).items():
        path = run / "analyze" / label / "finding.json"
        files.write_json(path, _together(label, findings, run).model_dump())


def _together(label: str, findings: Sequence[StoredFinding], run: Path) -> StoredFinding:
    """Join findings of single systems, without figures, further files and weights: the results do
    not have these.
    """
    first, inputs = findings[0], [finding.made_from for finding in findings]
    table = side_by_side(first.table.name, [finding.table for finding in findings])
    attachments = {name for finding in findings for name in finding.attachments}
    table.notes[:] = [note for note in table.notes if not any(n in note for n in attachments)]
    hashes = {name: digest for each in inputs for name, digest in each.files.items()}
    made_from = {
        "systems": [name for each in inputs for name in each.systems],
        "files": {name: digest for name, digest in hashes.items() if (run / name).is_file()},
        "weights": {},
    }
    changed = {
        "title": first.title if label == first.name else f"{first.title}: {label}",
        "table": table.as_json(),
        "bars": "",
        "facts": _facts(findings),
        "attachments": [],
        "made_from": first.made_from.model_dump() | made_from,
    }
    return StoredFinding.model_validate(first.model_dump() | changed)


def _facts(findings: Sequence[StoredFinding]) -> dict[str, Any]:
    """Return the facts that all findings share, and the commits that made them."""
    first, *others = [finding.facts for finding in findings]
    shared = {
        key: value for key, value in first.items() if all(of.get(key) == value for of in others)
    }
    commits = dict.fromkeys(str(finding.facts.get("commit", "unknown")) for finding in findings)
    return {**shared, "commit": ", ".join(commits)}
