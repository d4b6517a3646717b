"""Subwords of SentencePiece: learn a model, split words, and join them again.

A model splits a line at its spaces first, because no piece holds a space inside: so it splits words
one by one. The first piece of a word begins with ▁ (U+2581).
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nmtkit import files
from nmtkit.errors import ConfigError, DataError, imported
from nmtkit.text.sampling import Draw, merge_with_dropout, unigram_draw
from nmtkit.text.splitter import CachingSplitter
from nmtkit.text.tidy import UNSAFE
from nmtkit.text.tokenizer import SPACE

MOST_WORDS = 1_000_000
"""Different words that a model is learnt from."""
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")
COVERAGE = 0.9995
"""Share of the characters of the text that are pieces; the rarest others are <unk>."""


def load_package() -> Any:
    """Return the package sentencepiece.

    Raises: EnvironmentProblem if it is not installed.
    """
    return imported("sentencepiece", "sentencepiece", "prep.subwords=sentencepiece")


def learn_sentencepiece(
    counts: Mapping[str, int], size: int, kind: Literal["unigram", "bpe"], path: Path
) -> int:
    """Learn a model from word counts and write it.

    It changes no character (its normalisation is `identity`), and one thread learns it: equal
    counts give equal bytes. Of very many words the most frequent are read, of equally frequent ones
    a sample.

    Args:
        counts: how often each word occurs.
        size: pieces wanted; a small text gives fewer.
        kind: unigram language model or byte-pair encoding.
        path: the model file.
    Returns: the number of pieces.
    Raises: ConfigError if there are more characters than pieces; DataError if there are no words.
    """
    package = load_package()
    words = [word for word, count in counts.items() if word and count > 0]
    if not words:
        raise DataError("no words to learn subwords from", hint="the training text is empty")
    words.sort(key=lambda word: (-counts[word], hashlib.sha256(word.encode()).digest()))
    model = io.BytesIO()
    try:
        package.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{counts[word]}" for word in words[:MOST_WORDS]),
            input_format="tsv",
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=COVERAGE,
            normalization_rule_name="identity",
            max_sentence_length=1 << 16,  # bytes; longer words are left out
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError, ValueError) as error:
        message = " ".join(str(error).split()).rpartition("] ")[2]
        raise ConfigError(
            f"SentencePiece cannot learn {size:,} pieces of this text: {message}",
            where="prep.vocab_size",
            hint="--set prep.vocab_size=… (by default prep.merges)",
        ) from error
    with files.writing(path, "wb") as stream:
        stream.write(model.getvalue())
    return len(SentencePiece(path).pieces)


class SentencePiece(CachingSplitter):
    """Splits words with a SentencePiece model; the first piece of a word begins with ▁.

    Args:
        path: the model.
    Attributes:
        pieces: by their number in the model.
        unigram: True for a unigram model, False for byte-pair encoding.
    Raises: DataError if the file is missing, is no model, or its pieces hold spaces.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        package = load_package()
        files.check_file(path, where="--spm")
        self._model = package.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(path.read_bytes())
            self.pieces = [self._model.id_to_piece(i) for i in range(len(self._model))]
        except (RuntimeError, OSError, ValueError, UnicodeDecodeError) as error:
            hint = "give the .model file that spm_train wrote"
            raise DataError("not a SentencePiece model", where=path, hint=hint) from error
        self._bytes = any(map(self._model.is_byte, range(len(self.pieces))))
        # byte-pair encoding has the scores 0, -1, -2, …, a unigram model log-probabilities
        scores = map(self._model.get_score, range(len(self.pieces)))
        self.unigram = not all(map(float.is_integer, scores))
        self._check_spaces()

    def __reduce__(self) -> tuple[type[SentencePiece], tuple[Path]]:
        return SentencePiece, (self.path,)

    def _check_spaces(self) -> None:
        """Refuse a model that does not split a line word by word."""
        inside = [piece for piece in self.pieces if SPACE in piece.lstrip(SPACE)]
        if inside or self._model.encode("a a", out_type=str)[0][:1] != SPACE:
            problem = f"its piece {inside[0]!r} holds a space" if inside else "it marks word ends"
            raise DataError(
                f"nmtkit needs a SentencePiece model that begins each word with ▁: {problem}",
                where=self.path,
                hint="learn it with --split_by_whitespace=true and --add_dummy_prefix=true",
            )

    def normalized(self, line: str) -> str:
        """Return a line with the model's normalisation; ▁ in it becomes a space."""
        text = self._model.normalize(line)
        return " ".join(filter(None, text.split(SPACE)))

    def _pieces(self, word: str) -> list[str]:
        return self._model.encode(word, out_type=str)  # type: ignore[no-any-return]

    def without_space(self, subwords: Sequence[str]) -> list[str]:
        """Return the subwords of a word before which there is no space."""
        first = subwords[0].removeprefix(SPACE)
        pieces = [first] if first in self.pieces else list(first)
        return [*pieces, *subwords[1:]]

    def sampler(self, strength: float, vocabulary: Container[str]) -> Draw:
        model = self._model
        # Text is not split into pieces of these kinds by their scores.
        special = model.is_control, model.is_unknown, model.is_unused, model.is_byte
        scores = {
            piece: float(model.get_score(i))
            for i, piece in enumerate(self.pieces)
            if not any(is_kind(i) for is_kind in special)
        }
        if self.unigram:
            usable = {piece: score for piece, score in scores.items() if piece in vocabulary}
            draw = unigram_draw(usable, strength)
            return lambda word, random: draw(SPACE + word, random)
        ranks = {piece: -score for piece, score in scores.items()}
        return lambda word, random: merge_with_dropout(
            [SPACE, *word], lambda pair: ranks.get(pair[0] + pair[1]), strength, random.random
        )

    def ends(self, subwords: Sequence[str]) -> list[bool]:
        return [following[:1] == SPACE for following in itertools.chain(subwords[1:], [SPACE])]

    def join(self, subwords: Sequence[str]) -> list[str]:
        text = "".join(subwords)
        if self._bytes:
            text = _BYTES.sub(_decoded, text)
        return [word for word in text.split(SPACE) if word]


def _decoded(match: re.Match[str]) -> str:
    """Return the text of byte pieces such as <0xE2>, without the characters that `tidy` removes or
    replaces.
    """
    data = bytes.fromhex(match[0].replace("<0x", "").replace(">", ""))
    return UNSAFE.sub("", data.decode(errors="replace"))
