"""The command `analyze`: a sub-command for each analysis, derived from the analysis' class."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup
from typer.main import get_command

from nmtkit import console
from nmtkit.cli.door import GENERAL, Command, Help, app, examples
from nmtkit.cli.options import (
    Debug,
    Quiet,
    chosen_run,
    force_option,
    format_option,
    run_option,
    set_names_option,
    systems_option,
)
from nmtkit.errors import ConfigError


def _general(
    systems: Annotated[
        Optional[list[str]],
        systems_option(
            "Only this system of the run, the baseline first. Repeatable; default: all, the one"
            " trained first leads.",
            GENERAL,
        ),
    ] = None,
    set_names: Annotated[
        Optional[list[str]], set_names_option("all, or the first, as the analysis needs", GENERAL)
    ] = None,
    output_format: Annotated[str, format_option(GENERAL)] = "table",
    run: Annotated[Optional[Path], run_option()] = None,
    force: Annotated[bool, force_option("Repeat an analysis that is up to date.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The options of every analysis."""


def analysis_command(name: str) -> Any:
    """Return the sub-command of an analysis: its own options, then those of every analysis.

    Raises: ConfigError for an unknown analysis.
    """
    from nmtkit.analyze import stage

    cls = stage.find(name)

    def call(**values: Any) -> None:
        from nmtkit.analyze.stage import analyze

        given_general: dict[str, Any] = {key: values.pop(key) for key in ("output_format", "force")}
        systems, set_names = values.pop("systems") or [], values.pop("set_names") or []
        del values["quiet"], values["debug"]
        options = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in values.items()
            if key != "run"
        }
        given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        analyze(
            chosen_run(values["run"]),
            name,
            systems=systems,
            set_names=set_names,
            **given_general,
            **given,
        )

    fields = cls.Options.model_fields.items()
    own = [_parameter(field_name, field) for field_name, field in fields]
    general = inspect.signature(_general, eval_str=True).parameters.values()
    parameters = [
        *own,
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in general),
    ]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    shows = stage.shows(name)
    call.__doc__ = f"{shows[0].upper()}{shows[1:]}."
    single = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    lines = [
        f"nmtkit analyze {' '.join([name, example])}".rstrip() for example in cls.examples or [""]
    ]
    single.command(name, cls=_AnalysisCommand, epilog=examples(*lines), short_help=shows)(call)
    return get_command(single)


def _parameter(name: str, field: Any) -> inspect.Parameter:
    """Return a field of an analysis' options as a parameter that typer reads."""
    extra = field.json_schema_extra or {}
    annotation, default = field.annotation, field.default
    declared: dict[str, Any] = {
        "help": " ".join((field.description or "").split()),
        "show_default": default not in {"", (), 0},
    }
    flag = "--" + name.replace("_", "-")
    if annotation is bool:
        return _keyword(name, bool, default, typer.Option(flag, **declared))
    if typing.get_origin(annotation) is typing.Literal:
        values = "|".join(typing.get_args(annotation))
        return _keyword(name, str, default, typer.Option(flag, metavar=values, **declared))
    declared["metavar"] = extra.get("metavar")
    if typing.get_origin(annotation) is tuple:
        declared["show_default"] = False
        return _keyword(name, Optional[list[str]], None, typer.Option(flag, **declared))
    least = next((item.ge for item in field.metadata if hasattr(item, "ge")), None)
    return _keyword(name, annotation, default, typer.Option(flag, min=least, **declared))


def _keyword(name: str, kind: Any, default: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


class _AnalysisCommand(Command):
    """The command of one analysis: an option of another analysis is refused with the names of
    those that have it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        from nmtkit.analyze import stage

        known = {"--help", *(name for parameter in self.params for name in parameter.opts)}
        for word in args:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                key = option[2:].replace("-", "_")
                if stage.having(key):
                    stage.check_options(stage.find(str(ctx.info_name)), {key: None})
        return super().parse_args(ctx, args)


class _Analyses(Help, TyperGroup):
    """The group of all analyses; options may stand before the name of the analysis, too."""

    def list_commands(self, ctx: Any) -> list[str]:
        from nmtkit.analyze import ANALYSES

        return list(ANALYSES)

    def get_command(self, ctx: Any, name: str) -> Any:
        return analysis_command(name)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        args = _name_first(args)
        if args and args[0].startswith("-") and not {"-h", "--help"} & set(args):
            raise ConfigError(
                "no analysis is named",
                where="nmtkit analyze",
                hint="nmtkit analyze lists them; then: nmtkit analyze NAME …",
            )
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return args[0], self.get_command(ctx, args[0]), args[1:]


def _name_first(args: Sequence[str]) -> list[str]:
    """Return the words with the name of the analysis first: `nmtkit analyze --run DIR cost` was
    always allowed.
    """
    from nmtkit.analyze import ANALYSES

    if args and args[0].startswith("-") and not {"-h", "--help"} & set(args):
        for place, word in enumerate(args):
            if word in ANALYSES and args[place - 1] not in {
                "--system",
                "--set-name",
                "--run",
                "--format",
                "--table",
            }:
                return [word, *args[:place], *args[place + 1 :]]
    return list(args)


group = typer.Typer(cls=_Analyses, invoke_without_command=True, add_completion=False)
app.add_typer(group, name="analyze")


@group.callback(
    epilog=examples(
        "nmtkit analyze",
        "nmtkit analyze cost --help",
        "nmtkit analyze cost --measure --system baseline --system mine",
        "nmtkit analyze my_package.my_file:MyAnalysis",
    ),
)
def analyze(ctx: typer.Context) -> None:
    """Look inside the systems: table, figure and one sentence on how to read them."""
    if ctx.invoked_subcommand is None:
        from nmtkit.analyze import ANALYSES

        console.print_table(
            "",
            ["<analysis", "<what it shows"],
            [[name, shows] for name, shows in ANALYSES.items()],
        )
