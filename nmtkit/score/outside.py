"""Scores of outside files, without a run: any system's output against any reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.prep.check import first_odd_pair
from nmtkit.run import code_commit
from nmtkit.score import lengths
from nmtkit.score.evaluate import Output, Task, check_baseline, evaluate
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import Draws
from nmtkit.score.show import show
from nmtkit.score.significance import check_test
from nmtkit.settings import PrepSettings, build
from nmtkit.tables.table import check_format
from nmtkit.text.side import TextSide


def score_files(hyps: Sequence[Path], refs: Sequence[Path], **values: Any) -> None:
    """Score outside files, without a run; printed only.

    Args:
        hyps: translations, one file a system; refs: references. Each is read once, and may be a
            pipe.
        values: of `ScoreOptions`, but those of a run.
    Raises: ConfigError if hypotheses or references are missing, DataError where a file is missing
        or all are empty, or line counts differ.
    """
    options = ScoreOptions.of(values)
    src, language, buckets = options.src, options.language, options.length_groups
    check_format(options.output_format)
    check_test(options.test)
    lengths.groups(buckets or "dc")
    if not hyps or not refs:
        raise ConfigError(
            "--hyp and --ref go together",
            where="nmtkit score",
            hint="nmtkit score --hyp FILE [--hyp FILE …] --ref FILE",
        )
    if src is not None and not buckets:
        files.check_file(src, once=True)
        console.warn("--src is only used by --by-length: its words are counted there")
    streams = [list(files.text_lines(path, once=True)) for path in refs]
    names = _file_names(hyps)
    side = TextSide(language, build(PrepSettings, {}, "prep")) if language else None
    translations = zip(names, _translations(hyps, refs, streams), strict=True)
    outputs = [
        Output(name, lines, [side.cased(line) for line in lines] if side else ())
        for name, lines in translations
    ]
    if not streams[0]:
        raise DataError(
            f"nothing to score: {refs[0]} is empty", hint="name files with one sentence a line"
        )
    found, unit = _word_counts(src, refs[0], streams[0]) if buckets else (None, "")
    language = language if language is not None else _language(refs[0])
    task = Task(
        set_name=refs[0].name,
        refs=streams,
        tokenized_refs=(
            [[side.cased(line) for line in stream] for stream in streams] if side else None
        ),
        tokenization=side.tokenization if side else "none",
        lang=language,
        baseline=check_baseline(_file_name(options.against, hyps, names), names),
        draws=Draws(
            len(streams[0]), options.resamples, options.trials, options.ratio, options.seed
        ),
        test=options.test,
        src_lengths=found,
        length_unit=unit,
        buckets=buckets or "dc",
        commit=code_commit(),
    )
    tokens = "tok. BLEU takes its tokens" if side else "tok. BLEU needs --lang"
    console.say(
        "BLEU, chrF and TER take the files as detokenised text (language:"
        f" {language or 'not known'}), {tokens}"
    )
    evaluation = evaluate(outputs, task)
    if len(names) == 1:
        console.say("one file: nothing to compare with; name another with --hyp")
    show([evaluation.result], options.output_format, bool(buckets))


def _word_counts(
    src: Path | None, ref: Path, reference: list[str]
) -> tuple[NDArray[np.int64], str]:
    """The words of every line of the source, or of the reference where there is none, and what they
    are words of.

    Raises: DataError if the source has not as many lines as the reference.
    """
    lines = reference
    if src is not None:
        lines = list(files.text_lines(src, once=True))
        _check_lines(
            src, ref, (len(lines), len(reference)), "give the source of these translations"
        )
    counts = np.array([len(line.split()) for line in lines], dtype=np.int64)
    return counts, "words of the source" if src else "words of the reference (no --src given)"


def _translations(
    hyps: Sequence[Path], refs: Sequence[Path], streams: list[list[str]]
) -> list[list[str]]:
    """The lines of each translation.

    Raises: DataError where one has not as many lines as a reference.
    """
    found = []
    for path in hyps:
        lines = list(files.text_lines(path, once=True))
        for ref, stream in zip(refs, streams, strict=True):
            _check_lines(path, ref, (len(lines), len(stream)), "line i of each must be sentence i")
        found.append(lines)
    return found


def _check_lines(path: Path, other: Path, counts: tuple[int, int], hint: str) -> None:
    """Refuse two files whose line counts differ, with the line from which on they do not seem to
    belong together.
    """
    if counts[0] != counts[1]:
        again = (
            all(counts) and path.is_file() and other.is_file()
        )  # not the pipes, which are empty now
        where = first_odd_pair((path,), (other,)) if again else None
        raise DataError(
            f"{path} has {counted(counts[0], 'line')} but {other} has {counts[1]:,}",
            where=where,
            hint=hint,
        )


def _language(path: Path) -> str:
    """The language code a file name ends in (before any compression suffix), or nothing."""
    suffixes = [s for s in path.suffixes if s not in files.COMPRESSED]
    code = suffixes[-1][1:] if suffixes else ""
    return (
        code
        if re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", code)
        and code not in {"txt", "ref", "tok", "tc", "lc", "out", "hyp"}
        else ""
    )


def _file_names(paths: Sequence[Path]) -> list[str]:
    """Short names of files that tell them apart."""
    names = [path.name for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError(
            "the same file is named twice", where="--hyp", hint="give each translation once"
        )
    return names


def _file_name(against: str | None, paths: Sequence[Path], names: Sequence[str]) -> str | None:
    """The short name of a baseline that was given as name or as path."""
    return next(
        (
            name
            for name, path in zip(names, paths, strict=True)
            if against in (str(path), path.name, path.stem)
        ),
        against,
    )
