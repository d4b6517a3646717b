"""The registered data sets: the table (datasets.toml), its schema, and how a name becomes verified files on this machine."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources as packaged
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from nmtkit.errors import ConfigError, nearest
from nmtkit.prep.corpora import download
from nmtkit.prep.sources import SetFiles
from nmtkit.settings import Section, build


class Resource(Section):
    """A published file."""

    size: int
    """Bytes."""
    checksum: str = Field(pattern=r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")
    """`sha256:` or `md5:` and the hexadecimal digest of the file as published."""
    urls: list[str] = []
    """Where it is published, mirrors in the order they are tried; empty: the data set's base_url and the file's name."""


class SetTable(Section):
    """One set of a data set."""

    name: str
    split: Literal["train", "dev", "test"]
    files: list[str]
    """Templates of resource names over {lang}, {src} and {tgt}; several are read one after the other."""
    references: list[list[str]] = []
    """Further references of the target side, each a list as `files`."""
    format: Literal["text"] = "text"
    """How the files are written: one sentence a line."""
    documents: Literal["none", "starts"] = "none"
    """Document boundaries: none, or a resource (template `starts`) with the 0-based line numbers where documents start."""
    starts: str = ""


class Entry(Section):
    """One section of the table: a data set for each of its language pairs."""

    name: str
    title: str
    pairs: list[str] = []
    languages: list[str] = []
    """Every ordered pair of these, instead of `pairs`."""
    train_pairs: int
    licence: str
    citation: str
    homepage: str = ""
    base_url: str = ""
    preset: str
    prep: dict[str, Any] = {}
    generator: str = ""
    """`module:function` that writes the sets instead of resources."""
    sets: list[SetTable] = []
    resources: dict[str, Resource] = {}


class _Table(BaseModel):
    entries: dict[str, Entry]


@dataclass(frozen=True)
class Dataset:
    """A registered data set in one direction."""

    name: str
    src: str
    tgt: str
    entry: Entry
    family: str

    def needed(self) -> dict[str, Resource]:
        """The resources this direction needs, by file name, in the order of the sets."""
        names = [name for table in self.entry.sets for name in self._names(table)]
        return {name: self.entry.resources[name] for name in names}

    def _names(self, table: SetTable) -> list[str]:
        names = [self._fill(file, lang) for lang in (self.src, self.tgt) for file in table.files]
        names += [self._fill(file, self.tgt) for reference in table.references for file in reference]
        return names + ([self._fill(table.starts, self.src)] if table.documents == "starts" else [])

    def _fill(self, template: str, lang: str) -> str:
        return template.format(lang=lang, src=self.src, tgt=self.tgt)

    def urls(self, name: str) -> list[str]:
        """The addresses of a resource, in the order they are tried."""
        return self.entry.resources[name].urls or [self.entry.base_url + name]

    def fetch(self, from_dir: Path | None) -> list[SetFiles]:
        """Find or download every file, each verified by its checksum.

        Args:
            from_dir: where to look before the download cache and the network.
        Returns: the sets as files on this machine.
        Raises: DataError, EnvironmentProblem as `download.fetch`.
        """
        here = {n: download.fetch(n, r.checksum, self.urls(n), r.size, self.family, from_dir) for n, r in self.needed().items()}

        def paths(templates: list[str], lang: str) -> tuple[Path, ...]:
            return tuple(here[self._fill(template, lang)] for template in templates)

        return [
            SetFiles(
                table.name,
                table.split,
                paths(table.files, self.src),
                paths(table.files, self.tgt),
                tuple(paths(reference, self.tgt) for reference in table.references),
                here[self._fill(table.starts, self.src)] if table.documents == "starts" else None,
            )
            for table in self.entry.sets
        ]


@functools.cache
def registered() -> dict[str, Dataset]:
    """Every registered data set by name, in the order of the table."""
    return expand(tomllib.loads(packaged.files("nmtkit.prep.corpora").joinpath("datasets.toml").read_text("utf-8")))


def expand(table: dict[str, Any]) -> dict[str, Dataset]:
    """Check a table of data sets and spell out the directions of each.

    Args:
        table: sections as in datasets.toml.
    Raises: ConfigError for an unknown key, a wrong value, or a set that names no resource.
    """
    found: dict[str, Dataset] = {}
    for family, values in table.items():
        entry = build(Entry, values, family)
        pairs = [tuple(pair.split("-")) for pair in entry.pairs] or [(a, b) for a in entry.languages for b in entry.languages if a != b]
        for src, tgt in pairs:
            dataset = Dataset(entry.name.format(src=src, tgt=tgt), src, tgt, entry, family)
            try:
                dataset.needed()
            except KeyError as error:
                raise ConfigError(f"a set of '{dataset.name}' names no resource {error}", where=f"[{family}.resources]") from None
            found[dataset.name] = dataset
    return found


def find(name: str) -> Dataset:
    """A registered data set by name.

    Raises: ConfigError naming the nearest one.
    """
    if name not in registered():
        hint = nearest(name, registered()) + " (nmtkit datasets lists them; own files: --train SRC TGT --dev SRC TGT)"
        raise ConfigError(f"unknown data set '{name}'", where="nmtkit prep", hint=hint)
    return registered()[name]


def describe() -> list[dict[str, Any]]:
    """The table for people and scripts: one JSON-able row a data set."""
    rows = []
    for dataset in registered().values():
        entry, needed = dataset.entry, dataset.needed()
        total = sum(resource.size for resource in needed.values())
        cached = all(download.cached(dataset.family, name, resource.size) for name, resource in needed.items())
        rows.append(
            {
                "name": dataset.name,
                "src": dataset.src,
                "tgt": dataset.tgt,
                "title": entry.title,
                "pairs": entry.train_pairs,
                "bytes": total,
                "size": download.human_size(total) if needed else "none",
                "cached": cached,
                "licence": entry.licence,
                "citation": entry.citation,
                "homepage": entry.homepage,
                "preset": entry.preset,
                "sets": [table.name for table in entry.sets] or ["train", "dev", "test"],
            }
        )
    return rows
