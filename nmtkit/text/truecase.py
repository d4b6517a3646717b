"""Truecasing as in Moses (train-truecaser.perl, truecase.perl, detruecase.perl)."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit.errors import DataError
from nmtkit.files import text_lines, writing

SENTENCE_END = frozenset({".", ":", "?", "!"})
DELAYED_START = frozenset({"(", "[", '"', "'", "&apos;", "&quot;", "&#91;", "&#93;"})
_TAG = re.compile(r"<\S[^>]*>")


def learn_truecaser(counts: Counter[str], path: Path) -> Truecaser:
    """Learn a truecaser and write it in Moses' format.

    The model is the same as that of sacremoses (train-truecaser.perl without
    --possiblyUseFirstToken; quotes and brackets are passed over everywhere). Each line has the
    forms of a word, `best (count/total) other (count) …`. The lines are in the order of first
    appearance.

    Args:
        counts: how often each form occurs as evidence (`prep.words`), which excludes the starts of
            sentences, where every word may have a capital.
        path: the file.
    Raises: EnvironmentProblem if it cannot be written.
    """
    forms: dict[str, list[str]] = {}
    for form in counts:
        if any(map(_is_cased, form)):
            forms.setdefault(form.lower(), []).append(form)
    with writing(path) as stream:
        for variants in forms.values():
            # The sort is stable: of equally frequent forms the one seen first comes first.
            variants.sort(key=counts.__getitem__, reverse=True)
            best, *rest = variants
            total = sum(map(counts.__getitem__, variants))
            others = "".join([f" {form} ({counts[form]})" for form in rest])
            stream.write(f"{best} ({counts[best]}/{total}){others}\n")
    best_forms = {lower: variants[0] for lower, variants in forms.items()}
    return Truecaser(best_forms, frozenset(itertools.chain.from_iterable(forms.values())))


def is_tag(token: str) -> bool:
    """True if a token holds an XML tag."""
    return "<" in token and _TAG.search(token) is not None


@functools.cache
def _is_cased(character: str) -> bool:
    """True for a letter with a case."""
    return unicodedata.category(character) in ("Ll", "Lu", "Lt")


@dataclass(frozen=True)
class Truecaser:
    """Gives words their usual case.

    A word at the start of a sentence gets its most frequent form. Elsewhere only unknown forms are
    changed.

    Args:
        best: the most frequent form of each lowercased word.
        known: every form seen in training.
    Source: Moses truecase.perl (sacremoses' `truecase(use_known=True)`).
    """

    best: dict[str, str]
    known: frozenset[str]

    @classmethod
    def load(cls, path: Path) -> Truecaser:
        """Read a model file.

        Raises: DataError if it is missing or a line is not in Moses' format.
        """
        best = {}
        known = set()
        for number, line in enumerate(text_lines(path), 1):
            if not line.strip():
                continue
            fields = line.split(" ")
            forms, counts = fields[0::2], fields[1::2]
            if len(fields) % 2 or not all([f[:1] == "(" and f[-1:] == ")" for f in counts]):
                raise DataError(
                    "not a truecase model",
                    where=f"{path}, line {number}",
                    hint="expected: word (count/total) other (count) …",
                )
            best[forms[0].lower()] = forms[0]
            known.update(forms)
        return cls(best, frozenset(known))

    def truecase(self, tokens: list[str]) -> list[str]:
        """Truecase one tokenized line. XML tags are ordinary tokens."""
        best, known = self.best, self.known
        return [
            best.get(token.lower(), token) if first or token not in known else token
            for token, first in zip(tokens, sentence_starts(tokens), strict=True)
        ]

    def words(self, tokens: Iterable[str], first: bool) -> list[str]:
        """Truecase single words, all as `first` words of a sentence, or all as words elsewhere."""
        best, known = self.best, frozenset() if first else self.known
        return [token if token in known else best.get(token.lower(), token) for token in tokens]


def sentence_starts(tokens: Iterable[str]) -> Iterator[bool]:
    """Yield True for each token that starts a sentence, and for brackets and quotes before it."""
    first = True
    for token in tokens:
        yield first
        first = token in SENTENCE_END or (first and token in DELAYED_START)


def detruecase(tokens: Sequence[str]) -> list[str]:
    """Titlecase the first letter of each sentence, as detruecase.perl does (ucfirst)."""
    return [
        token[:1].title() + token[1:] if first else token
        for token, first in zip(tokens, sentence_starts(tokens), strict=True)
    ]
