"""Published data sets: find their files, read them as a corpus or an evaluation set, list them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from nmtkit import console
from nmtkit.corpora import table
from nmtkit.corpora.corpus import Corpus
from nmtkit.corpora.fetch import Finder, VerifiedFile, cached, is_cached
from nmtkit.corpora.table import TRAIN, Dataset
from nmtkit.corpora.unpack import unpack
from nmtkit.errors import ConfigError, DataError
from nmtkit.files import open_binary, writing
from nmtkit.settings import PrepSettings


def identity(dataset: Dataset, settings: PrepSettings) -> dict[str, str]:
    """Return what identifies the text of a data set: name of each file -> published checksum.

    Args:
        settings: the settings of prep; `dev` and `test` name sets.
    """
    needed = dataset.needed(dataset.choose(settings.dev, settings.test))
    return {name: resource.checksum or "not published" for name, resource in needed.items()}


def find(
    dataset: Dataset, settings: PrepSettings, from_dir: Path | None
) -> Callable[[Path], Corpus]:
    """Find or download the files of a data set.

    Args:
        settings: the settings of prep; `dev` and `test` name sets.
        from_dir: a folder to search before the cache and the network.
    Returns: a function that reads the files as a corpus; its argument is a folder to write in.
    Raises: DataError, EnvironmentProblem as Finder.find.
    """
    sets = dataset.choose(settings.dev, settings.test)
    finder = Finder(dataset.published, from_dir)
    files = [finder.find(name) for name in dataset.needed(sets)]
    if dataset.entry.note:
        console.say(f"{dataset.name}: {dataset.entry.note}")

    def read(folder: Path) -> Corpus:
        paths = {file.name: file.path for file in files}
        try:
            unpacked = unpack(dataset, sets, paths, folder)
        except DataError as error:
            # A file without a published checksum may have been cut short.
            doubtful = [
                f"{file.path}" + f" and {file.path}.sha256" * (not file.new)
                for file in files
                if dataset.published[file.name].checksum is None and file.path == cached(file.name)
            ]
            if doubtful:
                again = f"for a new download, delete {', '.join(doubtful)}"
                error.hint = f"{error.hint}; {again}" if error.hint else again
            raise
        for file in files:
            file.remember()
        facts = {file.name: file.facts() for file in files}
        return Corpus(dataset.name, dataset.src, dataset.tgt, unpacked, published=facts)

    return read


def fetch(name: str, from_dir: Path | None = None) -> list[Path]:
    """Download the files of a registered data set without preparing it.

    Args:
        name: the name of the data set; the files of an evaluation set go into the cache.
        from_dir: a folder to search before the cache and the network.
    Returns: the files.
    Raises: ConfigError if the data set has no files; DataError, EnvironmentProblem as Finder.find.
    """
    dataset = table.find(name, "nmtkit datasets --fetch")
    if not dataset.needed():
        problem = f"'{name}' is generated, there is nothing to fetch"
        raise ConfigError(problem, where="--fetch", hint=f"nmtkit prep {name}")
    # Analyses call this function too, and have no option --from-dir.
    advice = f"run `nmtkit datasets --fetch {name} --from-dir DIR`"
    finder = Finder(dataset.published, from_dir, advice)
    files = [finder.find(needed) for needed in dataset.needed()]
    return [_copied(file) if dataset.entry.evaluation else file.path for file in files]


def _copied(file: VerifiedFile) -> Path:
    """Copy a file of an evaluation set into the cache, where analyses look for it."""
    path = cached(file.name)
    if file.path != path:
        compressed = file.path.name != path.name  # by the user
        stream = open_binary(file.path) if compressed else open(file.path, "rb")
        with stream, writing(path, "wb") as copy:
            shutil.copyfileobj(stream, copy)
    return path


def evaluation_set(name: str) -> Path:
    """Return the folder of the verified files of an evaluation set; fetch them if needed."""
    return fetch(name)[0].parent


def describe() -> list[dict[str, Any]]:
    """Return one row per data set for `nmtkit datasets`, with values that JSON can hold."""
    return [_row(dataset) for dataset in table.registered().values()]


def _row(dataset: Dataset) -> dict[str, Any]:
    entry, needed = dataset.entry, dataset.needed()
    sizes = [resource.size for resource in needed.values()]
    known = sum(filter(None, sizes))
    parts = [decimal(known)] * bool(known) + ["?"] * (None in sizes)
    generated = [TRAIN, "dev", "test"] if entry.generator else []
    return {
        "name": dataset.name,
        "src": dataset.src,
        "tgt": dataset.tgt,
        "kind": entry.kind,
        "title": entry.title,
        "pairs": entry.train_pairs,
        "approximate": entry.approximate,
        "bytes": None if None in sizes else known,
        "size": " + ".join(parts) or "none",
        "verified": all(resource.checksum for resource in needed.values()),
        "files": {name: resource.urls for name, resource in needed.items()},
        "cached": all(is_cached(name, resource.size) for name, resource in needed.items()),
        **entry.model_dump(include={"licence", "citation", "homepage", "note", "preset"}),
        "sets": [text.name for text in dataset.choose()] or generated,
        "further_sets": [key for key in entry.sets if key not in {TRAIN, entry.dev, *entry.test}],
    }
