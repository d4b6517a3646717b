"""The tokenizers of prep.src_tokenizer and prep.tgt_tokenizer: from a line to words, and back."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from nmtkit.settings import PrepSettings
from nmtkit.text import chinese
from nmtkit.text.moses import Moses
from nmtkit.text.scripts import SCRIPTS, UNSPACED_LETTERS, language_subtag
from nmtkit.text.words import Numbers

Name = Literal["moses", "jieba", "characters", "none", "raw"]
Side = Literal["src", "tgt"]
SIDES: tuple[Side, Side] = ("src", "tgt")
SIDE_NAMES: dict[Side, str] = {"src": "source", "tgt": "target"}
UNSPACED_LANGUAGES = {
    code: script
    for code, (script, *_) in SCRIPTS.items()
    if script in {"Japanese", "Thai", "Khmer", "Lao", "Burmese"}
}
"""Languages without spaces between words (except Chinese), by code."""
SPACE = "▁"
"""The word that stands for a space in text that is cut into characters (U+2581)."""

JOINERS = {"@@": re.compile(r"\S@@( |$)"), SPACE: re.compile(r"(^| )▁\S")}
"""Patterns of subwords in text, by the mark of the subword model."""
_WORD = re.compile(r"[0-9A-Za-z]+|.", re.DOTALL)
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]")
_BETWEEN = re.compile(f"(?<=[{UNSPACED_LETTERS}]) (?=[{UNSPACED_LETTERS}])")
_ENOUGH = 20  # lines that a sample needs to show anything
_LONGEST_AVERAGE = 20.0  # characters of a word in text with spaces
_BEGINNING = 200  # characters of a line that are looked at


@dataclass(frozen=True)
class WordByWord:
    """A tokenizer whose parts (`Moses.parts`) are single words."""

    label: str
    parts: Callable[[str], list[str]]
    """Cuts a tidy line into words."""
    detokenize: Callable[[list[str]], str]
    """Joins words."""

    def numbered(self, line: str, numbers: Numbers) -> list[int]:
        return [numbers[part] for part in self.parts(line)]


def split_words(text: str) -> list[str]:
    """Return the words of a text in which single spaces separate them."""
    return text.split(" ") if text else []


def characters(line: str) -> list[str]:
    """Return every character with its marks as a word, and runs of Latin letters or digits as one
    word. Any white space is a space.
    """
    words: list[str] = []
    for part in _WORD.findall(" ".join(line.split())):
        if words and words[-1] != SPACE and unicodedata.category(part[0]) in {"Mn", "Mc"}:
            words[-1] += part
        else:
            words.append(SPACE if part == " " else part)
    return words


def _joined_characters(words: list[str]) -> str:
    return "".join(words).replace(SPACE, " ").strip(" ")


def _raw(line: str) -> list[str]:
    """Return the words of plain text for SentencePiece."""
    return list(filter(None, line.split(" ")))


WORD_BY_WORD = {
    tokenizer.label: tokenizer
    for tokenizer in (
        WordByWord("jieba", chinese.segment, chinese.detokenize),
        WordByWord("characters", characters, _joined_characters),
        # The text is tokenized already: nothing is undone.
        WordByWord("none", str.split, " ".join),
        WordByWord("raw", _raw, " ".join),
    )
}


def tokenizer_name(side: Side, lang: str, settings: PrepSettings) -> Name:
    """Return the tokenizer of a side: the one in the settings; by default raw for SentencePiece,
    and otherwise the tokenizer of the language.
    """
    name = settings.src_tokenizer if side == "src" else settings.tgt_tokenizer
    if name != "auto":
        return name
    return "raw" if settings.subwords == "sentencepiece" else usual_tokenizer(lang)


def usual_tokenizer(lang: str) -> Name:
    """Return the default tokenizer of a language."""
    if chinese.is_chinese(lang):
        return "jieba"
    return "characters" if unspaced(lang) else "moses"


def unspaced(lang: str) -> str | None:
    """Return the name of a language in `UNSPACED_LANGUAGES`, also for a code with a region; None
    for any other language.
    """
    return UNSPACED_LANGUAGES.get(language_subtag(lang))


def make_tokenizer(
    name: Name, lang: str, settings: PrepSettings, caseless: bool = False
) -> Moses | WordByWord:
    """Return a tokenizer.

    Args:
        name: see `tokenizer_name`.
        lang: language code, for Moses' rules.
        settings: of prep: normalize, aggressive_hyphens, escape.
        caseless: the line has no capitals, so Moses cannot see the end of a sentence by them.
    """
    if name == "moses":
        options = settings.normalize, settings.aggressive_hyphens, settings.escape
        return Moses(lang, *options, caseless=caseless)
    return WORD_BY_WORD[name]


def joiner(lines: Sequence[str]) -> str | None:
    """Return the mark of subwords in text that is split already: `@@` of subword-nmt or `▁` of
    SentencePiece. Return None if fewer than 20 lines, or fewer than half, have such a subword.
    """
    for mark, word in JOINERS.items():
        if sum(word.search(line) is not None for line in lines) >= max(_ENOUGH, len(lines) / 2):
            return mark
    return None


def moses_doubt(lines: Iterable[str]) -> tuple[str, Sequence[Name]] | None:
    """Return why Moses is wrong for a sample of tidy lines, and the tokenizers to choose from; None
    if there is no doubt, or fewer than 20 lines to look at.

    Tokenized text has a space before most full stops; text without spaces: see `_lacks_spaces`.
    """
    sample = [line for line in lines if line]
    stops = [line for line in sample if line.endswith(".")]
    if len(stops) >= _ENOUGH and sum(line.endswith(" .") for line in stops) > len(stops) / 2:
        return "looks tokenized: most full stops have a space before them", ["none"]
    if len(sample) >= _ENOUGH and _lacks_spaces(sample):
        return "has no spaces between words", ["characters", "jieba"]
    return None


def _lacks_spaces(lines: Sequence[str]) -> bool:
    """True if lines have more than 20 characters a word on average; or if most letters are of
    scripts without spaces, and few spaces are between these letters.
    """
    starts = [line[:_BEGINNING] for line in lines]
    text, words = "".join(starts), sum(line.count(" ") + 1 for line in starts)
    unspaced, letters = len(_UNSPACED.findall(text)), sum(map(str.isalpha, text))
    few_spaces = 4 * len(_BETWEEN.findall(text)) <= unspaced
    return len(text) > _LONGEST_AVERAGE * words or (2 * unspaced > letters and few_spaces)
