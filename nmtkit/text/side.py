"""The text of one side: from raw lines to subwords and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmtkit import console
from nmtkit.records import TextRecipe, load
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import Bpe
from nmtkit.text.chinese import is_chinese
from nmtkit.text.sentencepiece import SentencePiece
from nmtkit.text.splitter import Splitter
from nmtkit.text.tidy import tidy
from nmtkit.text.tokenizer import (
    Name,
    Side,
    make_tokenizer,
    split_words,
    tokenizer_name,
    unspaced,
    usual_tokenizer,
)
from nmtkit.text.truecase import Truecaser, detruecase
from nmtkit.text.vocabulary import read_counts
from nmtkit.text.words import Numbers

RULES = {"text rules": "5"}
"""The version of all rules that turn text into words. Every change that gives any text other words
raises it.
"""


class TextSide:
    """Turns text of one language into subwords, and back.

    Args:
        lang: language code.
        settings: of prep: normalize, aggressive_hyphens, escape, lowercase.
        truecaser: applied after tokenization; without it nothing is detruecased either.
        splitter: splits words into subwords; None leaves words whole.
        tokenizer: from `tokenizer_name`; None for the default of the language.
    Attributes:
        tokenizer: the name of the tokenizer.
        tokenization: the name of the tokenizer in signatures of scores (`moses-split-hyphens`).
    """

    def __init__(
        self,
        lang: str,
        settings: PrepSettings,
        truecaser: Truecaser | None = None,
        splitter: Splitter | None = None,
        tokenizer: Name | None = None,
    ) -> None:
        self.lang = lang
        self.lowercase = settings.lowercase
        self.truecaser = truecaser
        self.splitter = splitter or Splitter()
        self.tokenizer = tokenizer or usual_tokenizer(lang)
        self._tokenizer = make_tokenizer(self.tokenizer, lang, settings)
        self._caseless = make_tokenizer(self.tokenizer, lang, settings, caseless=self.lowercase)
        # Token BLEU of plain text is computed on the words of the language's default tokenizer.
        self._scored = TextSide(lang, settings) if self.tokenizer == "raw" else self
        self.tokenization = self._scored._tokenizer.label

    @classmethod
    def load(cls, prep_dir: Path, side: Side) -> TextSide:
        """Return the side of a prepared corpus.

        Args:
            prep_dir: the run's prep folder, with manifest.json, codes.bpe or codes.SIDE.bpe,
                truecase.LANG, bpe-vocab.SIDE.txt, subwords.spm or subwords.SIDE.spm.
            side: "src" or "tgt".
        Raises: DataError if the corpus is not prepared or a file is damaged.
        """
        recipe = load(TextRecipe, prep_dir / "manifest.json")
        if not RULES.items() <= recipe.tools.items():
            console.warn_once(
                f"{prep_dir} was prepared with another version of nmtkit's rules for text: a few"
                " words of new text may differ from those of training"
            )
        lang = recipe.src if side == "src" else recipe.tgt
        model = prep_dir / f"truecase.{lang}"
        truecaser = Truecaser.load(model) if model.exists() else None
        splitter = load_splitter(prep_dir, side, recipe.settings.vocab_threshold)
        tokenizer = tokenizer_name(side, lang, recipe.settings)
        return cls(lang, recipe.settings, truecaser, splitter, tokenizer)

    def tokens(self, line: str) -> list[str]:
        """Tidy, tokenize, lowercase (if set) and truecase one raw line, and return its words."""
        tokens = split_words(self.tokenized(tidy(line)))
        return self.truecaser.truecase(tokens) if self.truecaser else tokens

    def cased(self, line: str) -> str:
        """Tidy, tokenize and lowercase (if set) one raw line for multi-bleu.perl. Raw text is cut
        by the language's default tokenizer.

        Returns: the words, not truecased, separated by single spaces.
        """
        return self._scored.tokenized(tidy(line))

    def tokenized(self, line: str) -> str:
        """Tokenize and lowercase (if set) one tidy line.

        Returns: the words, not truecased, separated by single spaces.
        """
        return " ".join(self.parts(line))

    def parts(self, line: str) -> list[str]:
        """Return the words of `tokenized` as strings of one or more words."""
        line = self.splitter.normalized(line)
        if not self.lowercase:
            return self._tokenizer.parts(line)
        # Moses finds the end of a sentence by the capital after it, so lowercasing comes last.
        parts = (self._caseless if line.islower() else self._tokenizer).parts(line)
        return [part.lower() for part in parts]

    def numbered(self, line: str, numbers: Numbers) -> list[int]:
        """Return the numbers of `parts`."""
        if self.lowercase:
            return [numbers[part] for part in self.parts(line)]
        return self._tokenizer.numbered(self.splitter.normalized(line), numbers)

    def encode(self, line: str) -> list[str]:
        """Return the subwords of one raw line."""
        return self.splitter.segment(self.tokens(line))

    def encode_inside(self, text: str) -> list[str]:
        """Return the subwords of words that stand inside a sentence. In a language without spaces
        no space precedes them.
        """
        words = split_words(self.tokenized(tidy(text)))
        if self.truecaser:
            words = self.truecaser.words(words, first=False)
        subwords = self.splitter.segment(words)
        has_spaces = self.tokenizer != "raw" or not (is_chinese(self.lang) or unspaced(self.lang))
        if has_spaces or not subwords or not isinstance(self.splitter, SentencePiece):
            return subwords
        return self.splitter.without_space(subwords)

    def subwords(self, tokens: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return the subwords of tokens, and for each subword the number of its token."""
        split = [self.splitter.segment([token]) for token in tokens]
        owners = [number for number, parts in enumerate(split) for _ in parts]
        return [part for parts in split for part in parts], owners

    def surface(self, subwords: list[str]) -> str:
        """Join subwords into tokenized text."""
        return " ".join(self.splitter.join(subwords))

    def cased_surface(self, subwords: list[str]) -> str:
        """Join subwords into tokenized text for multi-bleu.perl, without truecasing."""
        if self._scored is not self:
            return self._scored.tokenized(self.decode(subwords))
        return " ".join(self._cased_words(subwords))

    def decode(self, subwords: list[str]) -> str:
        """Join subwords into plain text, without truecasing and tokenization."""
        return self._tokenizer.detokenize(self._cased_words(subwords))

    def _cased_words(self, subwords: list[str]) -> list[str]:
        words = self.splitter.join(subwords)
        return detruecase(words) if self.truecaser else words


def load_splitter(prep_dir: Path, side: Side, vocab_threshold: int = 0) -> Splitter:
    """Return the splitter of a side of a prepared corpus.

    Args:
        prep_dir, side: as for `TextSide.load`.
        vocab_threshold: the setting.
    """
    for name in (f"codes.{side}.bpe", "codes.bpe"):
        if (prep_dir / name).exists():
            vocabulary = _vocabulary(prep_dir / f"bpe-vocab.{side}.txt", vocab_threshold)
            return Bpe(prep_dir / name, vocabulary)
    for name in (f"subwords.{side}.spm", "subwords.spm"):
        if (prep_dir / name).exists():
            return SentencePiece(prep_dir / name)
    return Splitter()


def _vocabulary(path: Path, threshold: int) -> set[str] | None:
    if threshold <= 0 or not path.exists():
        return None
    return {token for token, count in read_counts(path).items() if count >= threshold}
