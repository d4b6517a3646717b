"""The files of a set as a user gives them: `SRC TGT`, `SRC,TGT[,TGT…]`, or one TSV file."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtkit.errors import ConfigError, counted
from nmtkit.files import is_tsv

NUL = "\0"
"""Joins the words of one value. No file name can contain it."""
OPTIONS = {"--train": "training", "--dev": "development", "--test": "test"}
"""The options that name files, and what they call a set."""


def one_value(files: Any) -> Any:
    """Return a sequence of paths, as Python gives them, as the value of an option."""
    return NUL.join(map(str, files)) if isinstance(files, (list, tuple)) else files


def joined_words(args: Sequence[str]) -> list[str]:
    """Return a command line in which each option of `OPTIONS` has a single value.

    A TSV file and a value with a comma are complete. Any other file takes the next word too. After
    --test it also takes the words that follow and are files: further references.

    Raises: ConfigError for an option without a file.
    """
    joined: list[str] = []
    words = deque(args)
    while words:
        word = words.popleft()
        option, equals, value = word.partition("=")
        if option not in OPTIONS:
            joined.append(word)
            continue
        if equals:
            words.appendleft(value)
        taken = [words.popleft()] if words else []
        if not taken or taken[0].startswith("--"):
            got = f"got the option '{taken[0]}'" if taken else "got nothing"
            raise _error(f"a {OPTIONS[option]} set needs files, {got}", option)
        while not _is_complete(taken[0]) and words and not words[0].startswith("-"):
            if len(taken) > 1 and not (option == "--test" and Path(words[0]).is_file()):
                break
            taken.append(words.popleft())
        joined.append(f"{option}={NUL.join(taken)}")
    return joined


def _is_complete(value: str) -> bool:
    return is_tsv(Path(value)) or ("," in value and not Path(value).is_file())


def file_list(value: str, option: str) -> list[Path]:
    """Return the files of a set: source, target and further references, or one TSV file.

    Args:
        value: of an option of `OPTIONS`, from `joined_words` or `one_value`.
        option: the option.
    Raises: ConfigError for a value that begins with `--`, or a wrong number of files.
    """
    separator = NUL if NUL in value or Path(value).is_file() else ","
    words = [word for word in value.split(separator) if word]
    name, target = f"a {OPTIONS[option]} set", "reference" if option == "--test" else "target"
    got = ", ".join(words)
    for word in words:
        if word.startswith("--"):
            raise _error(f"{name} needs files, got the option '{word}'", option)
    paths = list(map(Path, words))
    if len(paths) == 1 and is_tsv(paths[0]):
        return paths
    if any(map(is_tsv, paths)):
        raise _error(f"one TSV file holds all sides of {name}, got '{got}'", option)
    if len(paths) < 2 or (len(paths) > 2 and option != "--test"):
        files = f"{counted(len(paths), 'file')}: '{got}'"
        raise _error(f"{name} is a source and a {target}, got {files}", option)
    return paths


def _error(problem: str, option: str) -> ConfigError:
    hint = f"write {option} news.de news.en, {option} news.de,news.en or {option} news.tsv"
    return ConfigError(problem, where=option, hint=hint)
