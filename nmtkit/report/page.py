"""The page: the contents of one run or of several, put into one HTML file that needs no other."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import nmtkit
from nmtkit.analyze import ANALYSES
from nmtkit.curves import Curves, panels
from nmtkit.report import comparison, provenance, svg
from nmtkit.report.contents import Contents, Remark, ReportedFinding
from nmtkit.report.explorer import data, script_text
from nmtkit.report.texts import Texts, side_by_side
from nmtkit.score import lengths, result_tables
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, text, text_column

if TYPE_CHECKING:
    from nmtkit.analyze.attention import SystemAttention

TEMPLATES = Path(__file__).parent / "templates"
MOST_ROWS = 1000
"""Rows of a table that are shown; all of them are in the finding's table.csv."""


@dataclass(frozen=True)
class Part:
    """The part of a page on one run.

    Attributes:
        contents: of the run.
        texts: of the sets whose texts can be shown.
        step: the explorer holds every `step`-th line.
        attention: in the explorer, if it was asked for.
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
        named = f" --run {shlex.quote(str(self.contents.run.path))}"
        return text.replace(" && ", f"{named} && ") + named


def render(parts: Sequence[Part], **about: str) -> str:
    """Return the page.

    Args:
        parts: the runs.
        about: title, commit, made (the time) and digest (of all that the page depends on).
    """
    environment, drawn = _environment(), _Drawn()
    run = environment.get_template("run.html")
    script = "\n".join(
        (TEMPLATES / name).read_text("utf-8") for name in ("tables.js", "explorer.js")
    )
    # Everything that is marked as markup comes from a template, or has no markup left in it.
    values: dict[str, Any] = {
        **about,
        "version": nmtkit.__version__,
        "parts": parts,
        "runs": [Markup(run.render(_of_run(part, parts, drawn))) for part in parts],  # noqa: S704
        "data": [Markup(script_text(data(part))) for part in parts],  # noqa: S704
        "style": Markup((TEMPLATES / "page.css").read_text("utf-8")),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return environment.get_template("page.html").render(values)


def _of_run(part: Part, parts: Sequence[Part], drawn: _Drawn) -> dict[str, Any]:
    """Return what is shown of a run; parts: all of the page."""
    contents = part.contents
    runs = (shlex.quote(str(each.contents.run.path)) for each in parts)
    sets = [_of_set(contents, name, drawn) for name in contents.scores]
    learning = _learning(contents, drawn)
    findings = {
        name: _finding(name, finding, drawn)
        for name, finding in sorted(
            contents.findings.items(), key=lambda item: item[0] != "lengths"
        )
        if name != "convergence"
    }
    return {
        "part": part,
        "contents": contents,
        "level": 3 if part.number else 2,
        "page_command": "nmtkit report --run " + " --also ".join(runs),
        "sets": sets,
        "reading": comparison.READING,
        "cautions": [*comparison.cautions(contents), *provenance.searches(contents)],
        "learning": learning,
        "length_finding": findings.pop("lengths", None),
        "findings": list(findings.values()),
        "undone": {
            name: shows for name, shows in ANALYSES.items() if name not in contents.findings
        },
        "shown": side_by_side(part.texts[0]) if part.texts else [],
        "provenance": provenance.tables(contents),
    }


def sort_key(value: Any) -> str:
    """Return a cell's key for sorting; "" for nothing."""
    number = value.value if isinstance(value, Estimate) else value
    if number is None or number != number:  # NaN
        return ""
    return repr(float(number)) if isinstance(number, (int, float)) else str(number)


class _Drawn:
    """Figures of one page, each with ids of its own."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, figure: str | None, label: str) -> Markup | None:
        """Return the figure as part of a page; None if there is none, or it is no SVG."""
        self.count += 1
        inline = svg.inline(figure, f"f{self.count}-", label) if figure else None
        return None if inline is None else Markup(inline)  # noqa: S704  (cleaned by svg.inline)


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
        "most_rows": MOST_ROWS,
    }
    return environment


def _dotted(name: str) -> Markup:
    """Return a name that may be torn after its dots."""
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[.])(?=\D)", name))


def _of_set(contents: Contents, name: str, drawn: _Drawn) -> dict[str, Any]:
    """Return what is shown of a scored set."""
    result = contents.scores[name]
    groups = result.by_length
    figure = lengths.figure(groups.groups, groups.unit, name) if groups else None
    tables = result_tables.tables(result)
    by_length = [table for stem, table in tables.items() if stem.startswith("lengths")]
    return {
        "name": name,
        "verdicts": comparison.verdicts(result),
        "tables": comparison.tables(contents, name),
        "details": [tables[stem] for stem in ("table", "significance") if stem in tables],
        "paper": result.paper.table if result.paper else None,
        "by_length": by_length,
        "figure": drawn(figure, f"BLEU by source length on {name}"),
    }


def _finding(name: str, reported: ReportedFinding, drawn: _Drawn) -> dict[str, Any]:
    finding = reported.finding
    label = f"{finding.title}: figure; its numbers are in the table below"
    facts = [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in finding.facts.items()
    ]
    figure = drawn(reported.figure, label)
    return {**vars(reported), "name": name, "figure": figure, "facts": facts}


def _learning(contents: Contents, drawn: _Drawn) -> dict[str, Any]:
    """Return the curves: the finding of `analyze convergence`, or else drawn here from the logs."""
    shown: dict[str, Any] = dict.fromkeys(("finding", "figure", "table", "remark"))
    if finding := contents.findings.get("convergence"):
        return {**shown, "finding": _finding("convergence", finding, drawn)}
    curves = {
        system.name: system.curves
        for system in contents.systems
        if system.curves.train or system.curves.dev
    }
    if not curves:
        return {**shown, "remark": Remark("No training of this run has logged anything.")}
    return {
        **shown,
        "figure": drawn(figures.curves(panels(curves)), "Loss and dev BLEU of each training"),
        "table": _training_table(curves),
        "remark": Remark(
            "What each system took to reach the same BLEU:", "nmtkit analyze convergence"
        ),
    }


def _training_table(curves: Mapping[str, Curves]) -> Table:
    """Return the updates, the best dev BLEU and the lowest dev loss of each training."""
    columns = [
        text_column("system"),
        Column("updates", "updates"),
        Column("step", "best dev BLEU at"),
        Column("bleu", "best dev BLEU"),
        Column("loss", "lowest dev loss", decimals=3),
    ]
    rows: list[list[Any]] = []
    for name, points in curves.items():
        step, bleu = max(points.measured, key=lambda point: point[1], default=(None, None))
        loss = min((at.loss for at in points.dev if at.loss is not None), default=None)
        rows.append([name, points.last, step, bleu, loss])
    notes = ["dev BLEU: greedy search; dev loss: per target token"]
    return Table("training", "Trainings, on the development set", columns, rows, notes)
