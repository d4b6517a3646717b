"""SentencePiece: learn a model, split words, and join subwords.

No piece has a space inside, so words are split one by one. The first piece of a word begins with ▁
(U+2581).
"""

from __future__ import annotations

import hashlib
import io
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
"""A model is learnt from at most this many distinct words."""
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")
COVERAGE = 0.9995
"""Share of the text's characters that become pieces. The rarest characters are <unk>."""


def load_package() -> Any:
    """Return the package sentencepiece.

    Raises: EnvironmentProblem if it is not installed.
    """
    return imported("sentencepiece", "sentencepiece", "prep.subwords=sentencepiece")


def learn_sentencepiece(
    counts: Mapping[str, int], size: int, kind: Literal["unigram", "bpe"], path: Path
) -> int:
    """Learn a model from word counts and write it.

    The model changes no character (normalisation `identity`). One thread learns it, so that equal
    counts give equal bytes. The most frequent words are read; a hash chooses among equally frequent
    words.

    Args:
        counts: how often each word occurs.
        size: the number of pieces wanted; a small text gives fewer.
        kind: unigram language model or byte-pair encoding.
        path: the model file.
    Returns: the number of pieces.
    Raises: ConfigError if there are more characters than pieces; DataError if there are no words.
    """
    package = load_package()
    words = [word for word, count in counts.items() if word and count > 0]
    if not words:
        hint = "is the training text empty? if prep.max_types leaves out all words, raise it"
        raise DataError("no words to learn subwords from", hint=hint)
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
    """Splits words with a SentencePiece model.

    Args:
        path: the model.
    Attributes:
        pieces: the pieces by number.
        unigram: True for a unigram model, False for byte-pair encoding.
    Raises: DataError if the file is missing, is no model, or its pieces have spaces inside.
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
        except (RuntimeError, OSError, ValueError) as error:
            hint = "give the .model file that spm_train wrote"
            raise DataError("not a SentencePiece model", where=path, hint=hint) from error
        self._bytes = any(map(self._model.is_byte, range(len(self.pieces))))
        # scores are 0, -1, -2, … in byte-pair encoding, log-probabilities in a unigram model
        scores = map(self._model.get_score, range(len(self.pieces)))
        self.unigram = not all(map(float.is_integer, scores))
        self._check_spaces()

    def _check_spaces(self) -> None:
        """Raise DataError for a model that does not split a line word by word."""
        inside = [piece for piece in self.pieces if SPACE in piece.lstrip(SPACE)]
        if inside or self._model.encode("a a", out_type=str)[0][:1] != SPACE:
            problem = f"its piece {inside[0]!r} holds a space" if inside else "it marks word ends"
            raise DataError(
                f"nmtkit needs a SentencePiece model that begins each word with ▁: {problem}",
                where=self.path,
                hint="learn it with --split_by_whitespace=true and --add_dummy_prefix=true",
            )

    def normalized(self, line: str) -> str:
        """Return a line with the model's normalisation; ▁ becomes a space."""
        text = self._model.normalize(line)
        return " ".join(filter(None, text.split(SPACE)))

    def _pieces(self, word: str) -> list[str]:
        return self._model.encode(word, out_type=str)  # type: ignore[no-any-return]

    def without_space(self, subwords: Sequence[str]) -> list[str]:
        """Return the subwords of a word as they are when no space precedes the word."""
        first = subwords[0].removeprefix(SPACE)
        pieces = [first] if first in self.pieces else list(first)
        return [*pieces, *subwords[1:]]

    def sampler(self, strength: float, vocabulary: Container[str]) -> Draw:
        model = self._model
        # pieces of these kinds are no text
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
        following = [*subwords[1:], SPACE][: len(subwords)]
        return [subword[:1] == SPACE for subword in following]

    def join(self, subwords: Sequence[str]) -> list[str]:
        text = "".join(subwords)
        if self._bytes:
            text = _BYTES.sub(_decoded, text)
        return [word for word in text.split(SPACE) if word]


def _decoded(match: re.Match[str]) -> str:
    """Return the text of byte pieces such as <0xE2>, without the characters that `tidy` removes."""
    data = bytes.fromhex(match[0].replace("<0x", "").replace(">", ""))
    return UNSAFE.sub("", data.decode(errors="replace"))
