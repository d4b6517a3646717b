"""Sources, references and translations of a set, with the scores of each sentence and the words
that differ.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit import files
from nmtkit.errors import DataError, counted
from nmtkit.records import MOST
from nmtkit.report.commands import score_command
from nmtkit.report.contents import Contents, translate_again
from nmtkit.score.evaluate import OF_SENTENCES
from nmtkit.score.translations import lines_of

TOKENS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[\w'’-]+|\s+|.", re.S)
"""Words, single characters of scripts without spaces, spaces, anything else. explorer.js has the
same expression.
"""
EACH_WAY = 3
"""Sentences that are shown of each system's gains, and of its losses."""
MOST_LINES = 40
MOST_CHARACTERS = 3000
"""The page shortens longer texts, because a browser compares all words of two texts in pairs."""
Marked = list[tuple[str, bool]]
"""Pieces of a text, each with True if it differs."""


@dataclass(frozen=True)
class Texts:
    """The N sentences of a set.

    Outputs are by system, the baseline first. Scores are by metric and system. Lengths are those of
    the sources in subwords, if known.
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
    """One sentence side by side: its number, why it is shown, its texts, and the output of each
    system with its score and the pieces that differ.
    """

    line: int
    why: list[str]
    source: str
    references: list[str]
    outputs: list[tuple[str, float | None, Marked]]


def read_texts(contents: Contents, set_name: str) -> Texts | None:
    """Return the texts of a scored set; None, with a remark, if texts are missing or have another
    number of lines than the scores.
    """
    result, run = contents.scores[set_name], contents.run
    count = result.sentences
    prepare = "nmtkit prep DATASET --force"
    try:
        paths = run.source(set_name), *run.references(set_name)
        sources, *references = (lines_of(path, count, prepare) for path in paths)
    except DataError as error:
        contents.note(
            f"{set_name}: its texts cannot be shown ({error.message}). Prepare the corpus again"
            " with the same options, which are in the calls of stages:",
            prepare,
        )
        return None
    outputs = _outputs(contents, set_name)
    if not outputs:
        contents.note(f"{set_name}: its texts cannot be shown (no translation is left)")
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
            lines[:] = [
                text[:MOST_CHARACTERS] + " …" * (len(text) > MOST_CHARACTERS) for text in lines
            ]
    path = run.path / "score" / set_name / "sentences.tsv"
    try:
        columns = _columns(path, count)
        scores = {
            score: {name: list(map(_number, columns[f"{name}.{score}"])) for name in outputs}
            for score in OF_SENTENCES
            if all(f"{name}.{score}" in columns for name in outputs)
        }
        lengths = list(map(int, columns["src_length"])) if "src_length" in columns else None
    except (DataError, ValueError, KeyError):
        scores, lengths = {}, None
        contents.note(
            f"{set_name}: sentences.tsv is missing or of other translations, so sentences have no"
            " scores",
            f"{score_command(contents.run, set_name, result)} --force",
        )
    return Texts(set_name, result.baseline, sources, references, outputs, scores, lengths)


def _outputs(contents: Contents, set_name: str) -> dict[str, list[str]]:
    """Return the scored translations by system, the baseline first."""
    result, outputs = contents.scores[set_name], {}
    for name in dict.fromkeys([result.baseline, *result.names]):
        path = contents.run.system(name).translation(set_name) / "hyp.txt"
        problem = f"{set_name}: the translation by {name} cannot be shown"
        with contents.noting(problem, translate_again(contents, set_name, name)):
            outputs[name] = lines_of(path, result.sentences, "")
    return outputs


def _columns(path: Path, count: int) -> dict[str, tuple[str, ...]]:
    """Return the columns of sentences.tsv by name.

    Raises: DataError or ValueError unless the file has `count` lines of equal numbers of cells.
    """
    header, *rows = [line.split("\t") for line in files.text_lines(path)]
    if len(rows) != count:
        raise ValueError(count)
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def _number(cell: str) -> float:
    """Return the number in a cell.

    Raises: ValueError if the cell has no finite number.
    """
    if not abs(number := float(cell)) <= MOST:
        raise ValueError(cell)
    return number


def differences(text: str, other: str) -> Marked:
    """Return a text in pieces. A piece that another text does not have at this place is marked."""
    tokens, theirs = _tokens(text), _tokens(other)
    pieces = []
    for kind, start, end, *_ in difflib.SequenceMatcher(
        None, tokens, theirs, autojunk=False
    ).get_opcodes():
        if start < end:
            pieces.append(("".join(tokens[start:end]), kind != "equal"))
    return pieces


def _tokens(text: str) -> list[str]:
    """Return the TOKENS of a text; combining marks are letters."""
    letters = "".join("a" if unicodedata.category(c)[0] == "M" else c for c in text)
    return [text[slice(*token.span())] for token in TOKENS.finditer(letters)]


def side_by_side(texts: Texts) -> tuple[str, list[Shown]]:
    """Return which sentences are shown, in words, and the sentences.

    Each system's largest gains and losses in sentence BLEU against the baseline are shown; without
    the baseline, the best and worst sentences of the first system; without scores, the first
    sentences.

    Returns: at most MOST_LINES sentences, in the order of the text. Words are marked that differ
        from the first system (if there is one system: from the reference).
    """
    why, reasons = _reasons(texts)
    lines = sorted(sorted(reasons, key=lambda line: -len(reasons[line]))[:MOST_LINES])
    which = f"The sentences of {texts.set_name} on which {why}, by sentence BLEU."
    if not reasons:
        lines = list(range(min(2 * EACH_WAY, len(texts.sources))))
        which = f"The first sentences of {texts.set_name}."
    return which, [_shown(texts, line, reasons.get(line, [])) for line in lines]


def _reasons(texts: Texts) -> tuple[str, dict[int, list[str]]]:
    """Return what all shown lines have in common, and the reasons to show each line."""
    reasons: dict[int, list[str]] = defaultdict(list)
    bleu = texts.scores.get("bleu", {})
    base, *systems = texts.outputs
    of_base = bleu.get(base, [])
    why = f"a system gains or loses most against {base}"
    if base == texts.baseline and of_base:
        for name in systems:
            deltas = [score - theirs for score, theirs in zip(bleu[name], of_base, strict=True)]
            for line in _ends(deltas):
                verb = "gains" if deltas[line] > 0 else "loses"
                reasons[line].append(f"{name} {verb} {abs(deltas[line]):.1f}")
    if not reasons and of_base:
        why = f"{base} scores best and worst"
        mean = sum(of_base) / len(of_base)
        deltas = [score - mean for score in of_base]
        for line in _ends(deltas):
            reasons[line] = [f"among the {'best' if deltas[line] > 0 else 'worst'} of {base}"]
    return why, reasons


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
