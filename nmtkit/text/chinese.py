"""Chinese words as jieba cuts them.

jieba is loaded only when needed, prints nothing, and keeps its parsed dictionary in nmtkit's own
cache folder. The dictionary and the model for unknown words are jieba's. The search for the best
path is ours: it gives the same words in two thirds of the time. A hyphen is a word of its own, as
in jieba up to 0.39, with which the published segmentations of TED and TVsub were made. So `--` is
two words here, and one in later versions of jieba.
"""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from math import log
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.text.words import CACHED_WORDS, LONGEST_CACHED

Cut = Callable[[str], str]
"""Cuts a text into words, joined by spaces."""

# what jieba cuts, and characters that are words of their own
_PARTS = re.compile(r"[\u4e00-\u9fd5a-zA-Z0-9+#&._%]+|\S")
_CLOSING = frozenset(",.;:!?)]}")
_OPENING = frozenset("([{")


def is_chinese(lang: str) -> bool:
    """True for a language code of Chinese in any region and script (zh, zh-TW, zho_Hans, cmn)."""
    return re.split("[-_]", lang.lower())[0] in {"zh", "zho", "cmn"}


@functools.cache
def _jieba() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, pkg_resources
        import jieba
    jieba.setLogLevel(60)
    return jieba


@functools.cache
def _segmenter() -> Cut:
    """Return jieba's `cut` with jieba's dictionary."""
    jieba = _jieba()
    # not jieba.dt, whose dictionary and folder any code of the process may change
    tokenizer = jieba.Tokenizer()
    folder = files.cache_folder()
    # where nothing can be written, the dictionary is parsed each time
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    tokenizer.tmp_dir, tokenizer.cache_file = str(folder), f"jieba-{jieba.__version__}.cache"
    tokenizer.initialize()
    return _cutter(tokenizer.FREQ, tokenizer.total, jieba.finalseg.cut)


def dictionary_sha256() -> str:
    """Return the checksum of jieba's dictionary."""
    return files.sha256(Path(_jieba().__file__).with_name("dict.txt"))


def segment(line: str) -> str:
    """Split a line of Chinese into words separated by single spaces; spaces of the line are word
    boundaries.

    Args:
        line: raw text without line feeds.
    Returns: the words, space-joined.
    """
    return " ".join(map(_segmenter(), _PARTS.findall(line)))


def _cached(answer: Cut) -> Cut:
    """Return a function with a bounded cache; the answer for a long text is not kept."""
    cached = functools.lru_cache(CACHED_WORDS)(answer)
    return lambda text: cached(text) if len(text) <= LONGEST_CACHED else answer(text)


def _cutter(frequency: dict[str, int], total: int, unknown: Callable[[str], Iterable[str]]) -> Cut:
    """Return jieba's `cut` for texts without spaces or punctuation: the words, space-joined.

    Args:
        frequency: of each word of the dictionary; 0 for what only begins one.
        total: sum of the frequencies.
        unknown: cuts a run of characters that the dictionary leaves single (jieba's hidden Markov
            model).
    """
    weights = {count: log(count) - log(total) for count in {1, *frequency.values()} if count}
    cut_run = _cached(lambda run: " ".join(run if frequency.get(run) else unknown(run)))

    def cut(text: str) -> str:
        words = []
        run = ""
        for word in (*_best_path(text, frequency, weights), ""):
            if len(word) == 1:
                run += word
            else:
                words += [cut_run(run) if len(run) > 1 else run, word]
                run = ""
        return " ".join(filter(None, words))

    return _cached(cut)


def _best_path(text: str, frequency: dict[str, int], weights: dict[int, float]) -> list[str]:
    """Return the words of the most probable path; of equal paths, the longer word first.

    Args:
        text: without spaces or punctuation.
        frequency: as for `_cutter`.
        weights: log-probability of a word by its frequency.
    """
    size = len(text)
    ends = list(range(1, size + 1))
    best = [0.0] * (size + 1)
    for start in range(size - 1, -1, -1):
        highest = None
        for end in range(start + 1, size + 1):
            count = frequency.get(text[start:end])
            if count is None:
                break
            if count:
                weight = weights[count] + best[end]
                if highest is None or weight >= highest:
                    highest, ends[start] = weight, end
        best[start] = weights[1] + best[start + 1] if highest is None else highest
    words = []
    start = 0
    while start < size:
        words.append(text[start : ends[start]])
        start = ends[start]
    return words


def detokenize(tokens: Iterable[str]) -> str:
    """Join words without spaces, except between words of other scripts.

    Such words also get a space after their punctuation and before their brackets. Letters beyond
    ASCII join the letters beside them, because jieba cuts them singly.

    Args:
        tokens: words.
    Returns: the text.
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
