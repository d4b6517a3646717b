"""Moses tokenization and its way back, by sacremoses, corrected where it differs from the Perl
scripts.

Corrected (against normalize-punctuation.perl and tokenizer.perl since 2018, and the recorded
outputs of both): the normaliser sees the end of the line (`tea."` becomes `tea".` in German or
French, also at the end), in all languages but English and Czech; a full stop that ends the line is
split even after an abbreviation (`So am I .`); letters of every script count as letters; a colon
inside a Finnish or Swedish word (`EU:n`) and an apostrophe inside a Somali or Tetum word (`la'aan`)
stay there. A last apostrophe stays on its word (`in an adult&apos;`), as today's Perl leaves it.

Other than in Perl: a typographic apostrophe between letters of any alphabet is an apostrophe
(`l’été`; Perl makes a quotation mark beside a letter that is not ASCII); an apostrophe inside a
Ukrainian, Belarusian or Turkish word stays there, as do combining marks and joiners in every
language; an emoji of several characters is one word; closing marks of other scripts join their word
again.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

from nmtkit.text.languages import language_code
from nmtkit.text.words import CACHED_WORDS, LONGEST_CACHED, Numbers

DIGITS = frozenset("0123456789")

# A line with none of these, and without "  ", " :", " ;" and "''", matches none of the
# normaliser's patterns and comes out as it went in.
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
"""Language -> the text that replaces an apostrophe between letters. In other languages it is a
word.
"""
_INSIDE = {"ca": "·", "fi": ":", "sv": ":"}
"""Language -> a special character that stays in its word before a lowercase letter."""


def _dependent(line: str) -> bool:
    """True if the words of a line cannot be tokenized each by itself.

    The reasons are control characters, which vanish; apostrophes facing each other across a space,
    where one match of the English, French and Italian rules uses up the space that the next would
    need; and DOTMULTI, Moses' own placeholder.
    """
    if "'" in line and _FACING.search(line) is not None:
        return True
    return (not line.isprintable() and _CONTROL.search(line) is not None) or "DOTMULTI" in line


def _ranges(categories: str, wanted: str) -> str:
    """Return the characters whose categories match a pattern, and unassigned ones between them, as
    the inside of a class: the fewer ranges, the faster.

    Args:
        categories: of every character, two letters each.
        wanted: the pattern.
    """
    runs = re.finditer(f"(?:{wanted})(?:(?:Cn)*(?:{wanted}))*", categories)
    return "".join(f"{chr(run.start() // 2)}-{chr(run.end() // 2 - 1)}" for run in runs)


def _patterns() -> tuple[str, str, str]:
    """Return letters and marks of all scripts, these and digits, each as the inside of a class; and
    a pattern of the special characters, which are words of their own.
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
    """Return sacremoses' tokenizer with the corrections; full stops are split as tokenizer.perl
    does it.

    It is made on first use, because importing sacremoses takes half a second.
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

    Words are tokenized once and remembered: except in the lines `_dependent` finds, what becomes of
    a word depends on the word itself and, if it holds a full stop, comma or apostrophe, on whether
    it begins or ends the line and on the kind of character the next word begins with.

    Args:
        lang: code of the language in any form that `language_code` knows; languages without rules
            of their own get the English abbreviations, as in Moses.
        normalize: normalise punctuation first (normalize-punctuation.perl).
        aggressive_hyphens: split `well-known` into `well @-@ known` (tokenizer.perl -a).
        escape: write `&apos;`, `&quot;`, … for the characters Moses reserves.
        caseless: for lowercased text: a small letter does not show that a sentence goes on, and
            abbreviations are known without their capitals.
    Attributes:
        label: its name in the signatures of scores.
    """

    def __init__(
        self,
        lang: str,
        normalize: bool = True,
        aggressive_hyphens: bool = False,
        escape: bool = True,
        caseless: bool = False,
    ) -> None:
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer

        lang = language_code(lang)
        self._arguments = (lang, normalize, aggressive_hyphens, escape, caseless)
        steps = [*["normalized"] * normalize, *["split-hyphens"] * aggressive_hyphens]
        self.label = "-".join(["moses", *steps])
        self.aggressive_hyphens = aggressive_hyphens
        self.escape = escape
        substitutions = MosesPunctNormalizer(lang, perl_parity=True).substitutions
        if lang not in ("en", "cs", "cz", "de", "es", "fr"):
            substitutions[-1:-1] = MosesPunctNormalizer.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA
        self._apostrophe = _APOSTROPHES.get(lang, " ' ")
        # between letters of any alphabet it is an apostrophe, not a quotation mark
        substitutions = [(p.replace("[a-zA-Z]", r"[^\W\d_]"), r) for p, r in substitutions]
        self._substitutions = _needles(substitutions) if normalize else []
        self._tokenizer = _tokenizer_class()(lang, caseless)
        # sacremoses' rules for Czech look at the end of the line instead of the words before
        self._detokenizer = MosesDetokenizer("" if lang == "cs" else self._tokenizer.lang)
        self._closing = re.compile(f" (?=[{_CLOSING}{'·' * (lang == 'el')}])")
        self._numbers = Numbers()
        # (word whose place matters, begins the line, stand-in for the next word) -> its tokens
        self._placed: dict[tuple[str, bool, str], str] = {}

    def __reduce__(self) -> tuple[type[Moses], tuple[Any, ...]]:
        return Moses, self._arguments  # sacremoses' tokenizer cannot be pickled

    def normalize(self, line: str) -> str:
        """Normalise punctuation (nothing if this was switched off).

        Args:
            line: text.
        Returns: the line with plain quotes, dashes and spaces.
        """
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
        """Normalise and tokenize one line.

        Args:
            line: text without control characters (`tidy`).
        Returns: the tokens, separated by single spaces.
        """
        return " ".join(self.parts(line))

    def parts(self, line: str) -> list[str]:
        """Return what `tokenize` returns, word by word: the tokens of a word are one string."""
        if len(self._numbers) > CACHED_WORDS:
            self._numbers = Numbers()
        return [self._numbers.texts[number] for number in self.numbered(line, self._numbers)]

    def numbered(self, line: str, numbers: Numbers) -> list[int]:
        """Return the number of each of `parts`, with one look-up for a word seen before."""
        line = self.normalize(line)
        if _dependent(line):
            return [numbers[part] for part in filter(None, [self.reference(line)])]
        words = line.split()
        if len(words) > 1:
            words[-1] += "\n"  # a last word may become other tokens than the same word elsewhere
        known = numbers.of_words
        result: list[Any] = list(map(known.get, words))
        i = 0
        for _ in range(result.count(None)):
            i = result.index(None, i)
            result[i] = self._number(words, i, numbers)
        return result

    def _number(self, words: list[str], i: int, numbers: Numbers) -> int:
        """Return the number of a word's tokens, and remember it if other lines have it too."""
        word = words[i].removesuffix("\n")
        tokens = anywhere = self._anywhere(word)
        if tokens is None:
            tokens = self._place(word, i == 0, "".join(words[i + 1 : i + 2])[:1])
        number = numbers[tokens]
        if anywhere is not None or word != words[i]:
            numbers.of_words[words[i]] = number
        return number

    def reference(self, line: str) -> str:
        """Tokenize a normalised line as a whole, rule by rule; `tokenize` gives the same faster."""
        return " ".join(
            self._tokenizer.tokenize(
                line, aggressive_dash_splits=self.aggressive_hyphens, escape=self.escape
            )
        )

    def _anywhere(self, word: str) -> str | None:
        """Return the tokens of a word whose place does not matter, else None."""
        if word[-1] == ".":
            return None
        tokens = self._simple(word.removesuffix(","))
        return tokens if tokens is None or word[-1] != "," else f"{tokens} ,"

    def _place(self, word: str, begins: bool, following: str) -> str:
        """Return the tokens of a word whose place matters.

        Args:
            word: the word.
            begins: True for the first word of the line.
            following: the first character of the next word; "" after the last word.
        """
        key = (word, begins, self._stand_in(word, following))
        tokens = self._placed.get(key)
        if tokens is None:
            tokens = self._before_stop(word, key[2]) or self._between(*key)
            if len(self._placed) >= CACHED_WORDS:
                self._placed.clear()
            if len(word) <= LONGEST_CACHED:
                self._placed[key] = tokens
        return tokens

    def _stand_in(self, word: str, following: str) -> str:
        """Return a character that has the same effect as the first one of the next word."""
        if word[-1] == "." and following in self._tokenizer.lower:
            return "x"
        return "1" if word[-1] == "." and following in DIGITS else "X"[: len(following)]

    def _before_stop(self, word: str, following: str) -> str:
        """Return the tokens of a simple word with a final full stop, else an empty string."""
        simple = self._simple(word[:-1]) if word[-1] == "." else None
        if simple is None:
            return ""
        # a full stop after a padded character stands alone already
        alone = not self._tokenizer.PAD_NOT_ISALNUM[0].split(word[:-1])[-1]
        prefix = simple.rpartition(" ")[2]
        glued = not alone and self._tokenizer.keeps_stop(prefix, following)
        return f"{simple}." if glued else f"{simple} ."

    def _simple(self, word: str) -> str | None:
        """Return the tokens of a simple word, else None.

        Only the rules for special characters, hyphens and one apostrophe between letters apply to a
        simple word.
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
        """Return the tokens of any word: all rules are applied to it between stand-ins."""
        tokens = self.reference(f"{'' if begins else 'X '}{word} {following}")
        return tokens[0 if begins else 2 : len(tokens) - (2 if following else 0)]

    def detokenize(self, tokens: list[str]) -> str:
        """Turn tokens into text: punctuation moves to its word, `@-@` becomes a hyphen, escapes are
        undone exactly once.

        Args:
            tokens: tokens as `tokenize` makes them.
        Returns: the text.
        """
        text: str = self._detokenizer.detokenize(tokens, unescape=self.escape)
        return self._closing.sub("", text)


def _needles(substitutions: list[tuple[str, str]]) -> list[tuple[str, re.Pattern[str], str]]:
    """Compile the normaliser's substitutions, each with a string without which it can't match or
    changes nothing.
    """
    marks = {mark: mark for mark in (*'\xa0„“”–—´‘‚’…«»`%"', "''")}
    marks |= {"\\)": ")", "\\(": "(", ":": ":", ";": ";", "\\r": "\r"}
    result = []
    for pattern, replacement in substitutions:
        needle = next((needle for mark, needle in marks.items() if mark in pattern), "")
        if pattern == " +":
            needle = "  "
        result.append((needle, re.compile(pattern), replacement))
    return result
