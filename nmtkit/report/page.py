"""The page: the contents of one run or of several, put into one HTML file that needs no other."""

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
from nmtkit.tables import figures
from nmtkit.tables.table import Estimate, Table, text

if TYPE_CHECKING:
    from nmtkit.analyze.attention import SystemAttention

TEMPLATES = Path(__file__).parent / "templates"
MOST_WIDTH = 90
"""Characters of a line, above which a table of few rows is turned, so that it fits paper."""
MOST_ROWS = 1000
"""Rows of a table that are shown; all of them are in the finding's table.csv."""


@dataclass(frozen=True)
class Part:
    """The part of a page on one run.

    Attributes:
        contents: of the run.
        texts: of the sets whose texts can be shown.
        step: the explorer holds every `step`-th line.
        attention: in the explorer.
        number: counts the runs of a page from 1; 0 for one run alone.
    """

    contents: Contents
    texts: Sequence[Texts]
    step: int
    attention: Sequence[SystemAttention] = ()
    number: int = 0

    @property
    def prefix(self) -> str:
        """Before every id of this run."""
        return f"run{self.number}-" if self.number else ""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.contents.manifest.src, self.contents.manifest.tgt

    @property
    def title(self) -> str:
        """What is compared, on which data."""
        names = {name for result in self.contents.scores.values() for name in result.names}
        systems = f"{len(names)} systems" if len(names) > 1 else next(iter(names))
        return f"{systems} on {self.contents.manifest.dataset}, {' to '.join(self.languages)}"

    def command(self, text: str) -> str:
        """Return a command as it is typed for this run."""
        return of_run(text, self.contents.run)


def render(parts: Sequence[Part], drawn: Drawn, **about: str) -> str:
    """Return the page.

    Args:
        parts: the runs.
        drawn: takes the figures of the page.
        about: title, commit, made (the time), digest (of all that the page depends on) and scores
            (the digest of the scores of the first run).
    """
    environment = _environment()
    run = environment.get_template("run.html")
    script = "\n".join(
        (TEMPLATES / name).read_text("utf-8") for name in ("tables.js", "explorer.js")
    )
    # Everything that is marked as markup comes from a template, or has no markup left in it.
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
    """Return what is shown of a run."""
    contents = part.contents
    sets = [_of_set(contents, name, drawn) for name in contents.scores]
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
        "reading": comparison.READING,
        "cautions": comparison.cautions(contents),
        "learning": learning,
        "length_finding": findings.pop("lengths", None),
        "findings": list(findings.values()),
        "undone": {
            name: shows for name, shows in ANALYSES.items() if name not in contents.findings
        },
        "shown": side_by_side(part.texts[0]) if part.texts else ("", []),
        "provenance": provenance.tables(contents),
    }


def sort_key(value: Any) -> str:
    """Return a cell's key for sorting; "" for nothing."""
    number = value.value if isinstance(value, Estimate) else value
    if number is None or number != number:  # NaN
        return ""
    return repr(float(number)) if isinstance(number, (int, float)) else str(number)


class Drawn:
    """Figures of one page, each with ids of its own.

    Attributes:
        figures: the SVG of each by its name.
    """

    def __init__(self) -> None:
        self.figures: dict[str, str] = {}

    def __call__(self, figure: str | None, name: str, label: str) -> Markup | None:
        """Return the figure as part of a page; None if there is none, or it is no SVG."""
        inline = svg.inline(figure, f"f{len(self.figures)}-", label) if figure else None
        if figure is None or inline is None:
            return None
        number = sum(key.partition(".")[0] == name for key in self.figures)
        self.figures[f"{name}.{number + 1}" if number else name] = figure
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
        "key": sort_key,
        "text": text,
        "dotted": _dotted,
        "for_page": _for_page,
        "forms": _forms,
        "most_rows": MOST_ROWS,
    }
    return environment


def _for_page(table: Table) -> Table:
    """Return a table as it is shown: turned if it is of costs, or wide, and has few rows."""
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
    """Return a text that may be torn at spaces and after dots, but not at hyphens."""
    words = []
    for word in text.split(" "):
        parts = (escape(part) for part in re.split(r"(?<=[.])(?=\D)", word))
        whole = Markup("<wbr>").join(parts)
        words.append(Markup('<span class="word">{}</span>').format(whole) if "-" in word else whole)
    return Markup(" ").join(words)


def _of_set(contents: Contents, name: str, drawn: Drawn) -> dict[str, Any]:
    """Return what is shown of a scored set."""
    result = contents.scores[name]
    groups = result.by_length
    figure = lengths.figure(groups.groups, groups.unit, name) if groups else None
    points = comparison.differences(result)
    axis, seeds = comparison.difference_label(result), comparison.group_of(result)
    colours = list(dict.fromkeys(seeds.values()))
    deltas = figures.differences(points, axis, colours) if points else None
    tables = result_tables.tables(result)
    by_length = [table for stem, table in tables.items() if stem.startswith("lengths")]
    return {
        "name": name,
        "verdicts": comparison.verdicts(result),
        "differences": drawn(deltas, f"differences-{name}", f"Differences in BLEU on {name}"),
        "tables": comparison.tables(contents, name),
        "details": [tables[stem] for stem in ("table", "significance") if stem in tables],
        "paper": result.paper.table if result.paper else None,
        "by_length": by_length,
        "figure": drawn(figure, f"lengths-{name}", f"BLEU by source length on {name}"),
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
    """Return the curves over updates, epochs and minutes, drawn here from the logs, beside the
    finding of `analyze convergence`, if there is one.
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
    if finding and images:  # those of the finding are over updates alone
        finding = replace(finding, figure=None)
    shown = finding and _finding("convergence", finding, drawn)
    return {"figures": images, "curves": curves, "finding": shown}
