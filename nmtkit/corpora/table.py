"""The registered data sets: the schema of datasets.toml, the data sets by name, and their sets."""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources as packaged
from typing import Any, Literal

from pydantic import Field, field_validator

from nmtkit.errors import ConfigError, nearest
from nmtkit.settings import PrepSettings, Section, build

TRAIN = "train"
PATTERN = r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}|git:[0-9a-f]{40})$"
"""`git:` is the id of a git blob (`git hash-object FILE`), the only checksum that a public
repository publishes."""
MEMBER = "::"
"""Separates a published file from the name of a member in it."""


class Resource(Section):
    """A published file."""

    size: int | None = Field(None, gt=0)
    """Bytes; None if the size is not published."""
    checksum: str | None = Field(None, pattern=PATTERN)
    """sha256:…, md5:… or git:…. If none is published, nmtkit records the checksum of the first copy
    and compares later copies with it."""
    urls: list[str] = []
    """Addresses, tried in this order, after the addresses of the source. `SOURCE/FILE::MEMBER` is a
    member of another published file."""


class Source(Section):
    """Files published under the same addresses. FILE of the source NAME is called NAME/FILE."""

    bases: list[str] = []
    """Beginnings of the addresses (mirrors), tried in this order."""
    files: dict[str, Resource]


class SetTable(Section):
    """One set of a data set.

    A file name is a template. {src} and {tgt} are the languages of the data set, {lang} is the
    language of the side, and {role} is src or ref.
    """

    files: list[str] | dict[str, list[str]] = []
    """SOURCE/FILE, or SOURCE/FILE::MEMBER for a member of an archive. Several files are read one
    after the other. If one template cannot name both sides: language -> files."""
    format: Literal["auto", "ted"] = "auto"
    """auto: markup for .sgm and .xml, else text."""
    keep: list[Literal["title", "description"]] = []
    """For TED: metadata whose text counts as sentences."""
    tokenized: list[str] = []
    """Languages published in tokenized form; their text is detokenized on reading."""
    plain_apostrophes: bool = False
    """True if U+2019 is read as an apostrophe, as in the usual recipe of the data set."""
    boundaries: list[str] = []
    """.ids files of OPUS that say where documents start, if the format does not. A file name with
    {number} stands for many files, one per document."""
    rows: str = ""
    """Instead of files: rows of the training text that are held out for this set, as a Python slice
    first:last:step ("-1000:", "22::23")."""

    @field_validator("rows")
    @classmethod
    def _a_slice(cls, value: str) -> str:
        if value and not re.fullmatch(r"-?\d*:(-?\d*)(:\d+)?", value):
            raise ValueError("rows are first:last or first:last:step")
        return value

    def selected(self, total: int) -> range:
        """Return the numbers of the held-out rows, given the number of rows of training text."""
        return range(total)[slice(*(int(part) if part else None for part in self.rows.split(":")))]


class Entry(Section):
    """One section of the table: data sets that differ only in the language pair."""

    name: str
    title: str
    pairs: list[str] = []
    languages: list[str] = []
    """Instead of `pairs`: every ordered pair of these languages is a data set."""
    train_pairs: int = 0
    """The published number of training pairs, for `nmtkit datasets`; prep counts them itself."""
    approximate: bool = False
    """True if `train_pairs` is rounded."""
    licence: str
    citation: str
    homepage: str = ""
    note: str = ""
    """Notes for users, printed when the data set is prepared."""
    preset: str = "base"
    prep: dict[str, Any] = {}
    """Settings of prep; a preset overrides them."""
    presets: dict[str, dict[str, Any]] = {}
    """Preset -> the settings of prep that its paper chose for this data set. They override the
    settings of the preset."""
    generator: str = ""
    """Instead of files: `module:function` of the function that writes the sets."""
    expressions: dict[str, str] = {}
    """Lists of expressions for `analyze phrases`: name -> `module:function`. The function returns
    tuples (source phrase, target phrases, name of the expression)."""
    dev: str = ""
    """Name of the development set."""
    test: list[str] = []
    """Names of the test sets."""
    sets: dict[str, SetTable] = {}
    """The training text is called train; the user chooses among the other sets."""
    evaluation: list[str] = []
    """Instead of sets: the files of an evaluation set, which analyses fetch and prep does not
    prepare."""

    @property
    def kind(self) -> str:
        """corpus, generated, or evaluation set."""
        return "evaluation set" if self.evaluation else "generated" if self.generator else "corpus"


@dataclass(frozen=True)
class File:
    """A published file, or a member of it (`member` is empty for the file itself)."""

    resource: str
    member: str


@dataclass(frozen=True)
class RegisteredSet:
    """A set of a data set in one direction, under its name in the run."""

    name: str
    split: str
    table: SetTable
    parts: tuple[tuple[File, File], ...]
    """Source and target of each part; the parts are read one after the other."""
    boundaries: tuple[File, ...]
    """The .ids file of each part, or empty."""

    def files(self) -> list[File]:
        """Return every file of the set."""
        return [*itertools.chain(*self.parts), *self.boundaries]


@dataclass(frozen=True)
class Dataset:
    """A registered data set in one direction."""

    name: str
    src: str
    tgt: str
    entry: Entry
    published: dict[str, Resource]
    """Every published file of the table."""

    def choose(self, dev: str = "", test: list[str] | None = None) -> list[RegisteredSet]:
        """Return the sets to prepare: train, then the development set as dev, then the test sets.

        Args:
            dev, test: names of sets; empty for the data set's default choice.
        Raises: ConfigError if a set is unknown.
        """
        if not self.entry.sets:
            return []
        names = dict.fromkeys(test or self.entry.test)
        return [
            self._set(TRAIN, TRAIN),
            self._set("dev", dev or self.entry.dev),
            *(self._set("test", name) for name in names),
        ]

    def _set(self, split: str, key: str) -> RegisteredSet:
        sets = self.entry.sets
        if key not in sets or (key == TRAIN) != (split == TRAIN):
            hint = f"its sets are {', '.join(key for key in sets if key != TRAIN)}"
            raise ConfigError(f"'{self.name}' has no set '{key}'", f"prep.{split}", hint)
        table = sets[key]
        src = self._files(table.files, self.src, "src")
        tgt = self._files(table.files, self.tgt, "ref")
        boundaries = self._files(table.boundaries, self.src, "src")
        counts = {len(src), len(tgt), len(boundaries or src)}
        if len(counts) > 1 or bool(src) == bool(table.rows):
            problem = f"the files of set '{key}' of '{self.name}' don't match"
            hint = "source, target and boundaries need equally many files; a set with rows has none"
            raise ConfigError(problem, "datasets.toml", hint)
        name = key if split == "test" else split
        return RegisteredSet(name, split, table, tuple(zip(src, tgt, strict=True)), boundaries)

    def _files(
        self, templates: list[str] | dict[str, list[str]], lang: str, role: str
    ) -> tuple[File, ...]:
        """Return the files that the templates of one side name."""
        if isinstance(templates, dict):
            templates = templates.get(lang, [])
        values = {"lang": lang, "role": role, "src": self.src, "tgt": self.tgt}
        # {number} stays in the name, because `archives.extract` finds the numbers.
        filled = [template.format(**values, number="{number}") for template in templates]
        files = [File(*name.partition(MEMBER)[::2]) for name in filled]
        for name in (file.resource for file in files if file.resource not in self.published):
            problem = f"'{self.name}' needs '{name}', which no source has"
            raise ConfigError(problem, "datasets.toml", nearest(name, self.published))
        return tuple(files)

    def needed(self, sets: list[RegisteredSet] | None = None) -> dict[str, Resource]:
        """Return the published files of some sets, or of an evaluation set: name -> file.

        Args:
            sets: None means the default choice.
        """
        files = [
            file
            for text_set in (self.choose() if sets is None else sets)
            for file in text_set.files()
        ]
        files += self._files(self.entry.evaluation, self.src, "src")
        return {file.resource: self.published[file.resource] for file in files}


@functools.cache
def registered() -> dict[str, Dataset]:
    """Return every registered data set by name, in the order of the table."""
    table = packaged.files("nmtkit.corpora").joinpath("datasets.toml").read_text("utf-8")
    return expand(tomllib.loads(table))


def expand(table: dict[str, Any]) -> dict[str, Dataset]:
    """Return the data sets of a table by name, one for each direction, after checking them.

    Args:
        table: `sources` and `datasets`, as in datasets.toml.
    Raises: ConfigError for an unknown key, a wrong value, a missing set, or a file that no source
        has.
    """
    published = _published(table["sources"])
    datasets = {}
    for family, values in table["datasets"].items():
        entry = build(Entry, values, family)
        for preset in entry.presets.values():
            build(PrepSettings, entry.prep | preset, f"{family}.presets")
        pairs = [tuple(pair.split("-")) for pair in entry.pairs]
        for src, tgt in pairs or list(itertools.permutations(entry.languages, 2)) or [("", "")]:
            name = entry.name.format(src=src, tgt=tgt)
            datasets[name] = dataset = Dataset(name, src, tgt, entry, published)
            # These calls raise an error if a set, or a file of a set, is missing.
            dataset.needed()
            for key in entry.sets.keys() - {TRAIN}:
                dataset.choose(key)
    return datasets


def _published(sources: dict[str, Any]) -> dict[str, Resource]:
    """Return every published file by name, with all its addresses."""
    published = {}
    for name, values in sources.items():
        source = build(Source, values, f"sources.{name}")
        for path, resource in source.files.items():
            urls = [base + path for base in source.bases] + resource.urls
            published[f"{name}/{path}"] = resource.model_copy(update={"urls": urls})
    return published


def find(name: str, where: str = "nmtkit prep") -> Dataset:
    """Return a registered data set by name.

    Args:
        name: the name of the data set.
        where: the command, for the error. For prep, the hint also names the options for own files.
    Raises: ConfigError if the name is unknown; the hint has the nearest name.
    """
    if name not in registered():
        near = _like(name)
        files = "; own files: --train SRC TGT --dev SRC TGT" if where == "nmtkit prep" else ""
        hint = f"{near} (nmtkit datasets lists them{files})"
        raise ConfigError(f"unknown data set '{name}'", where, hint)
    return registered()[name]


def _like(name: str) -> str:
    """Return the hint for an unknown name: all names that begin with it, else the nearest name."""
    begin_so = [known for known in registered() if known.startswith(name)] if name else []
    if len(begin_so) > 1:
        return f"these begin so: {', '.join(begin_so)}"
    return nearest(name, registered(), f"{len(registered())} are registered")
