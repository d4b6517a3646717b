"""Make a prepared corpus of random tokens with the lengths and the vocabulary of a real one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmtkit.data.documents import documents_file
from nmtkit.run import Run
from nmtkit.text.vocabulary import EOS, Vocabulary
from tests.manifests import write_manifest
from tests.pair_writer import pair_writer


@dataclass(frozen=True)
class Corpus:
    """The sizes that the speed of a training depends on.

    Attributes:
        preset: of the models.
        vocabulary: subwords.
        mean: subwords of a sentence.
        pairs: sentence pairs.
    """

    preset: str
    vocabulary: int
    mean: float
    pairs: int


DOCUMENT = 10
"""Sentences of a document."""


def make(corpus: Corpus, folder: Path) -> Run:
    """Write the run directory of a corpus, with documents and without a development set."""
    prep = folder / "prep"
    (prep / "docs").mkdir(parents=True)
    words = [f"w{number}" for number in range(corpus.vocabulary - 4)]
    vocabulary = Vocabulary(["<pad>", "<s>", "</s>", "<unk>", *words])
    vocabulary.save(prep / "vocab.txt")
    draw = np.random.default_rng(1)
    with pair_writer(prep / "train", 0, len(vocabulary)) as add:
        for source, target in zip(*_lengths(draw, corpus), strict=True):
            add(*(_sentence(draw, length, len(vocabulary)) for length in (source, target)))
    starts = range(0, corpus.pairs, DOCUMENT)
    documents_file(prep, "train").write_text("".join(f"{start}\n" for start in starts), "utf-8")
    hashes = {
        path.relative_to(prep).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(prep.rglob("*"))
        if path.is_file()
    }
    values = {
        "dataset": "made up",
        "preset": corpus.preset,
        "vocabulary": {"shared": True, "src": len(vocabulary), "tgt": len(vocabulary)},
        "files": hashes,
        "fingerprint": hashlib.sha256(json.dumps(hashes).encode()).hexdigest(),
    }
    write_manifest(prep, [("train", "train", corpus.pairs)], {"truecase": "none"}, **values)
    return Run(folder)


def _lengths(draw: np.random.Generator, corpus: Corpus) -> tuple[list[int], list[int]]:
    """Return subwords of sources and targets, as skewed as those of real text."""
    source = draw.lognormal(np.log(corpus.mean) - 0.15, 0.55, corpus.pairs)
    target = source * draw.lognormal(0.0, 0.15, corpus.pairs)
    return tuple(np.clip(side, 1, 120).astype(int).tolist() for side in (source, target))


def _sentence(draw: np.random.Generator, length: int, vocabulary: int) -> list[int]:
    """Return ids of which the first are the most frequent, with </s>."""
    ranks = (vocabulary - 4) ** draw.random(length) - 1
    return [*(4 + ranks.astype(int)).tolist(), EOS]
