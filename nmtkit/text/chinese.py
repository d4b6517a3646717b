"""Chinese words, cut by jieba.

jieba is loaded only when it is needed. It prints nothing, and its parsed dictionary is in nmtkit's
cache folder. Each hyphen is a word, as in jieba up to 0.39, which made the published segmentations
of TED and TVsub: `--` is two words, but one word in later versions of jieba.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import unicodedata
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.text.scripts import SCRIPTS, language_subtag

CODES = frozenset(code for code, names in SCRIPTS.items() if names == ["Chinese"])
"""Codes of Chinese."""
# text that jieba cuts, or a character that is a word
_PARTS = re.compile(r"[\u4e00-\u9fd5a-zA-Z0-9+#&._%]+|\S")
_CLOSING = frozenset(",.;:!?)]}")
_OPENING = frozenset("([{")


def is_chinese(lang: str) -> bool:
    """True for a language code of Chinese in any region and script (zh, zh-TW, zho_Hans, cmn)."""
    return language_subtag(lang) in CODES


@functools.cache
def _jieba() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, pkg_resources
        import jieba
    jieba.setLogLevel(60)
    return jieba


@functools.cache
def _tokenizer() -> Any:
    """Return jieba's tokenizer with jieba's dictionary."""
    jieba = _jieba()
    # not jieba.dt, whose dictionary and folder any code of the process may change
    tokenizer = jieba.Tokenizer()
    folder = files.cache_folder()
    # If the folder cannot be written, jieba parses the dictionary each time.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    tokenizer.tmp_dir, tokenizer.cache_file = str(folder), f"jieba-{jieba.__version__}.cache"
    tokenizer.initialize()
    return tokenizer


def dictionary_sha256() -> str:
    """Return the checksum of jieba's dictionary."""
    return files.sha256(Path(_jieba().__file__).with_name("dict.txt"))


def segment(line: str) -> list[str]:
    """Return the words of a line of Chinese. Spaces are word boundaries."""
    return list(itertools.chain.from_iterable(map(_tokenizer().cut, _PARTS.findall(line))))


def detokenize(tokens: Iterable[str]) -> str:
    """Join words into text, with spaces only between words of other scripts.

    Words of other scripts also get a space after their punctuation and before their brackets.
    Letters beyond ASCII join the letters beside them, because jieba cuts them one by one.
    """
    text = ""
    for token in tokens:
        if text and _apart(text[-2:], token[0]):
            text += " "
        text += token
    return text


def _apart(before: str, right: str) -> bool:
    """True if a space stands between the end of a text and the first character of a word."""
    left = before[-1]
    if _wide(left) or _wide(right):
        return False
    if not right.isalnum():
        return right in _OPENING and left.isalnum()
    if left in _CLOSING:
        return not (right.isdigit() and before[0].isdigit()) and not (
            left == "." and right.islower()
        )  # 10,000 and 8:30; E.coli
    if left.isalpha() and right.isalpha() and not (left + right).isascii():
        # jieba cuts `Zoë` into `Zo ë`: only a capital shows that a word begins
        return left.islower() and right.isupper()
    return left.isalnum() and unicodedata.category(right) != "No"  # 29¾, km²


def _wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
