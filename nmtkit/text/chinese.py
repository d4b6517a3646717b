"""Chinese words as jieba cuts them: loaded only when needed, silent, its parsed dictionary in
nmtkit's own cache folder.

The dictionary and the model for unknown words are jieba's; the search for the best path is ours,
which gives the same words in two thirds of the time. A hyphen is a word of its own, as in jieba up
to 0.39, with which the published segmentations of TED and TVsub were made: so `--` is two words
here and one in jieba since.
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

CACHED = 1 << 17
LONGEST_CACHED = 64  # characters

_PARTS = re.compile(
    r"[\u4e00-\u9fd5a-zA-Z0-9+#&._%]+|\S"
)  # what jieba cuts, and characters that are words of their own
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
def _segmenter() -> _Segmenter:
    jieba = _jieba()
    # not jieba.dt, whose dictionary and folder any code of the process may change
    tokenizer = jieba.Tokenizer()
    folder = files.cache_folder()
    # where nothing can be written, the dictionary is parsed each time
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    tokenizer.tmp_dir, tokenizer.cache_file = str(folder), f"jieba-{jieba.__version__}.cache"
    tokenizer.initialize()
    return _Segmenter(tokenizer.FREQ, tokenizer.total, jieba.finalseg.cut)


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
    return " ".join(map(_segmenter().__getitem__, _PARTS.findall(line)))


class _Bounded(dict[str, str]):
    """A bounded cache of answers; a long question is answered anew each time."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, question: str) -> str:
        answer = self._answer(question)
        if len(self) >= CACHED:
            self.clear()
        if len(question) <= LONGEST_CACHED:
            self[question] = answer
        return answer


class _Segmenter(_Bounded):
    """The words, space-joined, of each text without spaces or punctuation: jieba's `cut`, cached.

    Args:
        frequency: of each word of the dictionary; 0 for what only begins one.
        total: sum of the frequencies.
        unknown: cuts a run of characters that the dictionary leaves single (jieba's hidden Markov
            model).
    """

    def __init__(
        self, frequency: dict[str, int], total: int, unknown: Callable[[str], Iterable[str]]
    ) -> None:
        super().__init__(self._cut)
        self._frequency = frequency
        self._weights = _Weights(log(total))
        self._runs = _Bounded(lambda run: " ".join(run if frequency.get(run) else unknown(run)))

    def _cut(self, text: str) -> str:
        """Return the most probable path of dictionary words; of equals, the longer word first."""
        frequency, weights = self._frequency.get, self._weights
        size = len(text)
        ends = list(range(1, size + 1))
        best = [0.0] * (size + 1)
        for start in range(size - 1, -1, -1):
            highest = None
            for end in range(start + 1, size + 1):
                count = frequency(text[start:end])
                if count is None:
                    break
                if count:
                    weight = weights[count] + best[end]
                    if highest is None or weight >= highest:
                        highest, ends[start] = weight, end
            best[start] = weights[1] + best[start + 1] if highest is None else highest
        words: list[str] = []
        start = run = 0
        while start < size:
            end = ends[start]
            if end - start > 1:
                if run < start:
                    words.append(self._run(text[run:start]))
                words.append(text[start:end])
                run = end
            start = end
        if run < size:
            words.append(self._run(text[run:]))
        return " ".join(words)

    def _run(self, characters: str) -> str:
        return characters if len(characters) == 1 else self._runs[characters]


class _Weights(dict[int, float]):
    """Log-probability of a word by its frequency."""

    def __init__(self, log_total: float) -> None:
        super().__init__()
        self._log_total = log_total

    def __missing__(self, count: int) -> float:
        weight = self[count] = log(count) - self._log_total
        return weight


def detokenize(tokens: Iterable[str]) -> str:
    """Join words without spaces, except between words of other scripts.

    Such words also get a space after their punctuation and before their brackets.

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
    return left.isalnum()


def _wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
