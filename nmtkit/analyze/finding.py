"""What an analysis found, and the one renderer of all findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nmtkit import console, files
from nmtkit.errors import DataError
from nmtkit.models import checkpoints
from nmtkit.run import Run
from nmtkit.tables.table import Table


@dataclass(frozen=True)
class Finding:
    """The result of an analysis.

    Attributes:
        name: of the analysis; title: what was measured.
        table: the numbers; text: one sentence on how to read them.
        figure: SVG, None if there is none (no matplotlib, or nothing to draw).
        bars: the same as plain text for a terminal, if that helps.
        facts: settings, seeds and anything else that a number needs to be repeated.
        attachments: further files by name, text.
        paper: a paper's numbers beside the measured ones, if some were asked for.
    """

    name: str
    title: str
    table: Table
    text: str
    figure: str | None = None
    bars: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    attachments: dict[str, str] = field(default_factory=dict)
    paper: Table | None = None

    def beside(self, printed: Table) -> Finding:
        """The same with a paper's numbers beside its own: kept as paper.{md,tex,csv}, and printed below."""
        return replace(
            self, attachments=self.attachments | {f"paper.{suffix}": content for suffix, content in printed.forms().items()}, paper=printed
        )

    def as_json(self) -> dict[str, Any]:
        """Everything but figure and attachments as plain values."""
        table, paper = self.table.as_json(), {} if self.paper is None else {"paper": self.paper.as_json()}
        return {"name": self.name, "title": self.title, "text": self.text, "table": table, **paper, "bars": self.bars, "facts": self.facts}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Finding:
        """A finding read back from finding.json (without figure and attachments)."""
        paper = Table.from_json(value["paper"]) if "paper" in value else None
        return cls(value["name"], value["title"], Table.from_json(value["table"]), value["text"], None, value["bars"], value["facts"], paper=paper)

    def write(self, folder: Path, made_from: dict[str, Any]) -> None:
        """Write table.{md,tex,csv}, figure.svg and, last, finding.json.

        Args:
            folder: analyze/<name>.
            made_from: what the finding depends on; equal to the next call's, it is up to date.
        """
        self.table.write(folder)
        if self.figure is not None:
            files.write_text(folder / "figure.svg", self.figure)
        elif (folder / "figure.svg").is_file():
            (folder / "figure.svg").unlink()  # of an earlier result
        for name in _attachments(folder) - self.attachments.keys():
            (folder / name).unlink(missing_ok=True)
        for name, content in self.attachments.items():
            files.write_text(folder / name, content)
        attached = {"attachments": sorted(self.attachments)}
        files.write_json(folder / "finding.json", {"format": 1, **self.as_json(), **attached, "made_from": made_from})
        console.say(f"{self.name}: written to {folder}")

    def print(self, output_format: str) -> None:
        """Print on stdout in one of the formats of `nmtkit.tables.table`."""
        if output_format == "json":
            print(json.dumps(self.as_json(), ensure_ascii=False, indent=1))
            return
        self.table.print(output_format)
        if output_format == "table" and self.bars:
            print("\n" + self.bars)
        if self.paper is not None:
            print()
            self.paper.print(output_format)
        if output_format == "table":
            print("\n" + self.text)


def _attachments(folder: Path) -> set[str]:
    """The names of the further files of an earlier finding in a folder, as far as they are known."""
    try:
        names = files.read_json(folder / "finding.json")["attachments"]
        return {Path(name).name for name in names}
    except (DataError, KeyError, TypeError):
        return set()


def other_weights(run: Run, read: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the systems that have other weights by now than a finding read (its made_from["checkpoints"])."""
    return [name for name, digests in read.items() if checkpoints.current(run.system(name)) != digests]
