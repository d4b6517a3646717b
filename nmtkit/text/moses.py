"""Moses tokenization and detokenization by sacremoses, with corrections.

Corrections to agree with the Perl scripts (normalize-punctuation.perl and tokenizer.perl since
2018, and their recorded outputs):

* The normaliser sees the end of the line, in all languages but English and Czech (`tea."` becomes
  `tea".` in German or French, also at the end).
* A full stop that ends the line is split even from an abbreviation (`So am I .`).
* Letters of every script are letters.
* A colon inside a Finnish or Swedish word (`EU:n`) and an apostrophe inside a Somali or Tetum word
  (`la'aan`) stay in the word.
* A last apostrophe stays on its word (`in an adult&apos;`).

Differences from Perl:

* A typographic apostrophe between letters of any alphabet is an apostrophe (`l’été`). Perl makes a
  quotation mark of it beside a letter that is not ASCII.
* An apostrophe inside a Ukrainian, Belarusian or Turkish word stays in the word. So do combining
  marks and joiners in every language.
* An emoji of several characters is one word.
* Detokenization joins closing marks of other scripts to their word.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

from nmtkit.text.scripts import language_subtag
from nmtkit.text.words import CACHED_WORDS, Numbers

_CODES = (
    "asm:as bel:be ben:bn cat:ca ces:cs cze:cs deu:de ger:de ell:el gre:el eng:en spa:es est:et"
    " fin:fi fra:fr fre:fr gle:ga guj:gu hin:hi hun:hu isl:is ice:is ita:it kan:kn kor:ko lit:lt"
    " lav:lv mal:ml mar:mr nld:nl dut:nl ori:or ory:or pan:pa pol:pl por:pt ron:ro rum:ro rus:ru"
    " slk:sk slo:sk slv:sl som:so swe:sv tam:ta tel:te tet:tdt tur:tr ukr:uk zho:zh chi:zh cmn:zh"
)
_TWO_LETTERS: dict[str, str] = dict(re.findall(r"(\w+):(\w+)", _CODES))
"""The codes of Moses' rules by the codes of ISO 639-2 and 639-3."""
DIGITS = frozenset("0123456789")

# The normaliser leaves a line as it is if it has none of these, and neither "  ", " :", " ;" nor
# "''".
_NORMALIZES = re.compile('[\r()`„“”–—´‘‚’…«»\xa0"%]')
_CONTROL = re.compile("[\x00-\x1f]")
_FACING = re.compile(r"'\s+'")
_ESCAPED = re.compile("[&|<>'\"\\[\\]]")
_CLOSING = "،؛؟٪۔।॥։፣።\u037e\u0387"
_APOSTROPHES = {
    "en": " '",
    **dict.fromkeys(("ca", "fr", "ga", "it"), "' "),
    **dict.fromkeys(("be", "so", "tdt", "tr", "uk"), "'"),
}
"""By language, the text that replaces an apostrophe between letters. In all other languages the
apostrophe is a word.
"""
_INSIDE = {"ca": "·", "fi": ":", "sv": ":"}
"""By language, a special character that stays in its word before a lowercase letter."""


@functools.cache
def languages() -> frozenset[str]:
    """Return the codes of the languages with abbreviations; others use the English ones."""
    from sacremoses.corpus import NonbreakingPrefixes

    return frozenset(NonbreakingPrefixes().available_langs.values())


def language_code(code: str) -> str:
    """Return the code of Moses' rules for a language: en for en-US, eng and eng_Latn."""
    code = language_subtag(code)
    return _TWO_LETTERS.get(code, code)


def _dependent(line: str) -> bool:
    """True if the words of a line cannot be tokenized one by one.

    There are three reasons: control characters, which vanish; two apostrophes that face each other
    across a space, because one match of the English, French and Italian rules uses up the space
    that the next match needs; and DOTMULTI, Moses' own placeholder.
    """
    if "'" in line and _FACING.search(line) is not None:
        return True
    return (not line.isprintable() and _CONTROL.search(line) is not None) or "DOTMULTI" in line


def _ranges(categories: str, wanted: str) -> str:
    """Return the characters whose categories match a pattern, as the inside of a regular
    expression's class. Unassigned characters between them are included: fewer ranges are faster.

    Args:
        categories: of every character, two letters each.
        wanted: the pattern.
    """
    runs = re.finditer(f"(?:{wanted})(?:(?:Cn)*(?:{wanted}))*", categories)
    return "".join(f"{chr(run.start() // 2)}-{chr(run.end() // 2 - 1)}" for run in runs)


def _patterns() -> tuple[str, str, str]:
    """Return two insides of a class, for letters and marks of all scripts and for these and digits;
    and the pattern of special characters, which become words.
    """
    categories = "".join(map(unicodedata.category, map(chr, range(0x34000))))  # has all letters
    # of emoji: skin tones, tags of flags, variation selectors
    of_emoji = "\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f\U000e0100-\U000e01ef"
    alpha, alnum, marks = (
        _ranges(categories, wanted) + of_emoji for wanted in ("[LM].|Nl", "[LM].|N[ld]", "M.")
    )
    alpha, alnum, joiners = f"{alpha}Ⓐ-ⓩ", f"{alnum}Ⓐ-ⓩ", "\u200c\u200d"
    inside = f"(?<![{alnum}][{joiners}])"  # a joiner after a letter is no special character
    other, following = rf"[^{alnum}\s\.'\`\,\-]", f"[{marks}{joiners}]*"
    joined = rf"{other}{inside}{following}(?:(?<=\u200d){other}{following})*"
    return alpha, alnum, rf"[\U0001f1e6-\U0001f1ff]{{2}}|{joined}"  # a flag is two letters


@functools.cache
def _tokenizer_class() -> type[Any]:
    """Return sacremoses' tokenizer with the corrections.

    The class is made on first use, because importing sacremoses takes half a second.
    """
    from sacremoses import MosesTokenizer

    alpha, alnum, special = _patterns()

    def with_letters(rules: list[tuple[re.Pattern[str], str]]) -> list[tuple[re.Pattern[str], str]]:
        old = MosesTokenizer.IsAlpha
        return [(re.compile(rule.pattern.replace(old, alpha)), text) for rule, text in rules]

    class Tokenizer(MosesTokenizer):  # type: ignore[misc]
        letters = re.compile(f"[{alpha}]")
        lower = frozenset(MosesTokenizer.IsLower)
        PAD_NOT_ISALNUM = re.compile(f"({special})"), r" \1 "
        AGGRESSIVE_HYPHEN_SPLIT = (
            re.compile(rf"([{alnum}])\-(?=[{alnum}])"),
            r"\1 @-@ ",
        )
        ENGLISH_SPECIFIC_APOSTROPHE = with_letters(MosesTokenizer.ENGLISH_SPECIFIC_APOSTROPHE)
        FR_IT_SPECIFIC_APOSTROPHE = with_letters(MosesTokenizer.FR_IT_SPECIFIC_APOSTROPHE)

        def __init__(self, lang: str, caseless: bool) -> None:
            super().__init__(lang)
            for name in ("PAD_NOT_ISALNUM", "AGGRESSIVE_HYPHEN_SPLIT"):
                self.__dict__.pop(name, None)  # sacremoses' own for Chinese, Japanese and Korean
            if lang in ("ca", "ga"):
                self.lang = "it"  # as in tokenizer.perl today
            if mark := _INSIDE.get(lang):
                others = special.replace(r"\s", rf"{mark}\s")
                pattern = rf"({mark}(?![{self.IsLower}])|{others})"
                self.PAD_NOT_ISALNUM = re.compile(pattern), r" \1 "
            if _APOSTROPHES.get(lang) == "'":
                alone = rf"(?<![{alpha}])'|'(?![{alpha}])"
                self.NON_SPECIFIC_APOSTROPHE = re.compile(alone), " ' "
            self.numeric_only = frozenset(self.NUMERIC_ONLY_PREFIXES)
            self.prefixes = frozenset(self.NONBREAKING_PREFIXES) - self.numeric_only
            if caseless:
                self.lower = frozenset()
                self.numeric_only |= {prefix.lower() for prefix in self.numeric_only}
                self.prefixes |= {prefix.lower() for prefix in self.prefixes}

        def handles_nonbreaking_prefixes(self, text: str) -> str:
            """Split full stops from their words, as the Perl word loop does."""
            tokens = text.split()
            for i, (token, following) in enumerate(zip(tokens, [*tokens[1:], ""], strict=False)):
                if token[-1] == "." != token and not self.keeps_stop(token[:-1], following[:1]):
                    tokens[i] = token[:-1] + " ."
            return " ".join(tokens)

        def keeps_stop(self, prefix: str, following: str) -> bool:
            """True if a full stop stays on its word; `following` begins the next word."""
            return following != "" and (
                prefix in self.prefixes
                or following in self.lower
                or (following in DIGITS and prefix in self.numeric_only)
                or ("." in prefix and self.letters.search(prefix) is not None)
            )

    return Tokenizer


class Moses:
    """Tokenizes and detokenizes one language as Moses' scripts do.

    Words are tokenized once and remembered, except in the lines that `_dependent` finds. The tokens
    of a word depend on the word. If it holds a full stop, comma or apostrophe, they also depend on
    whether it begins or ends the line, and on the first character of the next word.

    Args:
        lang: code of the language in any form that `language_code` knows. A language without rules
            gets the English abbreviations, as in Moses.
        normalize: normalise punctuation first (normalize-punctuation.perl).
        aggressive_hyphens: split `well-known` into `well @-@ known` (tokenizer.perl -a).
        escape: write `&apos;`, `&quot;`, … for the characters that Moses reserves.
        caseless: for lowercased text. A small letter then does not show that a sentence goes on,
            and abbreviations are known without their capitals.
    Attributes:
        label: the name in the signatures of scores.
    """

    def __init__(
        self,
        lang: str,
        normalize: bool = True,
        aggressive_hyphens: bool = False,
        escape: bool = True,
        caseless: bool = False,
    ) -> None:
        from sacremoses import MosesDetokenizer

        lang = language_code(lang)
        steps = [*["normalized"] * normalize, *["split-hyphens"] * aggressive_hyphens]
        self.label = "-".join(["moses", *steps])
        self.aggressive_hyphens = aggressive_hyphens
        self.escape = escape
        self._substitutions = _substitutions(lang) if normalize else []
        self._apostrophe = _APOSTROPHES.get(lang, " ' ")
        self._tokenizer = _tokenizer_class()(lang, caseless)
        # sacremoses' rules for Czech look at the end of the line instead of the words before
        self._detokenizer = MosesDetokenizer("" if lang == "cs" else self._tokenizer.lang)
        self._closing = re.compile(f" (?=[{_CLOSING}{'·' * (lang == 'el')}])")
        self._numbers = Numbers()

    def normalize(self, line: str) -> str:
        """Return a line with plain quotes, dashes and spaces; unchanged without `normalize`."""
        if not self._substitutions:
            return line
        if _NORMALIZES.search(line) is None and not (
            "  " in line or " :" in line or " ;" in line or "''" in line
        ):
            return line.strip()
        line += "\n"
        for needle, pattern, replacement in self._substitutions:
            if needle in line:
                line = pattern.sub(replacement, line)
        return line.strip()

    def tokenize(self, line: str) -> str:
        """Normalise and tokenize one line; return its tokens separated by single spaces.

        Args:
            line: text without control characters (`tidy`).
        """
        return " ".join(self.parts(line))

    def parts(self, line: str) -> list[str]:
        """Return the tokens of each word as one string; `tokenize` joins these strings."""
        if len(self._numbers) > CACHED_WORDS:
            self._numbers = Numbers()
        return [self._numbers.texts[number] for number in self.numbered(line, self._numbers)]

    def numbered(self, line: str, numbers: Numbers) -> list[int]:
        """Return the numbers of `parts`. A word that was seen before takes one look-up."""
        line = self.normalize(line)
        if _dependent(line):
            return [numbers[part] for part in filter(None, [self.reference(line)])]
        words = line.split()
        if len(words) > 1:
            words[-1] += "\n"  # a last word may become other tokens than the same word elsewhere
        result: list[Any] = list(map(numbers.of_words.get, words))
        i = 0
        for _ in range(result.count(None)):
            i = result.index(None, i)
            result[i] = self._number(words, i, numbers)
        return result

    def _number(self, words: list[str], i: int, numbers: Numbers) -> int:
        """Return the number of a word's tokens, and remember it for other lines.

        A word that has other tokens in other places is remembered with its place: whether it begins
        the line, and a stand-in for the next word. The LF of a last word says the same.
        """
        word, begins = words[i].removesuffix("\n"), i == 0
        following = self._stand_in(word, "".join(words[i + 1 : i + 2])[:1])
        tokens = self._anywhere(word)
        with_place = tokens is None and word == words[i]
        key = (word, begins, following) if with_place else words[i]
        number = numbers.of_words.get(key)
        if number is None:
            if tokens is None:
                tokens = self._before_stop(word, following)
                tokens = tokens or self._between(word, begins, following)
            number = numbers.of_words[key] = numbers[tokens]
        return number

    def reference(self, line: str) -> str:
        """Tokenize a normalised line as a whole, rule by rule. `tokenize` is faster."""
        return " ".join(
            self._tokenizer.tokenize(
                line, aggressive_dash_splits=self.aggressive_hyphens, escape=self.escape
            )
        )

    def _anywhere(self, word: str) -> str | None:
        """Return the tokens of a word; None if they depend on its place."""
        if word[-1] == ".":
            return None
        tokens = self._simple(word.removesuffix(","))
        return tokens if tokens is None or word[-1] != "," else f"{tokens} ,"

    def _stand_in(self, word: str, following: str) -> str:
        """Return a character that has the same effect as the first character of the next word."""
        if word[-1] == "." and following in self._tokenizer.lower:
            return "x"
        return "1" if word[-1] == "." and following in DIGITS else "X"[: len(following)]

    def _before_stop(self, word: str, following: str) -> str:
        """Return the tokens of a simple word with a final full stop; "" for any other word."""
        simple = self._simple(word[:-1]) if word[-1] == "." else None
        if simple is None:
            return ""
        # after a special character the full stop is a word already
        alone = not self._tokenizer.PAD_NOT_ISALNUM[0].split(word[:-1])[-1]
        prefix = simple.rpartition(" ")[2]
        glued = not alone and self._tokenizer.keeps_stop(prefix, following)
        return f"{simple}." if glued else f"{simple} ."

    def _simple(self, word: str) -> str | None:
        """Return the tokens of a simple word; None for any other word.

        A simple word needs only the rules for special characters, hyphens and one apostrophe
        between letters.
        """
        if word.isascii() and word.isalnum():
            return word
        if not word or "." in word or "," in word:
            return None
        tokenizer = self._tokenizer
        text = " ".join(tokenizer.PAD_NOT_ISALNUM[0].split(word))  # as sub(r" \1 "), but faster
        if self.aggressive_hyphens and "-" in word:
            text = tokenizer.AGGRESSIVE_HYPHEN_SPLIT[0].sub(r"\1 @-@ ", text)
        before, apostrophe, after = text.partition("'")
        if apostrophe:
            around = before[-1:] + after[:1]
            if len(tokenizer.letters.findall(around)) != 2 or "'" in after:
                return None
            text = before + self._apostrophe + after
        if self.escape and _ESCAPED.search(text) is not None:
            text = tokenizer.escape_xml(text)
        return " ".join(text.split())

    def _between(self, word: str, begins: bool, following: str) -> str:
        """Return the tokens of any word, by applying all rules to it between stand-ins."""
        tokens = self.reference(f"{'' if begins else 'X '}{word} {following}")
        return tokens[0 if begins else 2 : len(tokens) - (2 if following else 0)]

    def detokenize(self, tokens: list[str]) -> str:
        """Return the text of tokens. Punctuation joins its word, `@-@` becomes a hyphen, and
        escapes are undone once.
        """
        text: str = self._detokenizer.detokenize(tokens, unescape=self.escape)
        return self._closing.sub("", text)


def _substitutions(lang: str) -> list[tuple[str, re.Pattern[str], str]]:
    """Return the normaliser's substitutions: a string that a line needs for a match, the pattern
    and the replacement.
    """
    from sacremoses import MosesPunctNormalizer

    substitutions = MosesPunctNormalizer(lang, perl_parity=True).substitutions
    if lang not in ("en", "cs", "cz", "de", "es", "fr"):
        substitutions[-1:-1] = MosesPunctNormalizer.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA
    marks = {mark: mark for mark in (*'\xa0„“”–—´‘‚’…«»`%"', "''")}
    marks |= {"\\)": ")", "\\(": "(", ":": ":", ";": ";", "\\r": "\r"}
    result = []
    for pattern, replacement in substitutions:
        # between letters of any alphabet ’ is an apostrophe, not a quotation mark
        pattern = pattern.replace("[a-zA-Z]", r"[^\W\d_]")
        needle = next((needle for mark, needle in marks.items() if mark in pattern), "")
        if pattern == " +":
            needle = "  "
        result.append((needle, re.compile(pattern), replacement))
    return result
