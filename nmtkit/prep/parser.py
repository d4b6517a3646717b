"""Constituency parsers from outside, each imported only when it is asked for."""

from __future__ import annotations

import html
from typing import Any

from nmtkit.errors import EnvironmentProblem
from nmtkit.prep.parsed import Parser

PARSERS = ("stanza",)


def load_parser(name: str, language: str) -> Parser:
    """A parser of a language, ready to parse; nothing is downloaded.

    Args:
        name: of PARSERS.
        language: code of the text.
    Raises: EnvironmentProblem if it is not installed, or has no models here.
    """
    assert name in PARSERS
    try:
        import stanza
    except ImportError as error:
        raise EnvironmentProblem(f"stanza is not installed: {error}", where="--parser stanza", hint="pip install 'nmtkit[parse]'") from error
    processors = "tokenize,pos,constituency"
    try:
        pipeline = stanza.Pipeline(language, processors=processors, tokenize_pretokenized=True, download_method=None, verbose=False)
    except Exception as error:  # stanza's own classes for this differ from version to version
        reason = str(error).strip().splitlines()
        hint = f"""python -c "import stanza; stanza.download('{language}', processors='{processors}')" where there is a network; """
        raise EnvironmentProblem(
            f"stanza has no constituency parser for '{language}' here: {reason[0] if reason else type(error).__name__}",
            where="--parser stanza",
            hint=hint + "STANZA_RESOURCES_DIR names the folder of its models",
        ) from error

    def parse(sentences: list[list[str]]) -> list[str]:
        if not sentences:
            return []
        document = pipeline([[_plain(word) for word in words] for words in sentences])
        if len(document.sentences) != len(sentences):
            raise EnvironmentProblem(f"stanza made {len(document.sentences)} sentences of {len(sentences)}", where="--parser stanza")
        return [_bracketed(sentence.constituency) for sentence in document.sentences]

    return parse


def _plain(word: str) -> str:
    """A word as parsers know it, Moses' escapes undone."""
    return "-" if word == "@-@" else html.unescape(word)


def _bracketed(tree: Any) -> str:
    """A tree of labels and children as one line."""
    if not tree.children:
        return "".join(tree.label.replace("(", "-LRB-").replace(")", "-RRB-").split())
    return f"({tree.label} {' '.join(map(_bracketed, tree.children))})"
