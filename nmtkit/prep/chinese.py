"""Chinese words by jieba: loaded only when needed, silent, its dictionary cache in nmtkit's own cache folder."""

from __future__ import annotations

import functools
import re
import unicodedata
import warnings
from collections.abc import Iterable
from typing import Any

from nmtkit.files import cache_folder

LANGUAGES = frozenset({"zh", "zho", "cmn"})


@functools.cache
def _tokenizer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, pkg_resources
        import jieba
    jieba.setLogLevel(60)
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    jieba.dt.tmp_dir = str(folder)
    jieba.dt.initialize()
    return jieba.dt


def segment(line: str) -> str:
    """Split a line of Chinese into words separated by single spaces; spaces of the line are word boundaries.

    Args:
        line: raw text without line feeds.
    Returns: the words, space-joined.
    """
    return " ".join(" ".join(_tokenizer().cut(line, cut_all=False, HMM=True)).split())


def _wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def detokenize(tokens: Iterable[str]) -> str:
    """Join words with no space where one side is a CJK character or punctuation mark; other words keep their space.

    Args:
        tokens: words.
    Returns: the text.
    """
    text = ""
    for token in tokens:
        if text and not _wide(text[-1]) and not _wide(token[0]) and not _TIGHT.match(token):
            text += " "
        text += token
    return text


_TIGHT = re.compile(r"[,.;:?!%)\]}]+$")
