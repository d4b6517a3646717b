"""A command derived from its class of options (`nmtkit.options`)."""

from __future__ import annotations

import inspect
import os
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from nmtkit import console, environment, files, trust
from nmtkit.cli.program import Help, app, set_debug
from nmtkit.errors import ConfigError
from nmtkit.options import GENERAL, Options, flag, option
from nmtkit.translate.options import SearchOptions


class EveryCommand(Options):
    """The options of every command."""

    quiet: bool = option(False, None, "--quiet", "-q", panel=GENERAL)
    """Print only warnings and errors on stderr."""
    debug: bool = option(False, panel=GENERAL)
    """Show the traceback of an error."""


class Command(Help, TyperCommand):
    """A command that rejects options without effect."""

    def invoke(self, ctx: Any) -> Any:
        """Check the options, then run the command.

        Raises: ConfigError naming the first option that is not UTF-8 or has no effect, or if
            torchrun starts a command other than `train`.
        """
        if self.name != "train" and environment.under_torchrun():
            message = "torchrun starts several processes, but only `nmtkit train` shares its work"
            raise ConfigError(message, hint="leave out torchrun")
        for parameter in self.get_params(ctx):
            _check_utf8(parameter, ctx.params.get(parameter.name))
        console.set_quiet(ctx.params["quiet"])
        set_debug(ctx.params["debug"])
        refuse_without_effect(ctx)
        trust.allow(ctx.params.get("allow_code") or (), remember=True)
        return super().invoke(ctx)

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, with --help in the panel of general options."""
        parameters = super().get_params(ctx)
        vars(parameters[-1])["rich_help_panel"] = GENERAL
        return parameters


def _check_utf8(parameter: Any, value: Any) -> None:
    """Raise ConfigError naming the option if a value is not UTF-8. No record can hold other bytes,
    and some libraries do not accept such a path.
    """
    words = map(str, value if isinstance(value, (list, tuple)) else [value])
    for word in "\0".join(words).split("\0"):
        text = os.fsencode(word).decode("utf-8", "backslashreplace")
        if text != word:
            name = max(parameter.opts, key=len)
            where = name if name.startswith("-") else parameter.metavar
            hint = "rename it, or make a symbolic link whose name is UTF-8"
            raise ConfigError(f"not UTF-8: {text}", where=where, hint=hint)


def without_effect() -> dict[str, list[dict[str, Any]]]:
    """Return the cases in which options of a command have no effect, by command: those of
    ineffective.toml, and settings of the search that an option of `translate` overrides. Two kinds
    are checked elsewhere: options that depend on the data set (prep), and options of another
    analysis.

    Returns: a case has `why`, `options`, `hint` and a condition: `given` (one of these parameters,
        or of these settings with their value, is typed) or `missing` (none of these parameters is
        typed).
    """
    cases = tomllib.loads(Path(__file__).with_name("ineffective.toml").read_text("utf-8"))
    for key in SearchOptions.model_fields:
        wins, name = f"{flag(key)} is given too, and wins", f"--set search.{key}"
        hint = f"leave it out, or leave out {flag(key)}"
        cases["translate"].append({"why": wins, "given": [key], "options": [name], "hint": hint})
    return cases


def refuse_without_effect(ctx: Any) -> None:
    """Raise ConfigError naming the first option of a command that has no effect.

    Args:
        ctx: the command with its parsed parameters.
    """
    # Only options on the command line are checked, not those of environment variables.
    typed = {
        parameter.name: max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name)) and source.name == "COMMANDLINE"
    }
    words = [text.partition("=") for text in ctx.params.get("assignments") or ()]
    settings = [f"--set {key.strip()}={value.strip()}" for key, _, value in words]
    options = {*typed.values(), *(text.partition("=")[0] for text in settings)}
    for case in without_effect().get(ctx.info_name, []):
        is_typed = not {*typed, *settings}.isdisjoint(case.get("given") or case["missing"])
        if is_typed == ("given" in case):
            for name in case["options"]:
                if name in options:
                    message = f"{case['why']}: {name} has no effect"
                    raise ConfigError(message, where=name, hint=case["hint"])


def command(
    name: str,
    *options: type[Options],
    within: typer.Typer = app,
    cls: type[Command] = Command,
    **help_texts: Any,
) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that makes a function a command with these options.

    Args:
        name: the name of the command.
        options: classes whose fields are the keyword arguments of the function. An option that is
            not given and has no default is left out.
        within: the program.
        cls: the class of the command.
        help_texts: the epilog and other texts of typer.
    """
    groups: list[type[Options]] = [*options, EveryCommand]
    fields = {key: field for group in groups for key, field in group.model_fields.items()}
    parameters = [_parameter(key, field) for key, field in fields.items()]

    def register(function: Callable[..., None]) -> None:
        def call(**values: Any) -> None:
            read = {"quiet", "debug", "allow_code"}  # by `Command.invoke`
            given = {k: v for k, v in values.items() if v is not None and k not in read}
            function(**{key: _expanded(value) for key, value in given.items()})

        # Typer would keep the newlines in the list of commands.
        call.__doc__ = " ".join((function.__doc__ or "").split())
        # Typer reads the signature and the annotations.
        vars(call)["__signature__"] = inspect.Signature(parameters)
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        within.command(name, cls=cls, **help_texts)(call)

    return register


def _expanded(value: Any) -> Any:
    """Return the value of an option. A leading `~` of a path becomes the home folder."""
    if isinstance(value, list):
        return list(map(_expanded, value))
    return files.expanded_path(value) if isinstance(value, Path) else value


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return a field of a class of options as a parameter that typer reads."""
    shown: Any = field.json_schema_extra or {}
    kind: Any = field.annotation
    default = inspect.Parameter.empty if field.is_required() else field.default
    limits = {
        key: getattr(limit, key)
        for limit in field.metadata
        for key in ("ge", "le")
        if hasattr(limit, key)
    }
    settings = {
        "metavar": shown.get("metavar"),
        "help": " ".join((field.description or "").split()),
        "rich_help_panel": shown.get("panel"),
        "envvar": shown.get("envvar"),
        "show_default": field.is_required()
        or bool(field.default)
        or shown.get("shows_zero", False),
        "min": limits.get("ge"),
        "max": limits.get("le"),
    }
    if typing.get_origin(kind) is typing.Literal:
        kind, settings["metavar"] = str, "|".join(typing.get_args(kind))
    elif typing.get_origin(kind) in {list, tuple}:  # any number of values
        kind, default = Optional[list[typing.get_args(kind)[0]]], None  # type: ignore[misc]
    declared = (
        typer.Argument(**settings)
        if shown.get("argument")
        else typer.Option(*(shown.get("names") or [flag(name)]), **settings)
    )
    annotation = Annotated[kind, declared]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)
