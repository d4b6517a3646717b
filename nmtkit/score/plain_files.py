"""Scores of outside files, without a run: any system's output against any reference."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Ints
from nmtkit.corpora.corpus import check_language, is_markup
from nmtkit.corpora.document_starts import MARKER_LINE
from nmtkit.corpora.parallel_text import first_odd_pair
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.score.evaluate import (
    Output,
    Task,
    check_baseline,
    check_options,
    evaluate,
    measure,
)
from nmtkit.score.external_metrics import SetTexts, check_paths
from nmtkit.score.metrics import Scorer, has_words
from nmtkit.score.options import ScoreOptions
from nmtkit.score.result_tables import print_results
from nmtkit.settings import PrepSettings, build
from nmtkit.text.side import TextSide
from nmtkit.text.tokenizer import usual_tokenizer

STDIN = Path("-")
MOST_LINES = 10_000_000
"""The most lines of a file, because all lines are in memory."""
NO_LANGUAGES = {"src", "tgt", "ref", "hyp", "sys", "out", "txt", "tok", "tc", "lc", "bpe", "spm"}
"""Suffixes of files that look like language codes."""


def score_files(hyps: Sequence[Path], refs: Sequence[Path], **values: Any) -> None:
    """Score files without a run, and print the tables.

    Args:
        hyps: translations, one file per system; refs: references. Each file is read once, and may
            be a pipe. One of them, or the source, may be stdin (-).
        values: values of `ScoreOptions`, without those for a run.
    Raises: ConfigError if hypotheses or references are missing, DataError if a file is missing, all
        files are empty, or line counts differ.
    """
    options = ScoreOptions.of({**values, "hyps": hyps, "ref": refs})
    check_options(options)
    _check_files(hyps, refs, options)
    language, names = options.language, _names(hyps)
    check_paths(options, "{system}", names)
    streams = [(path, _lines(path)) for path in refs]
    side = TextSide(language, build(PrepSettings, {}, "prep")) if language else None
    outputs = []
    for name, path in zip(names, hyps, strict=True):
        lines = _read(path, streams, "line i of each must be sentence i")
        outputs.append(Output(name, lines, [side.cased(line) for line in lines] if side else ()))
    ref, ref_lines = streams[0]
    if not ref_lines:
        raise DataError(
            f"nothing to score: {ref} is empty", hint="name files with one sentence a line"
        )
    if marks := sum(line.strip() == MARKER_LINE.decode() for line in ref_lines):
        console.warn(
            f"<d> lines are scored as sentences ({counted(marks, 'line')} of {_called(ref)}); if"
            " they mark documents, delete them from every file"
        )
    language = _language(ref) if language is None else language
    sizes, unit = _sizes(ref_lines, language)
    unit, sources = f"{unit} of the reference (no --src given)", [""] * len(ref_lines)
    if options.src is not None and (options.length_groups is not None or options.metric):
        sources = _read(options.src, streams[:1], "give the source of these translations")
        sizes, unit = _sizes(sources, _language(options.src))
        unit += " of the source"
    elif options.metric:
        console.warn("no --src: --metric commands read empty sources")
    scorer = Scorer([lines for _, lines in streams], language, side=side)
    against = next(
        (
            name
            for name, path in zip(names, hyps, strict=True)
            if options.against in (name, str(path), path.name, path.stem)
        ),
        options.against,
    )
    task = Task(
        scorer,
        check_baseline(against, names),
        options,
        sizes,
        unit,
        SetTexts(_called(ref), sources, scorer.refs),
    )
    tokens = "tok. BLEU takes its tokens" if side else "tok. BLEU needs --lang"
    console.say(
        "BLEU, chrF and TER take the files as detokenised text (language:"
        f" {task.scorer.lang or 'not known'}), {tokens}"
    )
    print_results([evaluate(measure(outputs, task), task)], options)


def _check_files(hyps: Sequence[Path], refs: Sequence[Path], options: ScoreOptions) -> None:
    """Raise an error for a missing option or file, or a bad language, before any file is read."""
    if not hyps or not refs:
        raise ConfigError(
            f"translations and --ref go together, got {'no --ref' if hyps else 'no translation'}",
            where="nmtkit score",
            hint="nmtkit score HYP [HYP …] --ref FILE; the translations of a run: --run DIR",
        )
    if options.language:
        check_language(options.language, "--lang")
    sources = [options.src] if options.src is not None else []
    if [*hyps, *refs, *sources].count(STDIN) > 1:
        hint = "give it once, and files for the rest"
        raise ConfigError("stdin can be read only once", where="-", hint=hint)
    for name, paths in (("HYP", hyps), ("--ref", refs), ("--src", sources)):
        for path in paths:
            if path != STDIN:
                files.check_file(path, once=True, where=name)
    if sources and options.length_groups is None and not options.metric:
        console.warn("--src is only used by --by-length, which counts its words, and by --metric")


def _sizes(lines: Sequence[str], language: str) -> tuple[Ints, str]:
    """Return the length of each line and its unit: words, or characters if the language has no
    spaces between words.
    """
    spaced = usual_tokenizer(language) == "moses" or has_words([lines])
    sizes = [len(words if spaced else "".join(words)) for words in map(str.split, lines)]
    return np.array(sizes, dtype=np.int64), "words" if spaced else "characters"


def _read(path: Path, partners: Iterable[tuple[Path, list[str]]], hint: str) -> list[str]:
    """Return the lines of a file.

    Args:
        partners: files with their lines, as many as this file must have.
    Raises: DataError if line counts differ, with the first line that does not seem to match.
    """
    lines = _lines(path)
    for partner, partner_lines in partners:
        count = len(partner_lines)
        if len(lines) != count:
            # A pipe cannot be read again.
            readable = lines and count and path.is_file() and partner.is_file()
            numbers = f"{counted(len(lines), 'line')} but {_called(partner, True)} has {count:,}"
            raise DataError(
                f"{_called(path, True)} has {numbers}",
                where=first_odd_pair((path,), (partner,)) if readable else None,
                hint=hint,
            )
    return lines


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, or of stdin.

    Raises: DataError for SGM or XML, or too many lines, such as those of an endless pipe.
    """
    if is_markup(path):
        raise DataError(
            f"{path} is SGM or XML, whose tags are not sentences",
            hint="`nmtkit prep … --test SOURCE,REFERENCE` reads such files and writes their"
            " sentences to RUN/prep/text",
        )
    if path != STDIN:
        source = files.text_lines(path, once=True)
    elif sys.stdin is None:  # the process was started with file descriptor 0 closed
        raise DataError("stdin is closed", where="-", hint="pipe text into it, or name a file")
    else:
        raw = files.stream_lines(sys.stdin.buffer, "stdin")
        source = files.decoded((line.removesuffix(b"\n") for line in raw), "stdin")
    lines = list(itertools.islice(source, MOST_LINES + 1))
    if len(lines) > MOST_LINES:
        message = f"{_called(path, True)} has more than {MOST_LINES:,} lines"
        raise DataError(message, hint="score a part of it")
    return lines


def _called(path: Path, in_full: bool = False) -> str:
    """Return the name of a file, or its path."""
    return "stdin" if path == STDIN else str(path) if in_full else path.name


def _language(path: Path) -> str:
    """Return the language code at the end of a file name (before a compression suffix), or ""."""
    suffixes = [suffix[1:] for suffix in path.suffixes if suffix not in files.COMPRESSED]
    code = suffixes[-1] if suffixes else ""
    is_code = re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", code) and code not in NO_LANGUAGES
    return code if is_code else ""


def _names(paths: Sequence[Path]) -> list[str]:
    """Return short, distinct names of files: the file names, or else the parts in which the paths
    differ (a and b for a/hyp.txt and b/hyp.txt), or else the paths.
    """
    names = [_called(path) for path in paths]
    if len(set(names)) < len(names):
        parts = [path.parts for path in paths]
        turned = [each[::-1] for each in parts]
        first, last = (len(os.path.commonprefix(paths)) for paths in (parts, turned))
        names = ["/".join(each[first : len(each) - last]) for each in parts]
    if len(set(names)) < len(names) or "" in names:
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError(
            "the same file is named twice", where="HYP", hint="give each translation once"
        )
    return names
