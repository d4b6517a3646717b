"""The stage `report`: everything that is known of a run as one page, RUN/report/index.html."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import nmtkit
from nmtkit import console, files
from nmtkit.errors import DataError
from nmtkit.report import explorer, page
from nmtkit.report.gathered import Gathered, gather
from nmtkit.report.provenance import calls
from nmtkit.report.texts import Texts, read_texts
from nmtkit.run import Run, code_commit, locked
from nmtkit.score import figures

READ = (
    *("prep/manifest.json", "prep/text/*", "systems/*/config.toml", "systems/*/metrics.jsonl", "systems/*/best.json", "systems/*/translate/*/*"),
    *("score/*/scores.json", "score/*/sentences.tsv", "analyze/*/finding.json", "analyze/*/figure.svg"),
)
"""The files of a run that its page is made of, beside the history."""


def report(run: Run, *, title: str = "", attention: str = "", sentences: int = 200, force: bool = False) -> Path:
    """Write the page of a run; its path is printed on stdout.

    Args:
        run: the run; only what other stages wrote into it is read.
        title: of the page (default: what is compared, on which data).
        attention: a system whose attention the sentence explorer shows, computed now; "" = none.
        sentences: how many sentences that is, those on which the systems differ most.
        force: make a page again that is up to date.
    Returns: the page.
    Raises: DataError if the run is not prepared or has no scores; ConfigError for an unknown system; EnvironmentProblem if it cannot be written.
    """
    run.manifest()
    if attention:
        run.find_system(attention)
    path = run.path / "report" / "index.html"
    with run.recorded("report") as record, locked(run.path, "report", shared=True), locked(run.path / "report", "report"):
        found = gather(run)
        digest = _digest(found, [title, attention, sentences])
        if not force and _is_of(path, digest):
            console.say("report: up to date (--force makes it again)")
        else:
            texts = [one for one in (read_texts(found, name) for name in found.scores) if one is not None]
            kept, step = explorer.kept_lines(texts)
            read = _attention(run, attention, sentences, texts, kept) if attention else None
            about = {
                "title": title or default_title(found),
                "commit": str(record["commit"] or ""),
                "made": time.strftime("%Y-%m-%d %H:%M %Z"),
                "digest": digest,
            }
            written = page.render(found, texts, kept, step, read, **about)
            files.write_text(path, written)
            page.say_written(path, written)
            for remark in found.remarks:
                console.say(f"report: {remark.text}" + (f" ({remark.command})" if remark.command else ""))
    print(path)
    return path


def default_title(found: Gathered) -> str:
    """What is compared, on which data."""
    names = {system["name"] for result in found.scores.values() for system in result["systems"]}
    what = f"{len(names)} systems" if len(names) > 1 else next(iter(names))
    languages = f"{found.manifest.get('src', '?')} to {found.manifest.get('tgt', '?')}"
    return f"{what} on {found.manifest.get('dataset', found.run.path.name)}, {languages}"


def _attention(run: Run, system: str, sentences: int, texts: list[Texts], kept: dict[str, list[int]]) -> explorer.SystemAttention:
    """The attention of a system on the first set that it translated."""
    one = next((texts_of_set for texts_of_set in texts if system in texts_of_set.outputs), None)
    if one is None:
        raise DataError(f"no scored translation by '{system}'", where="--attention", hint="first: nmtkit translate, then nmtkit score")
    from nmtkit.report.attention import of_system  # torch: only where it is wanted

    return of_system(run, system, one.set_name, explorer.lines_that_differ(one, kept[one.set_name], sentences))


def _digest(found: Gathered, options: list[object]) -> str:
    """One number for all that the page depends on."""
    run = found.run
    paths = [path for pattern in READ for path in sorted(run.path.glob(pattern)) if path.is_file() and not path.name.startswith(".")]
    read = {str(path.relative_to(run.path)): files.sha256(path) for path in paths}
    facts = [nmtkit.__version__, code_commit(), figures.available(), options, read, calls(found)]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def _is_of(path: Path, digest: str) -> bool:
    """Whether a page is there and was made of the same."""
    try:
        with open(path, encoding="utf-8") as stream:
            return f'content="{digest}"' in stream.read(4096)
    except (OSError, UnicodeDecodeError):
        return False
