"""The scripts of languages, and lines in another script."""

from __future__ import annotations

import re

LETTERS = {
    "Latin": "A-Za-zÀ-ÖØ-öø-ʯḀ-ỿＡ-Ｚａ-ｚ",
    "Cyrillic": "Ѐ-ҁҊ-ԯ",
    "Greek": "ͰͱΆΈ-ϡ\u1f00-\u1fbc",
    "Arabic": "ؠ-يٮ-ۓݐ-ݿﭐ-ﮱﯓ-ﴽﵐ-ﷇﹰ-ﻼ",
    "Hebrew": "א-ת",
    "Chinese": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9\U00020000-\U0002a6df",
    "Japanese": "ぁ-ゖァ-ヺ",
    "Korean": "ᄀ-ᇿㄱ-ㆎ가-힣",
    "Devanagari": "ऄ-हक़-ॡ",
    "Thai": "ก-ะเ-ๆ",
    "Armenian": "Ա-Ֆա-և",
    "Georgian": "Ⴀ-Ⴥა-ჺ",
    "Ethiopic": "ሀ-ፚ",
    "Tibetan": "ཀ-ཬ",
    "Bengali": "অ-হড়-ৡ",
    "Gujarati": "અ-હ",
    "Gurmukhi": "ਅ-ਹ",
    "Kannada": "ಅ-ಹ",
    "Khmer": "ក-ឳ",
    "Lao": "ກ-ະເ-ໄ",
    "Malayalam": "അ-ഹ",
    "Burmese": "က-ဪ",
    "Oriya": "ଅ-ହ",
    "Sinhala": "අ-ෆ",
    "Tamil": "அ-ஹ",
    "Telugu": "అ-హ",
}
"""The letters of each script, as the inside of a regular expression's class."""
UNSPACED_LETTERS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Japanese, Chinese
)
"""Characters of the scripts without spaces between words, as the inside of a regular expression's
class.
"""
LANGUAGES = {
    "Latin": (
        "af az bs ca cs cy da de en eo es et eu fi fo fr ga gl hr ht hu id is it la lb lt lv mg ms"
        " mt nb nl nn no oc pl pt ro sk sl so sq sv sw tl tr uz vi xh yo zu afr cat ces dan deu"
        " eng est fin fra ger hrv hun ind isl ita lav lit nld nob pol por ron slk slv spa sqi swa"
        " swe tur vie"
    ),
    "Cyrillic": "be bg ky mk mn ru tg uk bel bul mkd rus ukr",
    "Greek": "el ell",
    "Arabic": "ar fa ps ug ur ara fas pes urd",
    "Hebrew": "he iw yi heb",
    "Chinese": "zh zho cmn chi yue",
    "Japanese Chinese": "ja jpn jp",
    "Korean Chinese": "ko kor",
    "Devanagari": "hi mr ne hin mar nep",
    "Thai": "th tha",
    "Armenian": "hy hye",
    "Georgian": "ka kat",
    "Ethiopic": "am ti amh",
    "Tibetan": "bo bod",
    "Bengali": "as bn ben",
    "Gujarati": "gu guj",
    "Gurmukhi": "pa pan",
    "Kannada": "kn kan",
    "Khmer": "km khm",
    "Lao": "lo lao",
    "Malayalam": "ml mal",
    "Burmese": "my mya bur",
    "Oriya": "or ory",
    "Sinhala": "si sin",
    "Tamil": "ta tam",
    "Telugu": "te tel",
}
"""Language codes by script. A language may have several scripts."""
SUBTAGS = {
    "latn": "Latin",
    "cyrl": "Cyrillic",
    "arab": "Arabic",
    "deva": "Devanagari",
    **dict.fromkeys(("hans", "hant", "hani"), "Chinese"),
}
"""Scripts by the subtag of a language code (zho_Hans)."""
SCRIPTS = {code: names.split() for names, codes in LANGUAGES.items() for code in codes.split()}


def language_subtag(lang: str) -> str:
    """Return the first part of a language code in small letters: zh for zh-TW and zh-Hant-TW."""
    return re.split("[-_]", lang.lower())[0]


def scripts(lang: str) -> list[str]:
    """Return the scripts of a language (de, zh-TW, hi-Latn), the usual script first; an empty list
    if they are not known.
    """
    language, *subtags = re.split("[-_]", lang.lower())
    named = [tag for tag in subtags if len(tag) == 4 and tag.isalpha()]
    if named:
        return [SUBTAGS[tag] for tag in named if tag in SUBTAGS]
    return SCRIPTS.get(language, [])


class ForeignLines:
    """Counts foreign lines: lines with letters, but without a letter of the language's scripts.

    Args:
        lang: language code. If the scripts are not known, no line is foreign.
    """

    def __init__(self, lang: str) -> None:
        names = scripts(lang)
        self._latin = "Latin" in names
        inside = "".join(LETTERS[name] for name in names)
        foreign = "".join(letters for name, letters in LETTERS.items() if name not in names)
        self._without = re.compile(f"^[^{inside}\n]+$", re.MULTILINE) if names else None
        self._foreign = re.compile(f"[{foreign}]")

    def count(self, text: bytes) -> int:
        """Return the number of foreign lines in a text whose lines end with LF."""
        if self._without is None or (self._latin and text.isascii()):
            return 0
        lines = self._without.findall(text.decode(errors="replace"))
        return sum(self._foreign.search(line) is not None for line in lines)
