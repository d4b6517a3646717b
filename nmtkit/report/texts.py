"""Sources, references and translations of a set with the scores of each sentence, and the words
that differ.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError, counted
from nmtkit.report.contents import Contents

SCORES = ("bleu", "chrf")
"""The sentence scores of sentences.tsv."""
TOKENS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[\w'’-]+|\s+|.", re.S)
"""Words, single characters where words are written without spaces, spaces, anything else;
explorer.js has the same.
"""
EACH_WAY = 3
"""Sentences shown of each system's gains, and of its losses."""
MOST_LINES = 40
MOST_CHARACTERS = 3000
"""The page shortens longer texts, because a browser compares each word of two texts with each."""
Marked = list[tuple[str, bool]]
"""Pieces of a text; True if a piece differs."""


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


def read_texts(contents: Contents, set_name: str) -> Texts | None:
    """Return the texts of a scored set; None, with a remark, if they do not belong together any
    more.
    """
    result, run = contents.scores[set_name], contents.run
    count = result.sentences
    again = f"nmtkit score --force --on {set_name}"
    try:
        sources = list(files.text_lines(run.source(set_name)))
        references = [list(files.text_lines(path)) for path in run.references(set_name)]
        if {len(sources), *map(len, references)} != {count}:
            raise DataError(f"not all texts have the {count:,} lines that were scored")
        outputs = _outputs(contents, set_name, again)
        if not outputs:
            raise DataError("no translation is left")
    except DataError as error:
        contents.note(f"{set_name}: its texts cannot be shown ({error.message})", again)
        return None
    shown = [sources, *references, *outputs.values()]
    if long := sum(
        any(len(text) > MOST_CHARACTERS for text in line) for line in zip(*shown, strict=True)
    ):
        contents.note(
            f"{set_name}: {counted(long, 'line')} longer than {MOST_CHARACTERS:,} characters: this"
            " page has only the beginning"
        )
        for lines in shown:
            for number, text in enumerate(lines):
                if len(text) > MOST_CHARACTERS:
                    lines[number] = text[:MOST_CHARACTERS] + " …"
    path = run.path / "score" / set_name / "sentences.tsv"
    try:
        columns = _columns(path, count)
        scores = {
            score: {name: list(map(float, columns[f"{name}.{score}"])) for name in outputs}
            for score in SCORES
            if all(f"{name}.{score}" in columns for name in outputs)
        }
        lengths = list(map(int, columns["src_length"])) if "src_length" in columns else None
    except (DataError, ValueError, KeyError):
        scores, lengths = {}, None
        contents.note(
            f"{set_name}: sentences.tsv is missing or of other translations, so sentences have no"
            " scores",
            again,
        )
    return Texts(set_name, result.baseline, sources, references, outputs, scores, lengths)


def _outputs(contents: Contents, set_name: str, again: str) -> dict[str, list[str]]:
    """Return the translations that were scored, by system, the baseline's first; again: the command
    that scores those that have changed.
    """
    result, outputs = contents.scores[set_name], {}
    for name in dict.fromkeys([result.baseline, *result.names]):
        path = contents.run.system(name).translation(set_name) / "hyp.txt"
        lines = list(files.text_lines(path)) if path.is_file() else []
        if len(lines) == result.sentences:
            outputs[name] = lines
        else:
            contents.note(
                f"{set_name}: the translation by {name} is gone, or not the one that was scored",
                again,
            )
    return outputs


def _columns(path: Path, count: int) -> dict[str, tuple[str, ...]]:
    """Return the columns of sentences.tsv by their names.

    Raises: DataError or ValueError if the file is damaged, or has not `count` lines.
    """
    header, *rows = [line.split("\t") for line in files.text_lines(path)]
    if len(rows) != count:
        raise ValueError(count)
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def differences(text: str, other: str) -> Marked:
    """Return a text in pieces; the pieces that another text does not have there are marked."""
    tokens, theirs = TOKENS.findall(text), TOKENS.findall(other)
    pieces = []
    for kind, start, end, *_ in difflib.SequenceMatcher(
        None, tokens, theirs, autojunk=False
    ).get_opcodes():
        if start < end:
            pieces.append(("".join(tokens[start:end]), kind != "equal"))
    return pieces


def side_by_side(texts: Texts) -> list[Shown]:
    """Return the sentences on which each system gains and loses most against the baseline, by
    sentence BLEU; of one system, its best and its worst.

    Returns: at most MOST_LINES, in the order of the text; words are marked that differ from the
        baseline's (of one system: the reference's).
    """
    reasons = _reasons(texts)
    lines = sorted(sorted(reasons, key=lambda line: -len(reasons[line]))[:MOST_LINES])
    if not reasons:
        lines = list(range(min(2 * EACH_WAY, len(texts.sources))))
    return [_shown(texts, line, reasons.get(line, [])) for line in lines]


def _reasons(texts: Texts) -> dict[int, list[str]]:
    """Return the lines worth showing, each with the reasons why."""
    reasons: dict[int, list[str]] = {}
    bleu = texts.scores.get("bleu", {})
    base, *systems = texts.outputs
    if base == texts.baseline and bleu:
        for name in systems:
            deltas = [score - theirs for score, theirs in zip(bleu[name], bleu[base], strict=True)]
            for line in _ends(deltas):
                verb = "gains" if deltas[line] > 0 else "loses"
                reasons.setdefault(line, []).append(f"{name} {verb} {abs(deltas[line]):.1f}")
    if not reasons and bleu:
        first = next(iter(bleu))
        mean = sum(bleu[first]) / max(1, len(bleu[first]))
        deltas = [value - mean for value in bleu[first]]
        for line in _ends(deltas):
            reasons[line] = [f"among the {'best' if deltas[line] > 0 else 'worst'} of {first}"]
    return reasons


def _ends(deltas: Sequence[float]) -> list[int]:
    """Return the lines with the largest losses and gains."""
    order = sorted(range(len(deltas)), key=lambda line: (deltas[line], line))
    losses = [line for line in order[:EACH_WAY] if deltas[line] < 0]
    return losses + [line for line in reversed(order[-EACH_WAY:]) if deltas[line] > 0]


def _shown(texts: Texts, line: int, why: list[str]) -> Shown:
    base, *systems = texts.outputs
    bleu = texts.scores.get("bleu", {})
    references = [reference[line] for reference in texts.references]
    other = texts.outputs[base][line] if systems else references[0]
    outputs = []
    for name, lines in texts.outputs.items():
        unmarked = name == base and systems
        marked = [(lines[line], False)] if unmarked else differences(lines[line], other)
        outputs.append((name, bleu[name][line] if name in bleu else None, marked))
    return Shown(line + 1, why, texts.sources[line], references, outputs)
