"""The vocabulary of a side: tokens to ids and back, and the special symbols."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


def by_frequency(counts: Mapping[str, int]) -> list[str]:
    """Return tokens by falling frequency; ties in code point order."""
    # Two stable sorts are much faster than one sort by pairs.
    return sorted(sorted(counts), key=counts.__getitem__, reverse=True)


def read_counts(path: Path) -> dict[str, int]:
    """Return the subwords and counts of a file that subword-nmt's get-vocab wrote.

    Raises: DataError naming the first line that is not a subword, a space and a count.
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(files.text_lines(path), 1):
        token, _, count = line.rstrip("\r").rpartition(" ")
        if not token or not re.fullmatch("[0-9]{1,18}", count):
            raise DataError(
                "not a subword vocabulary",
                where=f"{path}, line {number}",
                hint="expected: subword, space, count",
            )
        counts[token] = counts.get(token, 0) + int(count)
    return counts


class Vocabulary:
    """An ordered list of tokens; the first four are the special symbols.

    Args:
        tokens: in the order of their ids, special symbols first.
        path: the file of the tokens, for the error.
    Raises: DataError if the special symbols are missing or a token occurs twice.
    """

    def __init__(self, tokens: Sequence[str], path: Path | None = None) -> None:
        self._tokens = list(tokens)
        self._ids = {token: i for i, token in enumerate(self._tokens)}
        special = tuple(tokens[:4]) == SPECIALS
        if not special or len(self._ids) != len(self._tokens):
            begin = "it does not begin with " + " ".join(SPECIALS)
            problem = "a token occurs twice" if special else begin
            hint = "prepare it again: nmtkit prep … --force"
            raise DataError(f"not a vocabulary: {problem}", where=path, hint=hint)

    def __len__(self) -> int:
        return len(self._tokens)

    @classmethod
    def from_counts(
        cls, counts: dict[str, int], min_frequency: int = 1, size: int | None = None
    ) -> Vocabulary:
        """Return the vocabulary of the most frequent tokens, in the order of `by_frequency`. Text
        that spells a special symbol is left out.

        Args:
            counts: how often each token occurs.
            min_frequency: tokens that occur less often are left out.
            size: the largest number of tokens; None: no limit.
        """
        kept = [t for t in by_frequency(counts) if counts[t] >= min_frequency and t not in SPECIALS]
        return cls([*SPECIALS, *kept[:size]])

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a vocabulary, one token a line.

        Raises: DataError if it is missing or damaged.
        """
        return cls(list(files.text_lines(path)), path)

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._tokens)

    def save(self, path: Path) -> None:
        """Write one token a line."""
        files.write_lines(path, self._tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens and </s>. Unknown tokens, and text that spells a special symbol,
        become <unk>.
        """
        get = self._ids.get
        return [i if (i := get(t, UNK)) > UNK else UNK for t in tokens] + [EOS]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens up to the first </s>, without <pad> and <s>. <unk> stays as text."""
        before = itertools.takewhile(EOS.__ne__, ids)
        return [self._tokens[i] for i in before if i not in (PAD, BOS)]

    def __getitem__(self, index: int) -> str:
        return self._tokens[index]


def unknown_share(sentences: Iterable[Iterable[int]]) -> float:
    """Return the share of the ids of sentences that are <unk>."""
    ids = list(itertools.chain.from_iterable(sentences))
    return ids.count(UNK) / max(1, len(ids))


def load_vocabularies(prep: Path) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of source and target: the same object twice if they share one.

    Args:
        prep: the run's prep folder, with vocab.txt, or vocab.src.txt and vocab.tgt.txt.
    Raises: DataError if they are missing or damaged.
    """
    if (prep / "vocab.txt").is_file():
        shared = Vocabulary.load(prep / "vocab.txt")
        return shared, shared
    if not (prep / "vocab.src.txt").is_file():
        problem = "this run is not prepared: it has no vocabulary"
        raise DataError(problem, where=prep, hint="nmtkit prep")
    return Vocabulary.load(prep / "vocab.src.txt"), Vocabulary.load(prep / "vocab.tgt.txt")
