"""BLEU as two Perl scripts compute it: NIST's mteval-v13a.pl and Moses' multi-bleu.perl.

Both count as sacreBLEU does, but differ in what is a word, in case, and in orders without matches.
This file has these differences.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from nmtkit.score import formulas

# Python's split() also splits at these characters, but Perl's \s does not: never at those of ASCII,
# and not at the others if Perl reads bytes. So each becomes a private character.
_BYTES = {
    ord(c): 0xF0000 + ord(c)
    for c in map(chr, range(0x3001))
    if c.isspace() and c not in string.whitespace
}
_TEXT = {code: private for code, private in _BYTES.items() if code < 0x80}
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)

References = Sequence[Sequence[str]]
"""Reference streams: one or several references of a text, each with one line per sentence."""


def _unlike_python(line: str, characters: dict[int, int]) -> str:
    return line if line.isascii() and line.isprintable() else line.translate(characters)


class Script(BLEU):  # type: ignore[misc, unused-ignore]
    """BLEU of lines that `split` has tokenized, without sacreBLEU's tokenization.

    Args:
        references: reference streams.
        lowercase: True if A to Z become a to z.
        split: returns a line with white space between its words, as the script sees words.
        method: sacreBLEU's name of the smoothing.
        names: entries of the signature in which the script differs from sacreBLEU.
    """

    def __init__(
        self,
        references: References,
        lowercase: bool,
        split: Callable[[str], str],
        method: str,
        **names: str,
    ) -> None:
        self.ascii_lowercase = lowercase
        self.split = split
        self.names = names | ({"case": "lc-ascii"} if lowercase else {})
        words = [self.words(ref) for ref in references]
        super().__init__(tokenize="none", smooth_method=method, force=True, references=words)

    def words(self, lines: Iterable[str]) -> list[str]:
        """Return the words of lines, separated by white space."""
        words = map(self.split, lines)
        return [line.translate(_LOWER) if self.ascii_lowercase else line for line in words]

    def get_signature(self) -> Any:
        """Return sacreBLEU's signature, with the entries in which the script differs."""
        signature = super().get_signature()
        for key, value in self.names.items():
            signature.update(key, value)
        return signature


class Mteval(Script):
    """BLEU of NIST's mteval-v13a.pl with its defaults: no international tokenization, closest
    reference length, smoothing.

    Its tokenization is sacreBLEU's 13a. The script lowercases only A to Z (`tr/[A-Z]/[a-z]/`), so
    the uncased value of German differs from sacreBLEU's. It smooths where sacreBLEU gives 0 (see
    `formulas.bleu`).

    Args:
        references: reference streams of raw text.
        lowercase: True for the script without its option -c.
    Source: mteval-v13a.pl, `tokenization`, `score_segment`, `brevity_penalty_closest`,
        `bleu_score`.
    """

    def __init__(self, references: References, lowercase: bool) -> None:
        tokenize = Tokenizer13a()  # type: ignore[no-untyped-call, unused-ignore]
        super().__init__(
            references,
            lowercase,
            lambda line: tokenize(_unlike_python(line, _TEXT)),
            "exp",
            tok="mteval-v13a",
            smooth="mteval-v13a",
        )

    @staticmethod
    def compute_bleu(  # type: ignore[override, unused-ignore]
        correct: list[int], total: list[int], sys_len: int, ref_len: int, **options: Any
    ) -> BLEUScore:
        """Return sacreBLEU's score with the script's smoothing."""
        score = BLEU.compute_bleu(correct, total, sys_len, ref_len, **options)
        score.score = float(formulas.mteval_bleu(np.array([sys_len, ref_len, *correct, *total])))
        return score


def multi_bleu(references: References, lowercase: bool, tokenization: str) -> Script:
    """Return BLEU of Moses' multi-bleu.perl: bytes split at ASCII white space, no smoothing.

    Args:
        references: reference streams of tokens.
        lowercase: True for the script's option -lc, which lowercases only A to Z.
        tokenization: the tokenizer's name, for the signature.
    """
    return Script(
        references, lowercase, lambda line: _unlike_python(line, _BYTES), "none", tok=tokenization
    )
