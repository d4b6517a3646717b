"""Data sets that are published: which files a choice of sets needs, where they are, and how they become a corpus or an evaluation set."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from nmtkit import console
from nmtkit.corpora import table
from nmtkit.corpora.corpus import Corpus
from nmtkit.corpora.fetch import Finder, Found, cached
from nmtkit.corpora.table import Dataset
from nmtkit.corpora.unpack import unpack
from nmtkit.errors import ConfigError
from nmtkit.files import cache_folder, open_binary
from nmtkit.settings import PrepSettings


def identity(dataset: Dataset, chosen: PrepSettings) -> dict[str, str]:
    """What the text of a data set is: the published files it is made of, by name, with their published checksums.

    Args:
        dataset: which.
        chosen: settings of prep, of which dev and test name sets.
    """
    return {name: one.checksum or "not published" for name, one in dataset.needed(dataset.choose(chosen.dev, chosen.test)).items()}


def find(dataset: Dataset, chosen: PrepSettings, preset: str, from_dir: Path | None) -> Callable[[Path], Corpus]:
    """Find or download the files of a data set.

    Args:
        dataset: which.
        chosen: settings of prep, of which dev and test name sets.
        preset: of the systems to come.
        from_dir: looked through before the cache and the network.
    Returns: a function that makes them readable in a folder.
    Raises: DataError, EnvironmentProblem as Finder.find.
    """
    sets = dataset.choose(chosen.dev, chosen.test)
    found = _found(list(dataset.needed(sets)), Finder(dataset.published, from_dir))
    if dataset.entry.note:
        console.say(f"{dataset.name}: {dataset.entry.note}")

    def read(folder: Path) -> Corpus:
        unpacked = unpack(dataset, sets, {name: one.path for name, one in found.items()}, folder)
        for one in found.values():
            one.remember()
        facts = {n: {"checksum": f.checksum, "size": f.path.stat().st_size, "path": str(f.path)} for n, f in found.items()}
        return Corpus(dataset.name, dataset.src, dataset.tgt, preset, unpacked, published=facts)

    return read


def _found(names: list[str], finder: Finder) -> dict[str, Found]:
    found = {name: finder.find(name) for name in names}
    new = [name for name, one in found.items() if one.unpublished and one.new]
    if new:
        console.say(f"no checksum is published for {', '.join(new)}: that of this first copy is recorded, and later ones are compared with it")
    return found


def fetch(name: str, from_dir: Path | None = None) -> list[Path]:
    """Bring the files of a registered data set to this machine without preparing it; those of an evaluation set into the cache.

    Args:
        name: of the data set.
        from_dir: looked through before the cache and the network.
    Returns: the files.
    Raises: ConfigError if it has none; DataError, EnvironmentProblem as Finder.find.
    """
    dataset = table.find(name, "nmtkit datasets --fetch")
    needed = list(dataset.needed())
    if not needed:
        raise ConfigError(f"'{name}' is generated, there is nothing to fetch", where="--fetch", hint=f"nmtkit prep {name}")
    finder = Finder(dataset.published, from_dir, f"run `nmtkit datasets --fetch {name} --from-dir DIR`")  # analyses have no such option
    found = _found(needed, finder)
    return [_kept(one) if dataset.entry.evaluation else one.path for one in found.values()]


def _kept(found: Found) -> Path:
    """An evaluation set's file in the cache, where analyses find it later."""
    path = cached(found.name)
    if found.path != path:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        packed = found.path.name != path.name  # compressed since it was published
        with open_binary(found.path) if packed else open(found.path, "rb") as stream, open(temporary, "wb") as out:
            shutil.copyfileobj(stream, out)
        os.replace(temporary, path)
    return path


def evaluation_set(name: str, from_dir: Path | None = None) -> Path:
    """The folder of an evaluation set's files (lingeval97.json; the ten probing files of senteval), verified; fetched if need be.

    Args:
        name: lingeval97 or senteval.
        from_dir: looked through before the cache and the network.
    Raises: ConfigError if it is no evaluation set; DataError, EnvironmentProblem if it cannot be had.
    """
    if not table.find(name).entry.evaluation:
        raise ConfigError(f"'{name}' is no evaluation set", where="nmtkit datasets", hint=f"nmtkit prep {name}")
    files = fetch(name, from_dir)
    return cache_folder() / Path(files[0].relative_to(cache_folder()).parts[0])
