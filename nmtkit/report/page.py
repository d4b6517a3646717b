"""The page: the contents of one or several runs in one HTML file that needs no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import nmtkit
from nmtkit.analyze import ANALYSES
from nmtkit.curves import AXES, panels
from nmtkit.report import comparison, provenance, svg
from nmtkit.report.commands import of_run
from nmtkit.report.contents import Contents, Remark, ReportedFinding
from nmtkit.report.explorer import data, script_text
from nmtkit.report.texts import Texts, side_by_side
from nmtkit.score import lengths, result_tables
from nmtkit.score.stored_scores import Scores
from nmtkit.tables import figures
from nmtkit.tables.table import Estimate, Table, text

if TYPE_CHECKING:
    from nmtkit.analyze.attention import SystemAttention

TEMPLATES = Path(__file__).parent / "templates"
MOST_WIDTH = 90
"""A wider table of few rows is turned, so that it fits paper; in characters."""
MOST_ROWS = 1000
"""The most rows of a table that are shown; table.csv of the finding has all of them."""


@dataclass(frozen=True)
class Part:
    """The part of a page on one run.

    Attributes:
        contents: the contents of the run.
        texts: the sets whose texts can be shown.
        step: the explorer has every `step`-th line.
        attention: the attention in the explorer.
        number: number of the run on the page, from 1; 0 if the page has one run.
    """

    contents: Contents
    texts: Sequence[Texts]
    step: int
    attention: Sequence[SystemAttention] = ()
    number: int = 0

    @property
    def prefix(self) -> str:
        """The beginning of every id of this run."""
        return f"run{self.number}-" if self.number else ""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.contents.manifest.src, self.contents.manifest.tgt

    @property
    def title(self) -> str:
        """The systems and the data."""
        names = {name for result in self.contents.scores.values() for name in result.names}
        systems = f"{len(names)} systems" if len(names) > 1 else next(iter(names))
        return f"{systems} on {self.contents.manifest.dataset}, {' to '.join(self.languages)}"

    def command(self, text: str) -> str:
        """Return a command with the option that names this run."""
        return of_run(text, self.contents.run)


def render(parts: Sequence[Part], drawn: Drawn, **about: str) -> str:
    """Return the page.

    Args:
        parts: the runs.
        drawn: collects the figures of the page.
        about: title, commit, made (the time), digest (of everything that the page depends on) and
            scores (the digest of the scores of the first run).
    """
    environment = _environment()
    run = environment.get_template("run.html")
    script = "\n".join(
        (TEMPLATES / name).read_text("utf-8") for name in ("tables.js", "explorer.js")
    )
    # All texts of class Markup come from a template, or have no markup left in them.
    values = {
        **about,
        "version": nmtkit.__version__,
        "parts": parts,
        "runs": [Markup(run.render(_of_run(part, drawn))) for part in parts],  # noqa: S704
        "data": [Markup(script_text(data(part))) for part in parts],  # noqa: S704
        "style": Markup((TEMPLATES / "page.css").read_text("utf-8")),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return environment.get_template("page.html").render(values)


def _of_run(part: Part, drawn: Drawn) -> dict[str, Any]:
    """Return what run.html shows of a run."""
    contents = part.contents
    sets = [_of_set(name, result, drawn) for name, result in contents.scores.items()]
    learning = _learning(contents, drawn)
    findings = {
        name: _finding(name, finding, drawn)
        for name, finding in contents.findings.items()
        if name != "convergence"
    }
    return {
        "part": part,
        "contents": contents,
        "level": 3 if part.number else 2,
        "sets": sets,
        "learning": learning,
        "length_finding": findings.pop("lengths", None),
        "findings": list(findings.values()),
    }


def sort_key(value: Any) -> str:
    """Return the key by which a cell is sorted; "" for an empty cell."""
    number = value.value if isinstance(value, Estimate) else value
    if number is None or number != number:  # NaN
        return ""
    return repr(float(number)) if isinstance(number, (int, float)) else str(number)


class Drawn:
    """The figures of one page, each with ids of its own.

    Attributes:
        figures: the SVG of each figure, by its name.
    """

    def __init__(self) -> None:
        self.figures: dict[str, str] = {}

    def __call__(self, figure: str | None, name: str, label: str) -> Markup | None:
        """Return the figure as part of a page; None if there is none, or it is no SVG."""
        inline = svg.inline(figure, f"f{len(self.figures)}-", label) if figure else None
        if figure is None or inline is None:
            return None
        unique, number = name, 1
        while unique in self.figures:
            number += 1
            unique = f"{name}.{number}"
        self.figures[unique] = figure
        return Markup(inline)  # noqa: S704  (cleaned by svg.inline)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "comparison": comparison,
        "provenance": provenance,
        "result_tables": result_tables,
        "analyses": ANALYSES,
        "side_by_side": side_by_side,
        "key": sort_key,
        "text": text,
        "dotted": _dotted,
        "for_page": _for_page,
        "forms": _forms,
        "most_rows": MOST_ROWS,
    }
    return environment


def _for_page(table: Table) -> Table:
    """Return a table as the page shows it: turned if it has few rows and is wide or of costs."""
    many = len(table.columns) > len(table.rows) > 0 and table.may_turn
    if many and (table.grid().width > MOST_WIDTH or table.name == "cost"):
        turned = table.turned()
        if turned.grid().width <= MOST_WIDTH:
            return turned
    return table


def _forms(table: Table) -> dict[str, tuple[str, Markup]]:
    """Return the LaTeX and CSV of a table as links: label -> name of the file, address."""
    name = re.sub(r"[^\w.-]+", "-", f"{table.name}-{table.title}")[:60].strip("-.")
    links = {}
    for label, suffix, content in (("LaTeX", "tex", table.latex()), ("CSV", "csv", table.csv())):
        encoded = base64.b64encode(content.encode()).decode()
        address = Markup(f"data:text/plain;charset=utf-8;base64,{encoded}")  # noqa: S704
        links[label] = (f"{name}.{suffix}", address)
    return links


def _dotted(text: str) -> Markup:
    """Return a text that may be wrapped at spaces and after dots, but not at hyphens."""
    words = []
    for word in text.split(" "):
        parts = (escape(part) for part in re.split(r"(?<=[.])(?=\D)", word))
        whole = Markup("<wbr>").join(parts)
        words.append(Markup('<span class="word">{}</span>').format(whole) if "-" in word else whole)
    return Markup(" ").join(words)


def _of_set(name: str, result: Scores, drawn: Drawn) -> dict[str, Any]:
    """Return what run.html shows of a scored set."""
    groups, deltas = result.by_length, comparison.figure(result)
    bars = lengths.figure(groups.groups, groups.unit, name) if groups else None
    return {
        "name": name,
        "result": result,
        "differences": drawn(deltas, f"differences-{name}", f"Differences in BLEU on {name}"),
        "lengths": drawn(bars, f"lengths-{name}", f"BLEU by source length on {name}"),
    }


def _finding(name: str, reported: ReportedFinding, drawn: Drawn) -> dict[str, Any]:
    finding = reported.finding
    label = f"{finding.title}: figure; its numbers are in the table below"
    facts = [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in finding.facts.items()
    ]
    figure, remarks = drawn(reported.figure, name, label), reported.remarks
    if reported.figure is not None and figure is None:
        text = "Its figure.svg cannot be shown: it is damaged"
        remarks = [*remarks, Remark(text, f"{reported.command} --force")]
    about = {"name": name, "figure": figure, "facts": facts, "remarks": remarks}
    return {**vars(reported), **about}


def _learning(contents: Contents, drawn: Drawn) -> dict[str, Any]:
    """Return the curves over updates, epochs and minutes, drawn from the logs, and the finding of
    `analyze convergence`, if there is one.
    """
    curves = {
        system.name: system.curves
        for system in contents.systems
        if system.curves.train or system.curves.dev
    }
    group_of: dict[str, str] = {}
    for result in contents.scores.values():
        group_of |= comparison.group_of(result)
    images = {}
    for axis in AXES[:3]:
        if both := panels(curves, axis, group_of):
            label = f"Loss and dev BLEU of each training by {axis}"
            if figure := drawn(figures.curves(both), f"learning-{axis}", label):
                images[axis] = figure
    finding = contents.findings.get("convergence")
    if finding and images:  # the finding's own figure is over updates only
        finding = replace(finding, figure=None)
    shown = finding and _finding("convergence", finding, drawn)
    return {"figures": images, "curves": curves, "finding": shown}
