"""Scores of files without a run: any system's output against any reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.prep.check import first_odd_pair
from nmtkit.run import code_commit
from nmtkit.score.evaluate import Output, Task, check_baseline, check_options, evaluate
from nmtkit.score.options import ScoreOptions
from nmtkit.score.result_tables import print_results
from nmtkit.settings import PrepSettings, build
from nmtkit.text.side import TextSide

NO_LANGUAGES = {"txt", "ref", "tok", "tc", "lc", "out", "hyp"}
"""Suffixes of files that look like language codes."""


def score_files(hyps: Sequence[Path], refs: Sequence[Path], **values: Any) -> None:
    """Score files without a run, and print the tables.

    Args:
        hyps: translations, one file a system; refs: references. Each is read once, and may be a
            pipe.
        values: of `ScoreOptions`, but those of a run.
    Raises: ConfigError if hypotheses or references are missing, DataError if a file is missing, all
        are empty, or line counts differ.
    """
    options = ScoreOptions.of(values)
    check_options(options)
    by_length = options.length_groups is not None
    if not hyps or not refs:
        raise ConfigError(
            "--hyp and --ref go together",
            where="nmtkit score",
            hint="nmtkit score --hyp FILE [--hyp FILE …] --ref FILE",
        )
    if options.src is not None and not by_length:
        files.check_file(options.src, once=True)
        console.warn("--src is only used by --by-length: its words are counted there")
    streams = [list(files.text_lines(path, once=True)) for path in refs]
    language = options.language
    side = TextSide(language, build(PrepSettings, {}, "prep")) if language else None
    outputs = []
    for name, path in zip(_names(hyps), hyps, strict=True):
        lines = list(files.text_lines(path, once=True))
        for ref, stream in zip(refs, streams, strict=True):
            _check_lines(path, lines, ref, stream, "line i of each must be sentence i")
        outputs.append(Output(name, lines, [side.cased(line) for line in lines] if side else ()))
    if not streams[0]:
        raise DataError(
            f"nothing to score: {refs[0]} is empty", hint="name files with one sentence a line"
        )
    measured, unit = streams[0], "words of the reference (no --src given)"
    if by_length and options.src is not None:
        measured, unit = list(files.text_lines(options.src, once=True)), "words of the source"
        hint = "give the source of these translations"
        _check_lines(options.src, measured, refs[0], streams[0], hint)
    names = [output.name for output in outputs]
    against = options.against
    for name, path in zip(names, hyps, strict=True):
        if options.against in (str(path), path.name, path.stem):
            against = name
            break
    task = Task(
        set_name=refs[0].name,
        refs=streams,
        tokenized_refs=(
            [[side.cased(line) for line in stream] for stream in streams] if side else None
        ),
        tokenization=side.tokenization if side else "none",
        language=language if language is not None else _language(refs[0]),
        baseline=check_baseline(against, names),
        options=options,
        src_lengths=np.array([len(line.split()) for line in measured], dtype=np.int64),
        length_unit=unit,
        commit=code_commit(),
    )
    tokens = "tok. BLEU takes its tokens" if side else "tok. BLEU needs --lang"
    console.say(
        "BLEU, chrF and TER take the files as detokenised text (language:"
        f" {task.language or 'not known'}), {tokens}"
    )
    result = evaluate(outputs, task).result
    if len(names) == 1:
        console.say("one file: nothing to compare with; name another with --hyp")
    print_results([result], options)


def _check_lines(
    path: Path, lines: Sequence[str], other: Path, others: Sequence[str], hint: str
) -> None:
    """Refuse two files whose line counts differ, with the line from which on they do not seem to
    belong together.
    """
    if len(lines) != len(others):
        # A pipe cannot be read again.
        readable = lines and others and path.is_file() and other.is_file()
        raise DataError(
            f"{path} has {counted(len(lines), 'line')} but {other} has {len(others):,}",
            where=first_odd_pair((path,), (other,)) if readable else None,
            hint=hint,
        )


def _language(path: Path) -> str:
    """Return the language code that a file name ends in (before any compression suffix), if any."""
    suffixes = [suffix[1:] for suffix in path.suffixes if suffix not in files.COMPRESSED]
    code = suffixes[-1] if suffixes else ""
    is_code = re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", code) and code not in NO_LANGUAGES
    return code if is_code else ""


def _names(paths: Sequence[Path]) -> list[str]:
    """Return short names that tell files apart."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError(
            "the same file is named twice", where="--hyp", hint="give each translation once"
        )
    return names
