"""The options of a command as one class. Parameters, help and reference page of the command are
derived from the class, and its stage takes an instance.

    class AttentionOptions(Options):
        sentences: int = option(200, "N", ge=1)
        '''The number of sentences …'''

The field `match_case` is the option `--match-case`, and its docstring is the help. This file and
those that define such classes import no torch, so that `--help` is instant.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from nmtkit import files
from nmtkit.errors import ConfigError, DataError, plain, short
from nmtkit.presets import preset_names
from nmtkit.settings import Section

GENERAL = "General"
"""The panel of a command's help with the options of all commands."""
SETTINGS = "Settings, weakest first"
"""The panel with the options that change settings."""


class Options(Section):
    """The options of a command."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the options with these values.

        Raises: ConfigError naming the first option with a bad value; DataError naming the first
            option whose path is not a file or folder, as its metavar wants.
        """
        try:
            options = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            message, name = plain(first["msg"]), None
            if first["loc"]:  # empty if the error is about several options together
                name = typed(cls, str(first["loc"][0]))
                message = f"bad value for '{name}': {message} (got {short(first['input'])})"
            raise ConfigError(message, where=name, hint="see --help") from None
        for key in sorted(options.model_fields_set):
            _check_paths(cls, key, getattr(options, key))
        return options

    def paths(self) -> list[Path]:
        """Return the existing files and folders in the values of options whose metavar names files
        or folders, and of options without a metavar.
        """
        cls = type(self)
        paths: list[Path] = []
        for key in cls.model_fields:
            metavar = _shown(cls, key).get("metavar") or "FILE"
            if _FILE.search(metavar) or _FOLDER.search(metavar):
                paths += _paths_in(cls, key, getattr(self, key))
        return paths


def option(
    default: Any,
    metavar: str | None = None,
    *names: str,
    panel: str | None = None,
    help: str | None = None,
    envvar: str | None = None,
    argument: bool = False,
    shows_zero: bool = False,
    once: bool = False,
    **limits: Any,
) -> Any:
    """Return the field of an option: its default, and how the help shows it.

    Args:
        default: `...` if the option is required.
        metavar: the word for the value in the help.
        names: the option as it is typed, if it is not the name of the field.
        panel: the part of the help.
        help: the help, if it is not the docstring of the field.
        envvar: an environment variable that also sets the value.
        argument: True if it is typed without a name.
        shows_zero: True if the help shows the default even if it is 0.
        once: True if the file is read once, from its beginning, so that it may be a pipe.
        limits: pydantic's (ge, le, …).
    """
    shown: Any = {"metavar": metavar, "names": names, "panel": panel, "envvar": envvar}
    shown |= {"argument": argument, "shows_zero": shows_zero, "once": once}
    return Field(default, description=help, json_schema_extra=shown, **limits)


def flag(key: str) -> str:
    """Return an option as it is typed."""
    return "--" + key.replace("_", "-")


def typed(cls: type[Options], key: str) -> str:
    """Return the option of a field as it is typed."""
    shown = _shown(cls, key)
    if shown.get("argument"):
        return str(shown["metavar"])
    return str((shown.get("names") or [flag(key)])[0])


def _shown(cls: type[Options], key: str) -> dict[str, Any]:
    """Return the `option` arguments of a field."""
    shown: Any = cls.model_fields[key].json_schema_extra if key in cls.model_fields else {}
    return shown or {}


_FILE, _FOLDER = re.compile("FILE|SRC|HYP|LINKS"), re.compile("DIR|RUN|FOLDER")
"""Metavars of options that name files, and of those that name folders."""


def _check_paths(cls: type[Options], key: str, value: Any) -> None:
    """Raise DataError, before anything is read, if an existing path is not a file or folder as the
    metavar wants. A path that does not exist is left to the command, because it may be a name.
    """
    shown = _shown(cls, key)
    metavar = shown.get("metavar") or ""
    for path in _paths_in(cls, key, value):
        if _FILE.search(metavar):
            instead = "pipe it to -, or " * ("-" in metavar.split("|")) + "write it to a file first"
            files.check_file(path, instead, shown.get("once", False), typed(cls, key))
        elif _FOLDER.search(metavar) and not (path.is_dir() or path.is_file()):
            raise DataError(f"not a folder: {path}", typed(cls, key), "name a folder")


def _paths_in(cls: type[Options], key: str, value: Any) -> Iterator[Path]:
    """Yield the existing paths in the value or the values of an option, except names."""
    names = (_shown(cls, key).get("metavar") or "").split("|")
    words = value if isinstance(value, (list, tuple)) else [value]
    for path in itertools.chain.from_iterable(map(_existing, map(str, words))):
        if str(path) not in (*names, "-") and not (path.is_dir() and "NAME" in names):
            yield path


def _existing(text: str) -> list[Path]:
    """Return the paths in the value of an option, such as PATH, SET=PATH or PATH,PATH."""
    for words in ([text], [text.partition("=")[2]], re.split("[\0,]", text)):
        paths = [path for path in map(Path, filter(None, words)) if os.path.lexists(path)]
        if paths:
            return paths
    return []


def preset_option(default: str, panel: str | None = SETTINGS, effect: str = "All settings") -> Any:
    """Return the option --preset; its help names its default and its effect."""
    text = (
        f"{effect} of a paper or a model size: {', '.join(preset_names())}. `nmtkit settings"
        f" --preset NAME` shows them (default: {default})."
    )
    return option(None, "NAME", panel=panel, help=text)


def config_option() -> Any:
    """Return the option --config."""
    text = "A TOML file of settings in the sections prep, train, model and search."
    return option(None, "FILE", panel=SETTINGS, help=text, once=True)


def set_option(example: str, panel: str = SETTINGS) -> Any:
    """Return the option --set, with an example of a setting."""
    section = example.partition(".")[0]
    text = (
        f"One setting, for example {example}. `nmtkit settings {section}` lists them. Repeatable."
    )
    return option([], "KEY=VALUE", "--set", panel=panel, help=text)


def jobs_option() -> Any:
    """Return the option --jobs."""
    text = (
        "At most N worker processes; 0 = one per CPU core. A search uses workers on Linux only. The"
        " output does not depend on N."
    )
    return option(0, "N", "--jobs", "-j", panel=GENERAL, help=text, shows_zero=True, ge=0, le=4096)


def device_option() -> Any:
    """Return the option --device."""
    text = (
        "The device to compute on; auto uses a CUDA GPU if there is one. mps is an Apple GPU (never"
        " tested on one)."
    )
    return option("auto", "auto|cpu|cuda|mps", panel=GENERAL, help=text)


def set_names_option(default: str, panel: str | None = None) -> Any:
    """Return the option --on; `default` names the sets that are taken without it."""
    text = (
        "Only this set of the run: dev, or the name of a test set (test, if there is only one)."
        f" Repeatable. Default: {default}."
    )
    return option([], "NAME", "--on", panel=panel, help=text)


def format_option(panel: str | None = None) -> Any:
    """Return the option --format."""
    text = "Format of the result on stdout."
    return option("table", "table|json|md|tex|csv", "--format", panel=panel, help=text)


def run_option(
    help: str = "The run directory (default: the run under ./runs that was prepared last).",
    panel: str = GENERAL,
) -> Any:
    """Return the option --run."""
    return option(None, "DIR", "--run", envvar="NMTKIT_RUN", panel=panel, help=help)


class CodeOptions(Options):
    """The options of a command that builds the models of a run."""

    allow_code: list[str] = option([], "MODULE", panel=GENERAL)
    """Import this module if a system of the run names it, and remember that. Read the module first:
    importing executes it, and anybody can have written it. Repeatable. A module that you have
    trained with yourself is allowed."""
