"""Compare the translations of nmtkit and of another engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nmtkit import console, files
from nmtkit.errors import NmtkitError, counted
from nmtkit.export.engine import Engine, Sentences, Translate
from nmtkit.run import Run
from nmtkit.settings import SearchSettings
from nmtkit.tables.table import Column, Table
from nmtkit.text.side import TextSide
from nmtkit.translate import workers
from nmtkit.translate.hypotheses import length_limit
from nmtkit.translate.searcher import sentences_at_once
from nmtkit.translate.systems import SystemGroup

WARM = 8
"""Number of lines translated before the time is measured."""
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
class Searched:
    """The translations of both engines with one beam.

    Attributes:
        ours, theirs: the translations of nmtkit and of the engine, as text.
        equal: True where both translations have the same subwords.
        seconds: processor seconds of nmtkit and of the engine.
    """

    beam: int
    ours: list[str]
    theirs: list[str]
    equal: list[bool]
    seconds: tuple[float, float]

    @property
    def share(self) -> float:
        """The share of equal translations."""
        return sum(self.equal) / len(self.equal)


def check(group: SystemGroup, engine: Engine, folder: Path, count: int, percent: float) -> None:
    """Translate lines with nmtkit and with an engine, and print how the translations differ.

    Args:
        group: the system.
        engine: the engine.
        folder: the exported system.
        count: the maximum number of lines.
        percent: the percentage of translations that must be equal: of every search, or of greedy
            search alone if the engine has another beam search.
    Raises: Disagreement if fewer translations are equal; DataError if there are no lines.
    """
    side = TextSide.load(group.run.prep, "src")
    name, lines = comparable_lines(group.run, count, group.settings.max_source, side)
    label, translate = engine.load(folder)
    searches = compare(group, translate, lines, [side.encode(line) for line in lines])
    show(searches, label, lines, f"{counted(len(lines), 'line')} of {name}, no length penalty")
    for searched in searches[: None if engine.same_search else 1]:
        if searched.share < percent / 100:
            equal = f"only {sum(searched.equal)} of {len(lines)} translations are equal"
            lower = "lower --at-least: rounded weights (--quantization) change some translations"
            raise Disagreement(
                f"{equal}, less than {percent:.0f}% (beam {searched.beam})",
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
    raise run.no_test_set("leave --check out")


def compare(
    group: SystemGroup, translate: Translate, lines: list[str], sources: Sentences
) -> list[Searched]:
    """Translate lines with a system and with its exported folder, each on one core: with greedy
    search, and with the system's beam search.

    Both engines use the system's batch size. Neither uses a length penalty, because their formulas
    differ. All lines have the same length limit: the largest limit that nmtkit has for any of the
    lines. nmtkit computes in float32.

    Args:
        sources: the subwords of each line.
    """
    settings, cpu = group.settings, torch.device("cpu")
    limit = max(length_limit(len(subwords) + 1, settings) for subwords in sources)
    searches = []
    with workers.one_thread(cpu):
        for beam in sorted({1, settings.beam}):
            search = plain_search(settings, beam, limit)
            plain = replace(group, settings=search)
            translator = plain.scorer(cpu, plain.hardware(cpu, forced=True).precision)
            rows = sentences_at_once(search, cpu, len(lines))
            ours, seconds = _timed(translator.translate_window, lines)
            theirs, their_seconds = _timed(translate, sources, beam, limit, rows)
            searched = Searched(
                beam,
                [translation.text for translation in ours],
                [translator.tgt_side.decode(subwords) for subwords in theirs],
                [best.subwords == subwords for best, subwords in zip(ours, theirs, strict=True)],
                (seconds, their_seconds),
            )
            searches.append(searched)
    return searches


def plain_search(settings: SearchSettings, beam: int, limit: int) -> SearchSettings:
    """Return the settings of a beam search without length penalty, and with one length limit."""
    kept = settings.model_dump(include={"max_source", "batch_size"})
    limits = {"length_penalty": 0, "max_length_a": 0, "max_length_b": limit}
    return SearchSettings.model_validate(kept | limits | {"beam": beam})


def _timed(
    work: Callable[..., list[Any]], lines: list[Any], *arguments: int
) -> tuple[list[Any], float]:
    """Return the result for lines, and the processor seconds that `work` takes after a warm-up."""
    work(lines[:WARM], *arguments)
    start = time.process_time()
    result = work(lines, *arguments)
    return result, time.process_time() - start


def show(searches: list[Searched], engine: str, lines: list[str], title: str) -> None:
    """Print the comparison on stdout.

    Args:
        engine: its name and number type.
        title: describes the lines.
    """
    count = len(lines)
    columns = [Column(name, name) for name in ("beam", "equal translations", "nmtkit", engine)]
    rows = []
    for searched in searches:
        speeds = [f"{count / max(1e-9, seconds):,.1f}/s" for seconds in searched.seconds]
        equal = f"{sum(searched.equal)} of {count} ({searched.share:.1%})"
        rows.append([str(searched.beam), equal, *speeds])
    Table("speed", title, columns, rows, ["/s: sentences per second on one core"]).print()
    for searched in searches:
        for number in [i for i, same in enumerate(searched.equal) if not same][:SHOWN]:
            console.put(
                f"{number + 1} (beam {searched.beam}): {lines[number]}\n"
                f"  nmtkit  {searched.ours[number]}\n  engine  {searched.theirs[number]}"
            )
