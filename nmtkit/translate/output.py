"""Prints the results of the stage `translate`: translations, or scores of given targets, and the
speed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from nmtkit import console, files
from nmtkit.corpora.corpus import is_markup
from nmtkit.corpora.document_starts import BLANK, MARKER
from nmtkit.data.ragged import RaggedShards
from nmtkit.errors import DataError, counted
from nmtkit.records import SearchSpeed
from nmtkit.translate.demands import LineDemand
from nmtkit.translate.scorer import Scorer
from nmtkit.translate.systems import SystemGroup
from nmtkit.translate.translator import Translation
from nmtkit.translate.windows import (
    MARKED,
    Boundaries,
    file_windows,
    is_marker,
    stream_windows,
)

WRONG_MARK = {
    MARKER: (
        "no line was <d>, so the whole text was one document (--docs blank: blank lines separate"
        " documents)"
    ),
    BLANK: "lines <d> were translated as sentences (--docs marker: they start documents)",
}
"""Mark that --docs names -> the warning if the text does not have this mark."""


def print_translations(
    scorer: Scorer,
    group: SystemGroup,
    source: str,
    boundaries: Boundaries,
    demands: Iterator[LineDemand] | None = None,
) -> None:
    """Translate a file or stdin (-) to stdout, a window at a time.

    Args:
        scorer: translates.
        group: its systems.
        source: the file, or -.
        boundaries: where documents start.
        demands: of each line; None = nothing.
    """
    number = 0
    marked = False
    # A terminal gets no control characters; a pipe gets them.
    shown = console.visible if sys.stdout.isatty() else str
    texts = stream_windows(sys.stdin.buffer) if source == "-" else file_windows(source)
    texts, again = itertools.tee(texts)
    lines = itertools.chain.from_iterable(again)
    windows = scorer.windows(texts, boundaries, demands)
    with _progress(scorer, group, source):
        # A program that writes to stdin may wait for translations before it writes more.
        for translations in scorer.translate_windows(windows, ahead=source != "-"):
            for translation, line in zip(translations, lines, strict=False):
                number += 1
                marked = marked or is_marker(line)
                text = translation.text + "\n"
                if group.settings.nbest > 1:
                    text = nbest_line(number, translation)
                elif boundaries.mark == MARKER and is_marker(line):
                    text = MARKED + "\n"
                sys.stdout.write(shown(text))
            sys.stdout.flush()
        if number and boundaries.mark and marked != (boundaries.mark == MARKER):
            console.warn(WRONG_MARK[boundaries.mark])


def print_forced(
    scorer: Scorer,
    group: SystemGroup,
    source: str,
    boundaries: Boundaries,
    target: Path,
    spans: RaggedShards | None,
) -> None:
    """Print the log-probabilities of the target lines of a file as JSON lines.

    Args:
        spans: of the source lines, if they are known.
    """
    targets = itertools.chain.from_iterable(map(boundaries.sentences, file_windows(target)))
    windows = scorer.windows(file_windows(source), boundaries, spans=spans)
    with _progress(scorer, group, source):
        for number, line in enumerate(scorer.force_windows(windows, targets), 1):
            record = {"line": number, "log_prob": line.log_prob, **asdict(line)}
            sys.stdout.write(console.visible(json.dumps(record, ensure_ascii=False)) + "\n")
        sys.stdout.flush()


def checked_boundaries(scorer: Scorer, source: str, boundaries: Boundaries | None) -> Boundaries:
    """Return where the documents of a file or of stdin start; without --docs at every line.

    Args:
        source: the file, or -.
        boundaries: those of --docs.
    Raises: DataError if the file lacks the mark that --docs names.
    """
    file = None if source == "-" else Path(source)
    if boundaries is None:
        if scorer.context_rule is not None:
            console.say(
                "every line is a document of its own (--docs blank: blank lines separate"
                " documents; --docs marker: lines <d> start them)"
            )
        if file and is_marker(next(files.text_lines(file), "")):
            console.warn(
                f"{file} begins with <d>, which is translated as a sentence (--docs marker: lines"
                " <d> start documents)"
            )
        elif file and is_markup(file):
            console.warn(
                f"{file} is SGM or XML: its lines are translated with their tags (nmtkit prep"
                " --test reads such files)"
            )
        return Boundaries()
    if file and boundaries.mark == MARKER and not any(map(is_marker, files.text_lines(file))):
        raise DataError(
            "no line is <d>, so the whole file would be one document",
            where=source,
            hint="--docs blank: blank lines separate documents; without --docs every line is one",
        )
    return boundaries


@contextlib.contextmanager
def _progress(scorer: Scorer, group: SystemGroup, source: str) -> Iterator[None]:
    """Show the progress through a file, unless a bar would mix with the translations. At the end
    print the counts and the speed.
    """
    start = time.monotonic()
    if source == "-" or sys.stdout.isatty():
        yield
    else:
        with console.progress(group.name, files.count_lines(Path(source))) as scorer.done:
            yield
    console.say(summary(scorer.counts, time.monotonic() - start))


def nbest_line(number: int, translation: Translation) -> str:
    """Return the n best translations of a line as a line of JSON."""
    record = {"line": number, "nbest": [asdict(candidate) for candidate in translation.candidates]}
    return json.dumps(record, ensure_ascii=False) + "\n"


def speed(counts: Counter[str], seconds: float) -> SearchSpeed:
    """Return how fast lines were translated."""
    seconds = max(seconds, 1e-9)
    return SearchSpeed(
        round(seconds, 3),
        round(counts["lines"] / seconds, 2),
        round(counts["tgt_tokens"] / seconds, 1),
    )


def summary(counts: Counter[str], seconds: float) -> str:
    """Return the number of lines, the speed and the counts that are not 0, as text."""
    rate = speed(counts, seconds).sentences_per_second
    total = (
        f"{counted(counts['lines'], 'line')} in {console.duration(seconds)}"
        f" ({rate:,.{0 if rate >= 10 else 1}f} sentences/s)"
    )
    phrases = {
        "empty": "blank, kept blank",
        "over_long": (
            f"over-long, in {counts['pieces']:,} pieces"
            if counts["pieces"]
            else "over-long, not cut"
        ),
        "unfinished": "cut at the length limit",
        "no_output": "with an empty translation",
        "unknown": "unknown source subwords",
        "unknown_target": "unknown target subwords",
        "no_spans": "read without a parse",
        "no_context": "without context",
    }
    return ", ".join(
        [total, *(f"{counts[key]:,} {phrase}" for key, phrase in phrases.items() if counts[key])]
    )
