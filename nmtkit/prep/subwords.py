"""Byte-pair encoding by subword-nmt: learnt from word counts, applied with a cache and the vocabulary filter, and undone."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from nmtkit.errors import DataError
from nmtkit.files import writing

JOINER = "@@"
CACHED_WORDS = 1 << 18


def learn_bpe(counts: Mapping[str, int], merges: int, path: Path) -> int:
    """Learn merges from word counts and write them as a subword-nmt codes file (version 0.2).

    The most frequent pair is merged first; among equally frequent pairs the one that sorts last (subword-nmt's rule), so the result
    doesn't depend on the order of `counts`. Learning stops early when no pair occurs twice.

    Args:
        counts: how often each word occurs.
        merges: merges wanted.
        path: the codes file.
    Returns: merges learnt, fewer than asked when the corpus has no more.
    Raises: DataError if there is no word of two characters or more.
    """
    from subword_nmt import learn_bpe as learner

    if not any(len(word) > 1 and count > 0 for word, count in counts.items()):
        raise DataError("no words to learn subwords from", hint="the training text is empty, or holds only single characters")
    lines = [f"{word} {count}" for word, count in counts.items() if word and count > 0]
    out = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learner.learn_bpe(lines, out, merges, is_dict=True)
    codes = out.getvalue()
    with writing(path) as stream:
        stream.write(codes)
    return codes.count("\n") - 1


class Bpe:
    """Splits words into subwords, the same as subword-nmt's apply-bpe, with a bounded cache of words.

    Args:
        codes: the codes file.
        vocabulary: subwords (with their joiner) that may be used; merges that lead elsewhere are undone. None: no filter.
    Raises: DataError if the codes file is missing or malformed.
    """

    def __init__(self, codes: Path, vocabulary: set[str] | None = None) -> None:
        from subword_nmt.apply_bpe import BPE

        if not Path(codes).is_file():
            raise DataError(f"no such file: {codes}", hint="run `nmtkit prep` first")
        with open(codes, encoding="utf-8", newline="\n") as stream:
            self._bpe = BPE(stream, vocab=vocabulary)
        self._cache: dict[str, list[str]] = {}

    def segment(self, tokens: list[str]) -> list[str]:
        """Split each token; all but the last piece of a word end in `@@`.

        Args:
            tokens: words without spaces.
        Returns: the subwords of all words, in order.
        """
        cache = self._cache
        result: list[str] = []
        for token in tokens:
            pieces = cache.get(token)
            if pieces is None:
                pieces = self._pieces(token)
            result += pieces
        return result

    def _pieces(self, word: str) -> list[str]:
        pieces: list[str] = self._bpe.segment_tokens([word])
        self._bpe.cache.clear()
        if pieces and pieces[-1].endswith(JOINER):
            # a word ending in the joiner's own characters: end it with a lone @, so that `join` gives the word back
            pieces = [*pieces[:-1], pieces[-1][:-1] + JOINER, "@"]
        if len(self._cache) >= CACHED_WORDS:
            self._cache.clear()
        self._cache[word] = pieces
        return pieces


def join(subwords: Iterable[str]) -> list[str]:
    """Undo BPE: glue each subword ending in `@@` to the next; a joiner at the very end is dropped (as subword-nmt's sed line does).

    Returns: the words.
    """
    words: list[str] = []
    word = ""
    for piece in subwords:
        if piece.endswith(JOINER):
            word += piece[:-2]
        else:
            words.append(word + piece)
            word = ""
    if word:
        words.append(word)
    return words
