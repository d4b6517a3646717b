"""Sources, references and translations of a set with the scores of each sentence, and which
words differ.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmtkit import files
from nmtkit.errors import DataError
from nmtkit.report.gathered import Gathered

SCORES = ("bleu", "chrf")
"""The sentence scores of sentences.tsv."""
TOKENS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[\w'’-]+|\s+|.", re.S)
"""Words, single characters where words are written without spaces, spaces, anything else;
explorer.js has the same.
"""
EACH_WAY = 3
"""Sentences shown of each system's gains, and of its losses."""
MOST_LINES = 40
Marked = list[tuple[str, bool]]
"""Pieces of a text, and whether each is one that differs."""


@dataclass(frozen=True)
class Texts:
    """The N sentences of a set.

    lengths (N) are of the source in subwords, None where not known; outputs and, of each score,
    values (N) are by system, the baseline's first.
    """

    set_name: str
    baseline: str
    sources: list[str]
    references: list[list[str]]
    outputs: dict[str, list[str]]
    scores: dict[str, dict[str, list[float]]]
    lengths: list[int] | None


@dataclass(frozen=True)
class Shown:
    """One sentence side by side: why it is shown, its texts, and each system's output with its
    score and what differs.
    """

    line: int
    why: list[str]
    source: str
    references: list[str]
    outputs: list[tuple[str, float | None, Marked]]


def read_texts(found: Gathered, set_name: str) -> Texts | None:
    """The texts of a scored set; None, with a remark, where they do not belong together any
    more.
    """
    result, run = found.scores[set_name], found.run
    names = [result.baseline, *(name for name in result.names if name != result.baseline)]
    count = result.sentences
    again = f"nmtkit score --force --set-name {set_name}"
    try:
        sources = list(files.text_lines(run.source(set_name)))
        references = [list(files.text_lines(path)) for path in run.references(set_name)]
        if {len(sources), *map(len, references)} != {count}:
            raise DataError(f"not all texts have the {count:,} lines that were scored")
        outputs = {}
        for name in names:
            path = run.path / "systems" / name / "translate" / set_name / "hyp.txt"
            lines = list(files.text_lines(path)) if path.is_file() else []
            if len(lines) == count:
                outputs[name] = lines
            else:
                found.note(
                    f"{set_name}: the translation by {name} is gone, or not the one that was"
                    " scored",
                    again,
                )
        if not outputs:
            raise DataError("no translation is left")
    except DataError as error:
        found.note(f"{set_name}: its texts cannot be shown ({error.message})", again)
        return None
    scores, lengths = _sentence_scores(found, set_name, list(outputs), count)
    if not scores:
        found.note(
            f"{set_name}: sentences.tsv is missing or of other translations, so sentences have no"
            " scores",
            again,
        )
    return Texts(set_name, result.baseline, sources, references, outputs, scores, lengths)


def _sentence_scores(
    found: Gathered, set_name: str, names: Sequence[str], count: int
) -> tuple[dict[str, dict[str, list[float]]], list[int] | None]:
    """score -> system -> (N), and source lengths (N), of sentences.tsv; empty where it does not
    fit.
    """
    path = found.run.path / "score" / set_name / "sentences.tsv"
    try:
        header, *rows = [line.split("\t") for line in files.text_lines(path)]
        columns = dict(zip(header, zip(*rows, strict=True), strict=True))
        if (
            len(rows) != count
            or not {f"{name}.{score}" for name in names for score in SCORES} <= columns.keys()
        ):
            return {}, None
        scores = {
            score: {name: [float(value) for value in columns[f"{name}.{score}"]] for name in names}
            for score in SCORES
        }
        lengths = (
            [int(value) for value in columns["src_length"]] if "src_length" in columns else None
        )
    except (DataError, ValueError):
        return {}, None
    return scores, lengths


def differences(text: str, other: str) -> Marked:
    """A text in pieces, with those marked that another one does not have in the same order."""
    own, theirs = TOKENS.findall(text), TOKENS.findall(other)
    pieces: Marked = []
    for kind, start, end, *_ in difflib.SequenceMatcher(
        None, own, theirs, autojunk=False
    ).get_opcodes():
        if start < end:
            pieces.append(("".join(own[start:end]), kind != "equal"))
    return pieces


def side_by_side(texts: Texts) -> list[Shown]:
    """The sentences on which each system gains and loses most against the baseline, by sentence
    BLEU; of one system, its best and its worst.

    Returns: at most MOST_LINES, in the order of the text; words are marked that differ from the
        baseline's (of one system: the reference's).
    """
    why: dict[int, list[str]] = {}
    bleu = texts.scores.get("bleu", {})
    base, *others = texts.outputs
    for name in others if base == texts.baseline else []:
        if name not in bleu:
            continue
        deltas = [own - theirs for own, theirs in zip(bleu[name], bleu[base], strict=True)]
        _note_ends(why, deltas, functools.partial(_gain, name))
    if not why and bleu:
        first = next(iter(bleu))
        middle = sum(bleu[first]) / max(1, len(bleu[first]))
        _note_ends(
            why,
            [value - middle for value in bleu[first]],
            lambda delta: f"among the {'best' if delta > 0 else 'worst'} of {first}",
        )
    lines = (
        sorted(sorted(why, key=lambda line: -len(why[line]))[:MOST_LINES])
        if why
        else list(range(min(2 * EACH_WAY, len(texts.sources))))
    )
    return [_shown(texts, line, why.get(line, [])) for line in lines]


def _gain(name: str, delta: float) -> str:
    return f"{name} {'gains' if delta > 0 else 'loses'} {abs(delta):.1f}"


def _note_ends(
    why: dict[int, list[str]], deltas: Sequence[float], reason: Callable[[float], str]
) -> None:
    """Note, of the lines with the largest and the smallest differences, why they are shown."""
    order = sorted(range(len(deltas)), key=lambda line: (deltas[line], line))
    chosen = [line for line in order[:EACH_WAY] if deltas[line] < 0] + [
        line for line in reversed(order[-EACH_WAY:]) if deltas[line] > 0
    ]
    for line in chosen:
        why.setdefault(line, []).append(reason(deltas[line]))


def _shown(texts: Texts, line: int, why: list[str]) -> Shown:
    base = next(iter(texts.outputs))
    alone = len(texts.outputs) == 1
    outputs = []
    for name, lines in texts.outputs.items():
        value = texts.scores.get("bleu", {}).get(name, [math.nan] * len(lines))[line]
        if name == base and not alone:
            marked: Marked = [(lines[line], False)]
        else:
            marked = differences(
                lines[line], texts.references[0][line] if alone else texts.outputs[base][line]
            )
        outputs.append((name, None if math.isnan(value) else value, marked))
    return Shown(
        line + 1,
        why,
        texts.sources[line],
        [reference[line] for reference in texts.references],
        outputs,
    )
