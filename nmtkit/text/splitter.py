"""Words to subwords and back: what BPE and SentencePiece have in common."""

from __future__ import annotations

from collections.abc import Sequence


class Splitter:
    """Leaves words whole; `Bpe` and `SentencePiece` override every method but `owners`."""

    def normalized(self, line: str) -> str:
        """Return a tidy line as it is before it is cut into words."""
        return line

    def segment(self, tokens: Sequence[str]) -> list[str]:
        """Return the subwords of all words, in order.

        Args:
            tokens: words without spaces.
        """
        return list(tokens)

    def ends(self, subwords: Sequence[str]) -> list[bool]:
        """Return for each subword True if a word ends with it."""
        return [True] * len(subwords)

    def join(self, subwords: Sequence[str]) -> list[str]:
        """Return the words of subwords."""
        return list(subwords)
