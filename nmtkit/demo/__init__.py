"""The embedded `demo` data set: a seeded English-German grammar that needs no network.

Tables become a lexicon with all forms (`lexicon`). Noun phrases (`constituents`), clauses
(`clauses`) and sentences (`sentences`) are drawn, and realised as trees in both languages
(`realise`, `languages`). Sentences become documents (`corpus`), contrastive pairs (`contrast`) and
probing files (`probing`).
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from nmtkit.demo.contrast import Contrast, complete
from nmtkit.demo.corpus import Writer, write_split
from nmtkit.demo.lexicon import separable_expressions
from nmtkit.demo.probing import write_probing
from nmtkit.files import write_json

__all__ = ["generate", "separable_expressions"]


def generate(
    out_dir: Path, size: int = 20000, dev: int = 500, test: int = 500, seed: int = 1
) -> None:
    """Write the demo data set: raw text, document starts, contrastive pairs, probing files.

    Args:
        out_dir: folder for `{train,dev,test}.{en,de,docs}`, `agreement.en-de.json`,
            `pronouns.en-de.json` and `probing/*.txt`.
        size: sentence pairs of train, which is streamed, so any size fits in memory.
        dev: sentence pairs of dev.
        test: sentence pairs of test.
        seed: the same seed gives the same bytes on every machine.
    Raises: EnvironmentProblem if the folder cannot be written.
    """
    held: set[str] = set()
    for stream, name, number in ((1, "test", test), (2, "dev", dev)):
        documents = list(Writer(seed, stream, held).documents(number))
        write_split(out_dir, name, documents)
        held.update(*(pair.sides for pair in chain.from_iterable(documents)))
    contrast = Contrast(seed, 4, held)
    pairs = {"agreement": contrast.agreement(size), "pronouns": contrast.pronouns(size)}
    lemmas = write_split(out_dir, "train", Writer(seed, 3, held).documents(size))
    for name, records in pairs.items():
        write_json(out_dir / f"{name}.en-de.json", complete(records, lemmas))
    write_probing(out_dir / "probing", seed, size)
