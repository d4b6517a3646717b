"""The stage `report`: all results of one or several runs as one page, RUN/report/index.html."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nmtkit
from nmtkit import console, files
from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.locks import locked
from nmtkit.models import checkpoints
from nmtkit.report import explorer, page
from nmtkit.report.contents import Contents, digest_of_scores, has_digest, read_contents
from nmtkit.report.options import ReportOptions
from nmtkit.report.texts import read_texts
from nmtkit.run import Run, choose, code_commit
from nmtkit.tables import drawing

INPUTS = (
    "prep/manifest.json",
    "prep/text/[!.]*",
    "systems/[!.]*/config.toml",
    "systems/[!.]*/metrics.jsonl",
    "systems/[!.]*/translate/[!.]*/[!.]*",
    "score/[!.]*/scores.json",
    "score/[!.]*/sentences.tsv",
    "analyze/[!.]*/finding.json",
    "analyze/attention/[!.]*.json",
    "analyze/[!.]*/figure.svg",
)
"""The files of a run that a page depends on, besides the history."""


def report(run: Run, **values: Any) -> Path:
    """Write the page of one or several runs and print its path on stdout.

    Args:
        run: the run; only what other stages wrote into it is read.
        values: values of `ReportOptions`.
    Returns: the path of the page.
    Raises: DataError if a run is not prepared or has no scores; ConfigError if a run is named
        twice; EnvironmentProblem if the page cannot be written, or --figure-width lacks matplotlib.
    """
    options = ReportOptions.of(values)
    runs = [run, *map(choose, options.also)]
    for each in runs:
        each.manifest()
    paths = [each.path.resolve() for each in runs]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            message = f"{runs[number].path} is in this page already"
            raise ConfigError(message, where="--also", hint="name each run once")
    if options.figure_width and not drawing.available():
        message = "figures need matplotlib"
        raise EnvironmentProblem(message, where="--figure-width", hint="pip install matplotlib")
    path = run.path / "report" / "index.html"
    with contextlib.ExitStack() as held:
        call = held.enter_context(run.recorded("report"))
        for each in runs:
            held.enter_context(locked(each.path, "report", shared=True))
        held.enter_context(locked(run.path / "report", "report", reads=True))
        contents = list(map(read_contents, runs))
        digest = _digest(contents, options)
        figures = not options.figure_width or (path.parent / "figures").is_dir()
        if not options.force and figures and has_digest(path, digest):
            console.say("report: up to date (--force makes it again)")
        else:
            parts = [
                _part(each, number if options.also else 0, len(runs))
                for number, each in enumerate(contents, 1)
            ]
            scores = digest_of_scores(run)
            _write(path, parts, options, commit=call.commit or "", digest=digest, scores=scores)
    console.put(str(path))
    return path


def _write(path: Path, parts: Sequence[page.Part], options: ReportOptions, **about: str) -> None:
    """Write the page, and print what is missing from it.

    The page is written after its figures, because its digest says that they are up to date.
    """
    title = options.title or "; ".join(part.title for part in parts)
    made = time.strftime("%Y-%m-%d %H:%M %Z")
    drawn = page.Drawn()
    html = page.render(parts, drawn, title=title, made=made, **about)
    if width := options.figure_width:
        folder = path.parent / "figures"
        for name, svg in drawn.figures.items():
            if pdf := drawing.as_pdf(svg, width):
                with files.writing(folder / f"{name}.pdf", "wb") as stream:
                    stream.write(pdf)
            else:
                console.warn(f"no {name}.pdf: the figure does not hold its numbers; draw it again")
        console.say(f"report: figures of {width:g} inches in {folder}")
    files.write_text(path, html)
    console.say(f"report: written to {path} ({len(html.encode()) / 1e6:.1f} MB)")
    for part in parts:
        for remark in part.contents.remarks:
            command = f" ({part.command(remark.command)})" if remark.command else ""
            console.say(f"report: {remark.text}{command}")


def _part(contents: Contents, number: int, runs: int) -> page.Part:
    """Return the page's part on a run; all `runs` share the space for sentences."""
    texts = [text for name in contents.scores if (text := read_texts(contents, name)) is not None]
    step = explorer.step_of(texts, explorer.MOST // runs)
    attention = explorer.read_attention(contents)
    return page.Part(contents, texts, step, attention, number)


def _digest(contents: Sequence[Contents], options: ReportOptions) -> str:
    """Return a hash of all that the page depends on: options, files, weights, history."""
    facts: list[object] = [nmtkit.__version__, code_commit(), drawing.available()]
    facts += [options.title, options.figure_width]
    for part in contents:
        run = part.run
        paths = [path for pattern in INPUTS for path in sorted(run.path.glob(pattern))]
        weights = {system.name: checkpoints.current(system) for system in run.systems()}
        facts += [str(run.path), files.hashes(paths, run.path), weights, part.calls, part.remarks]
    return files.text_sha256(json.dumps(facts, default=str))
