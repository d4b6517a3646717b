"""What an analysis is: a class with its options, a measuring part that returns plain values, and a
presenting part.

    class Words(Analysis[Options, dict[str, int]]):
        name = "words"
        title = "words of the translations"
        sets = "one"

        def measure(self, study):
            return {name: count(path) for name, path in study.translations().items()}

        def present(self, result):
            return Finding(table=…, text="…")

Everything else follows from the class: the sub-command with its help, the line in `nmtkit analyze`,
the reference page, the up-to-date key, the refusal of foreign options, and the command line that
the report shows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from nmtkit import console, files
from nmtkit.errors import DataError, NmtkitError
from nmtkit.score.paper import Kind
from nmtkit.settings import Section
from nmtkit.tables.table import Table

if TYPE_CHECKING:
    from nmtkit.analyze.study import Study


class Options(Section):
    """The options of an analysis: the field `match_case` is `--match-case`, its docstring is the
    help.
    """


class PaperOptions(Options):
    """The options of an analysis whose numbers some paper prints."""

    paper: str = Field("", json_schema_extra={"metavar": "FILE"})
    """A paper's printed numbers (recipes/PAPER/paper.toml), beside the measured ones."""
    table: str = Field("", json_schema_extra={"metavar": "NAME"})
    """Which table of --paper, for example table1."""


def option(default: Any, metavar: str, **limits: Any) -> Any:
    """Return the default of an option whose value is shown as `metavar` in the help; `limits`
    are pydantic's (ge, …).
    """
    return Field(default, json_schema_extra={"metavar": metavar}, **limits)


def flag(key: str) -> str:
    """Return an option as it is typed."""
    return "--" + key.replace("_", "-")


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Return options with their values as they are typed."""
    words: list[str] = []
    for key, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += (
            [flag(key)]
            if value is True
            else [word for one in values for word in (flag(key), str(one))]
        )
    return words


class LeftOut(NmtkitError):
    """A system that an analysis cannot use; the message is the reason."""


@dataclass(frozen=True)
class Measured:
    """Measured numbers that a paper prints too.

    Attributes:
        numbers: system -> key of a paper's column -> number.
        set_name: what was read: a test set, probing files, or nothing that has a name.
        signature: how it was measured.
        remarks: notes for the table of both.
    """

    numbers: Mapping[str, Mapping[str, float]]
    set_name: str
    signature: str
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Finding:
    """The result of an analysis.

    Attributes:
        table: the numbers.
        text: how to read them.
        figure: SVG; None without matplotlib, or if there is nothing to draw.
        bars: the figure as plain text for a terminal.
        facts: settings, seeds and anything else that a number needs to be repeated.
        attachments: further files: name -> text.
        paper: a paper's numbers beside the measured ones.
        name, title: of the analysis; the runner fills them in.
    """

    table: Table
    text: str
    figure: str | None = None
    bars: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    attachments: dict[str, str] = field(default_factory=dict)
    paper: Table | None = None
    name: str = ""
    title: str = ""

    def beside(self, paper: Table) -> Finding:
        """Return the finding with a paper's numbers, which are also kept as paper.{md,tex,csv}."""
        forms = {f"paper.{suffix}": content for suffix, content in paper.forms().items()}
        return replace(self, attachments=self.attachments | forms, paper=paper)

    def as_json(self) -> dict[str, Any]:
        """Return everything but figure and attachments as plain values."""
        paper = {} if self.paper is None else {"paper": self.paper.as_json()}
        head = {
            "name": self.name,
            "title": self.title,
            "text": self.text,
            "table": self.table.as_json(),
        }
        return {**head, **paper, "bars": self.bars, "facts": self.facts}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Finding:
        """Return the finding that `as_json` described."""
        paper = Table.from_json(value["paper"]) if "paper" in value else None
        values = {key: value[key] for key in ("text", "bars", "facts", "name", "title")}
        return cls(Table.from_json(value["table"]), paper=paper, **values)

    def write(self, folder: Path, made_from: dict[str, Any]) -> None:
        """Write table.{md,tex,csv}, figure.svg, the attachments and, last, finding.json into
        analyze/<name>/.

        Args:
            made_from: the inputs of the finding; the finding is up to date while they are the same.
        """
        self.table.write(folder)
        present = self.attachments | ({} if self.figure is None else {"figure.svg": self.figure})
        for name in (
            _attachments(folder) | {"figure.svg"}
        ) - present.keys():  # of an earlier finding
            (folder / name).unlink(missing_ok=True)
        for name, content in present.items():
            files.write_text(folder / name, content)
        about = {"attachments": sorted(self.attachments), "made_from": made_from}
        files.write_json(folder / "finding.json", {"format": 1, **self.as_json(), **about})
        console.say(f"{self.name}: written to {folder}")

    def print(self, output_format: str) -> None:
        """Print on stdout in one of the formats of `nmtkit.tables.table`."""
        if output_format == "json":
            print(json.dumps(self.as_json(), ensure_ascii=False, indent=1))
            return
        self.table.print(output_format)
        for_people = output_format == "table"
        if for_people and self.bars:
            print("\n" + self.bars)
        if self.paper is not None:
            print()
            self.paper.print(output_format)
        if for_people:
            print("\n" + self.text)


def _attachments(folder: Path) -> set[str]:
    """Return the names of the attachments of the finding in a folder, none if it cannot be read."""
    try:
        return {Path(name).name for name in files.read_json(folder / "finding.json")["attachments"]}
    except (DataError, KeyError, TypeError):
        return set()


O = TypeVar("O", bound=Options)  # noqa: E741
R = TypeVar("R")


class Analysis(ABC, Generic[O, R]):
    """One analysis. The class attributes describe it; an instance is the analysis with given
    options.
    """

    name: ClassVar[str]
    """As it is typed: `nmtkit analyze NAME`; findings are kept in analyze/NAME/."""
    title: ClassVar[str]
    """The title of its findings."""
    examples: ClassVar[Sequence[str]] = ()
    """Command lines for its help, without `nmtkit analyze NAME`."""
    sets: ClassVar[Literal["none", "one", "some"]] = "one"
    """Which prepared sets it reads: none, one (the first test set by default), or some (all by
    default).
    """
    Options: ClassVar[type[Options]] = Options
    paper: ClassVar[Kind | None] = None
    """The columns of a paper's tables that it measures; its options are then `PaperOptions`."""

    def __init__(self, options: O) -> None:
        self.options = options

    @property
    def repeats(self) -> bool:
        """True if the analysis runs even if its finding is up to date."""
        return False

    @abstractmethod
    def measure(self, study: Study) -> R:
        """Return everything that the finding shows, as plain values.

        Raises: DataError if no system can be measured; ConfigError for an option that does not fit
            the run.
        """

    @abstractmethod
    def present(self, result: R) -> Finding:
        """Return the table, the figure and the reading of what was measured."""

    def printed_too(self, result: R) -> Measured:
        """Return the measured numbers that a paper's table prints; only with `paper`."""
        raise NotImplementedError
