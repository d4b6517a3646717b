"""The interface that splits words into subwords and joins subwords."""

from __future__ import annotations

import abc
from collections.abc import Container, Sequence

from nmtkit.errors import ConfigError
from nmtkit.text.sampling import Draw
from nmtkit.text.words import CACHED_WORDS

LONG_WORD = 200  # characters


class Splitter:
    """Leaves words whole. `Bpe` and `SentencePiece` override nearly every method."""

    def normalized(self, line: str) -> str:
        """Return a tidy line with the normalisation of the subword model."""
        return line

    def segment(self, tokens: Sequence[str]) -> list[str]:
        """Return the subwords of all words, in order.

        Args:
            tokens: words without spaces.
        """
        return list(tokens)

    def ends(self, subwords: Sequence[str]) -> list[bool]:
        """Return for each subword True if a word ends with it."""
        return [not self.joins_next(subword) for subword in subwords]

    def joins_next(self, subword: str) -> bool:
        """True if the next subword always belongs to the same word."""
        return False

    def sampler(self, strength: float, vocabulary: Container[str]) -> Draw:
        """Return a function that draws a random segmentation of a word, for subword
        regularisation.

        Args:
            strength: for BPE the probability that a merge is left out; for a unigram model α.
            vocabulary: the subwords that a unigram model may use.
        Raises: ConfigError if words are not split.
        """
        raise ConfigError(
            "words are not split into subwords, so none can be drawn",
            where="train.subword_dropout",
            hint="prepare with prep.subwords=bpe or sentencepiece, or leave subword_dropout out",
        )

    def join(self, subwords: Sequence[str]) -> list[str]:
        """Return the words of subwords."""
        return list(subwords)


class CachingSplitter(Splitter, abc.ABC):
    """Splits words, with a bounded cache."""

    def __init__(self) -> None:
        self._cache: dict[str, list[str]] = {}

    def segment(self, tokens: Sequence[str]) -> list[str]:
        cache = self._cache
        result = []
        for token in tokens:
            pieces = cache.get(token)
            if pieces is None:
                pieces = self._pieces(token)
                if len(cache) >= CACHED_WORDS:
                    cache.clear()
                if len(token) <= LONG_WORD:
                    cache[token] = pieces
            result += pieces
        return result

    @abc.abstractmethod
    def _pieces(self, word: str) -> list[str]:
        """Return the subwords of a word."""
