"""A command derived from its class of options (`nmtkit.options`)."""

from __future__ import annotations

import copy
import inspect
import os
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Optional

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from nmtkit import console, trust
from nmtkit.cli.ineffective import refuse_ineffective
from nmtkit.cli.program import Help, app, set_debug
from nmtkit.errors import ConfigError
from nmtkit.options import GENERAL, Options, flag, option


class EveryCommand(Options):
    """The options of every command."""

    quiet: bool = option(False, None, "--quiet", "-q", panel=GENERAL)
    """Say nothing on stderr but warnings and errors."""
    debug: bool = option(False, panel=GENERAL)
    """Show the traceback of an error."""


class Command(Help, TyperCommand):
    """A command that refuses options without effect and knows earlier names of its options."""

    old_names: ClassVar[dict[str, tuple[str, ...]]] = {}
    """The earlier names of a parameter."""

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, which takes earlier names for the present ones."""
        parser = super().make_parser(ctx)
        for parameter in self.get_params(ctx):
            if names := self.old_names.get(parameter.name):
                renamed = copy.copy(parameter)
                renamed.opts = list(names)
                renamed.add_to_parser(parser, ctx)
        return parser

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, without arguments that became options."""
        hidden = {
            piece
            for parameter in self.get_params(ctx)
            if getattr(parameter, "hidden", False)
            for piece in parameter.get_usage_pieces(ctx)
        }
        pieces = super().collect_usage_pieces(ctx)
        return [piece for piece in pieces if piece not in hidden]

    def invoke(self, ctx: Any) -> Any:
        """Check the options, then run the command.

        Raises: ConfigError naming the first option that is not UTF-8 or has no effect.
        """
        for parameter in self.get_params(ctx):
            _check_utf8(parameter, ctx.params.get(parameter.name))
        console.set_quiet(ctx.params["quiet"])
        set_debug(ctx.params["debug"])
        refuse_ineffective(ctx)
        trust.allow(ctx.params.get("allow_code") or (), remember=True)
        return super().invoke(ctx)

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help among those of every command."""
        parameters = super().get_params(ctx)
        vars(parameters[-1])["rich_help_panel"] = GENERAL
        return parameters


def _check_utf8(parameter: Any, value: Any) -> None:
    """Refuse bytes that are not UTF-8: no record can hold them, nor can a library take such a path.

    Raises: ConfigError naming the option.
    """
    words = map(str, value if isinstance(value, (list, tuple)) else [value])
    for word in "\0".join(words).split("\0"):
        text = os.fsencode(word).decode("utf-8", "backslashreplace")
        if text != word:
            name = max(parameter.opts, key=len)
            where = name if name.startswith("-") else parameter.metavar
            hint = "rename it, or make a symbolic link whose name is UTF-8"
            raise ConfigError(f"not UTF-8: {text}", where=where, hint=hint)


def command(
    name: str,
    *options: type[Options],
    within: typer.Typer = app,
    cls: type[Command] = Command,
    **help_texts: Any,
) -> Callable[[Callable[..., None]], None]:
    """Return a decorator: the function is a command with these options.

    Args:
        name: of the command.
        options: their fields are the keyword arguments of the function; those that nobody gave and
            that have no default are left out.
        within: the program.
        cls: of the command.
        help_texts: the epilog, and more that typer knows.
    """
    groups: list[type[Options]] = [*options, EveryCommand]
    fields = {key: field for group in groups for key, field in group.model_fields.items()}
    parameters = [_parameter(key, field) for key, field in fields.items()]
    old = {key: _old_names(field) for key, field in fields.items()}
    arguments = {key: metavar for key, (_, metavar) in old.items() if metavar}
    parameters += [_old_argument(key, metavar) for key, metavar in arguments.items()]
    with_old_names: Any = type(
        cls.__name__, (cls,), {"old_names": {key: names for key, (names, _) in old.items()}}
    )

    def register(function: Callable[..., None]) -> None:
        call = _with_parameters(function, parameters, list(arguments))
        within.command(name, cls=with_old_names, **help_texts)(call)

    return register


def _old_names(field: FieldInfo) -> tuple[tuple[str, ...], str | None]:
    """Return the earlier names of an option, and the metavar of the argument that it was."""
    shown: Any = field.json_schema_extra or {}
    names = shown.get("old", ())
    arguments = [name for name in names if not name.startswith("-")]
    return tuple(name for name in names if name.startswith("-")), next(iter(arguments), None)


def _old_argument(key: str, metavar: str) -> inspect.Parameter:
    """Return the hidden argument that an option was."""
    help_text = f"The earlier form of {flag(key)}."
    declared = typer.Argument(hidden=True, metavar=metavar, help=help_text)
    return inspect.Parameter(
        f"old_{key}",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[str], declared],
    )


def _with_parameters(
    function: Callable[..., None], parameters: list[inspect.Parameter], arguments: list[str]
) -> Callable[..., None]:
    """Return the function with the signature that typer reads.

    Args:
        function: the body of the command.
        parameters: its parameters.
        arguments: the required options that were arguments.
    """

    def call(**values: Any) -> None:
        for key in ("quiet", "debug", "allow_code"):  # `Command.invoke` has read them
            values.pop(key, None)
        for key in arguments:
            old = values.pop(f"old_{key}")
            if (old is None) == (values[key] is None):
                problem = (
                    "is missing" if old is None else f"is given, so '{old}' is one word too many"
                )
                raise ConfigError(f"{flag(key)} {problem}", where=flag(key), hint="see --help")
            values[key] = old if values[key] is None else values[key]
        function(**{key: value for key, value in values.items() if value is not None})

    call.__doc__ = " ".join((function.__doc__ or "").split())  # the list of commands keeps newlines
    vars(call)["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return a field of a class of options as a parameter that typer reads."""
    shown: Any = field.json_schema_extra or {}
    kind: Any = field.annotation
    default = inspect.Parameter.empty if field.is_required() else field.default
    if _old_names(field)[1]:  # `call` checks that one of the two forms is given
        kind, default = Optional[kind], None
    settings = _help_of(field, shown)
    if typing.get_origin(kind) is typing.Literal:
        kind, settings["metavar"] = str, "|".join(typing.get_args(kind))
    elif typing.get_origin(kind) in {list, tuple}:  # any number of values
        kind, default = Optional[list[typing.get_args(kind)[0]]], None  # type: ignore[misc]
    declared = (
        typer.Argument(**settings)
        if shown.get("argument")
        else typer.Option(*(shown.get("names") or [flag(name)]), **settings)
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, declared],
    )


def _help_of(field: FieldInfo, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return what typer shows of a field and the limits that it checks."""
    limits = {
        key: getattr(limit, key)
        for limit in field.metadata
        for key in ("ge", "le")
        if hasattr(limit, key)
    }
    shows_default = field.is_required() or bool(field.default)
    return {
        "metavar": shown.get("metavar"),
        "help": " ".join((field.description or "").split()),
        "rich_help_panel": shown.get("panel"),
        "envvar": shown.get("envvar"),
        "show_default": shows_default or shown.get("shows_zero", False),
        "min": limits.get("ge"),
        "max": limits.get("le"),
    }
