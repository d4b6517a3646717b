"""Compare the translations of nmtkit and CTranslate2 (the two engines)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nmtkit import files
from nmtkit.errors import DataError, NmtkitError
from nmtkit.run import Run
from nmtkit.tables.table import Column, Table, text_column
from nmtkit.text.side import TextSide
from nmtkit.translate import workers
from nmtkit.translate.beam import length_limit
from nmtkit.translate.forced import forced_scores, pair_batch
from nmtkit.translate.systems import SystemGroup
from nmtkit.translate.translator import Translator

WARM = 8
"""Number of lines translated before the time is measured."""
ROWS = 32
"""Number of sentence pairs scored at once."""
SHARE = 95.0
"""Percentage of translations that must be equal. In float32 the engines may choose differently if
two hypotheses have almost the same score.
"""
SHOWN = 3
"""Maximum number of different translations to print."""


class Disagreement(NmtkitError):
    """Both engines agree on too few translations."""

    exit_code = 1


@dataclass(frozen=True)
class Checked:
    """The results of both engines for the same lines.

    Attributes:
        ours, theirs: the translations of nmtkit and of CTranslate2, as text.
        equal: True where both translations have the same subwords.
        gap: both engines score CTranslate2's translations; the largest difference between their
            log-probabilities.
        seconds: processor seconds of nmtkit and of CTranslate2.
        compute_type: the number type in which CTranslate2 computed.
    """

    lines: list[str]
    ours: list[str]
    theirs: list[str]
    equal: list[bool]
    gap: float
    seconds: tuple[float, float]
    compute_type: str

    @property
    def share(self) -> float:
        """Return the share of equal translations."""
        return sum(self.equal) / len(self.equal)


def check(group: SystemGroup, folder: Path, count: int, percent: float) -> None:
    """Translate lines with both engines, and print how the translations differ.

    Args:
        group: the system.
        folder: the exported system.
        count: the maximum number of lines.
        percent: the percentage of translations that must be equal.
    Raises: Disagreement if fewer translations are equal; DataError if there are no lines.
    """
    search = group.settings
    side = TextSide.load(group.run.prep, "src")
    name, lines = comparable_lines(group.run, count, search.max_source, side)
    checked = compare(group, folder, lines)
    show(checked, f"{len(lines)} lines of {name}, beam {search.beam}, no length penalty")
    if checked.share < percent / 100:
        equal = f"only {sum(checked.equal)} of {len(lines)} translations are equal"
        lower = "lower --at-least: rounded weights (--quantization) change some translations"
        raise Disagreement(
            f"{equal}, less than {percent:.0f}%",
            where=folder,
            hint=lower if percent < SHARE else "please report this bug in nmtkit",
        )


def comparable_lines(run: Run, count: int, longest: int, side: TextSide) -> tuple[str, list[str]]:
    """Return the first lines of the run's first test set (or of dev) that are neither blank nor
    translated in pieces.

    Returns: the set's name, and at most `count` lines.
    Raises: DataError if there are none.
    """
    for text_set in [*run.sets("test"), *run.sets("dev")]:
        if run.source(text_set.name).is_file():
            usable = (
                line
                for line in files.text_lines(run.source(text_set.name))
                if line.strip() and len(side.encode(line)) <= longest
            )
            if lines := list(itertools.islice(usable, count)):
                return text_set.name, lines
    raise DataError(
        "this run has no test set to compare translations of",
        where=run.prep,
        hint="leave --check out",
    )


def compare(group: SystemGroup, folder: Path, lines: list[str]) -> Checked:
    """Translate lines with a system and with its exported folder, each on one core.

    Both engines use the system's beam and batch sizes. Neither uses a length penalty, because their
    formulas differ. All lines have the same length limit: the largest limit that nmtkit has for any
    of the lines. nmtkit computes in float32.
    """
    import ctranslate2

    search = group.settings
    side = TextSide.load(group.run.prep, "src")
    sources = [side.encode(line) for line in lines]
    limit = max(length_limit(len(subwords) + 1, search) for subwords in sources)
    threads = {"inter_threads": 1, "intra_threads": 1}
    engine = ctranslate2.Translator(str(folder), device="cpu", compute_type="default", **threads)
    options: dict[str, Any] = {
        "beam_size": search.beam,
        "max_batch_size": search.batch_size,
        "length_penalty": 0,
        "max_decoding_length": limit,
        "max_input_length": 0,
        "min_decoding_length": 0,  # as in nmtkit's search, a translation may be empty
    }
    with workers.one_thread(torch.device("cpu")):
        translator = _translator(group, limit)
        ours, seconds = _timed(lambda part: list(translator.translate(part)), lines)
        theirs, their_seconds = _timed(
            lambda part: engine.translate_batch(part, **options), sources
        )
        hypotheses = [list(result.hypotheses[0]) for result in theirs]
        gap = _largest_gap(translator, engine, sources, hypotheses)
    return Checked(
        lines,
        [translation.text for translation in ours],
        [translator.tgt_side.decode(subwords) for subwords in hypotheses],
        [best.subwords == subwords for best, subwords in zip(ours, hypotheses, strict=True)],
        gap,
        (seconds, their_seconds),
        engine.compute_type,
    )


def _translator(group: SystemGroup, limit: int) -> Translator:
    """Return nmtkit's translator, without length penalty and with one length limit."""
    changes = {"nbest": 1, "length_penalty": 0.0, "max_length_a": 0.0, "max_length_b": limit}
    group = replace(group, settings=group.settings.model_copy(update=changes))
    cpu = torch.device("cpu")
    return group.scorer(cpu, group.hardware(cpu, forced=True).precision)


def _timed(work: Callable[[list[Any]], list[Any]], lines: list[Any]) -> tuple[list[Any], float]:
    """Return the result for lines, and the processor seconds that `work` takes after a warm-up."""
    work(lines[:WARM])
    start = time.process_time()
    result = work(lines)
    return result, time.process_time() - start


def _largest_gap(
    translator: Translator, engine: Any, sources: list[list[str]], targets: list[list[str]]
) -> float:
    """Return the largest difference between the engines' log-probabilities of a target."""
    ours = []
    for start in range(0, len(sources), ROWS):
        part = slice(start, start + ROWS)
        batch = pair_batch(
            [translator.src_vocab.encode(subwords) for subwords in sources[part]],
            [translator.tgt_vocab.encode(subwords) for subwords in targets[part]],
        )
        ours += [sum(scores) for scores in forced_scores(translator.models, batch)]
    theirs = engine.score_batch(sources, targets, max_input_length=0)
    gaps = [abs(score - sum(result.log_probs)) for score, result in zip(ours, theirs, strict=True)]
    return float(max(gaps))


def show(checked: Checked, of: str) -> None:
    """Print the comparison on stdout; `of` is the title, which describes the lines."""
    count = len(checked.lines)
    engines = ("nmtkit", f"CTranslate2, {checked.compute_type}")
    rows = [
        [engine, f"{count / max(1e-9, seconds):,.1f}"]
        for engine, seconds in zip(engines, checked.seconds, strict=True)
    ]
    columns = [text_column("engine"), Column("speed", "sentences per second on one core")]
    Table("speed", of, columns, rows).print()
    print(f"equal translations: {sum(checked.equal)} of {count} ({checked.share:.1%})")
    print(
        "both engines' log-probabilities of CTranslate2's translations differ by at most"
        f" {checked.gap:.2g}"
    )
    for number in [i for i, same in enumerate(checked.equal) if not same][:SHOWN]:
        print(
            f"{number + 1}: {checked.lines[number]}\n  nmtkit       {checked.ours[number]}\n "
            f" CTranslate2  {checked.theirs[number]}"
        )
