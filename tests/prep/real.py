"""Readers of the real data beside the checkout."""

import gzip
import lzma
import re
from pathlib import Path


def lines(path: Path) -> list[str]:
    """Return the lines of a file, split at LF only. .gz and .xz are decompressed; PATH.xz is read
    where there is no PATH.
    """
    path = real(path)
    decompress = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
    return decompress(path.read_bytes()).decode("utf-8").split("\n")[:-1]


def real(path: Path) -> Path:
    """Return PATH.xz if there is no PATH."""
    return path if path.exists() else path.with_name(path.name + ".xz")


def segments(path: Path) -> list[str]:
    """Return the <seg> texts of an IWSLT XML file without their outer spaces."""
    found = (re.match(r'\s*<seg id="?\d+"?>(.*)</seg>', line) for line in lines(path))
    return [match[1].strip() for match in found if match]


APOSTROPHES = (
    "hors-d’œuvre l’œuvre l’éponge d’œil d’œufs l’œil d’œufs d’œil d’œil d’œuvres d’œil d’œuf"
    " d’œuvres d’œuvres d’œil"
)
"""The words of French Multi30k, in order, that Perl cuts as `hors-d &quot; œuvre`."""


def multi30k(folder: Path, lang: str) -> list[tuple[str, str]]:
    """Return each line of Multi30k as (raw, published in lowercase, normalised and tokenized).

    The published words of `APOSTROPHES` get their apostrophe back.
    """
    pairs, words = [], []
    for part in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        recorded = lines(folder / f"tok/{part}.lc.norm.tok.{lang}")
        for raw, tokens in zip(lines(folder / f"raw/{part}.{lang}.gz"), recorded, strict=True):
            for word in re.findall(r"\w\S*’[^\W\da-z]\w*", raw.lower()):
                quotation, apostrophe = (word.replace("’", x) for x in (" &quot; ", "&apos; "))
                assert quotation in tokens
                tokens = tokens.replace(quotation, apostrophe)
                words.append(word)
            pairs.append((raw, tokens))
    assert words == (APOSTROPHES.split() if lang == "fr" else [])
    return pairs
