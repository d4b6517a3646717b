"""The page: what was gathered of one run or of several, put into one HTML file that needs no
other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nmtkit
from nmtkit import console
from nmtkit.analyze import ANALYSES
from nmtkit.analyze.shared.curves import panels
from nmtkit.report import comparison, provenance, svg
from nmtkit.report.explorer import data, script_text
from nmtkit.report.gathered import Gathered, KeptFinding, Remark
from nmtkit.report.texts import Texts, side_by_side
from nmtkit.score import lengths
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
LONG = 15
"""Rows from which on a table is folded away under its figure."""
MOST_ROWS = 1000
"""Rows of a table that are shown; all of them are in the finding's table.csv."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, and what it is sorted by ("" for nothing)."""

    text: str
    key: str
    left: bool


@dataclass(frozen=True)
class Part:
    """What a page shows of one run.

    texts are of the sets whose texts can be shown; kept and step are lines of the explorer (see
    `explorer.kept_lines`), which has attention if it was asked for; number counts the runs of a
    page from 1, and is 0 where there is one run alone.
    """

    found: Gathered
    texts: Sequence[Texts]
    kept: dict[str, list[int]]
    step: int
    attention: Sequence[dict[str, Any]] = ()
    number: int = 0

    @property
    def prefix(self) -> str:
        """Before every id of this run."""
        return f"run{self.number}-" if self.number else ""

    @property
    def title(self) -> str:
        """What is compared, on which data."""
        manifest = self.found.manifest
        names = {name for result in self.found.scores.values() for name in result.names}
        what = f"{len(names)} systems" if len(names) > 1 else next(iter(names))
        return f"{what} on {manifest.dataset}, {manifest.src} to {manifest.tgt}"

    def command(self, text: str) -> str:
        """A command as it is to be given for this run."""
        named = f" --run {shlex.quote(str(self.found.run.path))}"
        return text.replace(" && ", f"{named} && ") + named


def render(parts: Sequence[Part], **about: str) -> str:
    """The page as text.

    Args:
        parts: the runs.
        about: title, commit, made (the time) and digest (of all that the page depends on).
    """
    from markupsafe import Markup

    environment, drawn = _environment(), _Drawn()
    script = "\n".join(
        (TEMPLATES / name).read_text("utf-8") for name in ("tables.js", "explorer.js")
    )
    values: dict[str, Any] = {
        **about,
        "version": nmtkit.__version__,
        "parts": parts,
        "runs": [
            Markup(environment.get_template("run.html").render(_of_run(part, parts, drawn)))
            for part in parts
        ],  # noqa: S704
        "data": [
            Markup(script_text(data(part.texts, part.kept, _languages(part.found), part.attention)))
            for part in parts
        ],  # noqa: S704
        "style": Markup((TEMPLATES / "page.css").read_text("utf-8")),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return environment.get_template("page.html").render(values)


def _languages(found: Gathered) -> tuple[str, str]:
    return found.manifest.src, found.manifest.tgt


def _of_run(part: Part, parts: Sequence[Part], drawn: _Drawn) -> dict[str, Any]:
    """What is shown of a run; parts: all of the page."""
    found = part.found
    records = provenance.calls(found)
    own = {"convergence", "lengths"} & set(found.findings)
    first, *others = (shlex.quote(str(one.found.run.path)) for one in parts)
    return {
        "part": part,
        "prefix": part.prefix,
        "level": 3 if part.number else 2,
        "command": part.command,
        "page_command": " ".join(
            [f"nmtkit report --run {first}", *(f"--also {other}" for other in others)]
        ),
        "found": found,
        "languages": _languages(found),
        "sets": [_of_set(found, name, drawn) for name in found.scores],
        "reading": comparison.READING,
        "remarks": found.remarks,
        "cautions": [*comparison.cautions(found), *provenance.searches(found)],
        "learning": _learning(found, drawn),
        "length_finding": (
            _finding("lengths", found.findings["lengths"], drawn) if "lengths" in own else None
        ),
        "findings": [
            _finding(name, kept_one, drawn)
            for name, kept_one in found.findings.items()
            if name not in own
        ],
        "undone": {name: shows for name, shows in ANALYSES.items() if name not in found.findings},
        "shown": side_by_side(part.texts[0]) if part.texts else [],
        "shown_set": part.texts[0] if part.texts else None,
        "texts": part.texts,
        "step": part.step,
        "attention": part.attention,
        "provenance": {
            "corpus": provenance.corpus(found.manifest),
            "systems": provenance.systems(found),
            "settings": provenance.settings(found),
            "same": provenance.settings(found, same=True),
            "commits": provenance.commits(records),
            "history": provenance.history(records),
        },
    }


def cells(table: Table) -> list[list[Cell]]:
    """The rows of a table as they are shown and sorted."""
    return [
        [_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows[:MOST_ROWS]
    ]


def _cell(value: Any, column: Column) -> Cell:
    number = value.value if isinstance(value, Estimate) else value
    key = (
        ""
        if number is None
        else repr(float(number))
        if isinstance(number, (int, float))
        else str(number)
    )
    return Cell(text(value, column), "" if key == "nan" else key, column.left)


class _Drawn:
    """Figures of one page, each with ids of its own."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, figure: str | None, label: str) -> Markup | None:
        """The figure as part of a page; None where there is none, or it is no SVG."""
        from markupsafe import Markup

        self.count += 1
        found = svg.inline(figure, f"f{self.count}-", label) if figure else None
        return None if found is None else Markup(found)  # noqa: S704  (cleaned by svg.inline)


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "cells": cells,
        "words": _words,
        "dotted": _dotted,
        "with_code": _with_code,
        "long": LONG,
        "most_rows": MOST_ROWS,
    }
    environment.filters["decimal"] = lambda value: f"{value:.1f}"
    return environment


def _words(command: str) -> Markup:
    """A command whose options are not torn at their hyphens where a line ends."""
    from markupsafe import Markup

    return Markup(" ").join(
        Markup('<span class="word">{}</span>').format(word) for word in command.split(" ")
    )


def _with_code(text: str) -> Markup:
    """A text in which what stands in backticks is code."""
    from markupsafe import Markup, escape

    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(text.split("`"))
    )


def _dotted(name: str) -> Markup:
    """A name that may be torn after its dots, as those of settings."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[.])(?=\D)", name))


def _of_set(found: Gathered, name: str, drawn: _Drawn) -> dict[str, Any]:
    """What is shown of a scored set."""
    result = found.scores[name]
    groups = result.by_length
    figure = lengths.figure(groups.groups, groups.unit, name) if groups else None
    return {
        "name": name,
        "verdicts": comparison.verdicts(result),
        "tables": comparison.tables(found, name),
        "details": comparison.details(result),
        "paper": result.paper.table if result.paper else None,
        "by_length": comparison.by_length(result),
        "figure": drawn(figure, f"BLEU by source length on {name}"),
    }


def _finding(name: str, kept: KeptFinding, drawn: _Drawn) -> dict[str, Any]:
    facts = [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in kept.finding.facts.items()
    ]
    figure = drawn(kept.figure, f"{kept.finding.title}: figure; its numbers are in the table below")
    return {
        "name": name,
        "finding": kept.finding,
        "figure": figure,
        "further": kept.further,
        "remarks": kept.remarks,
        "facts": facts,
        "command": kept.command,
    }


def _learning(found: Gathered, drawn: _Drawn) -> dict[str, Any]:
    """The curves: the finding of `analyze convergence`, or else drawn here from the logs."""
    if "convergence" in found.findings:
        return {
            "finding": _finding("convergence", found.findings["convergence"], drawn),
            "figure": None,
            "table": None,
            "remark": None,
        }
    curves = {
        system.name: system.curves
        for system in found.systems
        if system.curves.train or system.curves.dev
    }
    if not curves:
        return {
            "finding": None,
            "figure": None,
            "table": None,
            "remark": Remark("No training of this run has logged anything."),
        }
    figure = figures.curves(panels(curves))
    columns = [
        Column("system", "system", left=True),
        Column("updates", "updates"),
        Column("step", "best dev BLEU at"),
        Column("bleu", "best dev BLEU"),
    ]
    columns += [Column("loss", "lowest dev loss", decimals=3)]
    rows: list[list[Any]] = []
    for name, one in curves.items():
        step, bleu = max(one.measured, key=lambda point: point[1], default=(None, None))
        rows.append(
            [
                name,
                one.last,
                step,
                bleu,
                min((look.loss for look in one.dev if look.loss is not None), default=None),
            ]
        )
    table = Table(
        "training",
        "Trainings, on the development set",
        columns,
        rows,
        ["dev BLEU: greedy search; dev loss: per target token"],
    )
    remark = Remark("What each system took to reach the same BLEU:", "nmtkit analyze convergence")
    return {
        "finding": None,
        "figure": drawn(figure, "Loss and dev BLEU of each training"),
        "table": table,
        "remark": remark,
    }


def say_written(path: Path, page: str) -> None:
    """Tell where the page is, and how large."""
    console.say(f"report: written to {path} ({len(page.encode()) / 1e6:.1f} MB)")
