"""The vocabulary of a side: tokens to ids and back, with the special symbols in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


class Vocabulary:
    """An ordered list of tokens; the first four are the special symbols.

    Args:
        tokens: every token in the order of its id, specials first.
    Raises: DataError if the specials are not there or a token occurs twice.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        if tuple(tokens[:4]) != SPECIALS:
            raise DataError("not a vocabulary: it does not begin with " + " ".join(SPECIALS))
        self._tokens = list(tokens)
        self._ids = {token: i for i, token in enumerate(self._tokens)}
        if len(self._ids) != len(self._tokens):
            raise DataError("not a vocabulary: a token occurs twice")

    def __len__(self) -> int:
        return len(self._tokens)

    @classmethod
    def from_counts(cls, counts: dict[str, int], min_frequency: int = 1) -> Vocabulary:
        """Tokens by falling frequency, ties in code point order; text that looks like a special symbol never becomes one."""
        kept = sorted((t for t, n in counts.items() if n >= min_frequency and t not in SPECIALS), key=lambda t: (-counts[t], t))
        return cls([*SPECIALS, *kept])

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a vocabulary, one token a line.

        Raises: DataError if it is missing or damaged.
        """
        return cls(list(files.text_lines(path)))

    def save(self, path: Path) -> None:
        """Write one token a line."""
        files.write_lines(path, self._tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens followed by </s>; an unknown token, and text that spells a special symbol, is <unk>."""
        get = self._ids.get
        return [i if (i := get(t, UNK)) > UNK else UNK for t in tokens] + [EOS]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Tokens of ids up to the first </s>; <pad> and <s> are left out, <unk> is kept as text."""
        tokens = []
        for i in ids:
            if i == EOS:
                break
            if i not in (PAD, BOS):
                tokens.append(self._tokens[i])
        return tokens

    def __getitem__(self, index: int) -> str:
        return self._tokens[index]
