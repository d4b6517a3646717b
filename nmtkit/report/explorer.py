"""The data of a page's sentence explorer: the texts, scores and attention of every sentence in one
JSON object of limited size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmtkit.errors import counted
from nmtkit.files import JsonObject
from nmtkit.records import load
from nmtkit.report.contents import Contents
from nmtkit.report.texts import Texts

if TYPE_CHECKING:
    from nmtkit.analyze.attention import SentenceAttention, SystemAttention
    from nmtkit.report.page import Part

MOST = 4_000_000
"""The most bytes of JSON for the sentences of all sets. If they need more, the page has only every
second or third sentence, and so on.
"""
MOST_WEIGHTS = 40_000
"""The page leaves out the attention of a sentence with more weights: a browser makes a table cell
for each.
"""


def read_attention(contents: Contents) -> list[SystemAttention]:
    """Return the attention of each system that `analyze attention` stored; [] if it was not run.
    A remark names what is left out: outdated attention, a damaged file, a sentence with too many
    weights.
    """
    if (reported := contents.findings.get("attention")) is None:
        return []
    if reported.outdated:
        text = "The explorer leaves out the attention of analyze/attention: it is out of date."
        contents.note(text, reported.command)
        return []
    folder, names = contents.run.path / "analyze" / "attention", reported.finding.attachments
    if not names:
        return []
    from nmtkit.analyze.attention import SystemAttention

    systems = []
    for name in names:
        problem = f"analyze/attention/{name} cannot be read"
        with contents.noting(problem, f"{reported.command} --force"):
            system = load(SystemAttention, folder / name)
            known = system.sentences
            short = {k: s for k, s in known.items() if len(s.src) * len(s.tgt) <= MOST_WEIGHTS}
            if left_out := len(known) - len(short):
                contents.note(
                    f"attention of {system.system}: {counted(left_out, 'sentence')} left out, of"
                    f" more than {MOST_WEIGHTS:,} weights"
                )
            systems.append(system.model_copy(update={"sentences": short}))
    return systems


def step_of(all_texts: Sequence[Texts], most: int = MOST) -> int:
    """Return the step n at which every n-th line of all sets takes at most `most` bytes."""
    texts = (script_text(_rows(texts, range(len(texts.sources)))) for texts in all_texts)
    return max(1, -(-sum(len(text.encode()) for text in texts) // most))


def data(part: Part) -> JsonObject:
    """Return the object that explorer.js reads: texts and attention of every `step`-th line."""
    sets = []
    for texts in part.texts:
        shown = {
            "name": texts.set_name,
            "systems": list(texts.outputs),
            "baseline": texts.baseline,
            **_rows(texts, range(0, len(texts.sources), part.step)),
        }
        attention = [
            {
                "system": system.system,
                "site": system.site,
                "of": {
                    str(line // part.step): _packed(sentence)
                    for line, sentence in system.sentences.items()
                    if line % part.step == 0
                },
            }
            for system in part.attention
            if system.set_name == texts.set_name
        ]
        if attention:
            shown["attention"] = attention
        sets.append(shown)
    return {"languages": list(part.languages), "sets": sets}


def script_text(value: object) -> str:
    """Return JSON that no HTML parser reads as markup: nothing in it can close, open or comment out
    a script element.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _rows(texts: Texts, lines: Sequence[int]) -> JsonObject:
    """Return the columns of some lines: number from 1, source length, texts, scores to a tenth."""
    return {
        "line": [line + 1 for line in lines],
        "length": None if texts.lengths is None else [texts.lengths[line] for line in lines],
        "src": [texts.sources[line] for line in lines],
        "refs": [[reference[line] for line in lines] for reference in texts.references],
        "hyps": [[output[line] for line in lines] for output in texts.outputs.values()],
        "scores": {
            score: [[round(values[line], 1) for line in lines] for values in by_system.values()]
            for score, by_system in texts.scores.items()
        },
    }


def _packed(sentence: SentenceAttention) -> JsonObject:
    """Return weights as one character each, 0-9 and a-z for 0 to 1 in 35 steps."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    rows = [
        "".join(digits[round(35 * min(max(weight, 0.0), 1.0))] for weight in row)
        for row in sentence.weights
    ]
    return {"src": sentence.src, "tgt": sentence.tgt, "rows": rows}
