"""The stage `report`: everything that is known of a run, or of several, as one page,
RUN/report/index.html.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nmtkit
from nmtkit import console, files
from nmtkit.errors import ConfigError, nearest
from nmtkit.models import checkpoints
from nmtkit.report import explorer, page
from nmtkit.report.gathered import Gathered, gather
from nmtkit.report.options import ReportOptions
from nmtkit.report.provenance import calls
from nmtkit.report.texts import read_texts
from nmtkit.run import Run, choose, code_commit, locked
from nmtkit.tables import figures

READ = (
    *(
        "prep/manifest.json",
        "prep/text/*",
        "systems/*/config.toml",
        "systems/*/metrics.jsonl",
        "systems/*/translate/*/*",
    ),
    *(
        "score/*/scores.json",
        "score/*/sentences.tsv",
        "analyze/*/finding.json",
        "analyze/*/figure.svg",
    ),
)
"""The files of a run that a page is made of, beside the history."""


def report(run: Run, **values: Any) -> Path:
    """Write the page of a run, or of several; its path is printed on stdout.

    Args:
        run: the run; only what other stages wrote into it is read.
        values: of `ReportOptions`; only `attention` writes into the runs.
    Returns: the page.
    Raises: DataError if a run is not prepared or has no scores; ConfigError for an unknown system,
        or a run that is named twice; EnvironmentProblem if the page cannot be written.
    """
    options = ReportOptions.of(values)
    runs = [run, *map(choose, options.also)]
    for one in runs:
        one.manifest()
    _check(runs, options.attention)
    for one in runs:
        _compute_attention(one, options)
    path = run.path / "report" / "index.html"
    with contextlib.ExitStack() as held:
        record = held.enter_context(run.recorded("report"))
        for one in runs:
            held.enter_context(locked(one.path, "report", shared=True))
        held.enter_context(locked(run.path / "report", "report"))
        found = [gather(one) for one in runs]
        digest = _digest(
            found,
            [
                options.title,
                options.attention,
                options.sentences,
                *(str(one.path) for one in runs if options.also),
            ],
        )
        if not options.force and _is_of(path, digest):
            console.say("report: up to date (--force makes it again)")
        else:
            parts = [
                _part(one, number if options.also else 0, len(runs))
                for number, one in enumerate(found, 1)
            ]
            about = {
                "title": options.title or "; ".join(part.title for part in parts),
                "commit": str(record["commit"] or ""),
                "made": time.strftime("%Y-%m-%d %H:%M %Z"),
                "digest": digest,
            }
            written = page.render(parts, **about)
            files.write_text(path, written)
            page.say_written(path, written)
            for part in parts:
                for remark in part.found.remarks:
                    console.say(
                        f"report: {remark.text}"
                        + (f" ({part.command(remark.command)})" if remark.command else "")
                    )
    print(path)
    return path


def _check(runs: Sequence[Run], attention: Sequence[str]) -> None:
    """Refuse a run that is named twice, and a system that no run has."""
    for i, one in enumerate(runs):
        if one.path.resolve() in {other.path.resolve() for other in runs[:i]}:
            raise ConfigError(
                f"{one.path} is in this page already", where="--also", hint="name each run once"
            )
    names = [system.name for one in runs for system in one.systems()]
    for name in attention:
        if name not in names:
            where = ", ".join(str(one.path / "systems") for one in runs)
            raise ConfigError(
                f"no system '{name}'",
                where=where,
                hint=nearest(name, names) if names else "first: nmtkit train",
            )


def _part(found: Gathered, number: int, runs: int) -> page.Part:
    """Return the page's part on one of so many runs, whose sentences share its space."""
    texts = [one for one in (read_texts(found, name) for name in found.scores) if one is not None]
    kept, step = explorer.kept_lines(texts, explorer.MOST // runs)
    return page.Part(
        found,
        texts,
        kept,
        step,
        explorer.read_attention(found.run.path / "analyze" / "attention"),
        number,
    )


def _compute_attention(run: Run, options: ReportOptions) -> None:
    """Run `analyze attention` for those of the systems that the run has."""
    known = [system.name for system in run.systems()]
    if systems := [name for name in dict.fromkeys(options.attention) if name in known]:
        from nmtkit.analyze.attention import Attention, AttentionOptions
        from nmtkit.analyze.stage import current
        from nmtkit.analyze.study import Study

        current(
            Attention(AttentionOptions(sentences=options.sentences)),
            Study(run, Attention.name, systems, []),
            options.force,
        )


def _digest(found: Sequence[Gathered], options: list[object]) -> str:
    """One number for all that the page depends on."""
    facts = [
        nmtkit.__version__,
        code_commit(),
        figures.available(),
        options,
        [_read(one) for one in found],
    ]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def _read(found: Gathered) -> list[object]:
    """The files of a run that its page is made of, with their checksums, the weights of its
    systems, and its history.
    """
    run = found.run
    paths = [
        path
        for pattern in READ
        for path in sorted(run.path.glob(pattern))
        if path.is_file() and not path.name.startswith(".")
    ]
    weights = {system.name: checkpoints.current(system) for system in run.systems()}
    return [
        {str(path.relative_to(run.path)): files.sha256(path) for path in paths},
        weights,
        calls(found),
    ]


def _is_of(path: Path, digest: str) -> bool:
    """Whether a page is there and was made of the same."""
    try:
        with open(path, encoding="utf-8") as stream:
            return f'content="{digest}"' in stream.read(4096)
    except (OSError, UnicodeDecodeError):
        return False
