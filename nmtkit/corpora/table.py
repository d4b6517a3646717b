"""The registered data sets: the schema of the table (datasets.toml), its data sets by name, and the sets of each that are chosen."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources as packaged
from typing import Any, Literal

from pydantic import Field, field_validator

from nmtkit.corpora.checksums import PATTERN, human_size
from nmtkit.corpora.fetch import MEMBER, is_cached
from nmtkit.errors import ConfigError, nearest
from nmtkit.settings import PrepSettings, Section, build

TRAIN = "train"


class Resource(Section):
    """A published file."""

    size: int | None = Field(None, gt=0)
    """Bytes; left out where it isn't published."""
    checksum: str | None = Field(None, pattern=PATTERN)
    """sha256:…, md5:… or git:…; left out where none is published: then the first copy is recorded and later ones compared with it."""
    urls: list[str] = []
    """Further addresses; `SOURCE/FILE::MEMBER` is a member of another published file."""
    bases: list[str] = []
    """Filled in from the source."""
    path: str = ""

    @property
    def addresses(self) -> list[str]:
        """Where it is published, in the order of trial."""
        return [base + self.path for base in self.bases] + self.urls


class Source(Section):
    """Files published under the same addresses; the file FILE of the source NAME is called NAME/FILE."""

    bases: list[str] = []
    """What the addresses begin with, mirrors in the order of trial."""
    files: dict[str, Resource]


class SetTable(Section):
    """One set of a data set; each file is a template over {src}, {tgt}, {lang} (of the side) and {role} (src or ref)."""

    files: list[str] | dict[str, list[str]] = []
    """SOURCE/FILE, or SOURCE/FILE::MEMBER for a member of an archive; several are read one after the other. By language where they differ."""
    references: dict[str, list[list[str]]] = {}
    """By target language: further references, each a list as `files`."""
    format: Literal["auto", "text", "tsv", "ted", "markup"] = "auto"
    """auto: markup for .sgm and .xml, else text."""
    columns: dict[str, int] = {}
    """TSV: the column of each language, from 1."""
    keep: list[Literal["title", "description"]] = []
    """TED: metadata whose text counts as sentences."""
    tokenized: list[str] = []
    """Languages published in tokenized form; their text is detokenized on reading."""
    plain_apostrophes: bool = False
    """U+2019 is read as an apostrophe, as the usual recipe of a data set has it."""
    documents: Literal["auto", "starts", "ids", "blank", "marker"] = "auto"
    """Where documents start. auto: as the format says; starts: `boundaries` are files of 0-based line numbers; ids: `boundaries` are OPUS's
    .ids; blank: after a line that is blank on every side; marker: after a line <d>. A file name with {number} is a file for each document."""
    boundaries: list[str] = []
    rows: str = ""
    """Instead of files: these rows of the training text, taken out of it; first:last:step as in Python ("-1000:", "22::23")."""

    @field_validator("rows")
    @classmethod
    def _a_slice(cls, value: str) -> str:
        if value and not re.fullmatch(r"-?\d*:(-?\d*)(:\d+)?", value):
            raise ValueError("rows are first:last or first:last:step")
        return value

    def selected(self, total: int) -> range:
        """The rows taken out of `total` rows of training text."""
        return range(total)[slice(*(int(part) if part else None for part in self.rows.split(":")))]


class Entry(Section):
    """One section of the table: a data set for each of its language pairs."""

    name: str
    title: str
    pairs: list[str] = []
    languages: list[str] = []
    """Every ordered pair of these, instead of `pairs`."""
    train_pairs: int = 0
    """As published, for the list; prep counts."""
    approximate: bool = False
    """Whether the number of pairs is a round one."""
    licence: str
    citation: str
    homepage: str = ""
    note: str = ""
    """What its users should know; said when it is prepared."""
    preset: str = "base"
    prep: dict[str, Any] = {}
    """Settings of prep; a preset overrides them."""
    presets: dict[str, dict[str, Any]] = {}
    """Settings of prep for this data set with one preset, over those of the preset: what a paper chose for this data set."""
    generator: str = ""
    """`module:function` that writes the sets instead of files."""
    expressions: dict[str, str] = {}
    """Lists of expressions for `analyze phrases`: name -> `module:function` that returns (source phrase, target phrases, name of the expression)."""
    dev: str = ""
    """Name of the development set."""
    test: list[str] = []
    """Names of the test sets."""
    sets: dict[str, SetTable] = {}
    """The training text is called train; the others are those that may be chosen."""
    evaluation: list[str] = []
    """Files of an evaluation set, which is fetched for analyses but not prepared; then there are no sets."""


@dataclass(frozen=True)
class File:
    """A published file, or a member of one."""

    resource: str
    member: str


@dataclass(frozen=True)
class ChosenSet:
    """A set of a data set in one direction, as it will be called in the run."""

    name: str
    split: str
    table: SetTable
    src: tuple[File, ...]
    tgt: tuple[File, ...]
    references: tuple[tuple[File, ...], ...]
    boundaries: tuple[File, ...]

    def files(self) -> list[File]:
        """Every file of the set."""
        return [*self.src, *self.tgt, *(file for reference in self.references for file in reference), *self.boundaries]


@dataclass(frozen=True)
class Dataset:
    """A registered data set in one direction."""

    name: str
    src: str
    tgt: str
    entry: Entry
    published: dict[str, Resource]
    """Every published file of the table."""

    def settings(self, preset: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The data set's settings of prep: those a preset overrides, and those that override this preset."""
        return self.entry.prep, self.entry.presets.get(preset, {})

    def choose(self, dev: str = "", test: list[str] | None = None) -> list[ChosenSet]:
        """The sets to prepare: training text, then the development set under the name dev, then the test sets under their own.

        Args:
            dev, test: names of sets; empty: the data set's own choice.
        Raises: ConfigError for a set that isn't there.
        """
        if not self.entry.sets:
            return []
        chosen = [
            (TRAIN, TRAIN, TRAIN),
            ("dev", "dev", dev or self.entry.dev),
            *((name, "test", name) for name in dict.fromkeys(test or self.entry.test)),
        ]
        return [self._chosen(*one) for one in chosen]

    def _chosen(self, name: str, split: str, key: str) -> ChosenSet:
        known = [known for known in self.entry.sets if known != TRAIN]
        if key not in self.entry.sets or (key == TRAIN and split != TRAIN):
            raise ConfigError(f"'{self.name}' has no set '{key}'", where=f"prep.{split}", hint=f"its sets are {', '.join(known)}")
        table = self.entry.sets[key]
        sides = table.files if isinstance(table.files, dict) else {self.src: table.files, self.tgt: table.files}
        src, tgt = (tuple(self._file(f, lang, role) for f in sides.get(lang, [])) for lang, role in ((self.src, "src"), (self.tgt, "ref")))
        references = tuple(tuple(self._file(f, self.tgt, "ref") for f in reference) for reference in table.references.get(self.tgt, []))
        boundaries = tuple(self._file(f, self.src, "src") for f in table.boundaries)
        parts = {len(side) for side in (src, tgt, *references, *([boundaries] if table.documents in {"starts", "ids"} else []))}
        if parts != {0} if table.rows else (len(parts) > 1 or parts == {0}):
            hint = "each side, and the boundaries, have as many files; rows of the training text have none"
            raise ConfigError(f"the files of set '{key}' of '{self.name}' don't match", where="datasets.toml", hint=hint)
        if table.format == "tsv" and (missing := {self.src, self.tgt} - set(table.columns)):
            raise ConfigError(
                f"set '{key}' of '{self.name}' has no column of '{min(missing)}'", where="datasets.toml", hint="columns = { en = 1, … }"
            )
        return ChosenSet(name, split, table, src, tgt, references, boundaries)

    def _file(self, template: str, lang: str, role: str) -> File:
        filled = template.format(lang=lang, src=self.src, tgt=self.tgt, role=role, number="{number}")
        resource, _, member = filled.partition(MEMBER)
        if resource not in self.published:
            raise ConfigError(f"'{self.name}' needs '{resource}', which no source has", where="datasets.toml", hint=nearest(resource, self.published))
        return File(resource, member)

    def needed(self, chosen: list[ChosenSet] | None = None) -> dict[str, Resource]:
        """The published files of some sets (None: those chosen by default), or of an evaluation set, by name, in order."""
        sets = self.choose() if chosen is None else chosen
        files = [file for one in sets for file in one.files()] + [self._file(name, self.src, "src") for name in self.entry.evaluation]
        return {file.resource: self.published[file.resource] for file in files}


@functools.cache
def registered() -> dict[str, Dataset]:
    """Every registered data set by name, in the order of the table."""
    return expand(tomllib.loads(packaged.files("nmtkit.corpora").joinpath("datasets.toml").read_text("utf-8")))


def expand(table: dict[str, Any]) -> dict[str, Dataset]:
    """Check a table and spell out the directions of each data set.

    Args:
        table: `sources` and `datasets`, as in datasets.toml.
    Raises: ConfigError for an unknown key, a wrong value, a set that is missing or names a file that no source has.
    """
    published: dict[str, Resource] = {}
    for name, values in table["sources"].items():
        source = build(Source, values, f"sources.{name}")
        for path, resource in source.files.items():
            published[f"{name}/{path}"] = resource.model_copy(update={"bases": source.bases, "path": path})
    found: dict[str, Dataset] = {}
    for family, values in table["datasets"].items():
        entry = build(Entry, values, family)
        pairs = [tuple(pair.split("-")) for pair in entry.pairs] or [(a, b) for a in entry.languages for b in entry.languages if a != b]
        for src, tgt in pairs or [("", "")]:
            dataset = Dataset(entry.name.format(src=src, tgt=tgt), src, tgt, entry, published)
            for one in entry.presets.values():
                build(PrepSettings, entry.prep | one, f"{family}.presets")
            for key in entry.sets:  # everything named is there, chosen or not
                dataset.choose(*(("", []) if key == TRAIN else (key, [key])))
            dataset.needed()
            found[dataset.name] = dataset
    return found


def find(name: str, where: str = "nmtkit prep") -> Dataset:
    """A registered data set by name.

    Args:
        name: of the data set.
        where: the command that it is for; only prep takes own files instead.
    Raises: ConfigError naming the nearest one.
    """
    if name not in registered():
        near = nearest(name, registered(), f"{len(registered())} are registered")
        own = "; own files: --train SRC TGT --dev SRC TGT" if where == "nmtkit prep" else ""
        raise ConfigError(f"unknown data set '{name}'", where=where, hint=f"{near} (nmtkit datasets lists them{own})")
    return registered()[name]


def describe() -> list[dict[str, Any]]:
    """The table for people and scripts: one JSON-able row a data set."""
    return [_described(dataset) for dataset in registered().values()]


def _described(dataset: Dataset) -> dict[str, Any]:
    entry, needed = dataset.entry, dataset.needed()
    sizes = [resource.size for resource in needed.values()]
    known = sum(size for size in sizes if size is not None)
    kind = "evaluation set" if entry.evaluation else "generated" if entry.generator else "corpus"
    return {
        "name": dataset.name,
        "src": dataset.src,
        "tgt": dataset.tgt,
        "kind": kind,
        "title": entry.title,
        "pairs": entry.train_pairs,
        "approximate": entry.approximate,
        "bytes": None if None in sizes else known,
        "size": _size(sizes, known),
        "verified": all(resource.checksum for resource in needed.values()),
        "cached": all(is_cached(name, resource.size) for name, resource in needed.items()),
        "licence": entry.licence,
        "citation": entry.citation,
        "homepage": entry.homepage,
        "note": entry.note,
        "preset": entry.preset,
        "sets": [one.name for one in dataset.choose()] or ([] if entry.evaluation else [TRAIN, "dev", "test"]),
        "further_sets": [key for key in entry.sets if key not in {TRAIN, entry.dev, *entry.test}],
    }


def _size(sizes: list[int | None], known: int) -> str:
    if not sizes:
        return "none"
    return " + ".join(([human_size(known)] if known else []) + (["?"] if None in sizes else []))
