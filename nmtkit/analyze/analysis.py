"""An analysis is a class with options, a method that measures plain values, and a method that
presents them.

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

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from nmtkit import console, files, folders
from nmtkit.errors import ConfigError
from nmtkit.options import Options as Options
from nmtkit.options import flag
from nmtkit.options import option as option
from nmtkit.records import FindingInputs, StoredFinding, load_or_warn
from nmtkit.score import paper as papers
from nmtkit.tables.fitting import as_wide, wrapped
from nmtkit.tables.table import Table

if TYPE_CHECKING:
    from nmtkit.analyze.study import Study


class PaperOptions(Options):
    """Options of an analysis that can show a paper's numbers beside its own."""

    paper: str = option("", "NAME|FILE", once=True)
    """The printed numbers of a paper (caru, dual_context, memory, phrase, or a file in the form of
    nmtkit/score/papers), shown beside the measured numbers."""
    table: str = option("", "NAME")
    """The table of --paper, for example table1."""


class SentenceOptions(Options):
    """Options of an analysis that shows one sentence pair."""

    sentence: int = option(1, "N", ge=1)
    """The line number of the sentence pair to show."""

    def row(self, count: int) -> int:
        """Return the index of the sentence pair (from 0) in a set of `count` pairs.

        Raises: ConfigError if the set is too short.
        """
        if self.sentence > count:
            message = f"no line {self.sentence}: there are {count:,}"
            raise ConfigError(message, where="--sentence", hint=f"1 to {count}")
        return self.sentence - 1


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Return options and their values as words of a command line."""
    words = []
    for key, values in options.items():
        for value in values if isinstance(values, list) else [values]:
            words += [flag(key)] if value is True else [flag(key), str(value)]
    return words


@dataclass(frozen=True)
class Finding:
    """The result of an analysis.

    Attributes:
        table: the numbers.
        text: how to read the numbers.
        figure: SVG; None without matplotlib, or if there is nothing to draw.
        bars: a heat map, or example sentences, as plain text for a terminal.
        facts: what is needed to repeat a number, beside the options: seeds, sizes, …
        attachments: name -> text of further files.
        paper: a paper's numbers beside the measured numbers.
        name, title: the name and title of the analysis; the runner fills them in.
    """

    table: Table
    text: str
    figure: str | None = None
    bars: str = ""
    facts: files.JsonObject = field(default_factory=dict)
    attachments: dict[str, str] = field(default_factory=dict)
    paper: Table | None = None
    name: str = ""
    title: str = ""

    def write(self, folder: Path, inputs: FindingInputs) -> StoredFinding:
        """Write finding.json, table.{md,tex,csv}, figure.svg and the attachments into a folder.

        If the disk is full, an earlier finding stays as it is. The files of the earlier finding are
        removed only after all new files are written under temporary names. Attachments that
        somebody has edited are never removed.

        Returns: the content of finding.json.
        """
        earlier = stored(folder)
        folders.remove_unfinished(folder)
        further = {name: self.attachments[name] for name in sorted(self.attachments)}
        if self.figure is not None:
            further["figure.svg"] = self.figure
        values = {key: getattr(self, key) for key in ("name", "title", "text", "bars", "facts")}
        values["table"] = self.table.as_json()
        values["paper"] = self.paper and self.paper.as_json()
        record = StoredFinding(
            format=1,
            **values,
            attachments=sorted(self.attachments),
            hashes={name: files.text_sha256(text) for name, text in further.items()},
            made_from=inputs,
        )
        # The first file here is the last to get its name.
        texts = {"finding.json": files.json_text(record.model_dump())}
        texts |= {f"table.{suffix}": content for suffix, content in self.table.forms().items()}
        texts |= further
        written = earlier.hashes if earlier else {}
        outdated = {"figure.svg", *written} - {*texts, *files.changed(folder, written)}
        with contextlib.ExitStack() as stack:
            for name, content in texts.items():
                stream = stack.enter_context(files.writing(folder / name))
                stream.write(content)
                stream.flush()
            for name in ("finding.json", *outdated):
                files.remove(folder / name)
        console.say(f"{self.name}: written to {folder}")
        return record


def print_finding(finding: StoredFinding, output_format: str) -> None:
    """Print a finding on stdout in a format of `nmtkit.tables.table`."""
    if output_format == "json":
        left_out = {"format", "attachments", "hashes", "made_from", "facts"}
        values = finding.model_dump(exclude=left_out)  # without empty bars
        console.print_json(values | {"bars": finding.bars, "facts": finding.facts})
        return
    finding.table.table.print(output_format)
    for_people = output_format == "table"
    if for_people and finding.bars:
        console.put("\n" + as_wide(finding.bars, console.width()))
    if finding.paper is not None:
        console.put()
        finding.paper.table.print(output_format)
    if for_people:
        console.put("\n" + "\n".join(wrapped(finding.text, console.width())))


def stored(folder: Path) -> StoredFinding | None:
    """Return the finding in a folder; None if there is none, or if it cannot be read."""
    return load_or_warn(StoredFinding, folder / "finding.json")


O = TypeVar("O", bound=Options)  # noqa: E741
P = TypeVar("P", bound=PaperOptions)
R = TypeVar("R")


class Analysis(ABC, Generic[O, R]):
    """One analysis with its options. The class attributes describe the analysis."""

    name: ClassVar[str]
    """The NAME in `nmtkit analyze NAME` and in analyze/NAME/, the folder of its findings."""
    title: ClassVar[str]
    """The title of its findings."""
    examples: ClassVar[Sequence[str]] = ()
    """Command lines for its help, without `nmtkit analyze NAME`."""
    sets: ClassVar[Literal["none", "one", "some"]] = "one"
    """Which prepared sets it reads: none, one (default: the first test set), or some (default:
    all).
    """
    reads_translations: ClassVar[bool] = True
    """False if its findings stay up to date when a system translates a set again."""
    reads_all_translations: ClassVar[bool] = False
    """True if its findings on some systems depend on the translations of all systems of the run."""
    reads_weights: ClassVar[bool] = True
    """False if it reads translations alone, so that it can analyse the translations of ensembles.
    """
    Options: ClassVar[type[Options]] = Options
    """The class of its options."""

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
        """Return the table, the figure and a text on how to read them."""

    def finding(self, study: Study) -> Finding:
        """Return the finding on the systems of a study.

        Raises: as `measure`.
        """
        return self.present(self.measure(study))


class PaperAnalysis(Analysis[P, R]):
    """An analysis that can show the numbers of a paper's table beside its own."""

    paper: ClassVar[papers.Kind]
    """The columns of papers' tables that it measures."""

    @abstractmethod
    def printed_too(self, result: R) -> papers.Measured:
        """Return the measured numbers that papers print."""

    def finding(self, study: Study) -> Finding:
        printed = papers.find_table(self.options.paper, self.options.table, self.paper)
        result = self.measure(study)
        finding = self.present(result)
        if printed is None:
            return finding
        paper = papers.compared(printed, self.paper, self.printed_too(result), study.dataset)
        forms = {f"paper.{suffix}": content for suffix, content in paper.forms().items()}
        return replace(finding, attachments=finding.attachments | forms, paper=paper)
