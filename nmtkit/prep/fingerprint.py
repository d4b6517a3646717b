"""Identify prepared text by a fingerprint, which a trained system keeps, and by the versions of
the tools that made it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

import nmtkit
from nmtkit import files
from nmtkit.settings import PrepSettings
from nmtkit.text import chinese
from nmtkit.text.side import RULES
from nmtkit.text.tokenizer import SIDES, tokenizer_name

IDENTIFYING = (
    "vocab.",
    "codes.",
    "truecase.",
    "bpe-vocab.",
    "subwords.",
    "train/",
    "dev/",
    "docs/train.",
    "docs/dev.",
)
"""The beginnings of the names of files that a trained system depends on: test sets are none."""
MACHINE = {"memory"}
"""Settings that change no text."""


def fingerprint(
    languages: tuple[str, str], settings: PrepSettings, hashes: Mapping[str, str]
) -> str:
    """Return the checksum of what a trained system depends on: languages, settings, and the
    checksums of its files, of which every shard has its own.
    """
    identifying = {name: value for name, value in hashes.items() if name.startswith(IDENTIFYING)}
    # dev and test are names of sets, not text
    values = sorted(settings.model_dump(exclude={"dev", "test", *MACHINE}).items())
    text = repr((*RULES.items(), *languages, values, sorted(identifying.items())))
    return files.text_sha256(text)


def tools(languages: tuple[str, str], settings: PrepSettings) -> dict[str, str]:
    """Return the versions of what shapes the text beside Python, and the checksum of jieba's
    dictionary.
    """
    names = [
        tokenizer_name(s, language, settings) for s, language in zip(SIDES, languages, strict=True)
    ]
    with_chinese = "jieba" in names
    packages = ["sacremoses", "subword-nmt", *["jieba"] * with_chinese]
    packages += ["sentencepiece"] * (settings.subwords == "sentencepiece")
    versions = {name: importlib.metadata.version(name) for name in packages}
    dictionary = {"jieba's dictionary": chinese.dictionary_sha256()} if with_chinese else {}
    return {"nmtkit": nmtkit.__version__} | RULES | versions | dictionary
