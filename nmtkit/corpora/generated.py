"""Corpora that a generator writes: its files as sets, its evaluation files as extras."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmtkit.corpora.corpus import Corpus, SetFiles
from nmtkit.corpora.table import Dataset, registered


def corpus(dataset: Dataset, folder: Path, preset: str, size: int, seed: int) -> Corpus:
    """Let a data set's generator write into a folder, and return its files as a corpus.

    A generator `generate(folder, size=…, seed=…)` writes {train,dev,test}.{src,tgt language},
    NAME.docs (0-based line numbers where documents start) where it has documents, and evaluation
    files NAME.json, NAME.SRC-TGT.json and probing/*.txt, kept as eval/NAME.json and eval/probing/.

    Args:
        dataset: a data set with a generator.
        folder: the generator writes into it.
        preset: of the systems to come.
        size, seed: training pairs, and the seed of its draws.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _function(dataset.entry.generator)(folder, size=size, seed=seed)
    sets = []
    for name in ("train", "dev", "test"):
        docs = folder / f"{name}.docs"
        src, tgt = ((folder / f"{name}.{language}",) for language in (dataset.src, dataset.tgt))
        sets.append(SetFiles(name, name, src, tgt, docs=docs if docs.is_file() else None))
    extras = {
        f"eval/{path.name.split('.')[0]}.json": path for path in sorted(folder.glob("*.json"))
    }
    extras |= {f"eval/probing/{path.name}": path for path in sorted(folder.glob("probing/*.txt"))}
    return Corpus(dataset.name, dataset.src, dataset.tgt, preset, sets, extras)


def expression_lists() -> dict[str, Dataset]:
    """Return the lists of expressions that data sets come with: name of the list -> data set."""
    return {
        name: dataset for dataset in registered().values() for name in dataset.entry.expressions
    }


def expressions(dataset: Dataset, name: str) -> list[str]:
    """Return a data set's list of expressions, as lines that `nmtkit.measures.expressions`
    reads.
    """
    listed = _function(dataset.entry.expressions[name])()
    return [f"{source}\t{' | '.join(targets)}\t{name}" for source, targets, name in listed]


def _function(target: str) -> Callable[..., Any]:
    """Return the function that `module:function` names."""
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
