"""Decide which sentence pairs are fit for training, with the rules of Moses'
clean-corpus-n.perl.
"""

from __future__ import annotations


class PairFilter:
    """Which pairs are kept for training, with the rules of Moses' clean-corpus-n.perl.

    Args:
        min_words: fewest words on a side.
        max_words: most words on a side; 0 for no limit.
        max_ratio: a pair goes when one side has more than this many times the words of the other; 0
            for no limit.
    """

    def __init__(self, min_words: int = 1, max_words: int = 100, max_ratio: float = 9.0) -> None:
        self.min_words = min_words
        self.max_words = max_words
        self.max_ratio = max_ratio

    def reason(self, src_words: int, tgt_words: int) -> str | None:
        """Why a pair is dropped.

        Args:
            src_words, tgt_words: words on each side.
        Returns: "empty" (no word on a side), "too short" (fewer than min_words), "too long" (more
            than max_words), "ratio" (strictly more than max_ratio times as many words; Moses:
            `ec/fc > ratio || fc/ec > ratio`), or None for a pair that is kept.
        """
        shorter, longer = (
            (src_words, tgt_words) if src_words < tgt_words else (tgt_words, src_words)
        )
        if shorter == 0:
            return "empty"
        if self.max_words and longer > self.max_words:
            return "too long"
        if shorter < self.min_words:
            return "too short"
        if self.max_ratio and longer / shorter > self.max_ratio:
            return "ratio"
        return None
