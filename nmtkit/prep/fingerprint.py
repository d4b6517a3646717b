"""The fingerprint of prepared text, which each trained system records, and the versions of the
tools that made the text.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping

import nmtkit
from nmtkit import files
from nmtkit.settings import PrepSettings
from nmtkit.text import chinese
from nmtkit.text.side import RULES
from nmtkit.text.tokenizer import SIDES, tokenizer_name

IDENTIFYING = re.compile(
    r"(vocab|codes|truecase|bpe-vocab|subwords)\.[^/]*|(train|dev)/.*|docs/(train|dev)\.txt"
)
"""The names of files that a trained system depends on. Test sets are not among them."""
MACHINE = {"memory"}
"""Settings that do not change the text."""


def fingerprint(
    languages: tuple[str, str], settings: PrepSettings, hashes: Mapping[str, str]
) -> str:
    """Return a checksum of all that a trained system depends on.

    Args:
        languages, settings: of the corpus.
        hashes: the checksums of the prep folder's files.
    """
    identifying = {name: value for name, value in hashes.items() if IDENTIFYING.fullmatch(name)}
    # The settings dev and test are only names of sets.
    values = sorted(settings.model_dump(exclude={"dev", "test", *MACHINE}).items())
    text = repr((*RULES.items(), *languages, values, sorted(identifying.items())))
    return files.text_sha256(text)


def tools(languages: tuple[str, str], settings: PrepSettings) -> dict[str, str]:
    """Return the versions of the packages that shape the text, and for Chinese the checksum of
    jieba's dictionary.
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
