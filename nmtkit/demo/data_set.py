"""The whole demo data set, written to a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nmtkit.demo.corpus import Writer, write_split
from nmtkit.demo.draw import Draw
from nmtkit.demo.pairs import Contrastive, agreement_records, pronoun_records
from nmtkit.demo.probing import write_probing
from nmtkit.errors import ConfigError
from nmtkit.files import write_json


def generate(out_dir: Path, size: int = 20000, dev: int = 500, test: int = 500, seed: int = 1) -> None:
    """Write the demo data set: raw text, document starts, agreement pairs, pronoun pairs, probing files.

    Args:
        out_dir: folder for `{train,dev,test}.{en,de,docs}`, `agreement.en-de.json`, `pronouns.en-de.json` and `probing/*.txt`.
        size, dev, test: sentence pairs of each split (train is streamed, so any size fits in memory).
        seed: the same seed gives the same bytes on every machine.
    Raises: ConfigError for a size below 1. EnvironmentProblem if the folder cannot be written.
    """
    if min(size, dev, test) < 1:
        raise ConfigError(f"a demo split needs at least one sentence pair: size {size}, dev {dev}, test {test}", hint="raise --size")
    folder = Path(out_dir)
    counts: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    held = write_split(folder, "test", Writer(Draw(seed, 1)), test, unused)
    held |= write_split(folder, "dev", Writer(Draw(seed, 2), held), dev, unused)
    scale = min(size, 100_000) / 20_000
    contrastive = Contrastive(Draw(seed, 4), held)
    agreement = contrastive.at_distances(max(2, round(50 * scale))) + contrastive.of_kinds(max(5, round(150 * scale)))
    pronouns = contrastive.pronouns(max(30, round(600 * scale)))
    write_split(folder, "train", Writer(Draw(seed, 3), held), size, counts)
    write_json(folder / "agreement.en-de.json", agreement_records(agreement, counts))
    write_json(folder / "pronouns.en-de.json", pronoun_records(pronouns, counts))
    write_probing(folder / "probing", Draw(seed, 5), size)
