"""The vocabulary of a side: tokens to ids and back, with the special symbols in one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


def by_frequency(counts: Mapping[str, int]) -> list[str]:
    """Tokens by falling frequency, ties in code point order."""
    return sorted(
        sorted(counts), key=counts.__getitem__, reverse=True
    )  # stable, and many times as fast as one sort by pairs


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
        """Tokens by falling frequency, ties in code point order; text that looks like a special
        symbol never becomes one.
        """
        kept = [t for t in by_frequency(counts) if counts[t] >= min_frequency and t not in SPECIALS]
        return cls([*SPECIALS, *kept])

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a vocabulary, one token a line.

        Raises: DataError if it is missing or damaged.
        """
        try:
            return cls(list(files.text_lines(path)))
        except DataError as error:
            if error.where is not None:
                raise
            raise DataError(
                error.message,
                where=path,
                hint=error.hint or "prepare it again: nmtkit prep … --force",
            ) from None

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._tokens)

    def save(self, path: Path) -> None:
        """Write one token a line."""
        files.write_lines(path, self._tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens followed by </s>; an unknown token, and text that spells a special
        symbol, is <unk>.
        """
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


def load_vocabularies(prep: Path) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of a prepared corpus: the same object twice if both sides share one.

    Args:
        prep: the run's prep folder, with vocab.txt, or vocab.src.txt and vocab.tgt.txt.
    Returns: the vocabulary of the source and of the target.
    Raises: DataError if they are missing or damaged.
    """
    prep = Path(prep)
    if (prep / "vocab.txt").is_file():
        shared = Vocabulary.load(prep / "vocab.txt")
        return shared, shared
    if not (prep / "vocab.src.txt").is_file():
        raise DataError(
            "this run is not prepared: it has no vocabulary", where=prep, hint="nmtkit prep"
        )
    return Vocabulary.load(prep / "vocab.src.txt"), Vocabulary.load(prep / "vocab.tgt.txt")
