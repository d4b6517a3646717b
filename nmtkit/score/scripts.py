"""BLEU as the field's two Perl scripts compute it: NIST's mteval-v13a.pl and Moses'
multi-bleu.perl.

Both are sacreBLEU's counting with another idea of a word, of case and of an order without matches;
what differs is written here.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU, BLEUScore

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


class Mteval(BLEU):  # type: ignore[misc, unused-ignore]
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
        super().__init__(lowercase=lowercase, tokenize="13a", force=True, references=references)

    def _preprocess_segment(self, sent: str) -> str:
        tokens: str = self.tokenizer(_unlike_python(sent, _TEXT))
        return tokens.translate(_LOWER) if self.lowercase else tokens

    def _compute_score_from_stats(self, stats: list[int]) -> BLEUScore:
        found = super()._compute_score_from_stats(stats)
        found.score = float(formulas.mteval_bleu(np.asarray(stats)))
        return found

    def get_signature(self) -> Any:
        """sacreBLEU's signature, naming the script where it differs from sacreBLEU."""
        return _signed(
            super().get_signature(), self.lowercase, tok="mteval-v13a", smooth="mteval-v13a"
        )


class MultiBleu(BLEU):  # type: ignore[misc, unused-ignore]
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
        super().__init__(
            lowercase=lowercase,
            tokenize="none",
            smooth_method="none",
            force=True,
            references=references,
        )
        self.tokenization = tokenization

    def _preprocess_segment(self, sent: str) -> str:
        tokens = _unlike_python(sent, _BYTES)
        return tokens.translate(_LOWER) if self.lowercase else tokens

    def get_signature(self) -> Any:
        """sacreBLEU's signature, naming what made the tokens."""
        return _signed(super().get_signature(), self.lowercase, tok=self.tokenization)


def _unlike_python(line: str, characters: dict[int, int]) -> str:
    return line if line.isascii() and line.isprintable() else line.translate(characters)


def _signed(signature: Any, lowercase: bool, **names: str) -> Any:
    for key, value in (names | ({"case": _CASE} if lowercase else {})).items():
        signature.update(key, value)
    return signature
