"""Moses tokenization and its way back, by sacremoses, with its known differences from the Perl scripts put right."""

from __future__ import annotations


class Moses:
    """Tokenizes and detokenizes one language as Moses' scripts do.

    Args:
        lang: two-letter code; languages without rules of their own get the English abbreviations, as in Moses.
        normalize: normalise punctuation first (normalize-punctuation.perl).
        aggressive_hyphens: split `well-known` into `well @-@ known` (tokenizer.perl -a).
        escape: write `&apos;`, `&quot;`, … for the characters Moses reserves.
    """

    def __init__(self, lang: str, normalize: bool = True, aggressive_hyphens: bool = False, escape: bool = True) -> None:
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

        self.lang = lang
        self.aggressive_hyphens = aggressive_hyphens
        self.escape = escape
        self._normalizer = MosesPunctNormalizer(lang, perl_parity=True) if normalize else None
        self._tokenizer = MosesTokenizer(lang)
        self._detokenizer = MosesDetokenizer(lang)

    def tokenize(self, line: str) -> str:
        """Tokenize one line.

        Args:
            line: text without control characters (see `nmtkit.prep.clean.tidy`).
        Returns: the tokens, separated by single spaces.
        """
        if self._normalizer is not None:
            line = self._normalizer.normalize(line)
        tokens = self._tokenizer.tokenize(line, aggressive_dash_splits=self.aggressive_hyphens, return_str=True, escape=self.escape)
        return " ".join(tokens.split())

    def detokenize(self, tokens: list[str]) -> str:
        """Turn tokens into text: punctuation moves to its word, `@-@` becomes a hyphen, escapes are undone exactly once.

        Args:
            tokens: tokens as `tokenize` makes them.
        Returns: the text.
        """
        text: str = self._detokenizer.detokenize(tokens, unescape=self.escape)
        return text
