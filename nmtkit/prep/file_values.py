"""The files of a set as a user gives them: `SRC TGT`, `SRC,TGT[,TGT…]`, or one TSV file."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtkit.errors import ConfigError, counted
from nmtkit.files import check_file, expanded_path, is_tsv

NUL = "\0"
"""Joins the words of one value. No file name can contain it."""
OPTIONS = {"--train": "training", "--dev": "development", "--test": "test"}
"""The options that name the files of a set, and what they call it."""
MODELS = {"--codes": "merges", "--vocab": "a vocabulary", "--spm": "a model"}
"""The options that name one file, or one for each side, and what is in it."""


def one_value(files: Any) -> Any:
    """Return a path or a sequence of paths, as Python gives them, as the value of an option."""
    files = [files] if isinstance(files, Path) else files
    return NUL.join(map(str, files)) if isinstance(files, (list, tuple)) else files


def joined_words(args: Sequence[str]) -> list[str]:
    """Return a command line in which each option of `OPTIONS` and `MODELS` has a single value.

    A TSV file and a value with a comma are complete. Any other file of a set takes the next word
    too, and all words that follow and are files, as does a file of `MODELS`.

    Raises: ConfigError for an option without a file.
    """
    joined = []
    words = deque(args)
    while words:
        word = words.popleft()
        option, equals, value = word.partition("=")
        if option not in OPTIONS | MODELS:
            joined.append(word)
            continue
        if equals:
            words.appendleft(value)
        if not words:
            raise _error(f"{_name(option)} needs files, got nothing", option)
        taken = [words.popleft()]
        least = 1 if option in MODELS else 2
        complete = is_tsv(Path(taken[0])) or ("," in taken[0] and not _is_file(taken[0]))
        while not complete and words and not words[0].startswith("-"):
            if len(taken) >= least and not _is_file(words[0]):
                break
            taken.append(words.popleft())
        joined.append(f"{option}={NUL.join(taken)}")
    return joined


def file_list(value: str, option: str) -> list[Path]:
    """Return the files of a set: source, target and further references, or one TSV file.

    Args:
        value: of an option of `OPTIONS`, from `joined_words` or `one_value`.
        option: the option.
    Raises: ConfigError for a value that begins with `--`, or a wrong number of files.
    """
    paths, name = _paths(value, option), _name(option)
    target = "reference" if option == "--test" else "target"
    got = ", ".join(map(str, paths))
    if len(paths) == 1 and is_tsv(paths[0]):
        return paths
    if any(map(is_tsv, paths)):
        raise _error(f"one TSV file holds all sides of {name}, got '{got}'", option)
    if len(paths) < 2 or (len(paths) > 2 and option != "--test"):
        files = f"{counted(len(paths), 'file')}: '{got}'"
        raise _error(f"{name} is a source and a {target}, got {files}", option)
    return paths


def model_files(value: str | None, option: str) -> tuple[Path, ...]:
    """Return the one or two files of an option of `MODELS`; none if it is not given.

    Raises: ConfigError for more files; DataError for one that is missing.
    """
    paths = _paths(value, option) if value else []
    if len(paths) > 2:
        raise _error(f"{_name(option)} is a file, or one for each side: got {len(paths)}", option)
    for path in paths:
        check_file(path, where=option)
    return tuple(paths)


def _paths(value: str, option: str) -> list[Path]:
    separator = NUL if NUL in value or _is_file(value) else ","
    words = [word for word in value.split(separator) if word]
    for word in words:
        if word.startswith("--"):
            raise _error(f"{_name(option)} needs files, got the option '{word}'", option)
    return list(map(expanded_path, words))


def _is_file(name: str) -> bool:
    """True for a file; a list of names may be too long for the name of one."""
    with contextlib.suppress(OSError):
        return expanded_path(name).is_file()
    return False


def _name(option: str) -> str:
    return f"a {OPTIONS[option]} set" if option in OPTIONS else f"the option {option}"


def _error(problem: str, option: str) -> ConfigError:
    hint = f"write {option} news.de news.en, {option} news.de,news.en or {option} news.tsv"
    if option in MODELS:
        hint = f"write {option} FILE, or {option} SRC TGT for {MODELS[option]} of each side"
    return ConfigError(problem, where=option, hint=hint)
