"""BLEU as the field's two Perl scripts compute it: NIST's mteval-v13a.pl and Moses'
multi-bleu.perl.

Both are sacreBLEU's counting with another idea of a word, of case and of an order without matches;
what differs is written here.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from nmtkit.score import formulas

# Python's split() also splits at these, Perl's \s does not: the first anywhere, all of them where
# the text is bytes to Perl.
_SEPARATORS = range(0x1C, 0x20)
_UNICODE_SPACES = (
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
)
# So each becomes a private character of its own.
_TEXT = {c: 0xF0000 + c for c in _SEPARATORS}
_BYTES = {c: 0xF0000 + c for c in (*_SEPARATORS, *_UNICODE_SPACES)}
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_CASE = "lc-ascii"
_tokenize_13a = Tokenizer13a()  # type: ignore[no-untyped-call, unused-ignore]


class Script(BLEU):  # type: ignore[misc, unused-ignore]
    """BLEU of lines that `words` has split: sacreBLEU does not touch them.

    Args:
        references: each a full stream of lines.
        lowercase: A to Z become a to z.
        method: sacreBLEU's name of the smoothing.
        names: entries of the signature in which the script differs from sacreBLEU.
    """

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        lowercase: bool,
        method: str = "exp",
        **names: str,
    ) -> None:
        self.ascii_lowercase = lowercase
        self.names = names | ({"case": _CASE} if lowercase else {})
        words = [self.words(ref) for ref in references]
        super().__init__(tokenize="none", smooth_method=method, force=True, references=words)

    def words(self, lines: Iterable[str]) -> list[str]:
        """Return the words of lines, separated by white space."""
        words = map(self.split, lines)
        return [line.translate(_LOWER) if self.ascii_lowercase else line for line in words]

    @staticmethod
    def split(line: str) -> str:
        """Return a line with white space between its words, as the script sees words."""
        raise NotImplementedError

    def get_signature(self) -> Any:
        """sacreBLEU's signature, naming the script where it differs from sacreBLEU."""
        signature = super().get_signature()
        for key, value in self.names.items():
            signature.update(key, value)
        return signature


class Mteval(Script):
    """BLEU of NIST's mteval-v13a.pl with its defaults: no international tokenization, closest
    reference length, smoothing.

    Its tokenization is sacreBLEU's 13a. Of a and A alone it knows that they are one letter
    (`tr/[A-Z]/[a-z]/`), so that the uncased value of German differs from sacreBLEU's; and it
    smooths where sacreBLEU gives 0 (see `formulas.bleu`).
    Source: mteval-v13a.pl, `tokenization`, `score_segment`, `brevity_penalty_closest`,
        `bleu_score`.
    """

    def __init__(self, references: Sequence[Sequence[str]], lowercase: bool = False) -> None:
        """`references`: each a full stream of raw text; `lowercase`: the script without its
        option -c.
        """
        super().__init__(references, lowercase, tok="mteval-v13a", smooth="mteval-v13a")

    @staticmethod
    def split(line: str) -> str:
        tokens: str = _tokenize_13a(_unlike_python(line, _TEXT))
        return tokens

    @staticmethod
    def compute_bleu(  # type: ignore[override, unused-ignore]
        correct: list[int], total: list[int], sys_len: int, ref_len: int, **options: Any
    ) -> BLEUScore:
        """sacreBLEU's score, with the script's smoothing."""
        score = BLEU.compute_bleu(correct, total, sys_len, ref_len, **options)
        score.score = float(formulas.mteval_bleu(np.array([sys_len, ref_len, *correct, *total])))
        return score


class MultiBleu(Script):
    """BLEU of Moses' multi-bleu.perl: bytes split at ASCII white space, no smoothing; its -lc
    knows A to Z alone.
    """

    def __init__(
        self,
        references: Sequence[Sequence[str]],
        lowercase: bool = False,
        tokenization: str = "none",
    ) -> None:
        """`references`: each a full stream of tokens; `lowercase`: the script's option -lc;
        `tokenization`: what made the tokens, if known.
        """
        super().__init__(references, lowercase, "none", tok=tokenization)

    @staticmethod
    def split(line: str) -> str:
        return _unlike_python(line, _BYTES)


def _unlike_python(line: str, characters: dict[int, int]) -> str:
    return line if line.isascii() and line.isprintable() else line.translate(characters)
