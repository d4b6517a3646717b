"""Corpora that a generator writes: text files become sets, evaluation files become extras."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from nmtkit.corpora.corpus import Corpus, SetFiles
from nmtkit.corpora.table import Dataset, registered


def corpus(dataset: Dataset, folder: Path, size: int, seed: int) -> Corpus:
    """Return the corpus that a data set's generator writes into a folder.

    The generator is a function `generate(folder, size=…, seed=…)`. For each SET of train, dev, test
    it writes SET.LANGUAGE for both languages, and SET.docs (0-based line numbers where documents
    start) if the set has documents. It may write evaluation files: NAME.json or NAME.SRC-TGT.json,
    which become eval/NAME.json, and probing/*.txt, which become eval/probing/*.txt.

    Args:
        dataset: a data set with a generator.
        folder: the folder that the generator writes into.
        size: the number of training pairs.
        seed: the seed of the generator.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pkgutil.resolve_name(dataset.entry.generator)(folder, size=size, seed=seed)
    sets = []
    for name in ("train", "dev", "test"):
        docs = folder / f"{name}.docs"
        src, tgt = folder / f"{name}.{dataset.src}", folder / f"{name}.{dataset.tgt}"
        sides = {"src": (src,), "ref": (tgt,)}
        sets.append(SetFiles(name, name, sides, docs=docs if docs.is_file() else None))
    extras = {
        f"eval/{path.name.split('.')[0]}.json": path for path in sorted(folder.glob("*.json"))
    }
    extras |= {f"eval/probing/{path.name}": path for path in sorted(folder.glob("probing/*.txt"))}
    return Corpus(dataset.name, dataset.src, dataset.tgt, sets, extras)


def expression_lists() -> dict[str, Dataset]:
    """Return the registered lists of expressions: name of the list -> its data set."""
    return {
        name: dataset for dataset in registered().values() for name in dataset.entry.expressions
    }


def expressions(dataset: Dataset, name: str) -> list[str]:
    """Return a list of expressions of a data set, as lines for `nmtkit.measures.expressions`."""
    entries = pkgutil.resolve_name(dataset.entry.expressions[name])()
    return [f"{source}\t{' | '.join(targets)}\t{name}" for source, targets, name in entries]
