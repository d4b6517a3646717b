"""The stage `report`: everything that is known of a run, or of several, as one page,
RUN/report/index.html.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
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
"""The files of a run that a page depends on, beside the history."""


def report(run: Run, **values: Any) -> Path:
    """Write the page of a run, or of several; its path is printed on stdout.

    Args:
        run: the run; only what other stages wrote into it is read.
        values: of `ReportOptions`.
    Returns: the page.
    Raises: DataError if a run is not prepared or has no scores; ConfigError for a run that is named
        twice; EnvironmentProblem if the page cannot be written, or matplotlib is missing for its
        figures.
    """
    options = ReportOptions.of(values)
    runs = [run, *map(choose, options.also)]
    for each in runs:
        each.manifest()
    _check(runs)
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
        if not options.force and has_digest(path, digest):
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
    """Write the page, and report what is missing from it.

    The page is written last: its digest says that its figures are up to date too.
    """
    title = options.title or "; ".join(part.title for part in parts)
    made = time.strftime("%Y-%m-%d %H:%M %Z")
    drawn = page.Drawn()
    html = page.render(parts, drawn, title=title, made=made, **about)
    if options.figure_width:
        _write_figures(path.parent / "figures", drawn.figures, options.figure_width)
    files.write_text(path, html)
    console.say(f"report: written to {path} ({len(html.encode()) / 1e6:.1f} MB)")
    for part in parts:
        for remark in part.contents.remarks:
            command = f" ({part.command(remark.command)})" if remark.command else ""
            console.say(f"report: {remark.text}{command}")


def _write_figures(folder: Path, drawn: Mapping[str, str], width: float) -> None:
    """Write the figures of the page as PDFs."""
    for name, svg in drawn.items():
        if pdf := drawing.as_pdf(svg, width):
            with files.writing(folder / f"{name}.pdf", "wb") as stream:
                stream.write(pdf)
        else:
            console.warn(f"no {name}.pdf: the figure does not hold its numbers; draw it again")
    console.say(f"report: figures of {width:g} inches in {folder}")


def _check(runs: Sequence[Run]) -> None:
    """Refuse a run that is named twice."""
    paths = set()
    for run in runs:
        if run.path.resolve() in paths:
            message = f"{run.path} is in this page already"
            raise ConfigError(message, where="--also", hint="name each run once")
        paths.add(run.path.resolve())


def _part(contents: Contents, number: int, runs: int) -> page.Part:
    """Return the page's part on one of several runs, whose sentences share its space."""
    texts = [text for name in contents.scores if (text := read_texts(contents, name)) is not None]
    step = explorer.step_of(texts, explorer.MOST // runs)
    attention = explorer.read_attention(contents)
    return page.Part(contents, texts, step, attention, number)


def _digest(contents: Sequence[Contents], options: ReportOptions) -> str:
    """Return one number for all that the page depends on: options, files, weights, history."""
    facts: list[object] = [nmtkit.__version__, code_commit(), drawing.available()]
    facts += [options.title, options.figure_width]
    for part in contents:
        run = part.run
        paths = [path for pattern in INPUTS for path in sorted(run.path.glob(pattern))]
        hashes = files.hashes(paths, run.path)
        weights = {system.name: checkpoints.current(system) for system in run.systems()}
        facts += [str(run.path), hashes, weights, part.calls]
        facts.append(part.remarks)
    return files.text_sha256(json.dumps(facts, default=str))
