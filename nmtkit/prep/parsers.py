"""Constituency parsers from outside, each imported only when it is asked for."""

from __future__ import annotations

import html
from typing import Any

from nmtkit.errors import EnvironmentProblem
from nmtkit.prep.parse_spans import Parser

PARSERS = ("stanza",)


def load_parser(name: str, language: str) -> Parser:
    """A parser of a language, ready to parse; nothing is downloaded.

    Args:
        name: of PARSERS.
        language: code of the text.
    Raises: EnvironmentProblem if it is not installed, or has no models here.
    """
    return {"stanza": Stanza}[name](language)


class Stanza:
    """Qi et al. 2020, *Stanza: a Python natural language processing toolkit for many human
    languages*, on words given to it.

    Args:
        language: code of the text.
    Raises: EnvironmentProblem if it is not installed, or has no models here.
    """

    def __init__(self, language: str) -> None:
        try:
            import stanza
        except ImportError as error:
            raise EnvironmentProblem(
                f"stanza is not installed: {error}",
                where="--parser stanza",
                hint="in nmtkit's checkout: pip install -e '.[parse]'",
            ) from error
        options = {
            "processors": "tokenize,pos,constituency",
            "tokenize_pretokenized": True,
            "download_method": None,
            "verbose": False,
        }
        try:
            self._pipeline: Any = stanza.Pipeline(language, **options)
        except Exception as error:  # stanza's own classes for this differ from version to version
            reason = str(error).strip().splitlines()
            raise EnvironmentProblem(
                f"stanza has no constituency parser for '{language}' here:"
                f" {reason[0] if reason else type(error).__name__}",
                where="--parser stanza",
                hint=(
                    f"python -c \"import stanza; stanza.download('{language}')\" gets it, if there"
                    " is one for this language"
                ),
            ) from error
        self.tools = {"stanza": str(stanza.__version__)}

    def __call__(self, sentences: list[list[str]]) -> list[str]:
        """See `Parser`."""
        if not sentences:
            return []
        found = self._pipeline([[_plain(word) for word in words] for words in sentences]).sentences
        if len(found) != len(sentences):
            raise EnvironmentProblem(
                f"stanza made {len(found)} sentences of {len(sentences)}", where="--parser stanza"
            )
        return [_bracketed(sentence.constituency) for sentence in found]


def _plain(word: str) -> str:
    """A word as parsers know it, Moses' escapes undone."""
    return "-" if word == "@-@" else html.unescape(word)


def _bracketed(tree: Any) -> str:
    """A tree of labels and children as one line."""
    if not tree.children:
        return "".join(tree.label.replace("(", "-LRB-").replace(")", "-RRB-").split())
    return f"({tree.label} {' '.join(map(_bracketed, tree.children))})"
