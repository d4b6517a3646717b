"""Parse the source of a set with a constituency parser, which is imported only when asked for."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import files
from nmtkit.errors import EnvironmentProblem
from nmtkit.prep.clean import row_chunks
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy, utf8_lines

PARSERS = ("stanza",)


class Stanza:
    """Qi et al. 2020, *Stanza: a Python natural language processing toolkit for many human
    languages*, on tokenized sentences; nothing is downloaded.

    Args:
        language: code of the text.
    Attributes:
        tools: the parser and its version.
    Raises: EnvironmentProblem if it is not installed, or has no models here.
    """

    def __init__(self, language: str) -> None:
        where = "--parser stanza"
        try:
            import stanza
        except ImportError as error:
            hint = "in nmtkit's checkout: pip install -e '.[parse]'"
            raise EnvironmentProblem(f"stanza is not installed: {error}", where, hint) from error
        try:
            self._pipeline: Any = stanza.Pipeline(
                language,
                processors="tokenize,pos,constituency",
                tokenize_pretokenized=True,
                download_method=None,
                verbose=False,
            )
        except Exception as error:  # stanza's own classes for this differ from version to version
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            problem = f"stanza has no constituency parser for '{language}' here: {reason}"
            get = f"python -c \"import stanza; stanza.download('{language}')\" gets it"
            hint = f"{get}, if there is one for this language"
            raise EnvironmentProblem(problem, where, hint) from error
        self.tools = {"stanza": str(stanza.__version__)}

    def __call__(self, sentences: list[list[str]]) -> list[str]:
        """Parse sentences of words into bracketed trees, one line each."""
        if not sentences:
            return []
        parsed = self._pipeline([[_plain(word) for word in words] for words in sentences]).sentences
        if len(parsed) != len(sentences):
            problem = f"stanza made {len(parsed)} sentences of {len(sentences)}"
            raise EnvironmentProblem(problem, where="--parser stanza")
        return [_bracketed(sentence.constituency) for sentence in parsed]


def _plain(word: str) -> str:
    """Return a word as parsers know it, Moses' escapes undone."""
    return "-" if word == "@-@" else html.unescape(word)


def _bracketed(tree: Any) -> str:
    if not tree.children:
        return "".join(tree.label.replace("(", "-LRB-").replace(")", "-RRB-").split())
    return f"({tree.label} {' '.join(map(_bracketed, tree.children))})"


def parse_text(
    parser: Stanza,
    side: TextSide,
    source: Sequence[Path],
    kept: NDArray[np.bool_],
    path: Path,
) -> None:
    """Parse the tokenized source of a set and write the trees, one a line.

    Args:
        parser: of the source language.
        side: tokenizes the source.
        source: the files of the source.
        kept: for each line, True if it is in the set; the others get a blank line, as empty ones.
        path: of the trees, a file for `--parses`.
    """
    rows = iter(kept.tolist())
    with files.writing(path) as out:
        for (text,) in row_chunks([source], max_rows=500):
            lines = [tidy(line or "") if next(rows) else "" for line in utf8_lines(text, Counter())]
            trees = iter(parser([side.tokenized(line).split(" ") for line in lines if line]))
            out.writelines((" ".join(next(trees).split()) if line else "") + "\n" for line in lines)
